"""Prefill and the one loop around rounds, each a single device program.

A `Step` is a round: plain decoding, speculation, whatever comes later. The loop
asks the host nothing; the number of rounds to run is traced, so streaming a few
rounds at a time and running to the end are the same compiled program.
"""

from collections.abc import Sequence
import functools
from typing import Any
from typing import Protocol

import flax.struct
import jax
from jax import numpy as jnp

from speculative.decoding import counts
from speculative.decoding import log_probs as log_probs_lib
from speculative.decoding import state as state_lib
from speculative.decoding.sampling import Sampling
from speculative.decoding.state import DecodeState
from speculative.models import kv_cache
from speculative.models.kv_cache import KVCache
from speculative.sharding import Placement


class Model(Protocol):
  """What decoding needs of a model; `models.transformer.Transformer` is one."""

  @property
  def slack(self) -> int:
    """Slots a pass may write beyond its own rows."""
    ...

  @property
  def placement(self) -> Placement:
    """Where its arrays lie."""
    ...

  def init_cache(self, batch: int, max_seq_len: int) -> KVCache:
    """Returns an empty cache."""
    ...

  def forward(
      self,
      params: Any,
      tokens_BT: jax.Array,
      cache: KVCache,
      *,
      positions_BT: jax.Array | None = None,
      ancestors_BTT: jax.Array | None = None,
      visible_BTS: jax.Array | None = None,
      features: Sequence[int] = (),
  ) -> Any:
    """Returns an object with hidden_BTD, cache and features."""
    ...

  def logits(self, params: Any, hidden_BTD: jax.Array) -> jax.Array:
    """Returns float32 logits [B, T, V]."""
    ...


@flax.struct.dataclass
class Weights:
  """Arguments of the compiled programs that are never donated.

  Attributes:
    target: the target's params.
    drafter: the drafter's own; None where it has none.
  """

  target: Any
  drafter: Any = None


@flax.struct.dataclass
class Carry:
  """What the loop carries: the rows, and the drafter's own state."""

  state: DecodeState
  drafter_state: Any = None


class Step(Protocol):
  """One round; a frozen dataclass of static settings, hashable."""

  @property
  def model(self) -> Model:
    """The target."""
    ...

  @property
  def num_draft_tokens(self) -> int:
    """M, drafted tokens of a round; J for a chain."""
    ...

  @property
  def max_depth(self) -> int:
    """Most of them that a round may keep: J for a chain."""
    ...

  @property
  def features(self) -> tuple[int, ...]:
    """Layers of the target whose output the round's drafter wants."""
    ...

  def init(
      self,
      weights: Weights,
      state: DecodeState,
      features: dict[int, jax.Array],
      *,
      prompt_width: int,
  ) -> Carry:
    """Returns what the loop starts with, after the target's prefill."""
    ...

  def __call__(self, weights: Weights, carry: Carry) -> Carry:
    """Runs one round."""
    ...


def slack(step: Step) -> int:
  """Returns the entries every row needs beyond its longest text."""
  # A pass writes M + 1 rows, but a round A + 1 tokens, and a drafter may be
  # able to keep longer paths than it drafts.
  longest = max(step.num_draft_tokens, step.max_depth)
  return longest + 1 + step.model.slack


@functools.partial(
    jax.jit, static_argnames=('step', 'max_seq_len', 'log_probs')
)
def prefill(
    weights: Weights,
    prompts_BT: jax.Array,
    prompt_len_B: jax.Array,
    limit_B: jax.Array,
    stop_ids_BE: jax.Array,
    sampling: Sampling,
    *,
    step: Step,
    max_seq_len: int,
    log_probs: str,
) -> Carry:
  """Reads the prompts and returns the state the loop starts from.

  All tokens but the last of every prompt go into the cache; the last one is the
  first round's. Prompts are padded at their end, and what the padding wrote is
  forgotten with the length.

  Args:
    weights: params of target and drafter.
    prompts_BT: int32, padded to the bucket T with anything.
    prompt_len_B: int32, in [1, T].
    limit_B: int32, prompt and new tokens allowed; at most max_seq_len - slack.
    stop_ids_BE: int32, padded with -1.
    sampling: of every row.
    step: static.
    max_seq_len: static, S; at least T.
    log_probs: static, what to record, one of `log_probs.KINDS`.

  Returns:
    The Carry.
  """
  B, T = prompts_BT.shape
  out = step.model.forward(
      weights.target,
      prompts_BT,
      step.model.init_cache(B, max_seq_len),
      features=step.features,
  )

  done_B = prompt_len_B >= limit_B
  # Every leaf its own buffer: the loop donates them one by one.
  state = DecodeState(
      tokens_BS=jnp.pad(prompts_BT, ((0, 0), (0, max_seq_len - T))),
      seq_len_B=prompt_len_B,
      prompt_len_B=prompt_len_B,
      limit_B=limit_B,
      done_B=done_B,
      reason_B=jnp.where(done_B, state_lib.LENGTH, state_lib.RUNNING),
      stop_ids_BE=stop_ids_BE,
      log_probs=log_probs_lib.empty(log_probs, B, max_seq_len),
      cache=kv_cache.rollback(out.cache, prompt_len_B - 1),
      sampling=sampling,
      origins=counts.empty(B, max_seq_len),
      num_rounds=jnp.zeros((), jnp.int32),
  )
  carry = step.init(weights, state, out.features, prompt_width=T)
  return placed(step, carry)


def placed(step: Step, carry: Carry) -> Carry:
  """Says where the rows of a carry lie."""
  return carry.replace(state=state_lib.place(carry.state, step.model.placement))


def one_round(step: Step, weights: Weights, carry: Carry) -> Carry:
  """Runs one round and says where its results lie; the loop's body."""
  # Said before and after: else the compiler may split what lies between.
  return placed(step, step(weights, placed(step, carry)))


@functools.partial(
    jax.jit, static_argnames=('step',), donate_argnames=('carry',)
)
def run(
    *,
    weights: Weights,
    carry: Carry,
    num_rounds: jax.Array,
    step: Step,
    ended_B: jax.Array | None = None,
) -> Carry:
  """Runs up to num_rounds rounds, or until every row is done.

  Donates `carry`: the caller's is dead afterwards.

  Args:
    weights: params of target and drafter.
    carry: from `prefill` or an earlier call.
    num_rounds: int32 scalar, traced.
    step: static.
    ended_B: bool, rows that the host has ended: they emit nothing any more.

  Returns:
    The Carry.
  """
  state = carry.state
  last_round = state.num_rounds + num_rounds
  if ended_B is not None:
    carry = carry.replace(state=state.replace(done_B=state.done_B | ended_B))

  def running(carry: Carry) -> jax.Array:
    state = carry.state
    return jnp.any(~state.done_B) & (state.num_rounds < last_round)

  return jax.lax.while_loop(
      running, lambda c: one_round(step, weights, c), carry
  )
