"""The speculative round: draft, verify, commit, all on the device."""

from collections.abc import Callable
import dataclasses

import jax
from jax import numpy as jnp

from speculative.decoding import adjust
from speculative.decoding import log_probs as log_probs_lib
from speculative.decoding import state as state_lib
from speculative.decoding import verify
from speculative.decoding.drafter import Drafter
from speculative.decoding.loop import Carry
from speculative.decoding.loop import Model
from speculative.decoding.loop import Weights
from speculative.decoding.state import DecodeState
from speculative.decoding.verify import Verdict


def emitted(draft_tokens_BJ: jax.Array, verdict: Verdict) -> jax.Array:
  """Puts the target's token behind the accepted ones.

    drafted [7, 2, 9], 1 accepted, next token 4 -> [7, 4, 9, 0], 2 count

  Returns:
    int32 [B, J + 1]; the first num_accepted + 1 count.
  """
  J = draft_tokens_BJ.shape[1]
  padded_BT = jnp.pad(draft_tokens_BJ, ((0, 0), (0, 1)))
  index_T = jnp.arange(J + 1, dtype=jnp.int32)
  is_next_BT = index_T[None, :] == verdict.num_accepted_B[:, None]
  return jnp.where(is_next_BT, verdict.next_token_B[:, None], padded_BT)


@dataclasses.dataclass(frozen=True)
class Speculative:
  """One round of speculative sampling with a drafted chain.

  A batch of two with J = 2 (prompts [5, 6] and [8], tokens 10.. drafted):

    row  text    drafted   target's rows score  kept  next  text after
     0   5 6     10 11     6 10 11              2     12    5 6 10 11 12
     1   8       20 21     8 20 21              0     30    8 30

  The caches held 1 and 0 tokens, took 3 slots each in the pass and are cut back
  to 4 and 1: everything but the newest token.

  Attributes:
    model: the target.
    drafter: proposes the tokens.
    rule: how sampled drafts are verified, one of `verify.RULES`.
    verifier: what decides; replaced only to show that a wrong one is caught.
  """

  model: Model
  drafter: Drafter
  rule: str = 'token'
  verifier: Callable[..., Verdict] = verify.verify_chain

  @property
  def num_draft_tokens(self) -> int:
    """J."""
    return self.drafter.num_draft_tokens

  @property
  def features(self) -> tuple[int, ...]:
    """Layers whose outputs the drafter wants."""
    return self.drafter.features

  def init(
      self,
      weights: Weights,
      state: DecodeState,
      features: dict[int, jax.Array],
      *,
      prompt_width: int,
  ) -> Carry:
    """Lets the drafter read the prompts."""
    drafter_state = self.drafter.init(
        weights.drafter, state, features, prompt_width=prompt_width
    )
    return Carry(state=state, drafter_state=drafter_state)

  def __call__(self, weights: Weights, carry: Carry) -> Carry:
    """Appends between 1 and J + 1 tokens to every running row."""
    state = carry.state
    placement = self.model.placement

    # ---- draft ----
    with jax.named_scope('draft'):
      proposal, drafter_state = self.drafter.propose(
          weights.drafter, carry.drafter_state, state
      )
      proposal = proposal.replicated(placement)

    # ---- verify ----
    with jax.named_scope('verify'):
      last_B1 = state_lib.last_token(state)
      out = self.model.forward(
          weights.target,
          jnp.concatenate([last_B1, proposal.tokens_BM], axis=1),
          state.cache,
          features=self.features,
      )
      logits_BTV = self.model.logits(weights.target, out.hidden_BTD)
      verdict = self.verifier(
          state.sampling,
          state_lib.adjusted(
              state, logits_BTV, adjust.chain_drafts(proposal.tokens_BM)
          ),
          state_lib.next_positions(state, self.num_draft_tokens + 1),
          draft_tokens_BJ=proposal.tokens_BM,
          valid_BJ=proposal.valid_BM,
          draft_probs_BJV=proposal.probs_BPV,
          rule=self.rule,
      )
      verdict = placement.replicate(verdict)

    # ---- commit ----
    with jax.named_scope('commit'):
      tokens_BT = emitted(proposal.tokens_BM, verdict)
      # Else counters and lengths are split over rows, and gathered one by one.
      tokens_BT = placement.replicate(tokens_BT)
      log_probs = placement.replicate(
          log_probs_lib.of_tokens(
              state.log_probs,
              logits_BTV,
              tokens_BT,
              num_parts=placement.model_size,
          )
      )
      state = state_lib.commit(
          state,
          out.cache,
          emitted_BT=tokens_BT,
          num_emitted_B=verdict.num_accepted_B + 1,
          num_drafted_B=proposal.valid_BM.sum(axis=1).astype(jnp.int32),
          num_tested_B=verdict.num_tested_B,
          log_probs=log_probs,
      )
      drafter_state = self.drafter.commit(
          weights.drafter, drafter_state, state, verdict, out.features
      )
    return Carry(state=state, drafter_state=drafter_state)
