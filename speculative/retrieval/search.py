"""Longest-suffix search on the device, and what followed the matches.

The ends of a text of every length up to `max_ngram` are looked up at once, both
bounds of their intervals in the suffix array by one binary search (REST,
arXiv:2311.08252, looks from the longest on, one after another). Letters: N
tokens of a shard, P shards, G lengths, R rows of C tokens that followed.
"""

import functools

import flax.struct
import jax
from jax import numpy as jnp
import numpy as np

from speculative.retrieval.device_store import DeviceShard
from speculative.retrieval.device_store import DeviceStore

# Above every id; differences of ids do not overflow.
_NO_TOKEN = 2**30
_MOST = 2**31 - 1


@flax.struct.dataclass
class Match:
  """The longest end of every row's text that the store knows.

  Attributes:
    length_B: int32, in tokens; 0 where none is known.
    low_BP: int32, first of the shard's suffixes that begin with it.
    high_BP: int32, one after the last; low where a shard does not know it.
  """

  length_B: jax.Array
  low_BP: jax.Array
  high_BP: jax.Array

  @property
  def count_B(self) -> jax.Array:
    """Occurrences in all shards; of more than int32 holds, what it holds."""
    return total(self.high_BP - self.low_BP, axis=1)


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


def longest_match(
    store: DeviceStore,
    text_BS: jax.Array,
    seq_len_B: jax.Array,
    *,
    max_ngram: int,
    min_ngram: int = 1,
) -> Match:
  """Finds the longest end of every text that occurs in any shard.

  Args:
    store: P shards.
    text_BS: int32.
    seq_len_B: int32, tokens of the text that count.
    max_ngram: longest end looked for; at most the store's depth.
    min_ngram: shortest end that counts.

  Returns:
    The Match.

  Raises:
    ValueError: As DeviceStore.check_ngrams.
  """
  store.check_ngrams(min_ngram, max_ngram)
  B = text_BS.shape[0]
  if not store.shards:
    none_BP = jnp.zeros((B, 0), jnp.int32)
    return Match(jnp.zeros(B, jnp.int32), none_BP, none_BP)
  lengths_G = np.arange(min_ngram, max_ngram + 1, dtype=np.int32)
  ends_BGN = _ends(text_BS, seq_len_B, lengths_G)
  # Ids that are no tokens match nothing, the separator's own included.
  ends_BGN = jnp.where(ends_BGN < store.separator, ends_BGN, _NO_TOKEN)
  bounds = [_bounds(shard, ends_BGN, lengths_G) for shard in store.shards]
  low_BGP, high_BGP = (jnp.stack(x, axis=-1) for x in zip(*bounds, strict=True))
  lengths_1G = jnp.asarray(lengths_G)[None, :]
  known_BG = jnp.any(low_BGP < high_BGP, axis=-1)
  known_BG &= lengths_1G <= seq_len_B[:, None]
  length_B = jnp.max(jnp.where(known_BG, lengths_1G, 0), axis=1)
  best_B11 = jnp.maximum(length_B - min_ngram, 0)[:, None, None]
  low_BP = jnp.take_along_axis(low_BGP, best_B11, axis=1)[:, 0]
  high_BP = jnp.take_along_axis(high_BGP, best_B11, axis=1)[:, 0]
  has_BP = (length_B > 0)[:, None] & (low_BP < high_BP)
  return Match(
      length_B=length_B,
      low_BP=jnp.where(has_BP, low_BP, 0),
      high_BP=jnp.where(has_BP, high_BP, 0),
  )


def spread(count_B: jax.Array, num_rows: int) -> jax.Array:
  """Returns [B, R] the numbers of the occurrences that rows stand for.

  All of them if they are few, else those at floor(i * count / R), written
  without the product, which int32 would not hold.

  Args:
    count_B: int32, occurrences.
    num_rows: R, below 2**15; rows from the count on stand for nothing.
  """
  index_1R = jnp.arange(num_rows, dtype=jnp.int32)[None, :]
  whole_B1, rest_B1 = (x[:, None] for x in jnp.divmod(count_B, num_rows))
  spaced_BR = index_1R * whole_B1 + index_1R * rest_B1 // num_rows
  return jnp.where(count_B[:, None] > num_rows, spaced_BR, index_1R)


def continuations(
    store: DeviceStore, match: Match, *, num_rows: int, length: int
) -> Continuations:
  """Reads what followed the matches, up to the ends of documents.

  Rows are in the order of the shards and of their suffixes. They are all of the
  occurrences if there are at most R, else an evenly spaced sample: frequencies
  are exact in the first case and estimates in the second. Every row counts 1.

  Args:
    store: P shards.
    match: in them.
    num_rows: R.
    length: C.

  Returns:
    The Continuations.
  """
  count_B = match.count_B
  row_1R = jnp.arange(num_rows, dtype=jnp.int32)[None, :]
  tokens_BRC, len_BR = read(
      store, match, spread(count_B, num_rows), length=length
  )
  return Continuations(
      tokens_BRC=tokens_BRC,
      len_BR=len_BR,
      weight_BR=(row_1R < count_B[:, None]).astype(jnp.int32),
  )


def read(
    store: DeviceStore, match: Match, number_BR: jax.Array, *, length: int
) -> tuple[jax.Array, jax.Array]:
  """Reads what followed some occurrences.

  Args:
    store: P shards.
    match: in them.
    number_BR: int32, which of its occurrences; others than it has give nothing.
    length: C.

  Returns:
    int32 tokens [B, R, C], zeros from the end of a document on, and how many
    there are before it [B, R].
  """
  shape = (*number_BR.shape, length)
  tokens_BRC = jnp.full(shape, store.separator, jnp.int32)
  before_B1 = jnp.zeros_like(match.length_B)[:, None]
  for p, shard in enumerate(store.shards):
    low_B1, high_B1 = match.low_BP[:, p, None], match.high_BP[:, p, None]
    count_B1, here_BR = high_B1 - low_B1, number_BR - before_B1
    # The sum with `low` may overflow outside.
    inside_BR = (number_BR >= before_B1) & (here_BR < count_B1)
    before_B1 = _add(before_B1, count_B1)
    at_BR = jnp.where(inside_BR, here_BR + low_B1, 0)
    first_BR = shard.suffixes_N.at[at_BR].get(mode='promise_in_bounds')
    first_BR += match.length_B[:, None]
    read_BRC = shard.windows_at(first_BR, length)
    tokens_BRC = jnp.where(inside_BR[..., None], read_BRC, tokens_BRC)
  inside_BRC = jnp.cumprod(tokens_BRC != store.separator, axis=-1) > 0
  len_BR = inside_BRC.sum(axis=-1).astype(jnp.int32)
  return jnp.where(inside_BRC, tokens_BRC, 0), len_BR
