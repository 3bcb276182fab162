"""Accept or reject a drafted chain so that the output keeps the target's law.

Implements the rejection rule of Leviathan et al. (arXiv:2211.17192, Alg. 1) and
Chen et al. (arXiv:2302.01318, Alg. 2). We write p for the target and q for the
draft, as the former paper does; the latter swaps the two letters. Block
verification, which decides the chain as a whole, is that of Sun et al.
(arXiv:2403.10444, Alg. 2).

A deterministic draft (q one-hot at x) is the same rule in other clothes: keep x
with probability p(x), else draw from p without x. Drawing y from p and keeping
x if y = x does just that, and with y drawn from the same key as plain decoding
the tokens, not only their law, are those of plain decoding.
"""

import flax.struct
import jax
from jax import numpy as jnp

from speculative.decoding import logits as logits_lib
from speculative.decoding import sampling as sampling_lib
from speculative.decoding.sampling import Sampling

RULES = ('token', 'block')


@flax.struct.dataclass
class Verdict:
  """What one verify pass decided for every row.

  Attributes:
    num_accepted_B: int32, drafted tokens kept, in [0, J].
    num_tested_B: int32, accepted plus the first rejection, if there was one;
      an invalid node was not tested.
    next_token_B: int32, the token emitted after them: drawn from the
      residual on a rejection, from the target otherwise (the bonus token, or
      where nothing valid was drafted).
  """

  num_accepted_B: jax.Array
  num_tested_B: jax.Array
  next_token_B: jax.Array


def _take(x_BT: jax.Array, index_B: jax.Array) -> jax.Array:
  """Takes one position a row: [B, T, ...] -> [B, ...]."""
  index = index_B.reshape((-1,) + (1,) * (x_BT.ndim - 1))
  return jnp.take_along_axis(x_BT, index, axis=1)[:, 0]


def num_leading(kept_BJ: jax.Array) -> jax.Array:
  """Counts how many positions are kept before the first that is not."""
  return jnp.cumprod(kept_BJ.astype(jnp.int32), axis=-1).sum(axis=-1)


def verdict_of(
    num_accepted_B: jax.Array, valid_BJ: jax.Array, next_token_B: jax.Array
) -> Verdict:
  """Returns the Verdict of a chain of which a number is kept."""
  num_valid_B = num_leading(valid_BJ)
  return Verdict(
      num_accepted_B=num_accepted_B,
      num_tested_B=jnp.minimum(num_accepted_B + 1, num_valid_B),
      next_token_B=next_token_B,
  )


def match_draws(
    draft_tokens_BJ: jax.Array, valid_BJ: jax.Array, draws_BT: jax.Array
) -> Verdict:
  """Keeps drafted tokens while they equal the target's own draws.

  Args:
    draft_tokens_BJ: int32.
    valid_BJ: bool, which of them were drafted at all.
    draws_BT: int32, T = J + 1; row t is the target's draw for position t given
      the drafted tokens before it.

  Returns:
    The Verdict. Emitted tokens are always the target's own draws.
  """
  J = draft_tokens_BJ.shape[1]
  kept_BJ = valid_BJ & (draft_tokens_BJ == draws_BT[:, :J])
  num_accepted_B = num_leading(kept_BJ)
  return verdict_of(num_accepted_B, valid_BJ, _take(draws_BT, num_accepted_B))


def acceptance(u_BJ: jax.Array, p_BJ: jax.Array, q_BJ: jax.Array) -> jax.Array:
  """Keeps a token with probability min(1, p / q), for u uniform in [0, 1).

  u q < p rather than u < p / q or u <= p / q: no division by a q of zero, and
  u = 0 cannot let a token of probability zero pass.
  """
  return u_BJ * q_BJ < p_BJ


def residual(p_BV: jax.Array, q_BV: jax.Array) -> jax.Array:
  """Returns the law after a rejection: max(0, p - q), normalised.

  Where rounding leaves nothing of it (p = q), a rejection had probability zero
  up to rounding, and p itself is returned.
  """
  rest_BV = jnp.maximum(p_BV - q_BV, 0)
  mass_B1 = rest_BV.sum(axis=-1, keepdims=True)
  return jnp.where(
      mass_B1 > 0, rest_BV / jnp.where(mass_B1 > 0, mass_B1, 1), p_BV
  )


def token_acceptance(
    u_BJ: jax.Array, p_BJ: jax.Array, q_BJ: jax.Array, valid_BJ: jax.Array
) -> jax.Array:
  """Counts tokens kept one by one until the first refusal.

  Args:
    u_BJ: float32, uniform in [0, 1).
    p_BJ: target's probability of every drafted token.
    q_BJ: draft's.
    valid_BJ: bool.

  Returns:
    int32 [B].
  """
  return num_leading(valid_BJ & acceptance(u_BJ, p_BJ, q_BJ))


def block_weights(
    p_BJ: jax.Array, q_BJ: jax.Array, valid_BJ: jax.Array
) -> jax.Array:
  """Returns [B, J + 1] w_i = min(1, w_(i-1) p_i / q_i), w_0 = 1.

  The p_i of Sun et al., Algorithm 2; a token the draft cannot have drawn, and
  whatever follows an invalid one, has weight 0.
  """
  ratio_BJ = jnp.where(
      valid_BJ & (q_BJ > 0), p_BJ / jnp.where(q_BJ > 0, q_BJ, 1), 0.0
  )

  def step(weight_B, ratio_B):
    weight_B = jnp.minimum(weight_B * ratio_B, 1.0)
    return weight_B, weight_B

  one_B = jnp.ones_like(p_BJ[:, 0])
  _, weights_JB = jax.lax.scan(step, one_B, ratio_BJ.swapaxes(0, 1))
  return jnp.concatenate([one_B[None], weights_JB]).swapaxes(0, 1)


def block_acceptance(
    u_BJ: jax.Array,
    weights_BT: jax.Array,
    valid_BJ: jax.Array,
    draft_probs_BJV: jax.Array,
    target_probs_BTV: jax.Array,
) -> jax.Array:
  """Counts tokens kept by block verification (arXiv:2403.10444, Alg. 2).

  The longest prefix i is kept whose own test u_i < h_i succeeds, where h_n =
  w_n for the whole draft of n tokens and, before its end,

    h_i = s_i / (s_i + 1 - w_i),  s_i = sum_x max(0, w_i p_(i+1) - q_(i+1)).

  Args:
    u_BJ: float32, uniform in [0, 1).
    weights_BT: as `block_weights` returns them.
    valid_BJ: bool.
    draft_probs_BJV: q.
    target_probs_BTV: p, T = J + 1.

  Returns:
    int32 [B].
  """
  J = u_BJ.shape[1]
  num_valid_B1 = num_leading(valid_BJ)[:, None]
  length_J = jnp.arange(1, J + 1, dtype=jnp.int32)[None, :]
  w_BJ = weights_BT[:, 1:]
  # Row i of p and q is the law after i drafted tokens; the last has no q.
  excess_BJV = w_BJ[:, :-1, None] * target_probs_BTV[:, 1:J] - (
      draft_probs_BJV[:, 1:]
  )
  s_BJ = jnp.pad(jnp.maximum(excess_BJV, 0).sum(axis=-1), ((0, 0), (0, 1)))
  # In this order: s is far below one where it decides.
  mass_BJ = s_BJ + (1 - w_BJ)
  # No mass: w = 1 and p = q, so that the next token is kept whatever this says.
  h_BJ = jnp.where(mass_BJ > 0, s_BJ / jnp.where(mass_BJ > 0, mass_BJ, 1), 1.0)
  h_BJ = jnp.where(length_J == num_valid_B1, w_BJ, h_BJ)
  kept_BJ = (u_BJ < h_BJ) & (length_J <= num_valid_B1)
  return jnp.max(jnp.where(kept_BJ, length_J, 0), axis=-1)


def reject_and_resample(
    sampling: Sampling,
    positions_BT: jax.Array,
    *,
    draft_tokens_BJ: jax.Array,
    valid_BJ: jax.Array,
    draft_probs_BJV: jax.Array,
    target_probs_BTV: jax.Array,
    rule: str = 'token',
    accept_u_BJ: jax.Array | None = None,
) -> Verdict:
  """Applies a lossless acceptance test to one sampled chain a row.

  Rule 'token': token j is kept with probability min(1, p_j(x_j) / q_j(x_j)) if
  all before it were; the first refused position is redrawn from the residual
  max(0, p_j - q_j), normalised. Rule 'block': see `block_acceptance`; the
  residual is max(0, w p - q), and no fewer tokens are kept in expectation.
  Either way each emitted token is distributed as if drawn from p alone.

  Args:
    sampling: gives the seeds.
    positions_BT: int32, index in the text of the token row t decides.
    draft_tokens_BJ: int32.
    valid_BJ: bool; at an invalid position q counts as zero, so that the token
      there is drawn from p.
    draft_probs_BJV: float32, q, the very law each token was drawn from.
    target_probs_BTV: float32, p, with T = J + 1 and the same warping.
    rule: 'token' or 'block'.
    accept_u_BJ: float32 in [0, 1), the acceptance's numbers; drawn from keys of
      their own unless wrong ones are given to show that they are caught.

  Returns:
    The Verdict.

  Raises:
    ValueError: If target_probs_BTV does not have exactly J + 1 rows.
  """
  J = draft_tokens_BJ.shape[1]
  if target_probs_BTV.shape[1] != J + 1:
    raise ValueError(
        f'target_probs_BTV needs {J + 1} rows to verify {J} drafted tokens, '
        f'got {target_probs_BTV.shape[1]}.'
    )
  tokens_BJ1 = draft_tokens_BJ[..., None]
  q_BJ = jnp.take_along_axis(draft_probs_BJV, tokens_BJ1, axis=-1)[..., 0]
  p_BJ = jnp.take_along_axis(target_probs_BTV[:, :J], tokens_BJ1, -1)[..., 0]
  if accept_u_BJ is None:
    accept_keys_BJ = sampling_lib.trial_keys(
        sampling.seed_B,
        positions_BT[:, 0],
        positions_BT[:, :J],
        sampling_lib.ACCEPT,
    )
    accept_u_BJ = sampling_lib.uniform(accept_keys_BJ)
  if rule == 'block':
    weights_BT = block_weights(p_BJ, q_BJ, valid_BJ)
    num_accepted_B = block_acceptance(
        accept_u_BJ, weights_BT, valid_BJ, draft_probs_BJV, target_probs_BTV
    )
  else:
    weights_BT = jnp.ones_like(positions_BT, jnp.float32)
    num_accepted_B = token_acceptance(accept_u_BJ, p_BJ, q_BJ, valid_BJ)
  next_token_B = resample(
      sampling,
      positions_BT,
      num_accepted_B=num_accepted_B,
      refused_B=num_accepted_B < num_leading(valid_BJ),
      weights_BT=weights_BT,
      draft_probs_BJV=draft_probs_BJV,
      target_probs_BTV=target_probs_BTV,
  )
  return verdict_of(num_accepted_B, valid_BJ, next_token_B)


def resample(
    sampling: Sampling,
    positions_BT: jax.Array,
    *,
    num_accepted_B: jax.Array,
    refused_B: jax.Array,
    weights_BT: jax.Array,
    draft_probs_BJV: jax.Array,
    target_probs_BTV: jax.Array,
) -> jax.Array:
  """Draws the token after the last one kept.

  From the residual where a drafted token was refused there, from p where there
  was none: the bonus token, drawn with plain decoding's own key.

  Args:
    sampling: gives the seeds.
    positions_BT: int32, index in the text of the token row t decides.
    num_accepted_B: int32, tokens kept.
    refused_B: bool, whether the token after them was drafted and refused.
    weights_BT: float32 w of `block_weights`; ones for the rule 'token'.
    draft_probs_BJV: float32, q.
    target_probs_BTV: float32, p.

  Returns:
    int32 [B].
  """
  J = draft_probs_BJV.shape[1]
  at_B = jnp.minimum(num_accepted_B, J - 1)
  p_BV = _take(target_probs_BTV, num_accepted_B)
  weighted_BV = _take(weights_BT, num_accepted_B)[:, None] * p_BV
  law_BV = jnp.where(
      refused_B[:, None],
      residual(weighted_BV, _take(draft_probs_BJV, at_B)),
      p_BV,
  )
  position_B1 = _take(positions_BT, num_accepted_B)[:, None]
  draw_keys_B1 = jnp.where(
      refused_B[:, None],
      sampling_lib.keys(sampling.seed_B, position_B1, sampling_lib.RESIDUAL),
      sampling_lib.keys(sampling.seed_B, position_B1, sampling_lib.TARGET),
  )
  next_token_B1 = sampling_lib.categorical(draw_keys_B1, law_BV[:, None, :])
  return next_token_B1[:, 0]


def verify_chain(
    sampling: Sampling,
    target_logits_BTV: jax.Array,
    positions_BT: jax.Array,
    *,
    draft_tokens_BJ: jax.Array,
    valid_BJ: jax.Array,
    draft_probs_BJV: jax.Array | None,
    rule: str = 'token',
) -> Verdict:
  """Decides a drafted chain, whatever the drafter and the rows' samplers.

  Args:
    sampling: of every row; the target's logits are warped here, by the same
      function as everywhere.
    target_logits_BTV: float32, adjusted, T = J + 1.
    positions_BT: int32, index in the text of the token row t decides.
    draft_tokens_BJ: int32.
    valid_BJ: bool.
    draft_probs_BJV: q of a sampled draft, already warped; None for a
      deterministic one.
    rule: 'token' or 'block', for sampled drafts.

  Returns:
    The Verdict. Deterministic drafts and greedy rows: token for token what
    plain decoding emits (up to the numerics of a T = J + 1 pass). Sampled
    drafts: the same distribution.
  """

  def by_draws() -> Verdict:
    draws_BT = sampling_lib.draw(
        sampling, target_logits_BTV, positions_BT, use=sampling_lib.TARGET
    )
    return match_draws(draft_tokens_BJ, valid_BJ, draws_BT)

  def by_rejection() -> Verdict:
    return reject_and_resample(
        sampling,
        positions_BT,
        draft_tokens_BJ=draft_tokens_BJ,
        valid_BJ=valid_BJ,
        draft_probs_BJV=draft_probs_BJV,
        target_probs_BTV=logits_lib.warp_probs(
            sampling.warping, target_logits_BTV
        ),
        rule=rule,
    )

  if draft_probs_BJV is None or draft_tokens_BJ.shape[1] == 0:
    return by_draws()
  # Greedy rows are one-hot laws and come out right either way; when all are
  # greedy an argmax is enough.
  return jax.lax.cond(jnp.all(sampling.greedy_B), by_draws, by_rejection)
