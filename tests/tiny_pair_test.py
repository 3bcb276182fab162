"""A trained target and its trained draft: right often, and wrong often.

Elsewhere drafts are random models, copies of their target or tables; here one
was trained for its target, both by scripts/train_tiny_pair.py.
"""

import dataclasses
import pathlib

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative import api
from speculative.drafting.config import DrafterConfig
from speculative.testing import chi_square

_PAIR = pathlib.Path(__file__).parent / 'data' / 'tiny_pair'
_PROMPTS = [
    'class Stack:\n  """A list of items, last in, first out."""\n\n  def ',
    'import os\n\nfor name in os.listdir(path):\n  if ',
]
_SHORT = '  return '
# A draft that knows nothing is right one time in 64.
_LEAST, _MOST = 0.35, 0.95
_FALSE_ALARM = 1e-5


@pytest.fixture(scope='module')
def model() -> api.LanguageModel:
  """The pair, in float32."""
  drafter = DrafterConfig('lm', str(_PAIR / 'draft'), dtype='float32')
  return api.load(str(_PAIR / 'target'), dtype='float32', drafter=drafter)


def _generate(model, drafter, prompts=_PROMPTS, **settings):
  if drafter in ('lm', 'hybrid'):
    drafter = dataclasses.replace(model.drafter, kind=drafter)
  settings = dict(stop_ids=(), max_new_tokens=64) | settings
  return model.generate(prompts, drafter=drafter, **settings).generation


def test_the_pair_is_small_and_says_where_it_is_from():
  sizes = {
      str(path.relative_to(_PAIR)): path.stat().st_size
      for path in _PAIR.rglob('*')
      if path.is_file()
  }
  assert sum(sizes.values()) <= 1_000_000, sizes
  assert 'scripts/train_tiny_pair.py' in (_PAIR / 'README.md').read_text()


def test_a_token_is_a_byte(model):
  text = 'Zoë: π ≈ 3.14\n\t\0'
  ids = model.encode(text)
  assert len(ids) == len(text.encode())
  assert model.decode(ids) == text
  assert model.tokenizer.vocab_size == model.config.vocab_size == 257
  assert model.tokenizer.eos_ids == (256,)


@pytest.mark.slow
def test_greedy_output_is_plain_and_much_of_the_draft_is_kept(model):
  plain = _generate(model, 'none')
  for kind in ('lm', 'hybrid'):
    got = _generate(model, kind)
    assert got.token_ids == plain.token_ids
    assert _LEAST < got.acceptance_rate < _MOST
    assert got.tokens_per_round > 1.5
    # Right and wrong at every place of a round that was tested much.
    assert (got.accepted.sum(0)[:3] > 0).all()
    assert (got.tested.sum(0) > got.accepted.sum(0))[:3].all()


@pytest.mark.slow
@pytest.mark.statistical
def test_drawn_output_has_the_targets_law_and_much_is_kept(model):
  """Of the first drafted token, with the one before it."""
  got = _generate(
      model, 'lm', [_SHORT] * 2048, temperature=1.0, max_new_tokens=4
  )
  # Every row tests a draft of its second token.
  assert got.tested[:, 0].all()
  V = model.config.vocab_size
  counts_VV = np.zeros((V, V))
  np.add.at(counts_VV, tuple(np.array(got.token_ids)[:, :2].T), 1)
  assert chi_square.p_value(counts_VV, _law(model)) > _FALSE_ALARM
  assert _LEAST < got.acceptance_rate < _MOST


def _law(model) -> np.ndarray:
  """Returns the target's law [V, V] of two tokens after _SHORT."""
  transformer = model.engine('none').step.model
  params = model.load_weights().target
  V = model.config.vocab_size
  prompt_VT = np.tile(np.array(model.encode(_SHORT), np.int32), (V, 1))
  second_V1 = np.arange(V, dtype=np.int32)[:, None]
  tokens_VT = jnp.asarray(np.concatenate([prompt_VT, second_V1], axis=1))
  cache = transformer.init_cache(V, tokens_VT.shape[1])
  hidden_VTD = transformer.forward(params, tokens_VT, cache).hidden_BTD
  law_VTV = jax.nn.softmax(transformer.logits(params, hidden_VTD[:, -2:]))
  return np.asarray(law_VTV[0, 0][:, None] * law_VTV[:, 1], np.float64)
