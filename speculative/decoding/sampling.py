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
from speculative.decoding.logits import Warping

# Uses of a random key.
TARGET = 0  # draw from the target: plain decoding, one-hot drafts, bonus token
DRAFT = 1  # draw from the draft
ACCEPT = 2  # acceptance test of a drafted token
RESIDUAL = 3  # draw from the residual after a rejection


@flax.struct.dataclass
class Sampling:
  """How every row draws its tokens; traced, so changing it compiles nothing.

  Attributes:
    warping: greedy flag, temperature, top-k and top-p of every row.
    seed_B: uint32.
  """

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


def categorical(keys_BT: jax.Array, logits_BTV: jax.Array) -> jax.Array:
  """Draws a token from softmax(logits) with every key, by Gumbel-max.

  A token of logit minus infinity is never drawn.
  """
  V = logits_BTV.shape[-1]
  noise = jax.vmap(jax.vmap(lambda key: jax.random.gumbel(key, (V,))))
  scores_BTV = logits_BTV + noise(keys_BT)
  return jnp.argmax(scores_BTV, axis=-1).astype(jnp.int32)


def draw(
    sampling: Sampling,
    logits_BTV: jax.Array,
    positions_BT: jax.Array,
    *,
    use: int,
) -> jax.Array:
  """Draws the token of every position from its warped logits.

  Args:
    sampling: how.
    logits_BTV: float32, raw.
    positions_BT: int32, index in the text of the token drawn from row t.
    use: which use of the key this is.

  Returns:
    int32 [B, T]; for greedy rows the likeliest token, the first of equals.
  """

  def greedy() -> jax.Array:
    return jnp.argmax(logits_BTV, axis=-1).astype(jnp.int32)

  def sampled() -> jax.Array:
    warped_BTV = logits_lib.warp_logits(sampling.warping, logits_BTV)
    return categorical(keys(sampling.seed_B, positions_BT, use), warped_BTV)

  return jax.lax.cond(jnp.all(sampling.greedy_B), greedy, sampled)
