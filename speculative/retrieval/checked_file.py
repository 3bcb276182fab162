"""A file of arrays behind checksums, little-endian, read by memory map.

  0     8   magic, which no text file begins with
  8     4   version
  12    4   zero
  16    8   where the header begins
  24    8   its length
  32    32  its SHA-256
  64        arrays, each at a multiple of 64
  ...       header: JSON, up to the end of the file

The header comes last because a writer knows all checksums only then. What it
says, and what the arrays are, is a matter of the format.

A file is written beside its place and renamed: whoever opens it finds the old
one or the new one, and a writer that dies leaves the old one.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import struct
from typing import Any
from typing import BinaryIO
from typing import TypeVar

import numpy as np

from speculative.errors import UserError

PREAMBLE = struct.Struct('<8sIIQQ32s')
ALIGNMENT = 64
# Bytes copied or summed at once.
_BLOCK = 1 << 24

Header = TypeVar('Header')


@dataclasses.dataclass(frozen=True)
class Format:
  """What tells files of one kind from others.

  Attributes:
    magic: their first 8 bytes.
    version: of what comes behind.
    name: of one of them, in words.
    made_with: what makes one, in words.
  """

  magic: bytes
  version: int
  name: str
  made_with: str


@dataclasses.dataclass(frozen=True)
class Array:
  """Where an array lies.

  Attributes:
    offset: of its first byte.
    size: in entries.
    sha256: of its bytes, hexadecimal.
  """

  offset: int
  size: int
  sha256: str

  def check(self, name: str, dtype: np.dtype, *, size: int, end: int) -> None:
    """Refuses an array that lies elsewhere or does not fit.

    Args:
      name: of the array.
      dtype: of its entries.
      size: entries it needs to have.
      end: where the header begins.

    Raises:
      Damaged: If it is so.
    """
    last = self.offset + self.size * dtype.itemsize
    inside = PREAMBLE.size <= self.offset <= last <= end
    if self.size != size or not inside or self.offset % ALIGNMENT:
      raise Damaged(f'has an array {name} of {self.size} entries')

  def view(self, data: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Returns the array.

    Args:
      data: uint8, all of the file.
      dtype: of its entries.
    """
    end = self.offset + self.size * dtype.itemsize
    return data[self.offset : end].view(dtype)


class Damaged(Exception):
  """A file is not what it should be; says in what way."""


@contextlib.contextmanager
def explained(path: pathlib.Path, form: Format) -> Iterator[None]:
  """Turns what is wrong with a file that is read into the user's error.

  Args:
    path: of the file.
    form: that it should have.

  Raises:
    UserError: Naming the path.
  """
  try:
    yield
  except FileNotFoundError as error:
    raise UserError(
        f'there is no {form.name} {path}; build it with {form.made_with}, or '
        'name another file.'
    ) from error
  except Damaged as error:
    raise UserError(
        f'{form.name} {path} {error}; build it again, or name another file.'
    ) from error
  except OSError as error:
    raise UserError(
        f'{form.name} {path} cannot be read ({error.strerror or error}); name '
        'another file.'
    ) from error


def check_tokenizer(
    path: pathlib.Path, form: Format, *, found: str, wanted: str
) -> None:
  """Refuses a file of another tokenizer's ids.

  Args:
    path: of the file.
    form: of it.
    found: fingerprint that it has.
    wanted: that it needs to have.

  Raises:
    UserError: If they differ.
  """
  if found != wanted:
    raise UserError(
        f'{form.name} {path} holds ids of the tokenizer {found[:12]}..., but '
        f'the model has {wanted[:12]}...; build one for this model.'
    )


def read_header(
    file: BinaryIO,
    form: Format,
    parse: Callable[[dict[str, Any], int], Header],
) -> Header:
  """Reads and checks the header.

  Args:
    file: at its beginning.
    form: that it needs to have.
    parse: makes the header of its fields and of where it begins, which is the
      end of all arrays; what it finds wrong with these it says by Damaged.

  Returns:
    The header.

  Raises:
    Damaged: If the file has another format or version, is cut short or corrupt.
  """
  size = os.fstat(file.fileno()).st_size
  start = file.read(PREAMBLE.size)
  if not start.startswith(form.magic):
    raise Damaged(f'is no {form.name}: it begins otherwise')
  if len(start) < PREAMBLE.size:
    raise Damaged(f'is cut short: it has {size} bytes')
  _, version, _, offset, length, digest = PREAMBLE.unpack(start)
  if version != form.version:
    raise Damaged(f'has version {version}, not {form.version}')
  if offset + length != size:
    raise Damaged(f'has {size} bytes where {offset + length} were written')
  file.seek(offset)
  text = file.read(length)
  if hashlib.sha256(text).digest() != digest:
    raise Damaged('is corrupt: the checksum of its header is another')
  try:
    return parse(json.loads(text), offset)
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise Damaged(f'has a header that cannot be read ({error})') from error


def checksum(data: np.ndarray) -> str:
  """Returns the SHA-256 of an array's bytes, hexadecimal.

  Args:
    data: a memory map is read block by block.
  """
  digest = hashlib.sha256()
  for block in blocks(data):
    digest.update(block)
  return digest.hexdigest()


def blocks(data: np.ndarray) -> Iterator[np.ndarray]:
  """Yields an array's bytes, some at a time.

  Args:
    data: of any type.
  """
  step = max(1, _BLOCK // data.itemsize)
  for start in range(0, len(data), step):
    yield np.ascontiguousarray(data[start : start + step]).view(np.uint8)
