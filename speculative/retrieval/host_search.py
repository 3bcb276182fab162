"""The search of `search`, with the same results, on host arrays.

For stores that are larger than a device's memory: the arrays may be views of a
memory map, of which a query reads a few pages. What it returns is small, and is
put on the device, where the trie is made of it.
"""

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


def _bounds(
    shard: DeviceShard, ends_BGN: np.ndarray, worth_GN: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns [B, G] the interval of suffixes that begin with each end."""
  B, G, width = ends_BGN.shape
  low_2BG = np.zeros((2, B, G), np.int64)
  high_2BG = np.full(low_2BG.shape, int(shard.num_suffixes))
  passes_211 = np.array([0, 1])[:, None, None]
  while (searching := low_2BG < high_2BG).any():
    middle_2BG = (low_2BG + high_2BG) >> 1
    # Where nothing is left to halve it may be one beyond the last.
    start_2BG = shard.suffixes_N.take(middle_2BG, mode='clip')
    order = np.sign(_windows(shard, start_2BG, width) - ends_BGN)
    is_before = (order * worth_GN).sum(axis=-1) < passes_211
    low_2BG = np.where(searching & is_before, middle_2BG + 1, low_2BG)
    high_2BG = np.where(searching & ~is_before, middle_2BG, high_2BG)
  return low_2BG[0], low_2BG[1]


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
  B, S = text_BS.shape
  lengths_G = np.arange(min_ngram, max_ngram + 1)
  back_GN = lengths_G[:, None] - np.arange(max_ngram)
  index_BGN = np.clip(seq_len_B[:, None, None] - back_GN, 0, S - 1)
  ends_BGN = text_BS[np.arange(B)[:, None, None], index_BGN].astype(np.int64)
  ends_BGN[ends_BGN >= store.separator] = store.separator + 1
  worth_GN = np.where(back_GN > 0, 1 << np.maximum(back_GN - 1, 0), 0)
  shape = (len(store.shards), B, len(lengths_G))
  low_PBG, high_PBG = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
  for p, shard in enumerate(store.shards):
    low_PBG[p], high_PBG[p] = _bounds(shard, ends_BGN, worth_GN)
  known_BG = (low_PBG < high_PBG).any(axis=0)
  known_BG &= lengths_G <= seq_len_B[:, None]
  length_B = np.where(known_BG, lengths_G, 0).max(axis=1)
  best_B = np.maximum(length_B - min_ngram, 0)
  low_BP = low_PBG[:, np.arange(B), best_B].T
  high_BP = high_PBG[:, np.arange(B), best_B].T
  has_BP = (length_B > 0)[:, None] & (low_BP < high_BP)
  return Match(
      length_B=length_B,
      low_BP=np.where(has_BP, low_BP, 0),
      high_BP=np.where(has_BP, high_BP, 0),
  )


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
