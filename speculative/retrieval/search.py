"""Longest-suffix search on the device, and what followed the matches.

The ends of a text of every length up to `max_ngram` are looked up at once, both
bounds of their intervals in the suffix array by one binary search (REST,
arXiv:2311.08252, looks from the longest on, one after another). What followed
the longest is read, or, with back-off, what followed shorter ones as well:
where few places know the longest end its tree has few nodes, and shorter ends
fill it. Letters: N tokens of a shard, P shards, G lengths, R rows of C tokens
that followed.
"""

import functools
from typing import Any

import flax.struct
import jax
from jax import numpy as jnp
import numpy as np

from speculative.retrieval.device_store import DeviceShard
from speculative.retrieval.device_store import DeviceStore

# Above every id; differences of ids do not overflow.
_NO_TOKEN = 2**30
_MOST = 2**31 - 1


# With back-off a match counts twice what one that is a token shorter does, up
# to this length: beyond it what follows is rarely in doubt.
_MOST_DOUBLED = 6


@flax.struct.dataclass
class Match:
  """Ends of every row's text that the store knows, longest first.

  Attributes:
    length_BG: int32, in tokens; 0 where the store does not know the end.
    low_BGP: int32, first of the shard's suffixes that begin with it.
    high_BGP: int32, one after the last; low where a shard does not know it.
  """

  length_BG: jax.Array
  low_BGP: jax.Array
  high_BGP: jax.Array

  @property
  def length_B(self) -> jax.Array:
    """Of the longest; 0 where none is known."""
    return self.length_BG.max(axis=1)

  @property
  def count_BG(self) -> jax.Array:
    """Occurrences in all shards; of more than int32 holds, what it holds."""
    return total(self.high_BGP - self.low_BGP, axis=2)


@flax.struct.dataclass
class Continuations:
  """What followed the matches of every row's text.

  Attributes:
    tokens_BRC: int32, zeros beyond the length of a row.
    len_BR: int32, tokens that count.
    weight_BR: int32, what a row counts; 0 where there is none.
  """

  tokens_BRC: jax.Array
  len_BR: jax.Array
  weight_BR: jax.Array


def middle(low: jax.Array, high: jax.Array) -> jax.Array:
  """Returns what lies halfway, of bounds whose sum int32 may not hold.

  Args:
    low: int32.
    high: int32, not below.
  """
  return low + ((high - low) >> 1)


def total(counts: jax.Array, axis: int) -> jax.Array:
  """Returns sums that stop at what int32 holds.

  Args:
    counts: int32, none negative.
    axis: to sum over; a few entries long.
  """
  counts = jnp.moveaxis(counts, axis, 0)
  return functools.reduce(
      _add, counts, jnp.zeros(counts.shape[1:], counts.dtype)
  )


def _add(whole: jax.Array, count: jax.Array) -> jax.Array:
  return whole + jnp.minimum(count, _MOST - whole)


def _ends(
    text_BS: jax.Array, seq_len_B: jax.Array, lengths_G: np.ndarray
) -> jax.Array:
  """Returns [B, G, max(lengths)] the ends of texts, from their first token."""
  step_1N = np.arange(lengths_G[-1], dtype=np.int32)[None, :]
  back_GN = lengths_G[:, None] - step_1N
  index_BGN = seq_len_B[:, None, None] - back_GN[None]
  B, S = text_BS.shape
  index_BGN = jnp.clip(index_BGN, 0, S - 1)
  flat = jnp.take_along_axis(text_BS, index_BGN.reshape(B, -1), axis=1)
  return flat.reshape(index_BGN.shape)


def _bounds(
    shard: DeviceShard, ends_BGN: jax.Array, lengths_G: np.ndarray
) -> tuple[jax.Array, jax.Array]:
  """Returns [B, G] the interval of suffixes that begin with each end."""
  B, G, width = ends_BGN.shape
  # The first token that differs outweighs all after it.
  place_GN = lengths_G[:, None] - 1 - np.arange(width)[None, :]
  worth_GN = np.where(place_GN >= 0, 2 ** np.maximum(place_GN, 0), 0)
  worth_GN = jnp.asarray(worth_GN, jnp.int32)
  # Index 0 looks for the first suffix not below the end, 1 for the first above.
  passes_211 = jnp.array([0, 1], jnp.int32)[:, None, None]

  def halve(_, bounds):
    low_2BG, high_2BG = bounds
    middle_2BG = middle(low_2BG, high_2BG)
    last = shard.suffixes_N.shape[0] - 1
    start_2BG = shard.suffixes_N.at[jnp.minimum(middle_2BG, last)].get(
        mode='promise_in_bounds'
    )
    window_2BGN = shard.windows_at(start_2BG, width)
    order_2BGN = jnp.sign(window_2BGN - ends_BGN[None]) * worth_GN[None, None]
    is_before = order_2BGN.sum(axis=-1) < passes_211
    # Where nothing is left to halve, the bounds stay.
    low = jnp.where(is_before & (low_2BG < high_2BG), middle_2BG + 1, low_2BG)
    return low, jnp.where(is_before, high_2BG, middle_2BG)

  shape = (2, B, G)
  bounds = (
      jnp.zeros(shape, jnp.int32),
      jnp.broadcast_to(shard.num_suffixes, shape).astype(jnp.int32),
  )
  num_steps = int(shard.suffixes_N.shape[0]).bit_length()
  low_2BG, _ = jax.lax.fori_loop(0, num_steps, halve, bounds)
  return low_2BG[0], low_2BG[1]


def find(
    store: DeviceStore,
    text_BS: jax.Array,
    seq_len_B: jax.Array,
    *,
    max_ngram: int,
    min_ngram: int = 1,
    backoff: bool = False,
) -> Match:
  """Finds the ends of every text that occur in any shard.

  Args:
    store: P shards.
    text_BS: int32.
    seq_len_B: int32, tokens of the text that count.
    max_ngram: longest end looked for; at most the store's depth.
    min_ngram: shortest end that counts.
    backoff: whether shorter ends than the longest are wanted.

  Returns:
    The Match, of all lengths with `backoff`, else of one.

  Raises:
    ValueError: As DeviceStore.check_ngrams.
  """
  store.check_ngrams(min_ngram, max_ngram)
  B = text_BS.shape[0]
  lengths_G = np.arange(min_ngram, max_ngram + 1, dtype=np.int32)
  if not store.shards:
    none_BGP = jnp.zeros((B, len(lengths_G) if backoff else 1, 0), jnp.int32)
    return Match(jnp.zeros(none_BGP.shape[:2], jnp.int32), none_BGP, none_BGP)
  ends_BGN = _ends(text_BS, seq_len_B, lengths_G)
  # Ids that are no tokens match nothing, the separator's own included.
  ends_BGN = jnp.where(ends_BGN < store.separator, ends_BGN, _NO_TOKEN)
  bounds = [_bounds(shard, ends_BGN, lengths_G) for shard in store.shards]
  low_BGP, high_BGP = (jnp.stack(x, axis=-1) for x in zip(*bounds, strict=True))
  lengths_1G = jnp.asarray(lengths_G)[None, :]
  known_BG = jnp.any(low_BGP < high_BGP, axis=-1)
  known_BG &= lengths_1G <= seq_len_B[:, None]
  length_BG = jnp.where(known_BG, lengths_1G, 0)
  if backoff:
    length_BG, low_BGP, high_BGP = (
        x[:, ::-1] for x in (length_BG, low_BGP, high_BGP)
    )
  else:
    best_B1 = jnp.argmax(length_BG, axis=1)[:, None]
    length_BG = jnp.take_along_axis(length_BG, best_B1, axis=1)
    low_BGP, high_BGP = (
        jnp.take_along_axis(x, best_B1[..., None], axis=1)
        for x in (low_BGP, high_BGP)
    )
  has_BGP = (length_BG > 0)[..., None] & (low_BGP < high_BGP)
  return Match(
      length_BG=length_BG,
      low_BGP=jnp.where(has_BGP, low_BGP, 0),
      high_BGP=jnp.where(has_BGP, high_BGP, 0),
  )


def of_match(x_BG: jax.Array, match_BR: jax.Array) -> jax.Array:
  """Returns [B, R] what rows have of their matches.

  Args:
    x_BG: of the matches.
    match_BR: int32, index of the match that each row is of.
  """
  return jnp.take_along_axis(x_BG, match_BR, axis=1)


def share_out(
    count_BG: jax.Array, num_rows: int
) -> tuple[jax.Array, jax.Array]:
  """Returns [B, R] the matches and their occurrences that rows stand for.

  Rows are dealt out to one match after another. A match has a row for every
  occurrence while there are rows; of the one for which they do not suffice
  those at floor(i * count / rows left) have one, written without the product,
  which int32 would not hold.

    counts 2, 5, 3, four rows: match 0 0 1 1, occurrence 0 1 0 2

  Args:
    count_BG: int32, occurrences of the matches, longest first.
    num_rows: R, below 2**15.

  Returns:
    Index of the match and number of the occurrence; rows beyond all occurrences
    have a number that the last match does not.
  """
  row_1R = jnp.arange(num_rows, dtype=jnp.int32)[None, :]
  # More than R of one make no difference, and the sum stays small.
  few_BG = jnp.minimum(count_BG, num_rows)
  end_BG = jnp.minimum(jnp.cumsum(few_BG, axis=1), num_rows)
  match_BR = (row_1R[:, :, None] >= end_BG[:, None, :]).sum(axis=2)
  match_BR = jnp.minimum(match_BR, count_BG.shape[1] - 1).astype(jnp.int32)
  start_BG = jnp.pad(end_BG[:, :-1], ((0, 0), (1, 0)))
  index_BR = row_1R - of_match(start_BG, match_BR)
  count_BR = of_match(count_BG, match_BR)
  num_BR = of_match(end_BG - start_BG, match_BR)
  whole_BR, rest_BR = jnp.divmod(count_BR, jnp.maximum(num_BR, 1))
  spaced_BR = index_BR * whole_BR
  spaced_BR += index_BR * rest_BR // jnp.maximum(num_BR, 1)
  return match_BR, jnp.where(count_BR > num_BR, spaced_BR, index_BR)


def worth(length: Any) -> Any:
  """Returns what a continuation counts with back-off, after a match.

  Args:
    length: of the match, in tokens; an integer array of the device or the host.
  """
  return 1 << length.clip(max=_MOST_DOUBLED)


def most_worth(backoff: bool) -> int:
  """Returns the most that one row of a store counts."""
  return 1 << _MOST_DOUBLED if backoff else 1


def continuations(
    store: DeviceStore,
    match: Match,
    *,
    num_rows: int,
    length: int,
    backoff: bool = False,
) -> Continuations:
  """Reads what followed the matches, up to the ends of documents.

  Rows are in the order of the matches, of the shards and of their suffixes, see
  `share_out`: frequencies are exact after a match of which all occurrences are
  read, and estimates after one of which an evenly spaced sample is.

  Args:
    store: P shards.
    match: in them.
    num_rows: R.
    length: C.
    backoff: whether a row counts what `worth` says; else 1.

  Returns:
    The Continuations.
  """
  match_BR, number_BR = share_out(match.count_BG, num_rows)
  tokens_BRC, len_BR = read(store, match, match_BR, number_BR, length=length)
  return Continuations(
      tokens_BRC=tokens_BRC,
      len_BR=len_BR,
      weight_BR=weights(
          match.length_BG, match.count_BG, match_BR, number_BR, backoff
      ),
  )


def weights(
    length_BG: jax.Array,
    count_BG: jax.Array,
    match_BR: jax.Array,
    number_BR: jax.Array,
    backoff: bool,
) -> jax.Array:
  """Returns int32 [B, R] what rows count, 0 where they stand for nothing.

  Args:
    length_BG: int32, of the matches.
    count_BG: int32, occurrences.
    match_BR: see `share_out`.
    number_BR: see `share_out`.
    backoff: see `continuations`.
  """
  length_BR = of_match(length_BG, match_BR)
  worth_BR = worth(length_BR) if backoff else jnp.ones_like(length_BR)
  return jnp.where(number_BR < of_match(count_BG, match_BR), worth_BR, 0)


def read(
    store: DeviceStore,
    match: Match,
    match_BR: jax.Array,
    number_BR: jax.Array,
    *,
    length: int,
) -> tuple[jax.Array, jax.Array]:
  """Reads what followed some occurrences.

  Args:
    store: P shards.
    match: in them.
    match_BR: int32, index of the match that each row is of.
    number_BR: int32, which of its occurrences; others than it has give nothing.
    length: C.

  Returns:
    int32 tokens [B, R, C], zeros from the end of a document on, and how many
    there are before it [B, R].
  """
  shape = (*number_BR.shape, length)
  tokens_BRC = jnp.full(shape, store.separator, jnp.int32)
  before_BR = jnp.zeros_like(number_BR)
  length_BR = of_match(match.length_BG, match_BR)
  for p, shard in enumerate(store.shards):
    low_BR = of_match(match.low_BGP[..., p], match_BR)
    count_BR = of_match(match.high_BGP[..., p], match_BR) - low_BR
    here_BR = number_BR - before_BR
    # The sum with `low` may overflow outside.
    inside_BR = (number_BR >= before_BR) & (here_BR < count_BR)
    before_BR = _add(before_BR, count_BR)
    at_BR = jnp.where(inside_BR, here_BR + low_BR, 0)
    first_BR = shard.suffixes_N.at[at_BR].get(mode='promise_in_bounds')
    read_BRC = shard.windows_at(first_BR + length_BR, length)
    tokens_BRC = jnp.where(inside_BR[..., None], read_BRC, tokens_BRC)
  inside_BRC = jnp.cumprod(tokens_BRC != store.separator, axis=-1) > 0
  len_BR = inside_BRC.sum(axis=-1).astype(jnp.int32)
  return jnp.where(inside_BRC, tokens_BRC, 0), len_BR
