import math

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative import api
from speculative.bench import compare
from speculative.models import params as params_lib
from speculative.models import precision
from speculative.models import transformer
from speculative.testing import tiny

# A batch of other shape may round in another way.
_TOLERANCE = 1e-4


@pytest.fixture(scope='module')
def target():
  """A tiny model and its params."""
  model = transformer.Transformer(tiny.TARGET, precision.choose('float32'))
  rng = np.random.default_rng(0)

  # Norms too are far from one.
  def get(name: str, spec: params_lib.ParamSpec, dtype: jnp.dtype):
    del name
    return jnp.asarray(rng.normal(0.5, 1, spec.shape), dtype)

  return model, params_lib.build(tiny.TARGET, jnp.dtype('float32'), get)


def _last_logits(target, ids) -> np.ndarray:
  """Returns the logits after ids, in one pass without padding."""
  model, params = target

  def last(params, tokens_1T):
    out = model.forward(params, tokens_1T, model.init_cache(1, len(ids)))
    return model.logits(params, out.hidden_BTD)[0, -1]

  return np.asarray(jax.jit(last)(params, jnp.asarray([ids], jnp.int32)))


@pytest.mark.parametrize(
    'plain, other, expected',
    [
        ([1, 2, 3], [1, 2, 3], None),
        ([], [], None),
        ([1, 2, 3], [1, 9, 3], 1),
        ([4, 2], [5, 2], 0),
        ([1, 2, 3], [1, 2], 2),
        ([1], [1, 2], 1),
        ([], [7], 0),
    ],
)
def test_first_difference_finds_the_first_token_or_the_shorter_end(
    plain, other, expected
):
  assert compare.first_difference(plain, other) == expected


def test_unequal_lists_the_rows():
  assert compare.unequal([[1], [2], [3, 4]], [[1], [9], [3]]) == [1, 2]
  assert compare.unequal([[1]], [[1]]) == []


def test_unequal_refuses_another_number_of_rows():
  with pytest.raises(ValueError):
    compare.unequal([[1]], [[1], [2]])


def _divergence(target, plain, other):
  model, params = target
  return compare.divergence(
      model,
      params,
      prompt=5,
      prompt_ids=[3, 1, 4],
      plain=plain,
      other=other,
  )


def test_equal_runs_have_no_divergence(target):
  assert _divergence(target, [2, 7], [2, 7]) is None


def test_the_gap_is_that_of_the_logits_where_the_runs_part(target):
  found = _divergence(target, [2, 7, 1], [2, 9, 1])
  assert (found.prompt, found.position) == (5, 1)
  assert (found.plain_token, found.other_token) == (7, 9)
  logits_V = _last_logits(target, [3, 1, 4, 2])
  assert found.logit_gap == pytest.approx(
      float(logits_V[7] - logits_V[9]), abs=_TOLERANCE
  )


def test_the_gap_of_the_argmax_is_positive(target):
  logits_V = _last_logits(target, [3, 1, 4])
  best, worst = int(logits_V.argmax()), int(logits_V.argmin())
  found = _divergence(target, [best], [worst])
  assert math.isfinite(found.logit_gap) and found.logit_gap > 0


@pytest.mark.parametrize(
    'plain, other, tokens',
    [([2, 7], [2], (7, -1)), ([2], [2, 7], (-1, 7))],
    ids=['other ended', 'plain ended'],
)
def test_a_run_that_ended_has_no_gap(target, plain, other, tokens):
  found = _divergence(target, plain, other)
  assert (found.plain_token, found.other_token) == tokens
  assert found.position == 1
  assert found.logit_gap is None


def test_every_host_can_read_logits_that_a_mesh_splits():
  mesh = api.MeshConfig(model=8)
  loaded = api.load('random://tiny_mesh', dtype='float32', mesh=mesh)
  engine = loaded.engine()
  logits_V = compare._logits_at(
      engine.weights.target,
      np.zeros((1, 4), np.int32),
      np.int32(3),
      model=engine.step.model,
  )
  assert logits_V.is_fully_replicated and len(logits_V.devices()) == 8
