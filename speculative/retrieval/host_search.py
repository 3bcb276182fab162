"""The search of `search`, with the same results, on host arrays.

For stores that are larger than a device's memory: the arrays may be views of a
memory map, of which a query reads a few pages. What it returns is small, and is
put on the device, where the trie is made of it.
"""

import bisect
from collections.abc import Callable

import numpy as np

from speculative.retrieval import search
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
  low, key = _first(shard, end), _key(shard, len(end))
  num, step = int(shard.num_suffixes), 1
  # Most ends stand in few places: in steps that double, not from the far end.
  while low + step < num and key(low + step) == end:
    step *= 2
  first, last = low + step // 2, min(low + step, num)
  return low, bisect.bisect_right(range(num), end, first, last, key=key)


def _longest(store: DeviceStore, text: list[int], min_ngram: int) -> int:
  """Returns the length of the longest end of a text that a shard knows."""
  lengths = range(min_ngram, len(text) + 1)

  def is_unknown(length: int) -> bool:
    return not any(_knows(shard, text[-length:]) for shard in store.shards)

  # What is behind an end is known where the end is, so lengths are in order.
  num_known = bisect.bisect_left(lengths, True, key=is_unknown)
  return lengths[num_known - 1] if num_known else 0


def find(
    store: DeviceStore,
    text_BS: np.ndarray,
    seq_len_B: np.ndarray,
    *,
    max_ngram: int,
    min_ngram: int = 1,
    backoff: bool = False,
    enough: int = 1,
) -> Match:
  """Finds the ends of every text that occur in any shard.

  Args:
    store: of host arrays, P shards.
    text_BS: ids.
    seq_len_B: tokens of the text that count.
    max_ngram: longest end looked for; at most the store's depth.
    min_ngram: shortest end that counts.
    backoff: whether shorter ends than the longest are wanted.
    enough: occurrences of longer ends after which they are not.

  Returns:
    The Match, int64, of all lengths with `backoff`, else of one.

  Raises:
    ValueError: As DeviceStore.check_ngrams.
  """
  store.check_ngrams(min_ngram, max_ngram)
  B, P = len(text_BS), len(store.shards)
  G = max_ngram + 1 - min_ngram if backoff else 1
  length_BG = np.zeros((B, G), np.int64)
  low_BGP, high_BGP = np.zeros((2, B, G, P), np.int64)
  for b, seq_len in enumerate(seq_len_B.tolist()):
    text = text_BS[b, max(seq_len - max_ngram, 0) : seq_len].tolist()
    # Ids that are no tokens match nothing, the separator's own included.
    while any(token >= store.separator for token in text):
      del text[0]
    longest, count = _longest(store, text, min_ngram), 0
    for length in range(longest, min_ngram - 1 if longest else 0, -1):
      g = max_ngram - length if backoff else 0
      length_BG[b, g] = length
      for p, shard in enumerate(store.shards):
        low, high = _interval(shard, text[-length:])
        if low < high:
          low_BGP[b, g, p], high_BGP[b, g, p] = low, high
          count += high - low
      if not backoff or count >= enough:
        break
  return Match(length_BG=length_BG, low_BGP=low_BGP, high_BGP=high_BGP)


def _share_out(
    count_BG: np.ndarray, num_rows: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns what `search.share_out` does."""
  row_1R = np.arange(num_rows)[None, :]
  end_BG = np.minimum(np.cumsum(count_BG, axis=1), num_rows)
  match_BR = (row_1R[:, :, None] >= end_BG[:, None, :]).sum(axis=2)
  match_BR = np.minimum(match_BR, count_BG.shape[1] - 1)
  start_BG = np.pad(end_BG[:, :-1], ((0, 0), (1, 0)))
  start_BR, count_BR, num_BR = (
      np.take_along_axis(x_BG, match_BR, axis=1)
      for x_BG in (start_BG, count_BG, end_BG - start_BG)
  )
  index_BR = row_1R - start_BR
  spaced_BR = index_BR * count_BR // np.maximum(num_BR, 1)
  return match_BR, np.where(count_BR > num_BR, spaced_BR, index_BR)


def continuations(
    store: DeviceStore,
    match: Match,
    *,
    num_rows: int,
    length: int,
    backoff: bool = False,
) -> Continuations:
  """Reads what followed the matches, as `search.continuations` does.

  Args:
    store: of host arrays, P shards.
    match: in them.
    num_rows: R.
    length: C.
    backoff: see `search.continuations`.

  Returns:
    The Continuations, int32 arrays of the host.
  """
  count_BGP = match.high_BGP - match.low_BGP
  B, _, P = count_BGP.shape
  count_BG = count_BGP.sum(axis=2)
  match_BR, number_BR = _share_out(count_BG, num_rows)
  length_BR = np.take_along_axis(match.length_BG, match_BR, axis=1)
  tokens_BRC = np.full((B, num_rows, length), store.separator, np.int64)
  before_BG = np.zeros_like(count_BG)
  for p, shard in enumerate(store.shards):
    at_BR = number_BR - np.take_along_axis(before_BG, match_BR, axis=1)
    here_BR = np.take_along_axis(count_BGP[..., p], match_BR, axis=1)
    b, r = np.nonzero((at_BR >= 0) & (at_BR < here_BR))
    low = match.low_BGP[b, match_BR[b, r], p]
    first = shard.suffixes_N[low + at_BR[b, r]]
    tokens_BRC[b, r] = _windows(shard, first + length_BR[b, r], length)
    before_BG += count_BGP[..., p]
  # Ids above the separator are of a corrupt file.
  inside_BRC = np.logical_and.accumulate(tokens_BRC < store.separator, axis=-1)
  is_row_BR = number_BR < np.take_along_axis(count_BG, match_BR, axis=1)
  worth_BR = search.worth(length_BR) if backoff else np.ones_like(length_BR)
  return Continuations(
      tokens_BRC=np.where(inside_BRC, tokens_BRC, 0).astype(np.int32),
      len_BR=inside_BRC.sum(axis=-1, dtype=np.int32),
      weight_BR=np.where(is_row_BR, worth_BR, 0).astype(np.int32),
  )
