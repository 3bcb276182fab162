"""Token ids of a corpus with their suffix arrays, on disk.

A datastore is made of shards, each searched by itself: a shard is what had to
fit into memory while its suffix array was built. Documents end with a
separator, an id that no token has, so that nothing matches or goes on across
their bounds.
"""

from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
import os
import pathlib
from typing import Any

import numpy as np

from speculative.retrieval import checked_file
from speculative.retrieval import store_file
from speculative.retrieval import store_writer
from speculative.retrieval import suffix_array
from speculative.retrieval.store_file import Header
from speculative.retrieval.store_file import ShardHeader
from speculative.retrieval.store_file import Source

VERIFY = ('header', 'all')


def id_bytes(vocab_size: int) -> int:
  """Returns the bytes of an id, of 2, 3 and 4, that separators fit into.

  Args:
    vocab_size: of the tokenizer; the separator comes after it.
  """
  return next(n for n in (2, 3, 4) if vocab_size < 256**n)


@dataclasses.dataclass(frozen=True)
class Facts:
  """What is known of a datastore before its shards are.

  Attributes:
    tokenizer: fingerprint.
    vocab_size: ids are below it; it is the separator itself.
    depth: tokens by which places are sorted, the longest query.
    sources: of the documents.
    about: whatever else shall be kept, JSON.
  """

  tokenizer: str
  vocab_size: int
  depth: int = 16
  sources: tuple[Source, ...] = ()
  about: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, eq=False)
class ShardView:
  """One shard, in memory or in a file.

  Attributes:
    low: ids, or their lower 16 bits: uint16 [N], uint32 for ids of 4 bytes.
    high: uint8 [N], bits 16 to 23; None where ids have 2 or 4 bytes.
    suffixes: uint32 [N - documents], places in order.
    num_documents: each ended by a separator.
  """

  low: np.ndarray
  high: np.ndarray | None
  suffixes: np.ndarray
  num_documents: int

  @property
  def num_tokens(self) -> int:
    """N, separators included."""
    return len(self.low)

  def tokens(self) -> np.ndarray:
    """Returns ids.

    Returns:
      A view, uint16 or uint32; or a new uint32 array where there is `high`.
    """
    if self.high is None:
      return self.low
    return self.low | (self.high.astype(np.uint32) << np.uint32(16))


def make_shard(
    tokens_N: np.ndarray,
    *,
    separator: int,
    depth: int = 16,
    num_threads: int = 0,
) -> ShardView:
  """Sorts the places of a text.

  Args:
    tokens_N: ids in [0, separator]; documents, each with a separator behind it.
    separator: the vocabulary's size.
    depth: see `suffix_array.build`.
    num_threads: see `suffix_array.build`.

  Returns:
    The ShardView.
  """
  suffixes = suffix_array.build(
      tokens_N, separator=separator, depth=depth, num_threads=num_threads
  )
  return of_suffixes(tokens_N, suffixes, separator=separator)


def of_suffixes(
    tokens_N: np.ndarray, suffixes: np.ndarray, *, separator: int
) -> ShardView:
  """Puts a text into the planes of a shard.

  Args:
    tokens_N: ids in [0, separator].
    suffixes: uint32, its places in order.
    separator: the vocabulary's size.

  Returns:
    The ShardView.
  """
  width = id_bytes(separator)
  high = None
  if width == 3:
    high = (tokens_N >> 16).astype(np.uint8)
  low = tokens_N.astype(
      store_file.array_dtype('low', width), copy=False, casting='unsafe'
  )
  return ShardView(low, high, suffixes, len(tokens_N) - len(suffixes))


@dataclasses.dataclass(frozen=True, eq=False)
class Datastore:
  """An open datastore; its arrays are views into the file.

  Attributes:
    path: of the file.
    header: as read.
    shards: in order.
  """

  path: pathlib.Path
  header: Header
  shards: tuple[ShardView, ...]

  @property
  def num_tokens(self) -> int:
    """Tokens of all shards, separators included."""
    return sum(shard.num_tokens for shard in self.shards)

  @property
  def num_documents(self) -> int:
    """Documents of all shards."""
    return sum(shard.num_documents for shard in self.shards)

  @property
  def num_bytes(self) -> int:
    """Bytes of all arrays."""
    arrays = [
        array
        for shard in self.shards
        for array in (shard.low, shard.high, shard.suffixes)
    ]
    return sum(array.nbytes for array in arrays if array is not None)

  @property
  def facts(self) -> Facts:
    """What it was written with."""
    header = self.header
    return Facts(
        tokenizer=header.tokenizer,
        vocab_size=header.vocab_size,
        depth=header.depth,
        sources=header.sources,
        about=header.about,
    )


def open_store(
    path: str | os.PathLike[str],
    *,
    tokenizer: str | None = None,
    verify: str = 'header',
) -> Datastore:
  """Opens a datastore to read.

  Args:
    path: of the file.
    tokenizer: fingerprint it has to have; None for any.
    verify: 'header' checks the header and the places and sizes of the arrays;
      'all' also reads the arrays and compares their checksums, about a second
      a gigabyte.

  Returns:
    The Datastore.

  Raises:
    UserError: If it is absent, damaged, of another version or another
      tokenizer.
    ValueError: If verify is neither.
  """
  if verify not in VERIFY:
    raise ValueError(f'verify is {verify!r}, not one of {VERIFY}.')
  path = pathlib.Path(path).expanduser()
  with checked_file.explained(path, store_file.FORMAT):
    # One file for all of it: another may take its place in between.
    with open(path, 'rb') as file:
      header = store_file.read_header(file)
      data = np.memmap(file, np.uint8, mode='r').view(np.ndarray)
    if tokenizer is not None:
      checked_file.check_tokenizer(
          path, store_file.FORMAT, found=header.tokenizer, wanted=tokenizer
      )
    shards = tuple(
        _view(data, shard, header.id_bytes) for shard in header.shards
    )
    if verify == 'all':
      _verify(header, shards)
  return Datastore(path, header, shards)


def _view(data: np.ndarray, shard: ShardHeader, width: int) -> ShardView:
  arrays = {
      name: array.view(data, store_file.array_dtype(name, width))
      for name, array in shard.arrays.items()
  }
  return ShardView(
      arrays['low'],
      arrays.get('high'),
      arrays['suffixes'],
      shard.num_documents,
  )


def _verify(header: Header, shards: tuple[ShardView, ...]) -> None:
  for number, (said, shard) in enumerate(
      zip(header.shards, shards, strict=True)
  ):
    for name, array in said.arrays.items():
      if checked_file.checksum(getattr(shard, name)) != array.sha256:
        raise checked_file.Damaged(
            f'is corrupt: the checksum of {name} of shard {number} is another'
        )


def write(
    path: str | os.PathLike[str], facts: Facts, shards: Iterable[ShardView]
) -> None:
  """Writes a datastore, in place of an older one when all of it is there.

  Args:
    path: of the file.
    facts: what is known of it.
    shards: made for these facts; taken one at a time.

  Raises:
    UserError: If it cannot be written; an older file is untouched then.
  """
  path = pathlib.Path(path).expanduser()
  width = id_bytes(facts.vocab_size)
  written = []

  def header() -> Header:
    return Header(
        tokenizer=facts.tokenizer,
        vocab_size=facts.vocab_size,
        separator=facts.vocab_size,
        id_bytes=width,
        depth=facts.depth,
        sources=facts.sources,
        about=facts.about,
        shards=tuple(written),
    )

  with store_writer.replacing(path, store_file.FORMAT, header) as file:
    for shard in shards:
      arrays = {'low': shard.low, 'high': shard.high}
      arrays['suffixes'] = shard.suffixes
      written.append(
          ShardHeader(
              num_tokens=shard.num_tokens,
              num_documents=shard.num_documents,
              arrays={
                  name: file.add(_as(array, name, width))
                  for name, array in arrays.items()
                  if array is not None
              },
          )
      )


def _as(array: np.ndarray, name: str, width: int) -> np.ndarray:
  return array.astype(store_file.array_dtype(name, width), copy=False)
