import dataclasses

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
