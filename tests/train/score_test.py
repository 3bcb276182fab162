import jax
from jax import numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from speculative.models.precision import Precision
from speculative.models.transformer import Transformer
from speculative.testing import tiny
from speculative.train import score
from speculative.train import store
from speculative.train.store import Document

_LENS = (5, 40, 1, 33, 12)


@pytest.fixture(scope='module', params=['float32', 'bfloat16'])
def target(request):
  config, dtype = tiny.TARGET, jnp.dtype(request.param)
  model = Transformer(config, Precision(request.param, 'float32'))
  return model, tiny.init(jax.random.key(1), config, dtype)


def _texts():
  rng = np.random.default_rng(0)
  return [rng.integers(0, tiny.TARGET.vocab_size, n) for n in _LENS]


def _alone(model, params, tokens):
  """One forward pass of one document, its logits and hidden states."""
  cache = model.init_cache(1, len(tokens) + model.slack)
  out = model.forward(params, jnp.array(tokens)[None], cache)
  return out.hidden_BTD[0], model.logits(params, out.hidden_BTD)[0]


@pytest.mark.slow
def test_scores_are_those_of_single_passes(target, monkeypatch):
  # Several rows a pass, several passes, and blocks that do not divide them.
  monkeypatch.setattr(score, '_TOKENS_PER_PASS', 100)
  monkeypatch.setattr(score, '_TOKENS_PER_HEAD', 7)
  model, params = target
  passes = []
  hidden, log_norm = score.score_documents(
      model, params, _texts(), on_pass=passes.append
  )
  assert sum(passes) == sum(_LENS)
  assert hidden.dtype == ml_dtypes.bfloat16
  starts = np.cumsum([0, *_LENS])
  head_VD = np.asarray(params['head'], np.float32)
  for i, tokens in enumerate(_texts()):
    span = slice(starts[i], starts[i + 1])
    wanted, logits = _alone(model, params, tokens)
    np.testing.assert_allclose(
        hidden[span].astype(np.float32), wanted, rtol=0.01, atol=0.01
    )
    log_p = hidden[span].astype(np.float32) @ head_VD.T
    log_p = log_p - log_norm[span, None]
    np.testing.assert_allclose(np.exp(log_p).sum(-1), 1, rtol=2e-3)
    np.testing.assert_allclose(
        log_p, jax.nn.log_softmax(logits), rtol=0.02, atol=0.1
    )


@pytest.mark.slow
def test_a_shard_is_scored_in_its_own_order(target, tmp_path):
  model, params = target
  writer = store.Writer(tmp_path, tokenizer='t')
  writer.add([Document(tokens) for tokens in _texts()])
  writer.add([])
  for shard in (0, 1):
    score.score_shard(model, params, store.open_store(tmp_path), shard)
  found = store.open_store(tmp_path)
  assert found.is_scored
  for i, tokens in enumerate(_texts()):
    wanted, _ = _alone(model, params, tokens)
    np.testing.assert_allclose(
        found.document(i).hidden.astype(np.float32),
        wanted,
        rtol=0.01,
        atol=0.01,
    )


def test_padding_ids_have_no_probability(target):
  model, params = target
  fewer = Transformer(model.config, model.precision, num_tokens=9)
  _, log_norm = score.score_documents(fewer, params, _texts()[:1])
  _, logits = _alone(model, params, _texts()[0])
  np.testing.assert_allclose(
      log_norm, jax.nn.logsumexp(logits[:, :9], axis=-1), rtol=0.02, atol=0.05
  )
