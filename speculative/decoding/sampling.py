"""Sampling parameters, the key of every random draw, and the draw itself.

One rule for all randomness: key = f(row seed, position, use), where position is
the index in the row's text of the token being decided. So a row's output does
not depend on its neighbours, on the batch or on how many tokens a round
brought, and no key serves two purposes.
"""

import flax.struct
import jax
from jax import numpy as jnp

from speculative.decoding import logits as logits_lib
from speculative.decoding.adjust import Adjustment
from speculative.decoding.logits import Warping

_BLOCK = 256  # about the square root of a vocabulary

# Uses of a random key.
TARGET = 0  # draw from the target: plain decoding, one-hot drafts, bonus token
DRAFT = 1  # draw from the draft
ACCEPT = 2  # acceptance test of a drafted token
RESIDUAL = 3  # draw from the residual after a rejection


@flax.struct.dataclass
class Sampling:
  """How every row draws its tokens; traced, so changing it compiles nothing.

  Attributes:
    adjustment: bias, minimum length and penalties of every row.
    warping: greedy flag, temperature, min-p, top-k and top-p of every row.
    seed_B: uint32.
  """

  adjustment: Adjustment
  warping: Warping
  seed_B: jax.Array

  @property
  def greedy_B(self) -> jax.Array:
    """Rows that take the likeliest token and draw nothing."""
    return self.warping.greedy_B


def keys(seed_B: jax.Array, positions_BT: jax.Array, use: int) -> jax.Array:
  """Returns the key [B, T] of every row and position for one use."""

  def one(seed: jax.Array, position: jax.Array) -> jax.Array:
    key = jax.random.fold_in(jax.random.key(seed), position)
    return jax.random.fold_in(key, use)

  per_row = jax.vmap(one, in_axes=(None, 0))
  return jax.vmap(per_row)(seed_B, positions_BT)


def uniform(keys_BT: jax.Array) -> jax.Array:
  """Returns one float32 in [0, 1) for every key."""
  return jax.vmap(jax.vmap(lambda key: jax.random.uniform(key)))(keys_BT)


def _first_above(
    cumulative: jax.Array, mass: jax.Array, level: jax.Array
) -> jax.Array:
  """Returns the first index of the last axis whose running sum exceeds level.

  An entry without mass is never returned, though a running sum that is not
  formed from left to right can rise there by rounding. Where rounding let the
  level reach the total, it is the last entry with mass.
  """
  has_mass = mass > 0
  above = has_mass & (cumulative > level[..., None])
  last = mass.shape[-1] - 1 - jnp.argmax(has_mass[..., ::-1], axis=-1)
  first = jnp.argmax(above, axis=-1)
  return jnp.where(above.any(axis=-1), first, last).astype(jnp.int32)


def categorical(u_BT: jax.Array, probs_BTV: jax.Array) -> jax.Array:
  """Draws a token of every law by its inverse cumulative distribution.

  In two levels, blocks of the vocabulary and tokens of one block: one uniform
  number and one sum over the vocabulary a draw, where Gumbel noise would need a
  random number and two logarithms a token.

  Args:
    u_BT: float32 in [0, 1).
    probs_BTV: float32 >= 0, sums to 1 up to rounding; a token of probability
      zero is never drawn.

  Returns:
    int32 [B, T].
  """
  B, T, V = probs_BTV.shape
  padding = -V % _BLOCK
  blocks_BTnW = jnp.pad(probs_BTV, ((0, 0), (0, 0), (0, padding))).reshape(
      B, T, -1, _BLOCK
  )
  mass_BTn = blocks_BTnW.sum(axis=-1)
  ends_BTn = jnp.cumsum(mass_BTn, axis=-1)
  level_BT = u_BT * ends_BTn[..., -1]
  block_BT = _first_above(ends_BTn, mass_BTn, level_BT)
  starts_BTn = jnp.pad(ends_BTn[..., :-1], ((0, 0), (0, 0), (1, 0)))
  start_BT = jnp.take_along_axis(starts_BTn, block_BT[..., None], axis=-1)
  block_BTW = jnp.take_along_axis(
      blocks_BTnW, block_BT[..., None, None], axis=2
  )[:, :, 0]
  within_BT = _first_above(
      jnp.cumsum(block_BTW, axis=-1), block_BTW, level_BT - start_BT[..., 0]
  )
  return block_BT * _BLOCK + within_BT


def draw(
    sampling: Sampling,
    logits_BTV: jax.Array,
    positions_BT: jax.Array,
    *,
    use: int,
) -> jax.Array:
  """Draws the token of every position from its adjusted logits, warped.

  Args:
    sampling: how.
    logits_BTV: float32, adjusted.
    positions_BT: int32, index in the text of the token drawn from row t.
    use: which use of the key this is.

  Returns:
    int32 [B, T]; for greedy rows the likeliest token, the first of equals.
  """

  def greedy() -> jax.Array:
    return jnp.argmax(logits_BTV, axis=-1).astype(jnp.int32)

  def sampled() -> jax.Array:
    probs_BTV = logits_lib.warp_probs(sampling.warping, logits_BTV)
    u_BT = uniform(keys(sampling.seed_B, positions_BT, use))
    return categorical(u_BT, probs_BTV)

  return jax.lax.cond(jnp.all(sampling.greedy_B), greedy, sampled)
