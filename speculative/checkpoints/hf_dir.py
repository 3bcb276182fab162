"""Reads a directory in the Hugging Face layout: config.json and safetensors."""

import json
import math
import pathlib
from typing import Any

import numpy as np
import safetensors

from speculative.checkpoints import reader
from speculative.errors import UserError

SUPPORTED_DTYPES = {'F64': 8, 'F32': 4, 'F16': 2, 'BF16': 2}
_INDEX = 'model.safetensors.index.json'
_SINGLE = 'model.safetensors'


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """Returns the object in a JSON file.

  Args:
    path: the file.

  Returns:
    The parsed object.

  Raises:
    UserError: If the file is absent, is not JSON, or holds no object.
  """
  try:
    d = json.loads(path.read_text(encoding='utf-8'))
  except OSError as error:
    raise UserError(
        f'{path} cannot be read ({error.strerror}); a checkpoint directory '
        'needs one.'
    ) from error
  except ValueError as error:
    raise UserError(f'{path} is not valid JSON: {error}.') from error
  if not isinstance(d, dict):
    raise UserError(f'{path} needs to hold a JSON object, got {d!r:.60}.')
  return d


class HfDirectory:
  """The tensors of a directory, in one file or in the shards of an index.

  Attributes:
    path: the directory.
    tensors: every tensor, by its name in the files.
  """

  def __init__(self, path: pathlib.Path):
    """Reads the headers of all files; no tensor.

    Args:
      path: the directory.

    Raises:
      UserError: If a file is absent, cut short or damaged, or holds a tensor
        of an unsupported dtype.
    """
    self.path = path
    self.tensors: dict[str, reader.TensorInfo] = {}
    self._files: dict[str, pathlib.Path] = {}
    weight_map = self._weight_map()
    for file in self._shards(weight_map):
      self._read_header(file)
    lost = [name for name in weight_map if name not in self.tensors]
    if lost:
      raise UserError(
          f'{path / _INDEX} names tensors that its files do not hold: '
          f'{reader.listing(lost)}; fetch the files again.'
      )
    refused = [
        f'{name} ({info.dtype})'
        for name, info in self.tensors.items()
        if info.dtype not in SUPPORTED_DTYPES
    ]
    if refused:
      raise UserError(
          f'{path}: dtype of {reader.listing(refused, limit=3)} is not '
          f'supported; known: {", ".join(SUPPORTED_DTYPES)}.'
      )

  def read(self, name: str) -> np.ndarray:
    """Returns one tensor in the dtype of the file.

    Args:
      name: a key of `tensors`.

    Returns:
      An array the caller owns.

    Raises:
      UserError: If the file was damaged since it was opened.
    """
    # Opened anew each time: an open map would keep every page it has touched.
    file = self._files[name]
    try:
      with safetensors.safe_open(file, framework='np') as tensors:
        return tensors.get_tensor(name)
    except (OSError, safetensors.SafetensorError) as error:
      raise UserError(
          f'{file} changed while it was read ({error}); fetch it again.'
      ) from error

  def _weight_map(self) -> dict[str, str]:
    if not (self.path / _INDEX).exists():
      return {}
    weight_map = read_json(self.path / _INDEX).get('weight_map')
    if not isinstance(weight_map, dict) or not weight_map:
      raise UserError(f'{self.path / _INDEX} needs a non-empty "weight_map".')
    return weight_map

  def _shards(self, weight_map: dict[str, str]) -> list[pathlib.Path]:
    names = sorted(set(weight_map.values())) or [_SINGLE]
    absent = [name for name in names if not (self.path / name).is_file()]
    if absent and not weight_map:
      raise UserError(
          f'{self.path} holds neither {_SINGLE} nor {_INDEX}; convert the '
          'weights to safetensors or fetch them again.'
      )
    if absent:
      raise UserError(
          f'{self.path} lacks {len(absent)} of {len(names)} weight files: '
          f'{reader.listing(absent)}; fetch them again.'
      )
    return [self.path / name for name in names]

  def _read_header(self, file: pathlib.Path) -> None:
    try:
      with safetensors.safe_open(file, framework='np') as tensors:
        for name in tensors.keys():
          view = tensors.get_slice(name)
          shape, dtype = tuple(view.get_shape()), view.get_dtype()
          width = SUPPORTED_DTYPES.get(dtype, 0)
          self.tensors[name] = reader.TensorInfo(
              shape, dtype, math.prod(shape) * width
          )
          self._files[name] = file
    except (OSError, safetensors.SafetensorError) as error:
      raise UserError(
          f'{file} is cut short or not a safetensors file ({error}); fetch it '
          'again.'
      ) from error
