import dataclasses

from jax import numpy as jnp
import numpy as np
import pytest

from speculative import api
from speculative.bench import law
from speculative.decoding.autoregressive import Autoregressive
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.drafting.lm import Lm
from speculative.drafting.lookup import Lookup
from speculative.testing import oracles
from speculative.testing.table_model import TableModel

_FALSE_ALARM = 1e-4


def _counts(rng, num, law_V) -> np.ndarray:
  return rng.multinomial(num, law_V)


def test_p_values_of_right_laws_are_uniform():
  rng = np.random.default_rng(0)
  laws = [rng.dirichlet(np.ones(30)), rng.dirichlet(np.ones(5))]
  p_values = []
  for _ in range(400):
    counts = [_counts(rng, 2000, laws[0]), _counts(rng, 300, laws[1])]
    p_values.append(law.chi_square(counts, laws).p_value)
  # Mean 0.5 with standard error 0.0144; the limit is five of these.
  assert abs(np.mean(p_values) - 0.5) < 0.072
  assert 0.02 < np.mean(np.array(p_values) < 0.05) < 0.09


@pytest.mark.parametrize('which', [0, 1])
def test_a_wrong_law_among_right_ones_is_noticed(which):
  rng = np.random.default_rng(1)
  laws = [rng.dirichlet(np.ones(30)), rng.dirichlet(np.ones(30))]
  drawn = [_counts(rng, 4000, one) for one in laws]
  assert law.chi_square(drawn, laws).passes(_FALSE_ALARM)
  drawn[which] = _counts(rng, 4000, np.roll(laws[which], 1))
  found = law.chi_square(drawn, laws)
  assert found.p_value < 1e-9
  assert not found.passes(_FALSE_ALARM)


def test_the_statistic_by_hand():
  found = law.chi_square(
      [np.array([60, 40]), np.array([20, 10, 30])],
      [np.array([0.5, 0.5]), np.array([1, 1, 2]) / 4],
  )
  assert found.statistic == pytest.approx(4 + 25 / 15 + 25 / 15)
  assert found.degrees == 3
  assert found.num_samples == 100
  assert found.p_value == pytest.approx(0.062, abs=1e-4)


def test_rare_tokens_are_one_cell():
  # Expected 80, 10, 4, 3, 3: the last three together.
  found = law.chi_square(
      [np.array([75, 15, 0, 0, 10])],
      [np.array([0.8, 0.1, 0.04, 0.03, 0.03])],
  )
  assert found.degrees == 2
  assert found.statistic == pytest.approx(25 / 80 + 25 / 10)


def test_too_small_a_rest_joins_the_rarest_cell():
  # Expected 80, 18, 1, 1.
  found = law.chi_square(
      [np.array([75, 20, 5, 0])], [np.array([0.8, 0.18, 0.01, 0.01])]
  )
  assert found.degrees == 1
  assert found.statistic == pytest.approx(25 / 80 + 25 / 20)


def test_a_law_of_one_token_says_nothing_and_passes():
  found = law.chi_square([np.array([0, 100])], [np.array([0.0, 1.0])])
  assert (found.degrees, found.p_value, found.impossible) == (0, 1.0, 0)
  assert found.passes(_FALSE_ALARM)


@pytest.mark.parametrize('counts', [[1, 99], [50, 50]])
def test_a_token_without_probability_fails_whatever_the_statistic(counts):
  found = law.chi_square([np.array(counts)], [np.array([0.0, 1.0])])
  assert found.impossible == counts[0]
  assert not found.passes(_FALSE_ALARM)


def test_more_samples_fewer_cells_and_more_alarms_catch_smaller_biases():
  law_V = np.array([0.5, 0.3, 0.2])

  def bias(num=1000, degrees=10, rate=1e-4):
    return law.smallest_bias(law_V, num, degrees, rate)

  for biases in (
      [bias(num=num) for num in (4000, 2000, 1000, 100)],
      [bias(degrees=degrees) for degrees in (1, 2, 20, 200)],
      [bias(rate=rate) for rate in (0.1, 1e-2, 1e-4, 1e-8)],
  ):
    assert biases == sorted(biases)
    assert len(set(biases)) == 4
    assert 0 < biases[0]
  assert bias(num=4000) == pytest.approx(bias(num=1000) / 2)
  # Too few samples for more than one cell test nothing.
  assert bias(degrees=0) == 1


def test_a_bias_of_the_size_that_is_promised_is_caught():
  rng = np.random.default_rng(2)
  law_V = np.array([0.4, 0.2, 0.2, 0.1, 0.1])
  smallest = law.smallest_bias(law_V, 2000, 4, 1e-3)
  for sign in (-1, 1):
    biased_V = law_V * (1 - sign * smallest / 0.6)
    biased_V[0] = 0.4 + sign * smallest
    caught = [
        not law.chi_square([_counts(rng, 2000, biased_V)], [law_V]).passes(1e-3)
        for _ in range(400)
    ]
    # 95 in 100, with a standard error of 1.1 and an approximate power.
    assert 0.88 < np.mean(caught) < 1
  # A third of it is mostly missed.
  slight_V = law_V * (1 - smallest / 1.8)
  slight_V[0] = 0.4 + smallest / 3
  missed = [
      law.chi_square([_counts(rng, 2000, slight_V)], [law_V]).passes(1e-3)
      for _ in range(100)
  ]
  assert np.mean(missed) > 0.7


_V = 9
_TABLE = np.random.default_rng(0).normal(size=(1, _V, _V)).astype(np.float32)
_DRAFT = np.random.default_rng(1).normal(size=(1, _V, _V)).astype(np.float32)
_PROMPT = [2, 5, 5, 2, 5]
_CONFIG = DecodeConfig(temperature=0.9, top_p=0.95, seed=3)
_ADJUSTED = dataclasses.replace(
    _CONFIG,
    repetition_penalty=1.5,
    presence_penalty=0.7,
    frequency_penalty=0.4,
    logit_bias=((5, 1.0),),
    min_new_tokens=7,
    stop_ids=(0, 3),
    stop_strings=('a',),
)


@pytest.fixture(scope='module')
def plain() -> Engine:
  return Engine(
      Autoregressive(TableModel()), Weights(target=jnp.asarray(_TABLE))
  )


@pytest.fixture(scope='module')
def with_lm() -> Engine:
  return Engine(
      Speculative(TableModel(), Lm(TableModel(), 2, vocab_size=_V)),
      Weights(target=jnp.asarray(_TABLE), drafter=jnp.asarray(_DRAFT)),
  )


def _oracle(text, config) -> np.ndarray:
  settings = {}
  if config is _ADJUSTED:
    settings = {
        name: getattr(config, name)
        for name in (
            'stop_ids',
            'logit_bias',
            'min_new_tokens',
            'repetition_penalty',
            'presence_penalty',
            'frequency_penalty',
        )
    }
  logits_V = oracles.adjust(_TABLE[0, text[-1]], text, len(_PROMPT), **settings)
  return oracles.warp(
      logits_V, temperature=config.temperature, top_k=0, top_p=config.top_p
  )


@pytest.mark.parametrize(
    'config', [_CONFIG, _ADJUSTED], ids=['warped', 'adjusted']
)
def test_next_laws_are_those_of_the_oracle(plain, config):
  first_V, second_FV = law.next_laws(plain, _PROMPT, [1, 5, 8], config)
  np.testing.assert_allclose(first_V, _oracle(_PROMPT, config), atol=1e-5)
  for law_V, token in zip(second_FV, [1, 5, 8], strict=True):
    expected = _oracle([*_PROMPT, token], config)
    np.testing.assert_allclose(law_V, expected, atol=1e-5)


def test_next_laws_without_first_tokens(plain):
  first_V, second_FV = law.next_laws(plain, _PROMPT, [], _CONFIG)
  assert first_V.shape == (_V,)
  assert second_FV.shape == (0, _V)


def test_pairs_are_what_plain_decoding_says_with_seeds_of_their_own(plain):
  pairs = law.draw_pairs(plain, _PROMPT, _CONFIG, num_rows=8, num_batches=3)
  assert pairs.shape == (3, 8, 2)
  rows = [
      dataclasses.replace(_CONFIG, seed=law._seed(_CONFIG, i), max_new_tokens=2)
      for i in range(24)
  ]
  expected = plain.generate([_PROMPT] * 24, rows).token_ids
  np.testing.assert_array_equal(pairs.reshape(24, 2), expected)
  assert len({tuple(pair) for pair in expected}) > 5


def test_kinds_of_rows_are_dealt_out_in_turn(plain):
  greedy = dataclasses.replace(_CONFIG, temperature=0.0)
  pairs = law.draw_pairs(
      plain, _PROMPT, [_CONFIG, greedy], num_rows=8, num_batches=2
  )
  assert len({tuple(pair) for pair in pairs[:, 1::2].reshape(-1, 2)}) == 1
  assert len({tuple(pair) for pair in pairs[:, ::2].reshape(-1, 2)}) > 2


@pytest.mark.statistical
@pytest.mark.parametrize(
    'config', [_CONFIG, _ADJUSTED], ids=['warped', 'adjusted']
)
@pytest.mark.parametrize('engine', ['with_lm', 'plain'])
def test_pairs_of_the_right_law_pass_and_of_another_do_not(
    request, plain, engine, config
):
  engine = request.getfixturevalue(engine)
  pairs = law.draw_pairs(
      engine, _PROMPT, config, num_rows=2048, num_batches=2
  ).reshape(-1, 2)
  found = law.test_pairs(
      plain, _PROMPT, config, pairs, false_alarm_rate=_FALSE_ALARM
  )
  assert found.passes(_FALSE_ALARM)
  assert found.num_samples == 4096
  assert 0 < found.smallest_bias < 0.1
  hotter = dataclasses.replace(config, temperature=1.1)
  wrong = law.test_pairs(
      plain, _PROMPT, hotter, pairs, false_alarm_rate=_FALSE_ALARM
  )
  assert not wrong.passes(_FALSE_ALARM)


@pytest.mark.statistical
def test_a_wrong_second_token_is_noticed_though_the_first_is_right(plain):
  pairs = law.draw_pairs(
      plain, _PROMPT, _CONFIG, num_rows=2048, num_batches=2
  ).reshape(-1, 2)
  pairs[:, 1] = np.random.default_rng(0).permutation(pairs[:, 1])
  found = law.test_pairs(
      plain, _PROMPT, _CONFIG, pairs, false_alarm_rate=_FALSE_ALARM
  )
  assert not found.passes(_FALSE_ALARM)


def test_lookup_draws_the_very_pairs_of_plain_decoding(plain):
  with_lookup = Engine(
      Speculative(TableModel(), Lookup(num_draft_tokens=3)), plain.weights
  )
  pairs, expected = (
      law.draw_pairs(engine, _PROMPT, _CONFIG, num_rows=64, num_batches=1)
      for engine in (with_lookup, plain)
  )
  np.testing.assert_array_equal(pairs, expected)


def test_every_host_can_read_laws_that_a_mesh_splits():
  mesh = api.MeshConfig(data=8)
  loaded = api.load('random://tiny_mesh', dtype='float32', mesh=mesh)
  engine = loaded.engine()
  config = DecodeConfig(temperature=1.0, max_seq_len=64)
  carry = engine.start([[1, 2, 3]] * 8, config)
  law_BV = law._first_law(engine.weights, carry, engine.step)
  assert law_BV.is_fully_replicated and len(law_BV.devices()) == 8
