"""The programs of a decoding round, compiled for devices that are not there."""

from collections.abc import Callable
import dataclasses
import re
import time
from typing import Any

import jax
from jax import numpy as jnp

from speculative import hlo
from speculative.decoding import adjust
from speculative.decoding import loop
from speculative.decoding import state as state_lib
from speculative.decoding.autoregressive import Autoregressive
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.drafting.lm import Lm
from speculative.errors import UserError
from speculative.hlo import Collective
from speculative.models.transformer import Transformer
from speculative.planning import abstract

_SIZES = re.compile(r'\(([\d.]+)([KMGT])\) exceeds available HBM \(([\d.]+)G')
_GIB = {'K': 2**-20, 'M': 2**-10, 'G': 1, 'T': 2**10}
WHAT_HELPS = (
    'more devices along config.mesh.model or a smaller batch, context or draft '
    'would help'
)


class DoesNotFitError(UserError):
  """A program needs more memory than a device has."""


@dataclasses.dataclass(frozen=True)
class Program:
  """A compiled program; sizes are those of one device.

  Attributes:
    name: 'prefill', 'plain', 'draft step', 'verify' or 'round'.
    collectives: of one execution.
    argument_bytes: weights, caches and state.
    memory_bytes: all it needs while it runs: arguments, results that do not
      take their place, temporaries and its code.
    compiler_bytes: memory traffic as the compiler counts it; the body of a loop
      counts once, and what moves between fast and slow memory is in it too.
    compiler_flops: arithmetic as it counts it, bodies of loops once.
    compile_s: seconds.
  """

  name: str
  collectives: tuple[Collective, ...]
  argument_bytes: int
  memory_bytes: int
  compiler_bytes: float
  compiler_flops: float
  compile_s: float


@dataclasses.dataclass(frozen=True)
class Setting:
  """What is decoded.

  Attributes:
    target: its placement says on which devices.
    draft: likewise.
    num_draft_tokens: K.
    batch: B.
    prompt_len: T of the prompts' bucket.
    context: longest text, prompt and output together.
    rule: of verification.
  """

  target: Transformer
  draft: Transformer
  num_draft_tokens: int
  batch: int
  prompt_len: int
  context: int
  rule: str = 'token'

  @property
  def drafter(self) -> Lm:
    """The draft model as drafter."""
    return Lm(
        self.draft,
        num_draft_tokens=self.num_draft_tokens,
        vocab_size=self.target.config.vocab_size,
    )

  @property
  def step(self) -> Speculative:
    """The round."""
    return Speculative(self.target, self.drafter, rule=self.rule)


def compile_program(
    name: str, function: Callable, *args: Any, donated: tuple[int, ...] = ()
) -> Program:
  """Compiles a function for the devices its arguments name.

  Args:
    name: of the result.
    function: of the arguments.
    *args: structs with shardings.
    donated: positions of arguments whose memory the results may take.

  Returns:
    The Program.

  Raises:
    DoesNotFitError: By how much it is too large, as the compiler says.
  """
  started = time.perf_counter()
  jitted = jax.jit(function, donate_argnums=donated)
  try:
    compiled = jitted.lower(*args).compile()
  except jax.errors.JaxRuntimeError as error:
    if 'RESOURCE_EXHAUSTED' not in str(error):
      raise
    raise DoesNotFitError(_too_large(name, str(error))) from error
  memory = compiled.memory_analysis()
  cost = compiled.cost_analysis() or {}
  return Program(
      name=name,
      collectives=hlo.collectives(compiled.as_text()),
      argument_bytes=memory.argument_size_in_bytes,
      memory_bytes=memory.argument_size_in_bytes
      + memory.output_size_in_bytes
      - memory.alias_size_in_bytes
      + memory.temp_size_in_bytes
      + memory.generated_code_size_in_bytes,
      compiler_bytes=cost.get('bytes accessed', 0.0),
      compiler_flops=cost.get('flops', 0.0),
      compile_s=time.perf_counter() - started,
  )


def _too_large(name: str, said: str) -> str:
  """Returns what the compiler said about memory, in one line."""
  match = _SIZES.search(said)
  if not match:
    line = said.strip().splitlines()[0]
    return f'the program {name!r} does not fit ({line}); {WHAT_HELPS}.'
  needed, room = float(match[1]) * _GIB[match[2]], float(match[3])
  return (
      f'the program {name!r} needs {needed:.2f} GiB a device for its '
      f'temporaries, {needed - room:.2f} more than the {room:g} there are; '
      f'{WHAT_HELPS}.'
  )


def weights(setting: Setting) -> Weights:
  """Returns the structs of both models' parameters."""
  return Weights(
      target=abstract.params(setting.target),
      drafter=abstract.params(setting.draft),
  )


def _carry(setting: Setting, step: Any, draft: Transformer | None) -> Any:
  return abstract.carry(
      step,
      weights(setting),
      batch=setting.batch,
      prompt_len=setting.prompt_len,
      max_seq_len=setting.context + loop.slack(step),
      draft=draft,
  )


def prefill(setting: Setting) -> Program:
  """Compiles the reading of the prompts by both models."""
  step = setting.step

  def run(weights: Weights, *arguments: Any) -> Any:
    return loop.prefill(
        weights,
        *arguments,
        step=step,
        max_seq_len=setting.context + loop.slack(step),
        log_probs='none',
    )

  arguments = abstract.prefill_arguments(
      setting.target, batch=setting.batch, prompt_len=setting.prompt_len
  )
  return compile_program('prefill', run, weights(setting), *arguments)


def plain(setting: Setting) -> Program:
  """Compiles one step of plain decoding."""
  step = Autoregressive(setting.target)
  return compile_program(
      'plain',
      lambda weights, carry: loop.one_round(step, weights, carry),
      Weights(target=abstract.params(setting.target)),
      _carry(setting, step, None),
      donated=(1,),
  )


def whole_round(setting: Setting) -> Program:
  """Compiles one round: drafting, verification and commit."""
  step = setting.step
  return compile_program(
      'round',
      lambda weights, carry: loop.one_round(step, weights, carry),
      weights(setting),
      _carry(setting, step, setting.draft),
      donated=(1,),
  )


def draft_step(setting: Setting) -> Program:
  """Compiles one of a round's draft steps: a token, its law, its draw."""
  drafter = setting.drafter
  carry = _carry(setting, setting.step, setting.draft)

  def run(params: Any, state: Any, tokens_BJ: jax.Array, cache: Any) -> Any:
    return drafter.step(params, state, tokens_BJ, cache, jnp.int32(1))

  tokens = jax.ShapeDtypeStruct(
      (setting.batch, setting.num_draft_tokens),
      jnp.int32,
      sharding=setting.target.placement.sharding(),
  )
  # The target's cache is no part of it.
  state = carry.state.replace(cache=carry.drafter_state.cache)
  return compile_program(
      'draft step',
      run,
      abstract.params(setting.draft),
      state.replace(cache=None),
      tokens,
      carry.drafter_state.cache,
      donated=(3,),
  )


def verify(setting: Setting) -> Program:
  """Compiles the target's pass over K + 1 tokens and the rule behind it."""
  step = setting.step
  K, V = setting.num_draft_tokens, setting.target.config.vocab_size
  carry = _carry(setting, step, setting.draft)

  def run(params: Any, state: Any, tokens_BJ: jax.Array, probs_BJV: jax.Array):
    last_B1 = state_lib.last_token(state)
    out = step.model.forward(
        params, jnp.concatenate([last_B1, tokens_BJ], axis=1), state.cache
    )
    logits_BTV = step.model.logits(params, out.hidden_BTD)
    verdict = step.verifier(
        state.sampling,
        state_lib.adjusted(state, logits_BTV, adjust.chain_drafts(tokens_BJ)),
        state_lib.next_positions(state, K + 1),
        draft_tokens_BJ=tokens_BJ,
        valid_BJ=jnp.ones_like(tokens_BJ, bool),
        draft_probs_BJV=probs_BJV,
        rule=step.rule,
    )
    return step.model.placement.replicate(verdict), out.cache

  B, placement = setting.batch, setting.target.placement
  axis = setting.draft.placement.logits_axis(B, V)
  tokens = jax.ShapeDtypeStruct(
      (B, K), jnp.int32, sharding=placement.sharding()
  )
  probs = jax.ShapeDtypeStruct(
      (B, K, V),
      jnp.float32,
      sharding=setting.draft.placement.sharding(('batch', None, axis)),
  )
  return compile_program(
      'verify',
      run,
      abstract.params(setting.target),
      carry.state,
      tokens,
      probs,
      donated=(1,),
  )
