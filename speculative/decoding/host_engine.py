"""Decoding whose drafts are made on the host, round by round.

For what does not fit on the device, such as a store of text on disk. The round
is the same device program as everywhere; the host looks at the text after every
one and hands the next draft over. That is what it costs: a fetch and an upload
of some hundred numbers, and the device waits for the host.
"""

from collections.abc import Callable
from typing import Any

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

  def advance(
      self, carry: Carry, *, num_rounds: Any, ended_B: np.ndarray
  ) -> Carry:
    """Drafts, and runs one round, whatever number is asked for."""
    del num_rounds
    tokens_BS, seq_len_B = jax.device_get(
        (carry.state.tokens_BS, carry.state.seq_len_B)
    )
    with jax.transfer_guard('allow'):
      proposal = self.draft(tokens_BS, seq_len_B)
    carry = carry.replace(drafter_state=self._put(proposal))
    return loop.run(
        weights=self.weights,
        carry=carry,
        num_rounds=self._put(np.int32(1)),
        step=self.step,
        ended_B=self._put(ended_B),
    )
