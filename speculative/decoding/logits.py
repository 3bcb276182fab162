"""The one warping of logits, for target, draft and plain decoding alike.

Order of operations: temperature, then min-p, then top-k, then top-p over what
those left, renormalised. Top-k and top-p cut by a threshold on the value, so
tokens that tie with the last one kept are kept too, whatever their ids; the cut
does not depend on how a sort breaks ties.
"""

import flax.struct
import jax
from jax import numpy as jnp
import numpy as np

_LOWEST = np.iinfo(np.int32).min


@flax.struct.dataclass
class Warping:
  """What is done to the logits of every row.

  Attributes:
    greedy_B: bool; such a row's law is one-hot at its likeliest token and its
      other fields are not looked at.
    temperature_B: float32 > 0 where not greedy.
    min_p_B: float32 in [0, 1]; tokens less likely than this times the
      likeliest are cut; 0 keeps all.
    top_k_B: int32, tokens kept; 0 keeps all.
    top_p_B: float32 in (0, 1], probability kept; 1 keeps all.
  """

  greedy_B: jax.Array
  temperature_B: jax.Array
  min_p_B: jax.Array
  top_k_B: jax.Array
  top_p_B: jax.Array


def _ordered_bits(x: jax.Array) -> jax.Array:
  """Maps float32 to int32 so that the order stays the same."""
  # Minus zero equals zero but has other bits.
  x = jnp.where(x == 0, jnp.float32(0), x)
  bits = jax.lax.bitcast_convert_type(x, jnp.int32)
  return bits ^ ((bits >> 31) & jnp.int32(0x7FFFFFFF))


def _keep_heaviest(
    values_BTV: jax.Array, weights_BTV: jax.Array, need_BT: jax.Array
) -> jax.Array:
  """Marks the fewest largest values whose weights sum to at least `need`.

  Bisects on the bit pattern of the threshold: 32 passes of compare and sum,
  far cheaper than sorting a vocabulary, and exact. Equal values are kept or
  cut together. If all weights do not reach `need`, everything is kept.
  """
  bits_BTV = _ordered_bits(values_BTV)
  weights_BTV = weights_BTV.astype(jnp.float32)

  def halve(_, bounds):
    low_BT, high_BT = bounds
    # Halves first: low + high would overflow.
    middle_BT = (low_BT >> 1) + (high_BT >> 1) + (low_BT & high_BT & 1)
    kept_BTV = bits_BTV >= middle_BT[..., None]
    weight_BT = jnp.where(kept_BTV, weights_BTV, 0).sum(axis=-1)
    enough_BT = weight_BT >= need_BT
    return (
        jnp.where(enough_BT, middle_BT, low_BT),
        jnp.where(enough_BT, high_BT, middle_BT),
    )

  low_BT = jnp.full_like(need_BT, _LOWEST, jnp.int32)
  high_BT = bits_BTV.max(axis=-1) + 1
  low_BT, _ = jax.lax.fori_loop(0, 32, halve, (low_BT, high_BT))
  return bits_BTV >= low_BT[..., None]


def _cut_min_p(logits_BTV: jax.Array, min_p_B: jax.Array) -> jax.Array:
  # p >= min_p max(p) in logits; log 0 is minus infinity and keeps all.
  floor_BT1 = logits_BTV.max(axis=-1, keepdims=True) + jnp.log(
      min_p_B[:, None, None]
  )
  return jnp.where(logits_BTV >= floor_BT1, logits_BTV, -jnp.inf)


def _cut_top_k(logits_BTV: jax.Array, top_k_B: jax.Array) -> jax.Array:
  V = logits_BTV.shape[-1]
  need_B = jnp.where(top_k_B > 0, jnp.minimum(top_k_B, V), V)
  need_BT = jnp.broadcast_to(
      need_B.astype(jnp.float32)[:, None], logits_BTV.shape[:2]
  )
  kept_BTV = _keep_heaviest(logits_BTV, jnp.ones_like(logits_BTV), need_BT)
  return jnp.where(kept_BTV, logits_BTV, -jnp.inf)


def _cut_top_p(logits_BTV: jax.Array, top_p_B: jax.Array) -> jax.Array:
  probs_BTV = jax.nn.softmax(logits_BTV, axis=-1)
  need_BT = jnp.broadcast_to(top_p_B[:, None], logits_BTV.shape[:2])
  kept_BTV = _keep_heaviest(probs_BTV, probs_BTV, need_BT)
  # A sum that rounds to just below 1 must not cut rows that keep everything.
  kept_BTV = kept_BTV | (top_p_B >= 1)[:, None, None]
  return jnp.where(kept_BTV, logits_BTV, -jnp.inf)


def warp_logits(warping: Warping, logits_BTV: jax.Array) -> jax.Array:
  """Returns float32 logits whose softmax is the law tokens are drawn from.

  Args:
    warping: what to do to each row.
    logits_BTV: float32, as `adjust.adjust_logits` returned them.

  Returns:
    float32 [B, T, V]; tokens that cannot be drawn are minus infinity. For a
    greedy row the likeliest token (the first of equals) is 0 and all others
    minus infinity.
  """
  greedy_B11 = warping.greedy_B[:, None, None]
  min_p_B = jnp.where(warping.greedy_B, 0.0, warping.min_p_B)
  top_k_B = jnp.where(warping.greedy_B, 0, warping.top_k_B)
  top_p_B = jnp.where(warping.greedy_B, 1.0, warping.top_p_B)
  temperature_B = jnp.where(warping.greedy_B, 1.0, warping.temperature_B)

  warped_BTV = logits_BTV / temperature_B[:, None, None]
  warped_BTV = jax.lax.cond(
      jnp.any(min_p_B > 0),
      lambda x: _cut_min_p(x, min_p_B),
      lambda x: x,
      warped_BTV,
  )
  warped_BTV = jax.lax.cond(
      jnp.any(top_k_B > 0),
      lambda x: _cut_top_k(x, top_k_B),
      lambda x: x,
      warped_BTV,
  )
  warped_BTV = jax.lax.cond(
      jnp.any(top_p_B < 1),
      lambda x: _cut_top_p(x, top_p_B),
      lambda x: x,
      warped_BTV,
  )
  V = logits_BTV.shape[-1]
  best_BT1 = jnp.argmax(logits_BTV, axis=-1)[..., None]
  is_best_BTV = jnp.arange(V)[None, None, :] == best_BT1
  one_hot_BTV = jnp.where(is_best_BTV, 0.0, -jnp.inf)
  return jnp.where(greedy_B11, one_hot_BTV, warped_BTV)


def warp_probs(warping: Warping, logits_BTV: jax.Array) -> jax.Array:
  """Returns the float32 law itself: softmax of `warp_logits`."""
  return jax.nn.softmax(warp_logits(warping, logits_BTV), axis=-1)
