"""What retrieval finds at the rounds of texts, and what a search costs.

Both are found out after the texts have been decoded, so that no round pays for
them.
"""

from collections.abc import Sequence
import functools
import statistics
import time

import jax
from jax import numpy as jnp
import numpy as np

from speculative import watchdog
from speculative.drafting.retrieval import Retrieval
from speculative.drafting.retrieval_config import RetrievalConfig
from speculative.retrieval import context
from speculative.retrieval import host_search
from speculative.retrieval.device_store import DeviceStore
from speculative.sharding import Placement

# Rounds that are searched at once, and that are timed one after another.
_ROWS = 64
_TURNS = 9

# The tokens of a text, and how many of them there were at every round's start.
Rounds = tuple[Sequence[int], Sequence[int]]


def matched_lengths(
    settings: RetrievalConfig,
    store: DeviceStore | None,
    texts: Sequence[Rounds],
) -> np.ndarray:
  """Returns the longest match at every round, 0 where nothing is drafted.

  Args:
    settings: where and how is searched.
    store: of host arrays; None where only the text so far is searched.
    texts: with their rounds.

  Returns:
    int64 [R], rounds of all texts in order.
  """
  text_RS, len_R = _stack(texts)
  found = []
  for first in range(0, len(len_R), _ROWS):
    text_BS, len_B = text_RS[first : first + _ROWS], len_R[first:][:_ROWS]
    length_B = np.zeros(len(len_B), np.int64)
    if settings.sources != 'store':
      length_B = _of_context(text_BS, len_B, settings)
    if settings.uses_store:
      match = host_search.find(
          store,
          text_BS,
          len_B,
          max_ngram=settings.max_ngram,
          min_ngram=settings.min_ngram,
      )
      length_B = np.maximum(length_B, match.length_B)
    found.append(length_B)
  return np.concatenate(found)


def _stack(texts: Sequence[Rounds]) -> tuple[np.ndarray, np.ndarray]:
  """Returns int32 the text [R, S] of every round, and its length then [R]."""
  most = max(len(ids) for ids, _ in texts)
  padded = [np.pad(np.array(ids), (0, most - len(ids))) for ids, _ in texts]
  repeats = [len(lens) for _, lens in texts]
  len_R = np.concatenate([np.array(lens) for _, lens in texts])
  text_RS = np.repeat(np.stack(padded), repeats, axis=0)
  return text_RS.astype(np.int32), len_R.astype(np.int32)


def _of_context(
    text_BS: np.ndarray, len_B: np.ndarray, settings: RetrievalConfig
) -> np.ndarray:
  """Returns the longest earlier match in the texts themselves."""
  # Of one shape, so that it compiles once.
  extra = _ROWS - len(len_B)
  longest = _longest_earlier(
      np.pad(text_BS, ((0, extra), (0, 0))),
      np.pad(len_B, (0, extra)),
      max_ngram=settings.max_ngram,
  )
  length_B = np.asarray(longest, np.int64)[: len(len_B)]
  return np.where(length_B >= settings.min_ngram, length_B, 0)


@functools.partial(jax.jit, static_argnames=('max_ngram',))
def _longest_earlier(
    text_BS: jax.Array, len_B: jax.Array, *, max_ngram: int
) -> jax.Array:
  return context.match_lengths(text_BS, len_B, max_ngram).max(axis=1)


def query_ms(
    drafter: Retrieval,
    params: object,
    texts: Sequence[Rounds],
    *,
    slots: Sequence[int],
    placement: Placement,
) -> float:
  """Returns the milliseconds of one search with its tree, for one row.

  Of rounds evenly spaced over the texts, in buffers of the size they had: those
  of one size one after another inside one jitted loop, so that no call counts;
  the median of the turns, warm.

  Args:
    drafter: what searches.
    params: the store on the devices.
    texts: with their rounds.
    slots: S of the buffer that every text was decoded in.
    placement: of the target.
  """
  rounds = [
      (S, ids, length)
      for S, (ids, lens) in zip(slots, texts, strict=True)
      for length in lens
  ]
  by_size = {}
  for i in np.linspace(0, len(rounds) - 1, _ROWS).astype(int):
    S, ids, length = rounds[i]
    by_size.setdefault(S, []).append((np.pad(ids, (0, S - len(ids))), length))
  groups = [
      placement.put(
          tuple(np.array(part, np.int32) for part in zip(*some, strict=True))
      )
      for some in by_size.values()
  ]
  turns = []
  for _ in range(_TURNS + 1):
    started = time.perf_counter()
    for text_RS, len_R in groups:
      jax.block_until_ready(_drafts(params, text_RS, len_R, drafter=drafter))
    turns.append(1e3 * (time.perf_counter() - started) / _ROWS)
    watchdog.beat()
  # The first one compiled.
  return statistics.median(turns[1:])


@functools.partial(jax.jit, static_argnames=('drafter',))
def _drafts(
    params: object, text_RS: jax.Array, len_R: jax.Array, *, drafter: Retrieval
) -> object:
  return jax.lax.map(
      lambda x: drafter.draft(params, x[0][None], jnp.reshape(x[1], 1)),
      (text_RS, len_R),
  )
