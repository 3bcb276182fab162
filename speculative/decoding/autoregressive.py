"""Plain decoding, one token a target pass: the yardstick.

Written apart from the speculative round, which has to agree with it; they share
the warping, the draw, the commit and the loop.
"""

import dataclasses

import jax
from jax import numpy as jnp

from speculative.decoding import adjust
from speculative.decoding import log_probs as log_probs_lib
from speculative.decoding import sampling as sampling_lib
from speculative.decoding import state as state_lib
from speculative.decoding.loop import Carry
from speculative.decoding.loop import Model
from speculative.decoding.loop import Weights
from speculative.decoding.state import DecodeState


@dataclasses.dataclass(frozen=True)
class Autoregressive:
  """One round of plain decoding.

  Attributes:
    model: the target.
  """

  model: Model

  @property
  def num_draft_tokens(self) -> int:
    """None are drafted."""
    return 0

  @property
  def max_depth(self) -> int:
    """None are drafted."""
    return 0

  @property
  def features(self) -> tuple[int, ...]:
    """No layers' outputs are needed."""
    return ()

  def init(
      self,
      weights: Weights,
      state: DecodeState,
      features: dict[int, jax.Array],
      *,
      prompt_width: int,
  ) -> Carry:
    """Starts from the state alone."""
    del weights, features, prompt_width
    return Carry(state=state)

  def __call__(self, weights: Weights, carry: Carry) -> Carry:
    """Appends one token to every running row."""
    state = carry.state
    out = self.model.forward(
        weights.target, state_lib.last_token(state), state.cache
    )
    logits_B1V = self.model.logits(weights.target, out.hidden_BTD)
    token_B1 = sampling_lib.draw(
        state.sampling,
        state_lib.adjusted(
            state, logits_B1V, adjust.no_drafts(state.seq_len_B)
        ),
        state_lib.next_positions(state, 1),
        use=sampling_lib.TARGET,
    )
    log_probs = log_probs_lib.of_tokens(
        state.log_probs,
        logits_B1V,
        token_B1,
        num_parts=self.model.placement.model_size,
    )
    token_B1, log_probs = self.model.placement.replicate((token_B1, log_probs))
    zero_B = jnp.zeros_like(state.seq_len_B)
    return Carry(
        state=state_lib.commit(
            state,
            out.cache,
            emitted_BT=token_B1,
            num_emitted_B=zero_B + 1,
            num_drafted_B=zero_B,
            num_tested_B=zero_B,
            log_probs=log_probs,
        )
    )
