"""The file of a datastore; `checked_file` says how it is laid out.

Its header says what the arrays are (see `Header`); for every shard of N tokens

  low       uint16 [N]: ids, or their lower 16 bits; uint32 where an id has
            more than 24 bits
  high      uint8 [N]: bits 16 to 23, where ids have as many
  suffixes  uint32 [N - documents]: see `suffix_array`
"""

from collections.abc import Mapping
import dataclasses
import hashlib
import json
from typing import Any
from typing import BinaryIO

import numpy as np

from speculative.retrieval import checked_file
from speculative.retrieval.checked_file import Array
from speculative.retrieval.checked_file import Damaged

FORMAT = checked_file.Format(
    b'\x89SPECDS\n', 1, 'datastore', 'task build_datastore'
)

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


def read_header(file: BinaryIO) -> Header:
  """Reads and checks the header.

  Args:
    file: at its beginning.

  Returns:
    The Header; its arrays lie inside the file.

  Raises:
    Damaged: If it is no datastore, of another version, cut short or corrupt.
  """
  return checked_file.read_header(file, FORMAT, _parse)


def _parse(fields: dict[str, Any], end: int) -> Header:
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
  header = Header(sources=sources, shards=shards, **fields)
  _check(header, end)
  return header


def _check(header: Header, end: int) -> None:
  """Refuses arrays that lie elsewhere or do not fit each other."""
  names = {'low', 'suffixes'} | ({'high'} if header.id_bytes == 3 else set())
  for shard in header.shards:
    if set(shard.arrays) != names:
      raise Damaged(f'has the arrays {sorted(shard.arrays)}')
    for name, array in shard.arrays.items():
      size = shard.num_tokens
      if name == 'suffixes':
        size -= shard.num_documents
      dtype = array_dtype(name, header.id_bytes)
      array.check(name, dtype, size=size, end=end)
