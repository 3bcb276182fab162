import dataclasses

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.models import layers
from speculative.models.precision import Precision
from speculative.testing import tiny

# One float32 operation against float64.
_ATOL = 1e-5


def _random(*shape: int) -> np.ndarray:
  return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize('shape', [(2, 3, 8), (2, 3, 4, 8)])
def test_rms_norm_divides_by_the_root_mean_square(shape):
  x, scale = _random(*shape) * 5, np.linspace(0.5, 2, 8).astype(np.float32)
  expected = x / np.sqrt((x.astype(float) ** 2).mean(-1, keepdims=True) + 0.1)
  got = layers.rms_norm(jnp.asarray(x), jnp.asarray(scale), 0.1)
  np.testing.assert_allclose(got, expected * scale, atol=_ATOL)


def test_rms_norm_computes_bfloat16_in_float32():
  x = jnp.asarray(_random(1, 1, 64)).astype(jnp.bfloat16)
  got = layers.rms_norm(x, jnp.ones(64), 1e-5)
  wide = layers.rms_norm(x.astype(jnp.float32), jnp.ones(64), 1e-5)
  assert got.dtype == jnp.bfloat16
  np.testing.assert_array_equal(got, wide.astype(jnp.bfloat16))


def test_norm_is_of_the_kind_the_config_says():
  x = _random(1, 2, 8) + 3
  params = {'n': jnp.full(8, 2.0), 'n_bias': jnp.full(8, 0.5)}
  config = dataclasses.replace(tiny.TARGET, norm_eps=0.1)
  rms = layers.norm(config, params, 'n', jnp.asarray(x))
  root = np.sqrt((x**2).mean(-1, keepdims=True) + 0.1)
  np.testing.assert_allclose(rms, 2 * x / root, atol=_ATOL)
  config = dataclasses.replace(config, norm='layer')
  layer = layers.norm(config, params, 'n', jnp.asarray(x))
  centred = x - x.mean(-1, keepdims=True)
  root = np.sqrt(x.var(-1, keepdims=True) + 0.1)
  np.testing.assert_allclose(layer, 2 * centred / root + 0.5, atol=_ATOL)


def test_project_multiplies_by_out_in_and_adds_the_bias():
  x, weight, bias = _random(2, 3, 4), _random(5, 4), _random(5)
  got = layers.project(
      jnp.asarray(x),
      jnp.asarray(weight),
      jnp.asarray(bias),
      precision=Precision(),
  )
  np.testing.assert_allclose(got, x @ weight.T + bias, atol=_ATOL)


@pytest.mark.parametrize('activations', ['float32', 'bfloat16'])
def test_project_accumulates_in_float32_and_returns_activations(activations):
  # In bfloat16 sums the ones would vanish beside 256 one after another.
  x = jnp.ones((1, 2, 257)).at[:, :, 0].set(256)
  got = layers.project(
      x,
      jnp.ones((3, 257), jnp.bfloat16),
      precision=Precision('bfloat16', activations),
  )
  assert got.dtype == jnp.dtype(activations)
  np.testing.assert_array_equal(got, jnp.full((1, 2, 3), 512, got.dtype))


@pytest.mark.parametrize('dtype, atol', [('float32', 1e-5), ('bfloat16', 0.05)])
def test_gradients_rounded_as_products_are_those_of_the_product(dtype, atol):
  precision = Precision(dtype)
  rounding = dataclasses.replace(precision, gradients='as products')
  weight_FD = jnp.asarray(_random(6, 8)).astype(dtype)
  x_BTD = jnp.asarray(_random(2, 3, 8))
  toward_BTF = jnp.asarray(_random(2, 3, 6))

  def loss(x_BTD, weight_FD, precision):
    y_BTF = layers.project(x_BTD, weight_FD, precision=precision)
    return (y_BTF * toward_BTF).sum()

  wanted, found = (
      jax.value_and_grad(loss, (0, 1))(x_BTD, weight_FD, p)
      for p in (precision, rounding)
  )
  assert found[0] == wanted[0]
  for got, exact in zip(found[1], wanted[1], strict=True):
    assert got.dtype == exact.dtype
    np.testing.assert_allclose(
        got.astype(jnp.float32), exact.astype(jnp.float32), atol=atol
    )


def _product_inputs(jaxpr):
  for eqn in jaxpr.eqns:
    if eqn.primitive.name == 'dot_general':
      yield [x.aval.dtype.name for x in eqn.invars]
    for inner in eqn.params.values():
      if hasattr(inner, 'jaxpr'):
        yield from _product_inputs(inner.jaxpr)


def test_a_rounded_gradient_by_the_input_is_a_product_in_bfloat16():
  def products(precision):
    def loss(x_BTD, weight_FD):
      return layers.project(x_BTD, weight_FD, precision=precision).sum()

    closed = jax.make_jaxpr(jax.grad(loss, (0, 1)))(
        jnp.ones((1, 2, 8)), jnp.ones((6, 8), jnp.bfloat16)
    )
    return list(_product_inputs(closed.jaxpr))

  rounding = Precision('bfloat16', gradients='as products')
  narrow = ['bfloat16', 'bfloat16']
  assert products(rounding).count(narrow) == 2
  # The product itself; both gradients are wide.
  assert products(Precision('bfloat16')).count(narrow) == 1
