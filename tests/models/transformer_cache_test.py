"""However a text is cut into passes, its logits are the same."""

import functools

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.models import kv_cache
from speculative.models.transformer import Transformer
from speculative.testing import tiny

# Two float32 ways round the same two layers; logits are of the order of 5.
_ATOL = 1e-4
_SLOTS = 16

_MODEL = Transformer(tiny.TARGET)


def _chunks(forward, params, text, sizes):
  """Runs one text in passes of the sizes given; returns logits and cache."""
  cache, logits, start = _MODEL.init_cache(1, _SLOTS), [], 0
  for size in sizes:
    chunk = text[None, start : start + size]
    some, out = forward(_MODEL, params, chunk, cache)
    logits.append(some[0])
    cache, start = out.cache, start + size
  return np.concatenate(logits), cache


@pytest.fixture
def whole_TV(forward, tiny_params, text):
  """Logits of the text in one pass."""
  return _chunks(forward, tiny_params, text, [len(text)])[0]


@pytest.mark.parametrize(
    'sizes',
    [[1] * 12, [8, 4], [4, 8], [4, 4, 1, 1, 1, 1]],
    ids=str,
)
def test_cached_passes_equal_one_pass_over_the_whole_text(
    forward, tiny_params, text, whole_TV, sizes
):
  logits, cache = _chunks(forward, tiny_params, text, sizes)
  np.testing.assert_allclose(logits, whole_TV, atol=_ATOL)
  np.testing.assert_array_equal(cache.len_B, [12])


def test_each_position_sees_itself_and_what_is_before_only(
    forward, tiny_params, text, whole_TV
):
  changed = text.copy()
  changed[8:] = (changed[8:] + 1) % tiny.TARGET.vocab_size
  logits, _ = _chunks(forward, tiny_params, changed, [len(text)])
  np.testing.assert_allclose(logits[:8], whole_TV[:8], atol=_ATOL)
  assert np.abs(logits[8:] - whole_TV[8:]).max() > 0.1


def _ragged(forward, params, text):
  """A batch of two whose caches hold 8 and 5 tokens of different texts."""
  prompts = np.stack([text[:8], text[::-1][:8]])
  _, out = forward(_MODEL, params, prompts, _MODEL.init_cache(2, _SLOTS))
  return kv_cache.rollback(out.cache, jnp.asarray([8, 5], jnp.int32)), prompts


def test_one_verify_pass_equals_single_passes_in_a_ragged_batch(
    forward, tiny_params, text
):
  cache, _ = _ragged(forward, tiny_params, text)
  new_BT = np.stack([text[8:12], text[:4]])
  together, out = forward(_MODEL, tiny_params, new_BT, cache)
  np.testing.assert_array_equal(out.cache.len_B, [12, 9])
  for t in range(4):
    logits, out = forward(_MODEL, tiny_params, new_BT[:, t : t + 1], cache)
    np.testing.assert_allclose(logits[:, 0], together[:, t], atol=_ATOL)
    cache = out.cache


def test_rows_of_a_ragged_batch_equal_the_same_rows_alone(
    forward, tiny_params, text
):
  cache, prompts = _ragged(forward, tiny_params, text)
  new_BT = np.stack([text[8:12], text[:4]])
  together, _ = forward(_MODEL, tiny_params, new_BT, cache)
  for row, length in enumerate([8, 5]):
    alone = np.concatenate([prompts[row, :length], new_BT[row]])
    logits, _ = _chunks(forward, tiny_params, alone, [1] * len(alone))
    np.testing.assert_allclose(logits[-4:], together[row], atol=_ATOL)


def test_rollback_then_decode_equals_fresh_decode(
    forward, tiny_params, text, whole_TV
):
  _, cache = _chunks(forward, tiny_params, text, [8])
  rejected = (text[None, 8:] + 5) % tiny.TARGET.vocab_size
  _, out = forward(_MODEL, tiny_params, rejected, cache)
  # Two drafted tokens are kept in one case, none in the other.
  for kept in (0, 2):
    cache = kv_cache.rollback(out.cache, jnp.asarray([8], jnp.int32))
    if kept:
      _, again = forward(_MODEL, tiny_params, text[None, 8:12], cache)
      cache = kv_cache.rollback(again.cache, jnp.asarray([10], jnp.int32))
    for i in range(8 + kept, 12):
      logits, step = forward(_MODEL, tiny_params, text[None, i : i + 1], cache)
      cache = step.cache
      np.testing.assert_allclose(logits[0, 0], whole_TV[i], atol=_ATOL)


# Two roots; 2 and 3 below 0, 4 below 1, 5 below 3.
_PARENT = [-1, -1, 0, 0, 1, 3]


def _path(node: int) -> list[int]:
  """Returns the nodes from the root to this one."""
  return [] if node < 0 else [*_path(_PARENT[node]), node]


@functools.cache
def _tree_inputs():
  M = len(_PARENT)
  ancestors_MM = np.zeros((M, M), bool)
  for node in range(M):
    ancestors_MM[node, _path(node)] = True
  return ancestors_MM, np.array([len(_path(node)) - 1 for node in range(M)])


def test_each_path_of_a_tree_pass_equals_the_path_decoded_as_a_chain(
    forward, tiny_params, text
):
  ancestors_MM, depth_M = _tree_inputs()
  cache, prompts = _ragged(forward, tiny_params, text)
  nodes_BM = np.stack([text[2:8], text[5:11]])
  lens = np.array([8, 5])
  logits_BMV, _ = forward(
      _MODEL,
      tiny_params,
      nodes_BM,
      cache,
      positions_BT=(lens[:, None] + depth_M).astype(np.int32),
      ancestors_BTT=np.broadcast_to(ancestors_MM, (2, 6, 6)),
  )
  for row, length in enumerate(lens):
    for node in range(len(_PARENT)):
      chain = np.concatenate(
          [prompts[row, :length], nodes_BM[row, _path(node)]]
      )
      logits, _ = _chunks(forward, tiny_params, chain, [1] * len(chain))
      np.testing.assert_allclose(logits_BMV[row, node], logits[-1], atol=_ATOL)


def test_a_tree_with_one_branch_equals_a_chain(
    forward, tiny_params, text, whole_TV
):
  _, cache = _chunks(forward, tiny_params, text, [8])
  logits, _ = forward(
      _MODEL,
      tiny_params,
      text[None, 8:],
      cache,
      positions_BT=np.arange(8, 12, dtype=np.int32)[None],
      ancestors_BTT=np.tri(4, dtype=bool)[None],
  )
  np.testing.assert_allclose(logits[0], whole_TV[8:], atol=_ATOL)


def test_positions_move_the_rotation_and_not_the_slot(
    forward, tiny_params, text, whole_TV
):
  shifted = np.arange(100, 112, dtype=np.int32)[None]
  logits, out = forward(
      _MODEL,
      tiny_params,
      text[None],
      _MODEL.init_cache(1, _SLOTS),
      positions_BT=shifted,
  )
  # Rotary embeddings see differences of positions only.
  np.testing.assert_allclose(logits[0], whole_TV, atol=_ATOL)
  np.testing.assert_array_equal(out.cache.len_B, [12])
  assert jax.device_get(out.cache.k[0][0, 0, 11]).any()
