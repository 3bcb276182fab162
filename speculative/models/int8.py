"""Matrices of eight-bit integers, for drafts: half of bfloat16's bytes.

A row of a matrix has one scale, and so has every row that is multiplied by it,
found when it comes. Products are summed in int32. What a draft says changes by
the rounding; what is made of it does not, as q is the law it really drew from.
"""

import flax.struct
import jax
from jax import numpy as jnp

from speculative.models.params import Params

_LARGEST = 127.0
# Left alone: read by index, and maybe shared with another model.
_EMBEDDING = 'embed'


@flax.struct.dataclass
class Int8Matrix:
  """A matrix `[out, in]`, value * scale.

  Attributes:
    values_FD: int8.
    scale_F: float32 > 0.
  """

  values_FD: jax.Array
  scale_F: jax.Array


def _rounded(x: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns int8 values and the scale of the last axis, kept as of length 1."""
  x = x.astype(jnp.float32)
  largest = jnp.max(jnp.abs(x), axis=-1, keepdims=True)
  scale = jnp.where(largest > 0, largest / _LARGEST, 1.0)
  return jnp.round(x / scale).astype(jnp.int8), scale


def quantise(weight_FD: jax.Array) -> Int8Matrix:
  """Rounds a matrix, each row by its largest entry."""
  values_FD, scale_F1 = _rounded(weight_FD)
  return Int8Matrix(values_FD, scale_F1[:, 0])


def project(x_BTD: jax.Array, weight: Int8Matrix) -> jax.Array:
  """Returns float32 [B, T, F]; rows of x are rounded like those of a matrix."""
  values_BTD, scale_BT1 = _rounded(x_BTD)
  y_BTF = jnp.einsum(
      'BTD,FD->BTF',
      values_BTD,
      weight.values_FD,
      preferred_element_type=jnp.int32,
  )
  scale_11F = weight.scale_F[None, None, :]
  return y_BTF.astype(jnp.float32) * scale_BT1 * scale_11F


def quantise_params(params: Params) -> Params:
  """Rounds all matrices of a draft but its embedding.

  Args:
    params: with unrolled layers.
  """

  def one(path: tuple, x: jax.Array) -> jax.Array | Int8Matrix:
    is_matrix = x.ndim == 2 and path[-1].key != _EMBEDDING
    return jax.jit(quantise)(x) if is_matrix else x

  return jax.tree_util.tree_map_with_path(one, params)
