"""Verifiers that are wrong on purpose, to show that `verify` can fail.

Each makes a mistake that published implementations have made; none is reachable
but through `config.verify.fault`.
"""

import dataclasses
from typing import Any

import jax
from jax import numpy as jnp

from speculative.decoding import logits as logits_lib
from speculative.decoding import sampling as sampling_lib
from speculative.decoding import tree as tree_lib
from speculative.decoding import verify
from speculative.decoding.drafter import Drafter
from speculative.decoding.drafter import Proposal
from speculative.decoding.sampling import Sampling
from speculative.decoding.speculative import Speculative
from speculative.decoding.state import DecodeState
from speculative.decoding.tree import Tree
from speculative.decoding.tree import TreeVerdict
from speculative.decoding.verify import Verdict


def _reject(
    sampling: Sampling,
    positions_BT: jax.Array,
    target_probs_BTV: jax.Array,
    *,
    draft_tokens_BJ: jax.Array,
    draft_probs_BJV: jax.Array | None,
    **how: Any,
) -> Verdict:
  """The right rule, but with p and the key of the acceptance as given."""
  if draft_probs_BJV is None:
    V = target_probs_BTV.shape[-1]
    draft_probs_BJV = jax.nn.one_hot(draft_tokens_BJ, V, dtype=jnp.float32)
  return verify.reject_and_resample(
      sampling,
      positions_BT,
      draft_tokens_BJ=draft_tokens_BJ,
      draft_probs_BJV=draft_probs_BJV,
      target_probs_BTV=target_probs_BTV,
      **how,
  )


def independent_row_draws(
    sampling: Sampling,
    logits_BTV: jax.Array,
    positions_BT: jax.Array,
    *,
    draft_tokens_BJ: jax.Array,
    valid_BJ: jax.Array,
    **unused: Any,
) -> Verdict:
  """Throws the refused draw away and draws again: favours the draft."""
  del unused
  test_BT, emit_BT = (
      sampling_lib.draw(sampling, logits_BTV, positions_BT, use=use)
      for use in (sampling_lib.ACCEPT, sampling_lib.TARGET)
  )
  verdict = verify.match_draws(draft_tokens_BJ, valid_BJ, test_BT)
  again_B1 = jnp.take_along_axis(
      emit_BT, verdict.num_accepted_B[:, None], axis=1
  )
  return verdict.replace(next_token_B=again_B1[:, 0])


def reused_key(
    sampling: Sampling,
    logits_BTV: jax.Array,
    positions_BT: jax.Array,
    *,
    draft_tokens_BJ: jax.Array,
    draft_probs_BJV: jax.Array,
    **drafted: Any,
) -> Verdict:
  """Tests a drafted token with the very number that drew it.

  As where one number draws a token from the cumulative law: it lies in the
  token's own part of [0, 1), which is where it lies here.
  """
  J = draft_tokens_BJ.shape[1]
  tokens_BJ1 = draft_tokens_BJ[..., None]
  end_BJ, q_BJ = (
      jnp.take_along_axis(x_BJV, tokens_BJ1, axis=-1)[..., 0]
      for x_BJV in (jnp.cumsum(draft_probs_BJV, axis=-1), draft_probs_BJV)
  )
  within_BJ = sampling_lib.uniform(
      sampling_lib.trial_keys(
          sampling.seed_B,
          positions_BT[:, 0],
          positions_BT[:, :J],
          sampling_lib.DRAFT,
      )
  )
  return _reject(
      sampling,
      positions_BT,
      logits_lib.warp_probs(sampling.warping, logits_BTV),
      draft_tokens_BJ=draft_tokens_BJ,
      draft_probs_BJV=draft_probs_BJV,
      accept_u_BJ=end_BJ - q_BJ * within_BJ,
      **drafted,
  )


def unrenormalised_top_p(
    sampling: Sampling,
    logits_BTV: jax.Array,
    positions_BT: jax.Array,
    **drafted: Any,
) -> Verdict:
  """Cuts the target's law and leaves it without a sum of one."""
  warping = sampling.warping
  warped_BTV = logits_lib.warp_logits(warping, logits_BTV)
  whole_BTV = jax.nn.softmax(
      logits_BTV / warping.temperature_B[:, None, None], axis=-1
  )
  cut_BTV = jnp.where(jnp.isfinite(warped_BTV), whole_BTV, 0)
  return _reject(
      sampling,
      positions_BT,
      cut_BTV,
      **drafted,
  )


def warp_order(
    sampling: Sampling,
    logits_BTV: jax.Array,
    positions_BT: jax.Array,
    **drafted: Any,
) -> Verdict:
  """Cuts before it divides by the temperature, on the target's side only."""
  warping = sampling.warping
  cut_BTV = logits_lib.warp_logits(
      warping.replace(temperature_B=jnp.ones_like(warping.temperature_B)),
      logits_BTV,
  )
  off = warping.replace(
      min_p_B=jnp.zeros_like(warping.min_p_B),
      top_k_B=jnp.zeros_like(warping.top_k_B),
      top_p_B=jnp.ones_like(warping.top_p_B),
  )
  return verify.verify_chain(
      sampling.replace(warping=off), cut_BTV, positions_BT, **drafted
  )


@dataclasses.dataclass(frozen=True)
class SoftQForArgmax:
  """Drafts the likeliest token but says that it was drawn.

  Attributes:
    inner: a drafter that samples.
  """

  inner: Drafter

  @property
  def num_draft_tokens(self) -> int:
    """J."""
    return self.inner.num_draft_tokens

  @property
  def features(self) -> tuple[int, ...]:
    """As the inner drafter's."""
    return self.inner.features

  def init(self, params, state, features, *, prompt_width):
    """Starts the inner drafter."""
    return self.inner.init(params, state, features, prompt_width=prompt_width)

  def propose(
      self, params: Any, drafter_state: Any, state: DecodeState
  ) -> tuple[Proposal, Any]:
    """Replaces every drafted token by the likeliest of its law."""
    proposal, drafter_state = self.inner.propose(params, drafter_state, state)
    best_BM = jnp.argmax(proposal.probs_BPV, axis=-1).astype(jnp.int32)
    return proposal.replace(tokens_BM=best_BM), drafter_state

  def commit(self, params, drafter_state, state, verdict, features):
    """Commits to the inner drafter."""
    return self.inner.commit(params, drafter_state, state, verdict, features)


def independent_node_draws(
    sampling: Sampling,
    logits_BTV: jax.Array,
    positions_BT: jax.Array,
    *,
    tree: Tree,
    **unused: Any,
) -> TreeVerdict:
  """Draws for every node of a tree by itself, and again once it is refused.

  As where each candidate continuation is verified alone and the longest one
  kept: siblings have several chances at one position. Favours the draft.
  """
  del unused
  parent_row_BM = tree.parent_BM + 1
  keys_BM = sampling_lib.of_nodes(
      sampling_lib.trial_keys(
          sampling.seed_B,
          positions_BT[:, 0],
          jnp.take_along_axis(positions_BT, parent_row_BM, axis=1),
          sampling_lib.ACCEPT,
      )
  )
  probs_BTV = logits_lib.warp_probs(sampling.warping, logits_BTV)
  tested_BM = sampling_lib.categorical(
      keys_BM,
      jnp.take_along_axis(probs_BTV, parent_row_BM[..., None], axis=1),
  )
  row_B = tree_lib.deepest(tree, tree.valid_BM & (tree.tokens_BM == tested_BM))
  again_BT = sampling_lib.draw(
      sampling, logits_BTV, positions_BT, use=sampling_lib.TARGET
  )
  again_B1 = jnp.take_along_axis(again_BT, row_B[:, None], axis=1)
  return tree_lib.verdict_of(tree, row_B, again_B1[:, 0])


_VERIFIERS = {
    'independent_row_draws': independent_row_draws,
    'reused_key': reused_key,
    'unrenormalised_top_p': unrenormalised_top_p,
    'warp_order': warp_order,
}
_TREE_VERIFIERS = {'independent_node_draws': independent_node_draws}
FAULTS = (*_VERIFIERS, 'soft_q_for_argmax')
# These need a drafter of trees, which the others do not touch.
TREE_FAULTS = tuple(_TREE_VERIFIERS)
# Without a cut law these change nothing.
NEED_TRUNCATION = ('unrenormalised_top_p', 'warp_order')
# These need a draft that samples.
NEED_SAMPLED_DRAFT = ('reused_key', 'soft_q_for_argmax')


def inject(step: Speculative, fault: str) -> Speculative:
  """Returns the round with one fault.

  Args:
    step: a right one.
    fault: one of FAULTS or TREE_FAULTS.
  """
  if fault in TREE_FAULTS:
    return dataclasses.replace(step, tree_verifier=_TREE_VERIFIERS[fault])
  if fault == 'soft_q_for_argmax':
    return dataclasses.replace(step, drafter=SoftQForArgmax(step.drafter))
  return dataclasses.replace(step, verifier=_VERIFIERS[fault])
