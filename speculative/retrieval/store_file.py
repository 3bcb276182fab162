"""The bytes of a datastore: one file, little-endian, read by memory map.

  0     8   magic, which no text file begins with
  8     4   version
  12    4   zero
  16    8   where the header begins
  24    8   its length
  32    32  its SHA-256
  64        arrays, each at a multiple of 64
  ...       header: JSON, up to the end of the file

The header comes last because a writer knows all checksums only then. It says
what the arrays are (see `Header`); for every shard of N tokens

  low       uint16 [N]: ids, or their lower 16 bits; uint32 where an id has
            more than 24 bits
  high      uint8 [N]: bits 16 to 23, where ids have as many
  suffixes  uint32 [N - documents]: see `suffix_array`

A file is written beside its place and renamed: whoever opens it finds the old
one or the new one, and a writer that dies leaves the old one.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import struct
from typing import Any
from typing import BinaryIO

import numpy as np

from speculative.errors import UserError

MAGIC = b'\x89SPECDS\n'
VERSION = 1
PREAMBLE = struct.Struct('<8sIIQQ32s')
ALIGNMENT = 64
# Bytes copied or summed at once.
_BLOCK = 1 << 24

DTYPES = {
    'low16': np.dtype('<u2'),
    'low32': np.dtype('<u4'),
    'high': np.dtype('u1'),
    'suffixes': np.dtype('<u4'),
}


def array_dtype(name: str, id_bytes: int) -> np.dtype:
  """Returns the type of an array of the file.

  Args:
    name: 'low', 'high' or 'suffixes'.
    id_bytes: of a token, 2 to 4.
  """
  if name == 'low':
    name = 'low32' if id_bytes == 4 else 'low16'
  return DTYPES[name]


@dataclasses.dataclass(frozen=True)
class Source:
  """Where documents came from.

  Attributes:
    name: as the user gave it.
    num_documents: taken from there.
    num_tokens: of them, separators included.
    num_left_out: documents of which some or all was not taken, because it is
      evaluated.
    left_out_tokens: of those documents, not taken.
  """

  name: str
  num_documents: int = 0
  num_tokens: int = 0
  num_left_out: int = 0
  left_out_tokens: int = 0

  def plus(self, other: 'Source') -> 'Source':
    """Returns it with the counts of another one added.

    Args:
      other: whose name does not count.
    """
    return Source(
        name=self.name,
        num_documents=self.num_documents + other.num_documents,
        num_tokens=self.num_tokens + other.num_tokens,
        num_left_out=self.num_left_out + other.num_left_out,
        left_out_tokens=self.left_out_tokens + other.left_out_tokens,
    )


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


@dataclasses.dataclass(frozen=True)
class ShardHeader:
  """What the header says of a shard.

  Attributes:
    num_tokens: N, separators included.
    num_documents: each ended by a separator.
    arrays: by name.
  """

  num_tokens: int
  num_documents: int
  arrays: Mapping[str, Array]


@dataclasses.dataclass(frozen=True)
class Header:
  """What the header says.

  Attributes:
    tokenizer: fingerprint of what made the ids.
    vocab_size: ids are below it.
    separator: the id that ends every document.
    id_bytes: 2, 3 or 4.
    depth: tokens by which places are sorted.
    sources: of the documents.
    about: whatever else the builder noted, JSON.
    shards: in the order of the file.
  """

  tokenizer: str
  vocab_size: int
  separator: int
  id_bytes: int
  depth: int
  sources: tuple[Source, ...]
  about: Mapping[str, Any]
  shards: tuple[ShardHeader, ...]

  @property
  def digest(self) -> str:
    """SHA-256 of all of it, and so of the arrays, hexadecimal."""
    text = json.dumps(dataclasses.asdict(self))
    return hashlib.sha256(text.encode()).hexdigest()


class Damaged(Exception):
  """A file is not what it should be; says in what way."""


@contextlib.contextmanager
def explained(path: pathlib.Path) -> Iterator[None]:
  """Turns what is wrong with a file that is read into the user's error.

  Args:
    path: of the file.

  Raises:
    UserError: Naming the path.
  """
  try:
    yield
  except FileNotFoundError as error:
    raise UserError(
        f'there is no datastore {path}; build it with task build_datastore, '
        'or name another file.'
    ) from error
  except Damaged as error:
    raise UserError(
        f'datastore {path} {error}; build it again, or name another file.'
    ) from error
  except OSError as error:
    raise UserError(
        f'datastore {path} cannot be read ({error.strerror or error}); name '
        'another file.'
    ) from error


def read_header(file: BinaryIO) -> Header:
  """Reads and checks the header.

  Args:
    file: at its beginning.

  Returns:
    The Header; its arrays lie inside the file.

  Raises:
    Damaged: If it is no datastore, of another version, cut short or corrupt.
  """
  size = os.fstat(file.fileno()).st_size
  start = file.read(PREAMBLE.size)
  if not start.startswith(MAGIC):
    raise Damaged('is no datastore: it begins otherwise')
  if len(start) < PREAMBLE.size:
    raise Damaged(f'is cut short: it has {size} bytes')
  _, version, _, offset, length, digest = PREAMBLE.unpack(start)
  if version != VERSION:
    raise Damaged(f'has version {version}, not {VERSION}')
  if offset + length != size:
    raise Damaged(f'has {size} bytes where {offset + length} were written')
  file.seek(offset)
  text = file.read(length)
  if hashlib.sha256(text).digest() != digest:
    raise Damaged('is corrupt: the checksum of its header is another')
  try:
    header = _parse(json.loads(text))
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise Damaged(f'has a header that cannot be read ({error})') from error
  _check(header, offset)
  return header


def _parse(fields: dict[str, Any]) -> Header:
  sources = tuple(Source(**source) for source in fields.pop('sources'))
  shards = tuple(
      ShardHeader(
          num_tokens=shard['num_tokens'],
          num_documents=shard['num_documents'],
          arrays={
              name: Array(**array) for name, array in shard['arrays'].items()
          },
      )
      for shard in fields.pop('shards')
  )
  return Header(sources=sources, shards=shards, **fields)


def _check(header: Header, end: int) -> None:
  """Refuses arrays that lie elsewhere or do not fit each other."""
  names = {'low', 'suffixes'} | ({'high'} if header.id_bytes == 3 else set())
  for shard in header.shards:
    if set(shard.arrays) != names:
      raise Damaged(f'has the arrays {sorted(shard.arrays)}')
    for name, array in shard.arrays.items():
      wanted = shard.num_tokens
      if name == 'suffixes':
        wanted -= shard.num_documents
      last = array.offset + array.size * (
          array_dtype(name, header.id_bytes).itemsize
      )
      inside = PREAMBLE.size <= array.offset <= last <= end
      if array.size != wanted or not inside or array.offset % ALIGNMENT:
        raise Damaged(f'has an array {name} of {array.size} entries')


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
