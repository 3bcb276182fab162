"""Sorts every place of a text by the tokens that begin there.

Truncated on purpose: places are told apart by a window of `depth` tokens, which
is as long as a query gets, and by their position after that. The first tokens
are packed into one 64-bit key each and sorted; what still ties is sorted again
by ranks, each time by up to twice as many tokens (Manber and Myers 1993):

  4 tokens of 16 bits  ->  8  ->  16

All work is numpy's, on segments of the order that no group of equal windows
crosses, so that threads can share it and no temporary array is of the size of
the text. N is the number of tokens, separators included.
"""

from collections.abc import Callable
from collections.abc import Iterator
from concurrent import futures
import dataclasses
import os

import numpy as np

# Tokens looked at, or slots sorted, at once: small enough that temporary arrays
# count for little beside the text, large enough that numpy's loops do the work.
_CHUNK = 1 << 18
# Positions are int32 where they are searched, and a search reads a few tokens
# beyond the last.
MOST_TOKENS = 2**31 - 2**10


def build(
    tokens_N: np.ndarray,
    *,
    separator: int,
    depth: int = 16,
    num_threads: int = 0,
) -> np.ndarray:
  """Returns the order of all places in a text.

  With separator 9, depth 2 and tokens [5 3 5 3 9] the windows are

    position  0: 5 3   1: 3 5   2: 5 3   3: 3 9   (4: a separator)

  and the result is [1 3 0 2]. A window goes on behind a separator, which is as
  good as any other order: no query holds a separator, so what follows one
  decides nothing but the order of places that a query finds together. Behind
  the end there are only separators.

  Args:
    tokens_N: ids in [0, separator], of any integer type; the last one is a
      separator.
    separator: larger than every id.
    depth: tokens of a window.
    num_threads: that sort at once; 0 is one a core.

  Returns:
    uint32 positions of all tokens but separators, in the order of their
    windows, ties by position.

  Raises:
    ValueError: If the text does not end with a separator, or is too long.
  """
  groups, num_separators = _sorted(tokens_N, separator, depth, num_threads)
  # Separators are the largest tokens, so what begins with one comes last.
  return groups.order_N[: len(tokens_N) - num_separators]


def occurrences(
    tokens_N: np.ndarray, *, separator: int, depth: int
) -> np.ndarray:
  """Tells which windows of a text occur in it more than once.

  Args:
    tokens_N: see `build`.
    separator: see `build`.
    depth: tokens of a window, which may go on behind separators.

  Returns:
    uint8 [N]: 0 at a place whose window occurs nowhere else, 1 at the first
    of several such places, 2 at the others.

  Raises:
    ValueError: As `build`.
  """
  groups, _ = _sorted(tokens_N, separator, depth, num_threads=0)
  starts_N = groups.starts_N
  kind_N = np.empty(len(tokens_N), np.uint8)
  edges = _edges(starts_N)
  for first, end in zip(edges[:-1], edges[1:], strict=True):
    is_start = starts_N[first:end]
    is_last = np.append(is_start[1:], True)
    kind = np.where(is_start, np.where(is_last, 0, 1), 2)
    kind_N[groups.order_N[first:end]] = kind
  return kind_N


def _sorted(
    tokens_N: np.ndarray, separator: int, depth: int, num_threads: int
) -> tuple['_Groups', int]:
  """Sorts all places; returns how many are separators, too."""
  num_tokens = len(tokens_N)
  if not num_tokens or tokens_N[-1] != separator:
    raise ValueError(f'the text does not end with the separator {separator}.')
  if num_tokens > MOST_TOKENS:
    raise ValueError(f'{num_tokens} tokens are more than {MOST_TOKENS}.')
  if depth < 1:
    raise ValueError(f'depth needs to be >= 1, got {depth}.')
  ids_N, num_ids = dense(tokens_N, separator=separator)
  num_separators = sum(
      int(np.count_nonzero(chunk == num_ids - 1)) for chunk in _chunks(ids_N)
  )
  with futures.ThreadPoolExecutor(num_threads or os.cpu_count()) as pool:
    return _sort(ids_N, num_ids, depth, pool), num_separators


def dense(tokens_N: np.ndarray, *, separator: int) -> tuple[np.ndarray, int]:
  """Numbers the ids that occur from 0 on, in their own order.

  Args:
    tokens_N: ids in [0, separator].
    separator: the largest.

  Returns:
    uint16 [N], or uint32 where there are more than 65,536 different ids; and
    how many there are.
  """
  occurs = np.zeros(separator + 1, bool)
  for chunk in _chunks(tokens_N):
    occurs[chunk] = True
  num_ids = int(np.count_nonzero(occurs))
  number = (np.cumsum(occurs) - 1).astype(
      np.uint16 if num_ids <= 2**16 else np.uint32
  )
  ids_N = np.empty(len(tokens_N), number.dtype)
  for start in range(0, len(tokens_N), _CHUNK):
    span = slice(start, start + _CHUNK)
    ids_N[span] = number[tokens_N[span]]
  return ids_N, num_ids


def _chunks(array: np.ndarray) -> Iterator[np.ndarray]:
  for start in range(0, len(array), _CHUNK):
    yield array[start : start + _CHUNK]


@dataclasses.dataclass(frozen=True, eq=False)
class _Groups:
  """Places in order, as far as it is known.

  Attributes:
    order_N: uint32, the place in each slot.
    starts_N: bool, whether a slot's window differs from that of the one before.
    rank_N: uint32 of each place, the first slot of its group.
    pool: of threads.
  """

  order_N: np.ndarray
  starts_N: np.ndarray
  rank_N: np.ndarray
  pool: futures.Executor

  def each(self, function: Callable[[int, int], None]) -> None:
    """Calls a function for segments of slots that hold whole groups.

    Args:
      function: takes the first slot and the one after the last.
    """
    edges = _edges(self.starts_N)
    # A list, so that errors come out.
    list(self.pool.map(function, edges[:-1], edges[1:]))


def _edges(starts_N: np.ndarray) -> list[int]:
  """Returns the bounds of segments that hold whole groups."""
  edges = [0]
  while edges[-1] < len(starts_N):
    edges.append(_next_start(starts_N, edges[-1] + _CHUNK))
  return edges


def _next_start(starts_N: np.ndarray, slot: int) -> int:
  """Returns the first slot from here on where a group starts, or the end."""
  while slot < len(starts_N):
    found = starts_N[slot : slot + _CHUNK]
    if found.any():
      return slot + int(found.argmax())
    slot += _CHUNK
  return len(starts_N)


def _sort(
    ids_N: np.ndarray, num_ids: int, depth: int, pool: futures.Executor
) -> _Groups:
  num_bits = max(1, (num_ids - 1).bit_length())
  groups = _by_first_token(ids_N, num_bits, pool)
  known = min(depth, 64 // num_bits)

  def sort_packed(first: int, end: int) -> None:
    places = groups.order_N[first:end]
    keys = _packed(ids_N, places, num_tokens=known, num_bits=num_bits)
    _put(groups, np.arange(first, end, dtype=np.uint32), places, keys)

  groups.each(sort_packed)
  while known < depth:
    groups.each(lambda first, end: _rank(groups, first, end))
    longer = min(2 * known, depth)
    _double(groups, shift=longer - known)
    known = longer
  groups.each(lambda first, end: _by_position(groups, first, end))
  return groups


def _by_first_token(
    ids_N: np.ndarray, num_bits: int, pool: futures.Executor
) -> _Groups:
  """Sorts places by what is cheapest: (the upper bits of) one token."""
  first_N = ids_N
  if num_bits > 16:
    first_N = (ids_N >> (num_bits - 16)).astype(np.uint16)
  # numpy sorts 16-bit numbers by their digits, in linear time.
  order_N = np.argsort(first_N, kind='stable').astype(np.uint32)
  starts_N = np.empty(len(ids_N), bool)
  starts_N[0] = True
  for start in range(1, len(ids_N), _CHUNK):
    found = first_N[order_N[start - 1 : start + _CHUNK]]
    starts_N[start : start + _CHUNK] = found[1:] != found[:-1]
  return _Groups(order_N, starts_N, np.empty(len(ids_N), np.uint32), pool)


def _packed(
    ids_N: np.ndarray, places: np.ndarray, *, num_tokens: int, num_bits: int
) -> np.ndarray:
  """Returns the tokens of each window in one number, the first one highest."""
  last = len(ids_N) - 1
  keys = np.zeros(len(places), np.uint64)
  for offset in range(num_tokens):
    keys <<= np.uint64(num_bits)
    # The last token is a separator, like all that are behind it.
    keys |= ids_N[np.minimum(places + np.uint32(offset), np.uint32(last))]
  return keys


def _put(
    groups: _Groups, slots: np.ndarray, places: np.ndarray, keys: np.ndarray
) -> None:
  """Sorts places by their keys into slots, and marks where keys change."""
  if not len(slots):
    return
  permutation = np.argsort(keys)
  keys = keys[permutation]
  groups.order_N[slots] = places[permutation]
  groups.starts_N[slots[1:]] |= keys[1:] != keys[:-1]


def _tied(groups: _Groups, first: int, end: int) -> np.ndarray:
  """Returns the slots of a segment whose groups have several places."""
  starts = groups.starts_N[first:end]
  is_last = np.append(starts[1:], True)
  return np.flatnonzero(~(starts & is_last)).astype(np.uint32) + np.uint32(
      first
  )


def _rank(groups: _Groups, first: int, end: int) -> None:
  slots = np.arange(first, end, dtype=np.uint32)
  own = np.where(groups.starts_N[first:end], slots, 0)
  groups.rank_N[groups.order_N[first:end]] = np.maximum.accumulate(own)


def _double(groups: _Groups, *, shift: int) -> None:
  """Sorts what ties by the ranks of the places `shift` tokens on."""
  last = np.uint32(len(groups.rank_N) - 1)

  def sort_ranks(first: int, end: int) -> None:
    slots = _tied(groups, first, end)
    places = groups.order_N[slots]
    keys = groups.rank_N[places].astype(np.uint64) << np.uint64(32)
    keys |= groups.rank_N[np.minimum(places + np.uint32(shift), last)]
    _put(groups, slots, places, keys)

  groups.each(sort_ranks)


def _by_position(groups: _Groups, first: int, end: int) -> None:
  slots = _tied(groups, first, end)
  group = np.cumsum(groups.starts_N[slots], dtype=np.uint64)
  keys = (group << np.uint64(32)) | groups.order_N[slots]
  keys.sort()
  groups.order_N[slots] = keys.astype(np.uint32)
