import jax
from jax import numpy as jnp
import numpy as np

from speculative.models import int8
from speculative.models import layers
from speculative.models.int8 import Int8Matrix
from speculative.models.precision import Precision
from speculative.testing import tiny


def test_products_are_those_of_the_rounded_numbers_exactly(key):
  x_BTD = jax.random.normal(key, (2, 3, 64))
  # Rows of very different size, which a common scale would drown.
  weight_FD = (
      jax.random.normal(key, (8, 64)) * 10.0 ** jnp.arange(-4, 4)[:, None]
  )
  matrix = int8.quantise(weight_FD)
  got = layers.project(x_BTD, matrix, precision=Precision())

  def rounded(x: np.ndarray) -> np.ndarray:
    scale = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
    return np.round(x / scale).astype(np.float64) * scale

  expected = np.einsum(
      'BTD,FD->BTF', rounded(np.asarray(x_BTD)), rounded(np.asarray(weight_FD))
  )
  np.testing.assert_allclose(got, expected, rtol=1e-5)
  true = np.einsum('BTD,FD->BTF', x_BTD, weight_FD)
  error = np.abs(np.asarray(got) - true).max(axis=(0, 1))
  assert (error < 0.03 * np.abs(true).max(axis=(0, 1))).all()


def test_a_row_of_zeros_stays_zero():
  matrix = int8.quantise(jnp.zeros((2, 4)))
  got = layers.project(jnp.zeros((1, 1, 4)), matrix, precision=Precision())
  np.testing.assert_array_equal(got, np.zeros((1, 1, 2)))


def test_matrices_are_rounded_and_embedding_and_vectors_kept(key):
  params = tiny.init(key, tiny.TARGET)
  got = int8.quantise_params(params)
  assert got['embed'] is params['embed']
  assert got['final_norm'] is params['final_norm']
  assert isinstance(got['head'], Int8Matrix)
  assert got['layers'][1]['q_proj'].values_FD.dtype == jnp.int8
  assert got['layers'][1]['attn_norm'] is params['layers'][1]['attn_norm']
