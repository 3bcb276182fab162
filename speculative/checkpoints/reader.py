"""What every file format offers the loader: names, shapes, one tensor."""

from collections.abc import Mapping
import dataclasses
from typing import Protocol

import numpy as np


@dataclasses.dataclass(frozen=True)
class TensorInfo:
  """One tensor of a file, known without reading it.

  Attributes:
    shape: its dimensions, rows first.
    dtype: how the file stores its values, in the format's own spelling.
    num_bytes: what it takes in the file.
  """

  shape: tuple[int, ...]
  dtype: str
  num_bytes: int


class TensorReader(Protocol):
  """An open checkpoint file or directory.

  Attributes:
    tensors: every tensor of the checkpoint, by its name in the file.
  """

  tensors: Mapping[str, TensorInfo]

  def read(self, name: str) -> np.ndarray:
    """Returns one tensor in host memory that the caller owns.

    Args:
      name: a key of `tensors`.

    Returns:
      The values, in the shape of `tensors[name]` and some float dtype.
    """
    ...


def listing(items: list[str], limit: int = 20) -> str:
  """Joins items for a message, naming the first ones and counting the rest.

  Args:
    items: what to list.
    limit: how many are named.

  Returns:
    'a, b, c' or 'a, b, … and 12 more'.
  """
  if len(items) <= limit:
    return ', '.join(items)
  return f'{", ".join(items[:limit])}, … and {len(items) - limit} more'
