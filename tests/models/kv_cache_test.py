import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.models import kv_cache


def _init(**changes):
  settings = dict(
      num_layers=3,
      batch=2,
      num_kv_heads=2,
      max_seq_len=6,
      head_dim=4,
      dtype=jnp.bfloat16,
      layout='unrolled',
  )
  return kv_cache.init(**(settings | changes))


def test_init_makes_one_array_a_layer_or_one_of_all_layers():
  unrolled, scanned = _init(), _init(layout='scanned')
  assert [k.shape for k in unrolled.k] == [(2, 2, 6, 4)] * 3
  assert scanned.v.shape == (3, 2, 2, 6, 4)
  for cache in (unrolled, scanned):
    assert cache.max_seq_len == 6
    np.testing.assert_array_equal(cache.len_B, [0, 0])
  assert unrolled.k[0].dtype == scanned.k.dtype == jnp.bfloat16


@pytest.mark.parametrize(
    'starts', [[0], [2], [2, 0], [1, 4, 3]], ids=lambda s: f'starts {s}'
)
def test_write_puts_each_row_at_its_own_start_and_leaves_the_rest(starts):
  B = len(starts)
  slots = jnp.full((B, 2, 6, 4), -1.0)
  new = jnp.arange(B * 2 * 2 * 4, dtype=jnp.float32).reshape(B, 2, 2, 4)
  got = np.asarray(kv_cache.write(slots, new, jnp.asarray(starts, jnp.int32)))
  expected = np.full((B, 2, 6, 4), -1.0)
  for row, start in enumerate(starts):
    expected[row, :, start : start + 2] = new[row]
  np.testing.assert_array_equal(got, expected)


def test_write_stores_in_the_dtype_of_the_cache():
  slots = jnp.zeros((1, 1, 4, 2), jnp.bfloat16)
  new = jnp.full((1, 1, 1, 2), 1 / 3, jnp.float32)
  got = kv_cache.write(slots, new, jnp.asarray([1], jnp.int32))
  assert got.dtype == jnp.bfloat16
  assert got[0, 0, 1, 0] == jnp.bfloat16(1 / 3)


def test_rollback_sets_lengths_and_touches_no_slot():
  cache = _init().replace(len_B=jnp.asarray([5, 3]))
  back = kv_cache.rollback(cache, jnp.asarray([2, 3]))
  np.testing.assert_array_equal(back.len_B, [2, 3])
  assert all(a is b for a, b in zip(back.k, cache.k, strict=True))


@pytest.mark.parametrize('layout', ['unrolled', 'scanned'])
@pytest.mark.parametrize(
    'starts', [[1], [2, 0], [1, 2, 3]], ids=lambda s: f'starts {s}'
)
def test_compact_moves_a_path_together_and_leaves_the_rest(layout, starts):
  paths = [[1, 3, -1], [-1, -1, -1], [0, 2, 3]][: len(starts)]
  cache = _init(batch=len(starts), max_seq_len=8, layout=layout)
  rng = np.random.default_rng(0)
  cache = cache.replace(
      k=jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), cache.k),
      v=jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), cache.v),
  )
  got = kv_cache.compact(
      cache, jnp.asarray(starts, jnp.int32), jnp.asarray(paths, jnp.int32)
  )
  for before, after in zip(
      jax.tree.leaves((cache.k, cache.v)),
      jax.tree.leaves((got.k, got.v)),
      strict=True,
  ):
    expected = np.array(before)
    for row, (start, path) in enumerate(zip(starts, paths, strict=True)):
      for depth, node in enumerate(path):
        if node >= 0:
          expected[..., row, :, start + depth, :] = np.asarray(before)[
              ..., row, :, start + node, :
          ]
    np.testing.assert_array_equal(after, expected)
