"""What decoding carries from round to round, and how a round is committed."""

from typing import Any

import flax.struct
import jax
from jax import numpy as jnp

from speculative.decoding import adjust
from speculative.decoding import counts
from speculative.decoding.adjust import Drafts
from speculative.decoding.adjust import PathDrafts
from speculative.decoding.counts import Origins
from speculative.decoding.log_probs import LogProbs
from speculative.decoding.sampling import Sampling
from speculative.models import kv_cache
from speculative.models.kv_cache import KVCache
from speculative.sharding import Placement

# Reasons why a row ended.
RUNNING = 0
STOP_ID = 1
LENGTH = 2
REASONS = ('running', 'stop', 'length')


@flax.struct.dataclass
class DecodeState:
  """Everything decoding knows about its rows, on the device.

  Invariant between rounds: the target's cache holds seq_len_B - 1 tokens; the
  last committed token has not been through the target yet.

  Attributes:
    tokens_BS: int32; row b's text is tokens[:seq_len], the rest is rubbish.
    seq_len_B: int32, tokens of prompt and output so far.
    prompt_len_B: int32.
    limit_B: int32, largest seq_len allowed.
    done_B: bool.
    reason_B: int32, index into REASONS.
    stop_ids_BE: int32, tokens that end a row, padded with -1.
    log_probs: of every emitted token, at the token's index, S positions; None
      when they were not asked for.
    cache: the target's.
    sampling: parameters and seeds of the rows.
    origins: of every emitted token, at its index; the metrics count them.
    num_rounds: int32, rounds of the whole batch.
  """

  tokens_BS: jax.Array
  seq_len_B: jax.Array
  prompt_len_B: jax.Array
  limit_B: jax.Array
  done_B: jax.Array
  reason_B: jax.Array
  stop_ids_BE: jax.Array
  log_probs: LogProbs | None
  cache: KVCache
  sampling: Sampling
  origins: Origins
  num_rounds: jax.Array


def place(state: DecodeState, placement: Placement) -> DecodeState:
  """Says where a state lies: the cache is split, all else on every device.

  So every device and every host decides alike, and the host can read its copy.
  """
  replicated = placement.replicate(state.replace(cache=None))
  return replicated.replace(cache=kv_cache.place(state.cache, placement))


def last_token(state: DecodeState) -> jax.Array:
  """Returns [B, 1] the last committed token of every row."""
  return jnp.take_along_axis(
      state.tokens_BS, state.seq_len_B[:, None] - 1, axis=1
  )


def adjusted(
    state: DecodeState, logits_BTV: jax.Array, drafts: Drafts | PathDrafts
) -> jax.Array:
  """Applies the rows' bias, minimum length and penalties to raw logits."""
  text = adjust.Text(
      tokens_BS=state.tokens_BS,
      seq_len_B=state.seq_len_B,
      prompt_len_B=state.prompt_len_B,
      stop_ids_BE=state.stop_ids_BE,
  )
  return adjust.adjust_logits(
      state.sampling.adjustment, text, drafts, logits_BTV
  )


def next_positions(state: DecodeState, num: int) -> jax.Array:
  """Returns [B, num] the indices in the text of the next tokens."""
  return state.seq_len_B[:, None] + jnp.arange(num, dtype=jnp.int32)[None, :]


def _write(buffers: Any, new: Any, start_B: jax.Array) -> Any:
  """Writes T entries a row from start on; the buffers have room for them.

  Args:
    buffers: arrays [B, S, ...].
    new: the same tree with T in place of S.
    start_B: int32.

  Returns:
    The buffers.
  """

  def one_row(row: jax.Array, new: jax.Array, start: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_slice(
        row, new.astype(row.dtype), (start,) + (0,) * (row.ndim - 1)
    )

  # Its own values: those it would share with the mask or the cache, whose rows
  # lie over the mesh axis data, split this write too, and [B, S] is gathered.
  start_B = jax.lax.optimization_barrier(start_B)
  return jax.tree.map(
      lambda buffer, x: jax.vmap(one_row)(buffer, x, start_B), buffers, new
  )


def cut(
    state: DecodeState, emitted_BT: jax.Array, num_emitted_B: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Cuts what a round emitted at the first stop id and at the limit.

    stop id 2, room for 5: [5, 2, 9, 4] of which 4 emitted -> 2 kept, 'stop'

  Args:
    state: before the round.
    emitted_BT: int32.
    num_emitted_B: int32, how many of them count.

  Returns:
    The number kept (0 for rows that were done) and the reason, both [B].
  """
  T = emitted_BT.shape[1]
  is_stop_BT = jnp.any(
      emitted_BT[:, :, None] == state.stop_ids_BE[:, None, :], axis=-1
  )
  first_stop_B = jnp.where(
      is_stop_BT.any(axis=1), jnp.argmax(is_stop_BT, axis=1), T
  )
  room_B = state.limit_B - state.seq_len_B
  kept_B = jnp.minimum(jnp.minimum(num_emitted_B, first_stop_B + 1), room_B)
  kept_B = jnp.where(state.done_B, 0, kept_B).astype(jnp.int32)
  stopped_B = first_stop_B < kept_B
  reason_B = jnp.where(
      stopped_B, STOP_ID, jnp.where(kept_B >= room_B, LENGTH, RUNNING)
  )
  return kept_B, jnp.where(state.done_B, state.reason_B, reason_B)


def commit(
    state: DecodeState,
    cache: KVCache,
    *,
    emitted_BT: jax.Array,
    num_emitted_B: jax.Array,
    num_drafted_B: jax.Array,
    num_tested_B: jax.Array,
    log_probs: LogProbs | None,
) -> DecodeState:
  """Appends a round's tokens; cuts them, what is said of them and cache alike.

  Args:
    state: before the round; rows need T free entries in tokens_BS.
    cache: as the round's target pass left it.
    emitted_BT: int32, accepted drafted tokens and the target's own after them.
    num_emitted_B: int32, how many of them count, before the cut.
    num_drafted_B: int32, valid drafted tokens of the round.
    num_tested_B: int32, how many of those were tested.
    log_probs: of the emitted tokens, T positions, if the rows record them.

  Returns:
    The state after the round.
  """
  kept_B, reason_B = cut(state, emitted_BT, num_emitted_B)
  seq_len_B = state.seq_len_B + kept_B
  origins = counts.of_round(
      emitted_BT.shape[1],
      num_drafted_B=num_drafted_B,
      num_tested_B=num_tested_B,
      num_accepted_B=num_emitted_B - 1,
  )
  return state.replace(
      tokens_BS=_write(state.tokens_BS, emitted_BT, state.seq_len_B),
      seq_len_B=seq_len_B,
      done_B=state.done_B | (reason_B != RUNNING),
      reason_B=reason_B,
      log_probs=_write(state.log_probs, log_probs, state.seq_len_B),
      cache=kv_cache.rollback(cache, seq_len_B - 1),
      origins=_write(state.origins, origins, state.seq_len_B),
      num_rounds=state.num_rounds + 1,
  )
