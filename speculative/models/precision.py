"""Which number format a model computes in, decided once.

The choice and its reasons live here and nowhere else; matrix products only see
a `Precision`.
"""

import dataclasses

import jax
from jax import numpy as jnp

from speculative.errors import UserError

DTYPES = ('auto', 'float32', 'bfloat16')
DRAFT_DTYPES = (*DTYPES, 'int8')


@dataclasses.dataclass(frozen=True)
class Precision:
  """Number formats of one model on one kind of device.

  Attributes:
    dtype: of weights, of matrix inputs and of the KV cache.
    activations: of what a product returns and of the residual stream.
    min_rows: fewest rows a product may have; fewer are padded up to it.
    gradients: 'as products' rounds what goes back through a product to the
      dtype of its inputs, 'wide' leaves it in that of activations, which makes
      slow float32 products of bfloat16 ones.
  """

  dtype: str = 'float32'
  activations: str = 'float32'
  min_rows: int = 1
  gradients: str = 'wide'

  @property
  def param_dtype(self) -> jnp.dtype:
    """The dtype weight matrices are stored in."""
    return jnp.dtype(self.dtype)

  @property
  def matmul(self) -> jax.lax.Precision:
    """Product precision: accelerators would round float32 inputs by default."""
    if self.dtype == 'float32':
      return jax.lax.Precision.HIGHEST
    return jax.lax.Precision.DEFAULT


def for_training(dtype: str) -> Precision:
  """Returns the number formats that a model is trained in.

  Args:
    dtype: as `choose` takes it.
  """
  return dataclasses.replace(choose(dtype), gradients='as products')


def _fast_bfloat16_cpu(jax_version: str) -> bool:
  major, minor = (int(part) for part in jax_version.split('.')[:2])
  return (major, minor) >= (0, 12)


def choose(
    dtype: str,
    *,
    platform: str | None = None,
    jax_version: str = jax.__version__,
) -> Precision:
  """Returns the number formats for a requested dtype on a platform.

  'auto' is bfloat16 on TPU and GPU. On a CPU it is bfloat16 from jax 0.12 on,
  where a product of 2 to 16 bfloat16 rows costs the same and half of float32's,
  and float32 before, where bfloat16 is an order of magnitude slower. A single
  bfloat16 row on a CPU leaves the fast kernel and costs ten times two rows, so
  one row is padded to two.

  Args:
    dtype: 'auto', 'float32' or 'bfloat16'.
    platform: 'cpu', 'gpu' or 'tpu'; the default backend's when absent.
    jax_version: version the CPU choice depends on.

  Returns:
    The Precision.

  Raises:
    UserError: If dtype is not a known name.
  """
  if dtype not in DTYPES:
    raise UserError(
        f'dtype is {dtype!r}; it needs to be one of {", ".join(DTYPES)}.'
    )
  platform = platform or jax.default_backend()
  if dtype == 'auto':
    fast = platform != 'cpu' or _fast_bfloat16_cpu(jax_version)
    dtype = 'bfloat16' if fast else 'float32'
  if dtype == 'float32':
    return Precision()
  if platform == 'cpu':
    # Element-wise bfloat16 is emulated there, so activations stay float32.
    return Precision('bfloat16', 'float32', min_rows=2)
  return Precision('bfloat16', 'bfloat16')


def choose_draft(dtype: str, *, platform: str | None = None) -> Precision:
  """Returns the number formats of a draft model.

  With 'int8' its matrices are `models.int8.Int8Matrix` and all else is as with
  'auto'. A CPU multiplies two int8 rows twenty times as fast as one.

  Args:
    dtype: one of DRAFT_DTYPES.
    platform: as in `choose`.

  Returns:
    The Precision.

  Raises:
    UserError: If dtype is not a known name.
  """
  if dtype not in DRAFT_DTYPES:
    raise UserError(
        f'dtype of the draft is {dtype!r}; it needs to be one of '
        f'{", ".join(DRAFT_DTYPES)}.'
    )
  if dtype != 'int8':
    return choose(dtype, platform=platform)
  auto = choose('auto', platform=platform)
  rows = 2 if (platform or jax.default_backend()) == 'cpu' else auto.min_rows
  return dataclasses.replace(auto, min_rows=rows)
