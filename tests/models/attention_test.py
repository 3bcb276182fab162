from jax import numpy as jnp
import numpy as np
import pytest

from speculative.models import attention
from speculative.models.precision import Precision
from speculative.testing import oracles

# One float32 operation against float64.
_ATOL = 1e-5


def _rows(start_B, T, ancestors_BTT=None):
  B = len(start_B)
  return attention.Rows(
      positions_BT=jnp.zeros((B, T), jnp.int32),
      start_B=jnp.asarray(start_B, jnp.int32),
      ancestors_BTT=ancestors_BTT,
      rotation_BT1h=None,
  )


@pytest.mark.parametrize('num_heads, num_kv_heads', [(4, 4), (4, 2), (6, 1)])
def test_attend_equals_grouped_attention_head_by_head(num_heads, num_kv_heads):
  rng = np.random.default_rng(0)
  B, T, S, H = 2, 3, 7, 4
  q_BTNH = rng.normal(size=(B, T, num_heads, H)).astype(np.float32) * 3
  k_BKSH, v_BKSH = rng.normal(size=(2, B, num_kv_heads, S, H)).astype(
      np.float32
  )
  mask_BTS = rng.random((B, T, S)) < 0.5
  mask_BTS[:, :, 0] = True
  got = attention.attend(
      jnp.asarray(q_BTNH),
      jnp.asarray(k_BKSH),
      jnp.asarray(v_BKSH),
      jnp.asarray(mask_BTS),
      precision=Precision(),
  )
  for b, t in np.ndindex(B, T):
    seen_S = mask_BTS[b, t]
    expected = oracles.grouped_attention(
        q_BTNH[b, t].astype(np.float64),
        k_BKSH[b].swapaxes(0, 1)[seen_S].astype(np.float64),
        v_BKSH[b].swapaxes(0, 1)[seen_S].astype(np.float64),
    )
    np.testing.assert_allclose(got[b, t], expected, atol=_ATOL)


def test_attend_never_reads_masked_slots_and_survives_a_fully_masked_row():
  one = jnp.ones((1, 1, 1, 2))
  v_BKSH = jnp.asarray([[1.0, 2.0], [1e30, -1e30]])[None, None]
  k_BKSH = jnp.asarray([[1.0, 1.0], [1e4, 1e4]])[None, None]
  seen = attention.attend(
      one,
      k_BKSH,
      v_BKSH,
      jnp.asarray([[[True, False]]]),
      precision=Precision(),
  )
  np.testing.assert_array_equal(seen[0, 0, 0], [1, 2])
  nothing = attention.attend(
      one,
      k_BKSH,
      jnp.ones_like(v_BKSH),
      jnp.zeros((1, 1, 2), bool),
      precision=Precision(),
  )
  assert np.isfinite(nothing).all()


def test_mask_of_a_chain_shows_the_cache_and_rows_up_to_itself():
  mask = attention.mask(_rows([2, 0], 3), 5)
  np.testing.assert_array_equal(
      mask.astype(int),
      [
          [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]],
          [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]],
      ],
  )


def test_mask_of_a_tree_shows_the_cache_and_ancestors_only():
  tree = jnp.asarray([[[1, 0, 0], [1, 1, 0], [1, 0, 1]]] * 2, bool)
  mask = attention.mask(_rows([2, 1], 3, tree), 5)
  np.testing.assert_array_equal(
      mask.astype(int),
      [
          [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 0, 1]],
          [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 0, 1, 0]],
      ],
  )
