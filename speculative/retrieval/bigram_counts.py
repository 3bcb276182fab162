"""Counts which token follows which, in bounded memory.

Pairs of neighbours are gathered as numbers, sorted where so many are there, and
written to files without a name: numbers with their counts, in ascending order.
At the end the files are merged, some tokens at a time. Nothing is left of them
when the process ends, however it does.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import pathlib
import tempfile
import time

import numpy as np

from speculative.retrieval import store_writer

# A pair is one number: the first token above these bits, the second in them.
_BITS = np.uint64(32)
_SECOND = np.uint64(2**32 - 1)
# Entries of all files that are merged at once; one token's may be more.
_MERGED_AT_ONCE = 1 << 22


@dataclasses.dataclass(frozen=True, eq=False)
class Counted:
  """How often tokens follow each other.

  Attributes:
    successors_VW: int32, the tokens that follow most often, of equals the
      smaller id first; -1 where there are fewer.
    counts_VW: int64, how often.
    totals_V: int64, pairs that begin with a token, whatever follows.
    frequent_W: int32, the most frequent tokens; -1 where there are fewer.
    frequent_counts_W: int64, how often these stand anywhere.
    num_tokens: of all documents.
    num_distinct: pairs that differ.
  """

  successors_VW: np.ndarray
  counts_VW: np.ndarray
  totals_V: np.ndarray
  frequent_W: np.ndarray
  frequent_counts_W: np.ndarray
  num_tokens: int
  num_distinct: int

  @property
  def num_pairs(self) -> int:
    """Pairs of neighbours."""
    return int(self.totals_V.sum())


@dataclasses.dataclass(frozen=True, eq=False)
class _Run:
  """Sorted pairs, in memory or in a file.

  Attributes:
    pairs: uint64, ascending, each once.
    counts: int64, how often each.
  """

  pairs: np.ndarray
  counts: np.ndarray


class Counter:
  """Takes documents and counts their pairs.

  Attributes:
    num_tokens: taken so far.
    sort_s: seconds that sorting and merging took.
  """

  def __init__(
      self,
      vocab_size: int,
      *,
      pairs_at_once: int,
      directory: pathlib.Path,
      on_sorted: Callable[[int, float], None] = lambda pairs, seconds: None,
  ) -> None:
    """Has counted nothing yet.

    Args:
      vocab_size: V; ids are below it.
      pairs_at_once: that are sorted in memory.
      directory: on whose disk there is room for what does not fit there.
      on_sorted: called with the number of pairs that were sorted and the
        seconds it took.
    """
    self._vocab_size, self._directory = vocab_size, directory
    self._on_sorted = on_sorted
    # Pages are used as they fill.
    self._buffer, self._size = np.empty(pairs_at_once, np.uint64), 0
    self._ends_V = np.zeros(vocab_size, np.int64)
    self._runs: list[_Run] = []
    self.num_tokens, self.sort_s = 0, 0.0

  def add(self, tokens: np.ndarray) -> None:
    """Counts the pairs of a document; none goes across its bounds.

    Args:
      tokens: ids, [T].

    Raises:
      UserError: If the disk is full.
      ValueError: If an id is outside the vocabulary.
    """
    if not len(tokens):
      return
    if not 0 <= tokens.min() <= tokens.max() < self._vocab_size:
      raise ValueError('a document has ids outside the vocabulary.')
    self.num_tokens += len(tokens)
    self._ends_V[tokens[-1]] += 1
    ids = tokens.astype(np.uint64)
    pairs = (ids[:-1] << _BITS) | ids[1:]
    while len(pairs):
      room = len(self._buffer) - self._size
      some, pairs = pairs[:room], pairs[room:]
      self._buffer[self._size : self._size + len(some)] = some
      self._size += len(some)
      if self._size == len(self._buffer):
        self._runs.append(self._on_disk(self._sorted()))

  def _sorted(self) -> _Run:
    """Sorts what the buffer holds, and empties it."""
    started = time.perf_counter()
    pairs, self._size = self._buffer[: self._size], 0
    pairs.sort()
    starts = _starts(pairs)
    run = _Run(pairs[starts], np.diff(starts, append=len(pairs)))
    seconds = time.perf_counter() - started
    self.sort_s += seconds
    self._on_sorted(len(pairs), seconds)
    return run

  def _on_disk(self, run: _Run) -> _Run:
    with store_writer.writing(self._directory):
      return _Run(self._mapped(run.pairs), self._mapped(run.counts))

  def _mapped(self, data: np.ndarray) -> np.ndarray:
    with tempfile.TemporaryFile(dir=self._directory) as file:
      data.tofile(file)
      # The map outlives the file's name and handle.
      return np.memmap(file, data.dtype, mode='r').view(np.ndarray)

  def counted(self, num_successors: int) -> Counted:
    """Returns what was counted; the counter is of no use afterwards.

    Args:
      num_successors: W, that are kept of every token.
    """
    if self._size:
      self._runs.append(self._sorted())
    started = time.perf_counter()
    V, W = self._vocab_size, num_successors
    successors_VW = np.full((V, W), -1, np.int32)
    counts_VW = np.zeros((V, W), np.int64)
    totals_V = np.zeros(V, np.int64)
    num_distinct = 0
    for run in _merged(self._runs, V):
      num_distinct += len(run.pairs)
      first = (run.pairs >> _BITS).astype(np.int64)
      second = (run.pairs & _SECOND).astype(np.int64)
      # `first` ascends already, and stays as it is.
      order = np.lexsort((second, -run.counts, first))
      starts = _starts(first)
      sizes = np.diff(starts, append=len(first))
      totals_V[first[starts]] = np.add.reduceat(run.counts, starts)
      rank = np.arange(len(first)) - np.repeat(starts, sizes)
      kept = rank < W
      row, column = first[kept], rank[kept]
      successors_VW[row, column] = second[order][kept]
      counts_VW[row, column] = run.counts[order][kept]
    frequent_W, frequent_counts_W = _most_frequent(totals_V + self._ends_V, W)
    self.sort_s += time.perf_counter() - started
    return Counted(
        successors_VW=successors_VW,
        counts_VW=counts_VW,
        totals_V=totals_V,
        frequent_W=frequent_W,
        frequent_counts_W=frequent_counts_W,
        num_tokens=self.num_tokens,
        num_distinct=num_distinct,
    )


def _starts(ascending: np.ndarray) -> np.ndarray:
  """Returns where other numbers begin."""
  is_new = np.ones(len(ascending), bool)
  np.not_equal(ascending[1:], ascending[:-1], out=is_new[1:])
  return np.flatnonzero(is_new)


def _most_frequent(
    counts_V: np.ndarray, num: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns tokens, of equals the smaller id first, and their counts."""
  tokens_W = np.full(num, -1, np.int32)
  counts_W = np.zeros(num, np.int64)
  best = np.argsort(-counts_V, kind='stable')[:num]
  best = best[counts_V[best] > 0]
  tokens_W[: len(best)], counts_W[: len(best)] = best, counts_V[best]
  return tokens_W, counts_W


def _merged(runs: Sequence[_Run], vocab_size: int) -> Iterator[_Run]:
  """Yields the pairs of all runs, all of some first tokens at a time."""
  if not runs:
    return
  first_pairs = np.arange(vocab_size + 1, dtype=np.uint64) << _BITS
  # Where the pairs of every token begin, in every run and in all together.
  places = [np.searchsorted(run.pairs, first_pairs) for run in runs]
  total = np.sum(places, axis=0)
  start = 0
  while start < vocab_size:
    most = total[start] + _MERGED_AT_ONCE
    end = int(np.searchsorted(total, most, side='right')) - 1
    end = min(max(end, start + 1), vocab_size)
    slices = [slice(place[start], place[end]) for place in places]
    some = list(zip(runs, slices, strict=True))
    start = end
    pairs = np.concatenate([run.pairs[part] for run, part in some])
    if not len(pairs):
      continue
    counts = np.concatenate([run.counts[part] for run, part in some])
    order = np.argsort(pairs, kind='stable')
    pairs = pairs[order]
    starts = _starts(pairs)
    yield _Run(pairs[starts], np.add.reduceat(counts[order], starts))
