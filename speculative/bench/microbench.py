"""Times the parts of a round on the device in use.

Every part runs as it does in decoding: from the carry of a real batch, so with
its widths, caches, placement and number formats, some ten times inside one
jitted loop, so that neither the call nor a copied cache counts. Parts take
turns, and the median of the turns counts. How often each runs follows from the
config and not from a clock, so that many hosts stay in step.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import statistics
import time

import jax
from jax import numpy as jnp
import numpy as np

from speculative import watchdog
from speculative.bench.predict import Times
from speculative.decoding import state as state_lib
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.decoding.host_engine import HostEngine
from speculative.decoding.loop import Carry
from speculative.decoding.loop import Step
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.models import kv_cache

# Runs of a part inside one call; more than a row has tokens to go are no use.
_COUNT = 8
# Turns for every repeat that is asked for, and the fewest: a part is shorter
# than a text.
_TURNS, _LEAST_TURNS = 3, 9

# Draft lengths up to which passes of every width are timed.
_MOST_TIMED = 16

# Runs a part and returns the milliseconds one took.
Part = Callable[[], float]


@functools.partial(
    jax.jit,
    static_argnames=('step', 'num_positions'),
    donate_argnames=('carry',),
)
def passes(
    *,
    weights: Weights,
    carry: Carry,
    count: jax.Array,
    step: Step,
    num_positions: int,
) -> Carry:
  """Runs the target over the same positions again and again; donates `carry`.

  Args:
    weights: of target and drafter.
    carry: of a batch.
    count: int32 scalar, passes.
    step: the round; its target runs, and hands out the features it wants.
    num_positions: n.

  Returns:
    The Carry, whose cache holds rubbish behind its length.
  """
  model, state = step.model, carry.state
  last_B1 = state_lib.last_token(state)

  def one(_, looped):
    tokens_BT, state = looped
    out = model.forward(
        weights.target, tokens_BT, state.cache, features=step.features
    )
    logits_BTV = model.logits(weights.target, out.hidden_BTD)
    # Never so, which the compiler cannot know: each pass waits for the last.
    is_odd_BT = jnp.max(logits_BTV, axis=-1) == -jnp.inf
    tokens_BT = model.placement.replicate(jnp.where(is_odd_BT, 0, tokens_BT))
    cache = kv_cache.rollback(out.cache, state.cache.len_B)
    state = state_lib.place(state.replace(cache=cache), model.placement)
    return tokens_BT, state

  tokens_BT = jnp.repeat(last_B1, num_positions, axis=1)
  _, state = jax.lax.fori_loop(
      0, count, one, (model.placement.replicate(tokens_BT), state)
  )
  return carry.replace(state=state)


@functools.partial(
    jax.jit, static_argnames=('step',), donate_argnames=('carry',)
)
def proposals(
    *, weights: Weights, carry: Carry, count: jax.Array, step: Speculative
) -> tuple[Carry, object]:
  """Drafts after the same text again and again; donates `carry`.

  Args:
    weights: of target and drafter.
    carry: of a batch.
    count: int32 scalar, proposals.
    step: the round whose drafter runs.

  Returns:
    The Carry, and the last Proposal, so that each has to be made.
  """
  placement = step.model.placement

  def propose(carry):
    proposal, drafter_state = step.drafter.propose(
        weights.drafter, carry.drafter_state, carry.state
    )
    proposal = proposal.replicated(placement)
    # Never so, which the compiler cannot know: each draft waits for the last.
    is_odd_B = proposal.tokens_BM[:, 0] < 0
    state = carry.state.replace(
        seq_len_B=jnp.where(is_odd_B, 1, carry.state.seq_len_B)
    )
    state = state_lib.place(state, placement)
    return Carry(state=state, drafter_state=drafter_state), proposal

  blank = jax.tree.map(
      lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(propose, carry)[1]
  )
  return jax.lax.fori_loop(
      0, count, lambda _, looped: propose(looped[0]), (carry, blank)
  )


def medians(parts: Mapping[str, Part], *, repeats: int) -> dict[str, float]:
  """Runs parts in turn and returns the median of each.

  Args:
    parts: by name; the first run of each compiles and does not count.
    repeats: runs of each that count.
  """
  found: dict[str, list[float]] = {name: [] for name in parts}
  for repeat in range(repeats + 1):
    for name, part in parts.items():
      milliseconds = part()
      watchdog.beat()
      if repeat:
        found[name].append(milliseconds)
  return {name: statistics.median(values) for name, values in found.items()}


def time_parts(
    plain: Engine,
    engines: Sequence[Engine],
    prompts: Sequence[Sequence[int]],
    config: DecodeConfig,
    *,
    repeats: int,
) -> list[Times]:
  """Times plain steps, target passes, drafts and rounds.

  Args:
    plain: engine of plain decoding.
    engines: of the settings, each with a drafter.
    prompts: a batch like those that are timed; what it says does not matter.
    config: how to decode.
    repeats: config.bench.repeats.

  Returns:
    The Times of every setting, in their order, each with the target's passes
    over up to as many positions as the longest draft needs.
  """
  # No row shall end early.
  config = dataclasses.replace(config, stop_ids=(), min_new_tokens=0)
  count = np.int32(min(_COUNT, config.max_new_tokens))
  parts: dict[str, Part] = {'plain': rounds(plain, prompts, config, count)}
  held = [Held(engine, prompts, config, count) for engine in engines]
  longest = max(held, key=lambda h: h.num_draft_tokens)
  widths = _widths([(h.shape, h.num_draft_tokens) for h in held])
  for n in widths:
    parts[f'pass {n}'] = functools.partial(longest.passes, n)
  for i, engine in enumerate(engines):
    parts[f'propose {i}'] = held[i].proposals
    parts[f'round {i}'] = rounds(engine, prompts, config, count)
  found = medians(parts, repeats=max(_TURNS * repeats, _LEAST_TURNS))
  pass_ms = np.interp(
      range(1, widths[-1] + 1), widths, [found[f'pass {n}'] for n in widths]
  ).tolist()
  return [
      Times(
          num_draft_tokens=engine.step.num_draft_tokens,
          plain_ms=found['plain'],
          pass_ms=pass_ms,
          propose_ms=found[f'propose {i}'],
          round_ms=found[f'round {i}'],
          shape=held[i].shape,
      )
      for i, engine in enumerate(engines)
  ]


def _widths(drafts: Sequence[tuple[str, int]]) -> list[int]:
  """Returns the numbers of positions to time passes over.

  All that chains have, as any may be the best; of trees those in use, as each
  is one more program to compile. What lies between is taken to lie on a line.

  Args:
    drafts: shape and length of each.
  """
  chains = [length for shape, length in drafts if shape == 'chain']
  few = range(1, min(max(chains, default=1), _MOST_TIMED) + 2)
  return sorted({*few, *(length + 1 for _, length in drafts)})


def rounds(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    config: DecodeConfig,
    count: np.int32,
) -> Part:
  """Returns the part that runs whole rounds with the program of decoding.

  Args:
    engine: of a round.
    prompts: a batch.
    config: how to decode; no row may end before the rounds do.
    count: int32 scalar, rounds.
  """
  put = engine.step.model.placement.put

  def run() -> float:
    carry = jax.block_until_ready(engine.start(prompts, config))
    arguments = {
        'num_rounds': put(count),
        'ended_B': np.zeros(engine.num_rows(len(prompts)), bool),
    }
    started = time.perf_counter()
    carry = jax.block_until_ready(engine.advance(carry, **arguments))
    elapsed = time.perf_counter() - started
    # A short budget ends rows before.
    return 1e3 * elapsed / max(int(carry.state.num_rounds), 1)

  return run


class Held:
  """A batch's carry, which every part takes and gives back.

  Attributes:
    num_draft_tokens: M of the engine's drafter.
    shape: of what it drafts.
  """

  def __init__(
      self,
      engine: Engine,
      prompts: Sequence[Sequence[int]],
      config: DecodeConfig,
      count: np.int32,
  ) -> None:
    """Reads the prompts.

    Args:
      engine: of a round with a drafter.
      prompts: a batch.
      config: how to decode.
      count: int32 scalar, how often a part runs in one call.
    """
    self._engine, self._carry = engine, engine.start(prompts, config)
    self._weights, self._step = engine.weights, engine.step
    self._count = engine.step.model.placement.put(count)
    self._num = int(count)
    self.num_draft_tokens = engine.step.num_draft_tokens
    proposal, _ = jax.eval_shape(
        engine.step.drafter.propose,
        self._weights.drafter,
        self._carry.drafter_state,
        self._carry.state,
    )
    self.shape = proposal.shape

  def passes(self, num_positions: int) -> float:
    """Returns the milliseconds of the target's pass."""
    started = time.perf_counter()
    self._carry = jax.block_until_ready(
        passes(
            weights=self._weights,
            carry=self._carry,
            count=self._count,
            step=self._step,
            num_positions=num_positions,
        )
    )
    return 1e3 * (time.perf_counter() - started) / self._num

  def proposals(self) -> float:
    """Returns the milliseconds of drafting once."""
    started = time.perf_counter()
    if isinstance(self._engine, HostEngine):
      for _ in range(self._num):
        self._carry = jax.block_until_ready(self._engine.drafted(self._carry))
      return 1e3 * (time.perf_counter() - started) / self._num
    self._carry, proposal = proposals(
        weights=self._weights,
        carry=self._carry,
        count=self._count,
        step=self._step,
    )
    jax.block_until_ready((self._carry, proposal))
    return 1e3 * (time.perf_counter() - started) / self._num
