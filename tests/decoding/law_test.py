"""Sampled texts of a whole engine follow the target's law."""

import itertools

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding.autoregressive import Autoregressive
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.drafting.lm import Lm
from speculative.drafting.lookup import Lookup
from speculative.testing import chi_square
from speculative.testing import oracles
from speculative.testing.table_model import TableModel

pytestmark = pytest.mark.statistical

# A right implementation fails once in a million seeds; these are fixed.
_FALSE_ALARM = 1e-6
_V = 8
_NUM_ROWS = 20_000
_NUM_NEW = 3


def _table(seed: int) -> np.ndarray:
  """Logits of the next token by the token before it."""
  rng = np.random.default_rng(seed)
  return rng.normal(size=(1, _V, _V)).astype(np.float32) * 1.5


_TARGET, _DRAFT = _table(1), _table(2)
_SETTINGS = {
    'everything': dict(temperature=1.0, top_k=0, top_p=1.0),
    'warped': dict(temperature=0.8, top_k=6, top_p=0.95),
}


def _text_law(table_1VV: np.ndarray, settings: dict) -> np.ndarray:
  """Returns the law [V, V, V] of the three tokens after token 2."""
  rows = [oracles.warp(row, **settings) for row in table_1VV[0]]
  law = np.zeros((_V,) * _NUM_NEW)
  for text in itertools.product(range(_V), repeat=_NUM_NEW):
    before = (2, *text[:-1])
    law[text] = np.prod([rows[b][t] for b, t in zip(before, text, strict=True)])
  return law


def _counts(engine: Engine, settings: dict) -> np.ndarray:
  got = engine.generate(
      [[2]] * _NUM_ROWS,
      DecodeConfig(max_new_tokens=_NUM_NEW, seed=77, **settings),
  )
  counts = np.zeros((_V,) * _NUM_NEW)
  np.add.at(counts, tuple(np.array(got.token_ids).T), 1)
  return counts


@pytest.fixture(scope='module')
def engines() -> dict[str, Engine]:
  target, draft = jnp.asarray(_TARGET), jnp.asarray(_DRAFT)
  model = TableModel()
  return {
      'plain': Engine(Autoregressive(model), Weights(target=target)),
      'lookup': Engine(
          Speculative(model, Lookup(num_draft_tokens=2)), Weights(target=target)
      ),
      'lm': Engine(
          Speculative(model, Lm(model, num_draft_tokens=2, vocab_size=_V)),
          Weights(target=target, drafter=draft),
      ),
  }


@pytest.mark.parametrize('settings', _SETTINGS.values(), ids=_SETTINGS.keys())
@pytest.mark.parametrize('name', ['plain', 'lookup', 'lm'])
def test_texts_of_many_seeds_follow_the_targets_law(engines, name, settings):
  counts = _counts(engines[name], settings)
  law = _text_law(_TARGET, settings)
  for num in range(1, _NUM_NEW + 1):
    last = tuple(range(num, _NUM_NEW))
    p_value = chi_square.p_value(counts.sum(axis=last), law.sum(axis=last))
    assert p_value > _FALSE_ALARM, f'first {num} tokens'


def test_texts_of_another_law_are_told_apart(engines):
  settings = _SETTINGS['everything']
  counts = _counts(engines['lm'], settings)
  # As if one text in ten were the draft's.
  mixed = 0.9 * _text_law(_TARGET, settings)
  mixed += 0.1 * _text_law(_DRAFT, settings)
  assert chi_square.p_value(counts, mixed) < _FALSE_ALARM


def test_p_values_of_right_and_wrong_laws():
  rng = np.random.default_rng(0)
  law = rng.dirichlet(np.ones(20))
  p_values = [
      chi_square.p_value(rng.multinomial(2000, law), law) for _ in range(400)
  ]
  # Uniform in [0, 1]: mean 0.5, standard error 0.0144; the limit is five.
  assert abs(np.mean(p_values) - 0.5) < 0.072
  assert chi_square.p_value(np.array([60, 40]), np.array([0.5, 0.5])) == (
      pytest.approx(0.0455, abs=1e-4)
  )
  assert chi_square.p_value(np.array([99, 1]), np.array([1.0, 0.0])) == 0


def test_token_laws_of_rows_depend_on_no_neighbour(engines):
  """The same seeds in a batch half as large give the same texts."""
  settings = _SETTINGS['warped']
  config = DecodeConfig(max_new_tokens=_NUM_NEW, seed=77, **settings)
  whole = engines['lm'].generate([[2]] * _NUM_ROWS, config)
  part = engines['lm'].generate([[2]] * 3, config)
  assert part.token_ids == whole.token_ids[:3]
  assert jax.tree.leaves(part.accepted.tolist()) == jax.tree.leaves(
      whole.accepted[:3].tolist()
  )
