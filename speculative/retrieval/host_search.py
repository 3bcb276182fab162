"""The search of `search`, with the same results, on host arrays.

For stores that are larger than a device's memory: the arrays may be views of a
memory map, of which a query reads a few pages. What it returns is small, and is
put on the device, where the trie is made of it.
"""

import bisect
from collections.abc import Callable

import numpy as np

from speculative.retrieval.device_store import DeviceShard
from speculative.retrieval.device_store import DeviceStore
from speculative.retrieval.search import Continuations
from speculative.retrieval.search import Match


def _windows(shard: DeviceShard, first: np.ndarray, width: int) -> np.ndarray:
  """Returns int64 ids [..., W] of the tokens that begin at some positions."""
  positions = first[..., None].astype(np.int64) + np.arange(width)
  # Where a file has become corrupt, a position may be anything.
  ids = shard.low_N.take(positions, mode='clip').astype(np.int64)
  if shard.high_N is not None:
    ids |= shard.high_N.take(positions, mode='clip').astype(np.int64) << 16
  return ids


def _key(shard: DeviceShard, num: int) -> Callable[[int], list[int]]:
  """Returns what reads the first ids of the suffix at a place in the order.

  Python's own numbers and lists, not arrays: for a few ids at a time an array
  takes ten times as long to make as to read.

  Args:
    shard: of contiguous arrays.
    num: ids to read; there may be fewer at the end.
  """
  suffixes, low = memoryview(shard.suffixes_N), memoryview(shard.low_N)
  if shard.high_N is None:

    def read(place: int) -> list[int]:
      first = suffixes[place]
      return low[first : first + num].tolist()

    return read
  high = memoryview(shard.high_N)

  def read_both(place: int) -> list[int]:
    span = slice(suffixes[place], suffixes[place] + num)
    pairs = zip(low[span].tolist(), high[span].tolist(), strict=True)
    return [one | (two << 16) for one, two in pairs]

  return read_both


def _first(shard: DeviceShard, end: list[int]) -> int:
  """Returns the place of the first suffix that is not below an end."""
  places = range(int(shard.num_suffixes))
  return bisect.bisect_left(places, end, key=_key(shard, len(end)))


def _knows(shard: DeviceShard, end: list[int]) -> bool:
  place = _first(shard, end)
  return place < shard.num_suffixes and _key(shard, len(end))(place) == end


def _interval(shard: DeviceShard, end: list[int]) -> tuple[int, int]:
  """Returns the first and one after the last suffix that begin with an end."""
  low, places = _first(shard, end), range(int(shard.num_suffixes))
  high = bisect.bisect_right(places, end, lo=low, key=_key(shard, len(end)))
  return low, high


def _longest(store: DeviceStore, text: list[int], min_ngram: int) -> int:
  """Returns the length of the longest end of a text that a shard knows."""
  lengths = range(min_ngram, len(text) + 1)

  def is_unknown(length: int) -> bool:
    return not any(_knows(shard, text[-length:]) for shard in store.shards)

  # What is behind an end is known where the end is, so lengths are in order.
  num_known = bisect.bisect_left(lengths, True, key=is_unknown)
  return lengths[num_known - 1] if num_known else 0


def longest_match(
    store: DeviceStore,
    text_BS: np.ndarray,
    seq_len_B: np.ndarray,
    *,
    max_ngram: int,
    min_ngram: int = 1,
) -> Match:
  """Finds the longest end of every text that occurs in any shard.

  Args:
    store: of host arrays, P shards.
    text_BS: ids.
    seq_len_B: tokens of the text that count.
    max_ngram: longest end looked for; at most the store's depth.
    min_ngram: shortest end that counts.

  Returns:
    The Match, int64.

  Raises:
    ValueError: As DeviceStore.check_ngrams.
  """
  store.check_ngrams(min_ngram, max_ngram)
  B, P = len(text_BS), len(store.shards)
  length_B = np.zeros(B, np.int64)
  low_BP, high_BP = np.zeros((B, P), np.int64), np.zeros((B, P), np.int64)
  for b, seq_len in enumerate(seq_len_B.tolist()):
    text = text_BS[b, max(seq_len - max_ngram, 0) : seq_len].tolist()
    # Ids that are no tokens match nothing, the separator's own included.
    while any(token >= store.separator for token in text):
      del text[0]
    length = length_B[b] = _longest(store, text, min_ngram)
    for p, shard in enumerate(store.shards if length else ()):
      low, high = _interval(shard, text[-length:])
      if low < high:
        low_BP[b, p], high_BP[b, p] = low, high
  return Match(length_B=length_B, low_BP=low_BP, high_BP=high_BP)


def continuations(
    store: DeviceStore, match: Match, *, num_rows: int, length: int
) -> Continuations:
  """Reads what followed the matches, as `search.continuations` does.

  Args:
    store: of host arrays, P shards.
    match: in them.
    num_rows: R.
    length: C.

  Returns:
    The Continuations, int32 arrays of the host.
  """
  count_BP = match.high_BP - match.low_BP
  B = len(count_BP)
  count_B1 = count_BP.sum(axis=1, keepdims=True)
  row_R = np.arange(num_rows)
  number_BR = np.where(count_B1 > num_rows, row_R * count_B1 // num_rows, row_R)
  tokens_BRC = np.full((B, num_rows, length), store.separator, np.int64)
  before_B1 = np.zeros((B, 1), np.int64)
  for p, shard in enumerate(store.shards):
    at_BR = number_BR - before_B1
    b, r = np.nonzero((at_BR >= 0) & (at_BR < count_BP[:, p, None]))
    first = shard.suffixes_N[match.low_BP[b, p] + at_BR[b, r]]
    tokens_BRC[b, r] = _windows(shard, first + match.length_B[b], length)
    before_B1 += count_BP[:, p, None]
  # Ids above the separator are of a corrupt file.
  inside_BRC = np.logical_and.accumulate(tokens_BRC < store.separator, axis=-1)
  return Continuations(
      tokens_BRC=np.where(inside_BRC, tokens_BRC, 0).astype(np.int32),
      len_BR=inside_BRC.sum(axis=-1, dtype=np.int32),
      weight_BR=(row_R < count_B1).astype(np.int32),
  )
