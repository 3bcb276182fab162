"""Products, norms and the MLP of a transformer layer."""

import functools

import jax
from jax import numpy as jnp

from speculative.models import int8
from speculative.models.config import TransformerConfig
from speculative.models.int8 import Int8Matrix
from speculative.models.precision import Precision
from speculative.sharding import Placement

_ACTIVATIONS = {
    'silu': jax.nn.silu,
    'gelu': lambda x: jax.nn.gelu(x, approximate=False),
    'gelu_tanh': lambda x: jax.nn.gelu(x, approximate=True),
    'relu': jax.nn.relu,
}


def _product(
    x_BTD: jax.Array, weight_FD: jax.Array, precision: Precision
) -> jax.Array:
  return jnp.einsum(
      'BTD,FD->BTF',
      x_BTD,
      weight_FD,
      precision=precision.matmul,
      preferred_element_type=jnp.dtype(precision.activations),
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _rounding_product(
    x_BTD: jax.Array, weight_FD: jax.Array, precision: Precision
) -> jax.Array:
  """As `_product`; the gradient by x is a product of the same formats.

  That by the weight sums over all rows and stays wide: it is no faster rounded.
  """
  return _product(x_BTD, weight_FD, precision)


def _keep(x_BTD, weight_FD, precision):
  return _product(x_BTD, weight_FD, precision), (x_BTD, weight_FD)


def _pull_back(precision, kept, gradient_BTF):
  x_BTD, weight_FD = kept
  formats = {
      'precision': precision.matmul,
      'preferred_element_type': jnp.float32,
  }
  by_weight_FD = jnp.einsum('BTF,BTD->FD', gradient_BTF, x_BTD, **formats)
  gradient_BTF = gradient_BTF.astype(weight_FD.dtype)
  by_x_BTD = jnp.einsum('BTF,FD->BTD', gradient_BTF, weight_FD, **formats)
  return by_x_BTD.astype(x_BTD.dtype), by_weight_FD.astype(weight_FD.dtype)


_rounding_product.defvjp(_keep, _pull_back)


def project(
    x_BTD: jax.Array,
    weight_FD: jax.Array | Int8Matrix,
    bias_F: jax.Array | None = None,
    *,
    precision: Precision,
) -> jax.Array:
  """Multiplies by an `[out, in]` matrix and adds a bias where there is one.

  Accumulates in float32 and returns precision.activations.
  """
  if isinstance(weight_FD, Int8Matrix):
    y_BTF = int8.project(x_BTD, weight_FD)
    y_BTF = y_BTF.astype(jnp.dtype(precision.activations))
  else:
    product = _product if precision.gradients == 'wide' else _rounding_product
    y_BTF = product(x_BTD.astype(weight_FD.dtype), weight_FD, precision)
  if bias_F is not None:
    y_BTF = y_BTF + bias_F.astype(y_BTF.dtype)[None, None, :]
  return y_BTF


def rms_norm(x: jax.Array, scale_D: jax.Array, eps: float) -> jax.Array:
  """Divides by the root mean square of the last axis; float32 inside."""
  wide = x.astype(jnp.float32)
  inverse = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
  scale = jnp.expand_dims(scale_D, range(x.ndim - 1))
  return (wide * inverse * scale).astype(x.dtype)


def _layer_norm(
    x_BTD: jax.Array, scale_D: jax.Array, bias_D: jax.Array, eps: float
) -> jax.Array:
  wide = x_BTD.astype(jnp.float32)
  centred = wide - wide.mean(axis=-1, keepdims=True)
  variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
  normed = centred * jax.lax.rsqrt(variance + eps)
  y_BTD = normed * scale_D[None, None, :] + bias_D[None, None, :]
  return y_BTD.astype(x_BTD.dtype)


def norm(
    config: TransformerConfig, params: dict, name: str, x_BTD: jax.Array
) -> jax.Array:
  """Applies the norm called `name`, of the kind the config says."""
  if config.norm == 'layer':
    return _layer_norm(
        x_BTD, params[name], params[f'{name}_bias'], config.norm_eps
    )
  return rms_norm(x_BTD, params[name], config.norm_eps)


def mlp(
    config: TransformerConfig,
    precision: Precision,
    placement: Placement,
    params: dict,
    x_BTD: jax.Array,
) -> jax.Array:
  """Applies the gated or plain MLP.

  With F over the mesh axis 'model' the up products are local and the down
  product leaves partial sums: [B, T, D]{U_model}, one all-reduce.
  """
  activation = _ACTIVATIONS[config.activation]
  up_BTF = project(
      x_BTD, params['up_proj'], params.get('up_bias'), precision=precision
  )
  if config.mlp == 'gated':
    gate_BTF = project(
        x_BTD, params['gate_proj'], params.get('gate_bias'), precision=precision
    )
    hidden_BTF = activation(gate_BTF) * up_BTF
  else:
    hidden_BTF = activation(up_BTF)
  hidden_BTF = placement.constrain(hidden_BTF, ('batch', None, 'mlp'))
  return project(
      hidden_BTF,
      params['down_proj'],
      params.get('down_bias'),
      precision=precision,
  )
