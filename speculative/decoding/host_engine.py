"""Decoding whose drafts are made on the host, round by round.

For what does not fit on the device, such as a store of text on disk. The round
is the same device program as everywhere; the host looks at the text after every
one and hands the next draft over. That is what it costs: a fetch and an upload
of some hundred numbers, and the device waits for the host.
"""

from collections.abc import Callable

import jax
import numpy as np

from speculative.decoding import loop
from speculative.decoding.drafter import Proposal
from speculative.decoding.engine import Engine
from speculative.decoding.loop import Carry
from speculative.decoding.loop import Step
from speculative.decoding.loop import Weights

# Drafts after texts, int32 [B, S], of which int32 [B] tokens count: a Proposal
# of numpy arrays.
Draft = Callable[[np.ndarray, np.ndarray], Proposal]


class HostEngine(Engine):
  """Runs a `Step` whose drafter is `drafting.given.Given`.

  Attributes:
    draft: makes the drafts.
  """

  def __init__(self, step: Step, weights: Weights, draft: Draft) -> None:
    """Keeps all three."""
    super().__init__(step, weights)
    self.draft = draft

  def with_step(self, step: Step) -> 'HostEngine':
    """See `Engine`."""
    return HostEngine(step, self.weights, self.draft)

  def drafted(self, carry: Carry) -> Carry:
    """Drafts on the host, and puts it where the round looks for it."""
    state = carry.state
    tokens_BS, seq_len_B = jax.device_get((state.tokens_BS, state.seq_len_B))
    return self._with_draft(carry, tokens_BS, seq_len_B)

  def _with_draft(
      self, carry: Carry, tokens_BS: np.ndarray, seq_len_B: np.ndarray
  ) -> Carry:
    with jax.transfer_guard('allow'):
      proposal = self.draft(tokens_BS, seq_len_B)
    return carry.replace(drafter_state=self._put(proposal))

  def advance(
      self, carry: Carry, *, num_rounds: jax.Array, ended_B: np.ndarray
  ) -> Carry:
    """See `Engine`; the host is asked before every round."""
    one_round, ended = self._put((np.int32(1), ended_B))
    for _ in range(int(jax.device_get(num_rounds))):
      state = carry.state
      tokens_BS, seq_len_B, done_B = jax.device_get(
          (state.tokens_BS, state.seq_len_B, state.done_B)
      )
      if (done_B | ended_B).all():
        break
      carry = loop.run(
          weights=self.weights,
          carry=self._with_draft(carry, tokens_BS, seq_len_B),
          num_rounds=one_round,
          step=self.step,
          ended_B=ended,
      )
    return carry
