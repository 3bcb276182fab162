"""A table of the tokens that follow every token most often.

The file is one of arrays behind checksums (see `checked_file`):

  successors       int32 [V W], likeliest first; -1 where there are fewer
  counts           int64 [V W], how often each followed
  totals           int64 [V], pairs that begin with the token
  frequent         int32 [W], the most frequent tokens; -1 where there are fewer
  frequent_counts  int64 [W]
"""

from collections.abc import Mapping
import dataclasses
import os
import pathlib
from typing import Any

import flax.struct
import jax
from jax import numpy as jnp
import numpy as np

from speculative.retrieval import checked_file
from speculative.retrieval import store_writer
from speculative.retrieval.bigram_counts import Counted
from speculative.retrieval.checked_file import Array
from speculative.retrieval.checked_file import Damaged
from speculative.retrieval.store_file import Source

FORMAT = checked_file.Format(
    b'\x89SPECBG\n',
    1,
    'bigram table',
    "task build_datastore and config.datastore.mode='bigram'",
)
# Rows of it are sorted in every round.
MOST_SUCCESSORS = 64
_INT32, _INT64 = np.dtype('<i4'), np.dtype('<i8')
_DTYPES = {
    'successors': _INT32,
    'counts': _INT64,
    'totals': _INT64,
    'frequent': _INT32,
    'frequent_counts': _INT64,
}


@dataclasses.dataclass(frozen=True)
class Header:
  """What the header says.

  Attributes:
    tokenizer: fingerprint of what made the ids.
    vocab_size: V.
    num_successors: W.
    num_tokens: of all documents, which have no separators here.
    num_distinct: pairs that differ.
    sources: of the documents.
    arrays: by name.
  """

  tokenizer: str
  vocab_size: int
  num_successors: int
  num_tokens: int
  num_distinct: int
  sources: tuple[Source, ...]
  arrays: Mapping[str, Array]

  @property
  def sizes(self) -> dict[str, int]:
    """Entries of every array."""
    V, W = self.vocab_size, self.num_successors
    return {
        'successors': V * W,
        'counts': V * W,
        'totals': V,
        'frequent': W,
        'frequent_counts': W,
    }


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
  """An open table; its arrays are views into the file.

  Attributes:
    path: of the file.
    header: as read.
    counted: what it holds.
  """

  path: pathlib.Path
  header: Header
  counted: Counted


def _parse(fields: dict[str, Any], end: int) -> Header:
  sources = tuple(Source(**source) for source in fields.pop('sources'))
  arrays = {name: Array(**x) for name, x in fields.pop('arrays').items()}
  header = Header(sources=sources, arrays=arrays, **fields)
  if set(arrays) != set(_DTYPES):
    raise Damaged(f'has the arrays {sorted(arrays)}')
  for name, size in header.sizes.items():
    arrays[name].check(name, _DTYPES[name], size=size, end=end)
  return header


def open_table(
    path: str | os.PathLike[str], *, tokenizer: str | None = None
) -> Table:
  """Opens a table and compares all its checksums.

  Args:
    path: of the file.
    tokenizer: fingerprint it has to have; None for any.

  Returns:
    The Table.

  Raises:
    UserError: If it is absent, damaged, of another version or another
      tokenizer.
  """
  path = pathlib.Path(path).expanduser()
  with checked_file.explained(path, FORMAT):
    with open(path, 'rb') as file:
      header = checked_file.read_header(file, FORMAT, _parse)
      data = np.memmap(file, np.uint8, mode='r').view(np.ndarray)
    if tokenizer is not None:
      checked_file.check_tokenizer(
          path, FORMAT, found=header.tokenizer, wanted=tokenizer
      )
    views = {}
    for name, array in header.arrays.items():
      views[name] = array.view(data, _DTYPES[name])
      if checked_file.checksum(views[name]) != array.sha256:
        raise Damaged(f'is corrupt: the checksum of {name} is another')
  shape = (header.vocab_size, header.num_successors)
  counted = Counted(
      successors_VW=views['successors'].reshape(shape),
      counts_VW=views['counts'].reshape(shape),
      totals_V=views['totals'],
      frequent_W=views['frequent'],
      frequent_counts_W=views['frequent_counts'],
      num_tokens=header.num_tokens,
      num_distinct=header.num_distinct,
  )
  return Table(path, header, counted)


def write(
    path: str | os.PathLike[str],
    counted: Counted,
    *,
    tokenizer: str,
    sources: tuple[Source, ...] = (),
) -> None:
  """Writes a table, in place of an older one when all of it is there.

  Args:
    path: of the file.
    counted: what it holds.
    tokenizer: fingerprint of what made the ids.
    sources: of the documents.

  Raises:
    UserError: If it cannot be written; an older file is untouched then.
  """
  arrays = {
      'successors': counted.successors_VW.reshape(-1),
      'counts': counted.counts_VW.reshape(-1),
      'totals': counted.totals_V,
      'frequent': counted.frequent_W,
      'frequent_counts': counted.frequent_counts_W,
  }
  written: dict[str, Array] = {}

  def header() -> Header:
    V, W = counted.successors_VW.shape
    return Header(
        tokenizer=tokenizer,
        vocab_size=V,
        num_successors=W,
        num_tokens=counted.num_tokens,
        num_distinct=counted.num_distinct,
        sources=sources,
        arrays=written,
    )

  path = pathlib.Path(path).expanduser()
  with store_writer.replacing(path, FORMAT, header) as file:
    for name, array in arrays.items():
      written[name] = file.add(array.astype(_DTYPES[name], copy=False))


@flax.struct.dataclass
class DeviceTable:
  """A table as drafts are made from it.

  Attributes:
    tokens_VW: int32, what follows every token, likeliest first; -1 where there
      are fewer.
    score_VW: float32, logarithm of how often, of all that followed; -inf where
      there are fewer.
    frequent_W: int32, the most frequent tokens; -1 where there are fewer.
    frequent_score_W: float32, logarithm of how often, of all tokens.
  """

  tokens_VW: jax.Array
  score_VW: jax.Array
  frequent_W: jax.Array
  frequent_score_W: jax.Array

  @property
  def num_successors(self) -> int:
    """W."""
    return self.tokens_VW.shape[1]

  def after(
      self, tokens_BN: jax.Array, *, fallback: str
  ) -> tuple[jax.Array, jax.Array]:
    """Looks up what follows tokens.

    Args:
      tokens_BN: int32; those outside the vocabulary have no successors.
      fallback: what follows tokens without successors: the most 'frequent'
        tokens, or 'none'.

    Returns:
      Tokens, int32 [B, N, W], and their scores, float32 [B, N, W].
    """
    row_BN = jnp.clip(tokens_BN, 0, self.tokens_VW.shape[0] - 1)
    next_BNW, score_BNW = self.tokens_VW[row_BN], self.score_VW[row_BN]
    is_known_BN1 = ((row_BN == tokens_BN) & (next_BNW[..., 0] >= 0))[..., None]
    frequent_W, frequent_score_W = self.frequent_W, self.frequent_score_W
    if fallback == 'none':
      frequent_W = jnp.full_like(frequent_W, -1)
      frequent_score_W = jnp.full_like(frequent_score_W, -jnp.inf)
    return (
        jnp.where(is_known_BN1, next_BNW, frequent_W[None, None, :]),
        jnp.where(is_known_BN1, score_BNW, frequent_score_W[None, None, :]),
    )


def for_device(counted: Counted) -> DeviceTable:
  """Returns a table of host arrays.

  Args:
    counted: what it holds.
  """
  return DeviceTable(
      tokens_VW=np.asarray(counted.successors_VW, np.int32),
      score_VW=_log_share(counted.counts_VW, counted.totals_V[:, None]),
      frequent_W=np.asarray(counted.frequent_W, np.int32),
      frequent_score_W=_log_share(
          counted.frequent_counts_W, np.int64(counted.num_tokens)
      ),
  )


def _log_share(counts: np.ndarray, totals: np.ndarray) -> np.ndarray:
  """Returns the float32 logarithm of counts over totals; -inf of nothing."""
  share = counts / np.maximum(totals, 1)
  some = counts > 0
  return np.where(some, np.log(np.where(some, share, 1.0)), -np.inf).astype(
      np.float32
  )
