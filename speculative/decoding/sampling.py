"""Sampling parameters, the key of every random draw, and the draw itself.

One rule for all randomness: key = f(row seed, position, use), where position is
the index in the row's text of the token being decided, and for uses that a
later round may repeat there also the round's own first position. So a row's
output does not depend on its neighbours or on the batch, and no key serves two
purposes or two rounds.
"""

import math

import flax.struct
import jax
from jax import numpy as jnp

from speculative.decoding import logits as logits_lib
from speculative.decoding.adjust import Adjustment
from speculative.decoding.logits import Warping

# Blocks a vocabulary is drawn in, about the square root of its size.
_NUM_BLOCKS = 256
_FEWEST_BLOCKS = 16
_NUM_LEVELS = 4

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
  """Returns the key [B, T] of every row and position for one use.

  For TARGET and RESIDUAL, which decide a position for good.
  """

  def one(seed: jax.Array, position: jax.Array) -> jax.Array:
    key = jax.random.fold_in(jax.random.key(seed), position)
    return jax.random.fold_in(key, use)

  per_row = jax.vmap(one, in_axes=(None, 0))
  return jax.vmap(per_row)(seed_B, positions_BT)


def trial_keys(
    seed_B: jax.Array, start_B: jax.Array, positions_BT: jax.Array, use: int
) -> jax.Array:
  """Returns the key [B, T] of a use that may decide nothing.

  For DRAFT and ACCEPT: a round tries positions that a later round tries again.
  Where it stopped can depend on the numbers at all of them (block verification
  keeps a prefix because the tests of longer ones failed), so that they must not
  come back: the round's start is part of the key. It follows from the row's own
  text, and a row still depends on nothing else.

  Args:
    seed_B: uint32.
    start_B: int32, first position that the round decides.
    positions_BT: int32.
    use: DRAFT or ACCEPT.
  """
  B, T = positions_BT.shape

  def one(key: jax.Array, start: jax.Array) -> jax.Array:
    return jax.random.fold_in(key, start)

  start_BT = jnp.broadcast_to(start_B[:, None], (B, T))
  return jax.vmap(jax.vmap(one))(keys(seed_B, positions_BT, use), start_BT)


def of_nodes(keys_BM: jax.Array) -> jax.Array:
  """Returns a key [B, M] of its own for every node of a tree.

  For trials: nodes of one depth try one position.

  Args:
    keys_BM: of the position that each node is for.
  """
  node_M = jnp.arange(keys_BM.shape[1], dtype=jnp.int32)
  per_row = jax.vmap(jax.random.fold_in)
  return jax.vmap(per_row, in_axes=(0, None))(keys_BM, node_M)


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


def _grid(vocab_size: int) -> tuple[int, int]:
  """Returns how many blocks a vocabulary is drawn in, and their width.

  The number of blocks is a power of two up to 256 that divides the vocabulary,
  so that a mesh that splits the vocabulary splits no block; one that only small
  powers divide is padded. It depends on nothing else: a seed's draws do not
  change with the mesh.
  """
  num = math.gcd(vocab_size, _NUM_BLOCKS)
  if num < _FEWEST_BLOCKS:
    num = min(_NUM_BLOCKS, vocab_size)
  return num, -(-vocab_size // num)


def _descend(u_BTL: jax.Array, mass_BTn: jax.Array) -> jax.Array:
  """Draws an entry in two levels, each with a random number of its own."""
  B, T, n = mass_BTn.shape
  width = max(math.isqrt(n), 1)
  mass_BTnW = jnp.pad(mass_BTn, ((0, 0), (0, 0), (0, -n % width))).reshape(
      B, T, -1, width
  )
  group_BT = _choose(u_BTL[..., 0], mass_BTnW.sum(axis=-1))
  within_BT = _choose(u_BTL[..., 1], _pick(mass_BTnW, group_BT))
  return group_BT * width + within_BT


def _choose(u_BT: jax.Array, mass_BTn: jax.Array) -> jax.Array:
  cumulative_BTn = jnp.cumsum(mass_BTn, axis=-1)
  return _first_above(cumulative_BTn, mass_BTn, u_BT * cumulative_BTn[..., -1])


def _pick(x_BTnW: jax.Array, index_BT: jax.Array) -> jax.Array:
  """Takes one of n rows at every position."""
  return jnp.take_along_axis(x_BTnW, index_BT[..., None, None], axis=2)[:, :, 0]


def _whole(x_BTn: jax.Array) -> jax.Array:
  """Returns the same numbers, on every device of a mesh that splits them.

  Read by index they are one collective. Where `_descend` pads, groups and sums
  what is split, the compiler makes ten and more of it, one after another.
  """
  index_n = jnp.arange(x_BTn.shape[-1], dtype=jnp.int32)
  return jnp.take(x_BTn, index_n, axis=-1, mode='clip')


def inverse(u_BTL: jax.Array, probs_BTV: jax.Array) -> jax.Array:
  """Returns the token that four random numbers stand for.

  The vocabulary is a tree: two levels of blocks, two of tokens in a block, some
  16 branches each, and a branch is chosen by the inverse of the cumulative
  distribution over its siblings. With a number of its own for every level,
  rounding moves a draw only where it lies within that rounding of one of some
  16 bounds; with one number for the whole vocabulary each of its 10^5 bounds
  would do, and a pass of another width would often draw another token.

  Args:
    u_BTL: float32 in [0, 1), L = 4.
    probs_BTV: float32 >= 0, sums to 1 up to rounding; a token of probability
      zero is never drawn.

  Returns:
    int32 [B, T].
  """
  B, T, V = probs_BTV.shape
  num, width = _grid(V)
  padding = num * width - V
  blocks_BTnW = jnp.pad(probs_BTV, ((0, 0), (0, 0), (0, padding))).reshape(
      B, T, num, width
  )
  mass_BTn = _whole(blocks_BTnW.sum(axis=-1))
  block_BT = _descend(u_BTL[..., :2], mass_BTn)
  within_BT = _descend(u_BTL[..., 2:], _pick(blocks_BTnW, block_BT))
  return block_BT * width + within_BT


def categorical(keys_BT: jax.Array, probs_BTV: jax.Array) -> jax.Array:
  """Draws a token of every law; see `inverse`.

  Four random numbers and one sum over the vocabulary a draw, where Gumbel noise
  would need a random number and two logarithms a token.

  Args:
    keys_BT: used for nothing else.
    probs_BTV: float32 >= 0, sums to 1 up to rounding.

  Returns:
    int32 [B, T].
  """

  def numbers(key: jax.Array) -> jax.Array:
    return jax.random.uniform(key, (_NUM_LEVELS,))

  return inverse(jax.vmap(jax.vmap(numbers))(keys_BT), probs_BTV)


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
    return categorical(keys(sampling.seed_B, positions_BT, use), probs_BTV)

  return jax.lax.cond(jnp.all(sampling.greedy_B), greedy, sampled)
