import dataclasses
import functools

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.models import draft as draft_lib
from speculative.models import params as params_lib
from speculative.models.draft import DraftConfig
from speculative.models.draft import DraftModel
from speculative.testing import tiny
from speculative.train import unroll

_CONFIG = DraftConfig(
    layers=dataclasses.replace(tiny.TARGET, model_dim=12, num_heads=2),
    target_dim=16,
    head_size=13,
)
_MODEL = DraftModel(_CONFIG)
_K = 3
# Two documents and padding in row 0; one that begins in the middle of its text
# in row 1.
_DOCUMENT_BT = np.array([[1] * 5 + [2] * 4 + [0], [1] * 10], np.int32)
_POSITIONS_BT = np.array(
    [[0, 1, 2, 3, 4, 0, 1, 2, 3, 0], range(7, 17)], np.int32
)
_SPANS = ((0, 0, 5), (0, 5, 9), (1, 0, 10))


@pytest.fixture(scope='module')
def params():
  specs = draft_lib.declare(_CONFIG)
  own = params_lib.init_tree(jax.random.key(1), specs)
  embed = jax.random.normal(jax.random.key(2), (13, 16))
  return own | {'embed': embed, 'head': embed}


def _text():
  rng = np.random.default_rng(0)
  tokens_BT = rng.integers(0, 13, (2, 10)).astype(np.int32)
  hidden_BTD = rng.normal(size=(2, 10, 16)).astype(np.float32)
  return tokens_BT, hidden_BTD


@functools.partial(jax.jit, static_argnames='remat')
def _unroll(params, tokens_BT, hidden_BTD, remat='none'):
  return unroll.unroll(
      _MODEL,
      params,
      tokens_BT=tokens_BT,
      document_BT=jnp.asarray(_DOCUMENT_BT),
      positions_BT=jnp.asarray(_POSITIONS_BT),
      hidden_BTD=hidden_BTD,
      num_steps=_K,
      remat=remat,
  )


def test_row_t_of_step_k_is_the_kth_token_that_a_decoder_drafts(params):
  tokens_BT, hidden_BTD = _text()
  found_KBTD = np.asarray(_unroll(params, tokens_BT, hidden_BTD))

  @jax.jit
  def one(cache, token, hidden_D, position):
    out = _MODEL.forward(
        params,
        token[None, None],
        cache,
        hidden_BTD=hidden_D[None, None],
        positions_BT=position[None, None],
    )
    return out.cache, out.hidden_BTD[0, 0]

  for b, start, stop in _SPANS:
    cache = _MODEL.init_cache(1, 10)
    for seen in range(start, stop):
      cache, hidden_D = one(
          cache,
          tokens_BT[b, seen],
          hidden_BTD[b, seen],
          _POSITIONS_BT[b, seen],
      )
      # From here on the decoder has nothing but its own output.
      ahead = cache
      for k in range(_K):
        np.testing.assert_allclose(
            hidden_D, found_KBTD[k, b, seen + k], atol=2e-5
        )
        if k == _K - 1 or seen + k + 1 == stop:
          break
        t = seen + k + 1
        ahead, hidden_D = one(
            ahead, tokens_BT[b, t], hidden_D, _POSITIONS_BT[b, t]
        )


def test_documents_of_a_row_and_what_pads_it_never_see_each_other(params):
  tokens_BT, hidden_BTD = _text()
  before = np.asarray(_unroll(params, tokens_BT, hidden_BTD))
  tokens_BT[0, :5] = (tokens_BT[0, :5] + 1) % 13
  hidden_BTD[0, :5] += 1
  tokens_BT[0, 9], hidden_BTD[0, 9] = 1, 7
  after = np.asarray(_unroll(params, tokens_BT, hidden_BTD))
  np.testing.assert_array_equal(after[:, 0, 5:9], before[:, 0, 5:9])
  np.testing.assert_array_equal(after[:, 1], before[:, 1])
  assert (after[:, 0, :5] != before[:, 0, :5]).any(-1).all()


def test_slots_that_a_step_sees_by_hand():
  document_BT = jnp.array([[1, 1, 1, 2]])
  seen = unroll.visible(document_BT, 3)[0].astype(int)
  # Step 1, step 2 and step 3; no row 2 of step 1 for the third token.
  assert seen[2].tolist() == [1, 0, 0, 0] + [0, 1, 0, 0] + [0, 0, 1, 0]
  assert seen[3].tolist() == [0, 0, 0, 0] + [0, 0, 0, 0] + [0, 0, 0, 1]


def test_shift_looks_back_and_ahead():
  x_BT = jnp.array([[1, 2, 3]])
  assert unroll.shift(x_BT, 1).tolist() == [[0, 1, 2]]
  assert unroll.shift(x_BT, -1).tolist() == [[2, 3, 0]]
  assert unroll.shift(x_BT, 0).tolist() == [[1, 2, 3]]


def test_activations_computed_again_give_the_same_gradient(params):
  tokens_BT, hidden_BTD = _text()

  def gradient(remat):
    def loss(params):
      found_KBTD = _unroll(params, tokens_BT, hidden_BTD, remat=remat)
      return (found_KBTD**2).sum()

    return jax.jit(jax.grad(loss))(params)

  jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5),
      gradient('none'),
      gradient('steps'),
  )
