import dataclasses

import jax
import numpy as np
import pytest

from speculative.decoding.autoregressive import Autoregressive
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.decoding.loop import Weights
from speculative.models.transformer import Transformer
from speculative.testing import tiny
from speculative.train import recording
from speculative.train import rolling
from speculative.train import score
from speculative.train.rolling import Request

_DECODE = DecodeConfig(max_new_tokens=20, max_seq_len=64, stop_ids=(3,))


@pytest.fixture(scope='module')
def engine():
  model = Transformer(tiny.TARGET)
  params = tiny.init(jax.random.key(0), tiny.TARGET)
  return Engine(Autoregressive(model), Weights(target=params))


def _requests(num):
  rng = np.random.default_rng(1)
  return [
      Request(
          rng.integers(4, 13, rng.integers(1, 40)).tolist(),
          dataclasses.replace(_DECODE, seed=i, temperature=i % 3 / 2),
      )
      for i in range(num)
  ]


def _roller(engine, num_rows):
  shape = rolling.shape_of(
      engine, num_rows=num_rows, prompt_len=40, num_tokens=20
  )
  return rolling.Roller(engine, shape)


@pytest.mark.slow
@pytest.mark.parametrize('num_rows', [3, 8])
def test_texts_are_those_of_the_engine(engine, num_rows, monkeypatch):
  monkeypatch.setattr(rolling, '_ROUNDS_PER_LOOK', 5)
  requests = _requests(11)
  roller = _roller(engine, num_rows)
  looks = []
  found = roller.generate(requests, on_look=looks.append)
  wanted = engine.generate(
      [r.prompt for r in requests], [r.config for r in requests]
  ).token_ids
  assert [answer.tokens.tolist() for answer in found] == wanted
  assert len({len(tokens) for tokens in wanted}) > 2, 'they end together'
  assert sum(looks) == sum(map(len, wanted)) == roller.busy_rounds
  assert roller.all_rounds >= roller.busy_rounds


@pytest.mark.slow
def test_a_second_call_depends_on_nothing_of_the_first(engine):
  roller = _roller(engine, 4)
  requests = _requests(6)
  first = roller.generate(requests)
  roller.generate(_requests(9)[6:])
  second = roller.generate(requests)
  for one, other in zip(first, second, strict=True):
    np.testing.assert_array_equal(one.tokens, other.tokens)


def test_a_row_keeps_to_the_longest_text(engine):
  config = dataclasses.replace(_DECODE, max_seq_len=12, stop_ids=())
  found = _roller(engine, 2).generate([Request([4] * 10, config)])
  assert [len(answer.tokens) for answer in found] == [2]


@pytest.mark.slow
def test_what_is_recorded_is_what_a_pass_over_the_text_finds(engine):
  recorded = Engine(recording.Recording(engine.step.model), engine.weights)
  requests = _requests(7)
  plain = _roller(engine, 3).generate(requests)
  found = _roller(recorded, 3).generate(requests)
  texts = [
      np.concatenate([request.prompt, answer.tokens])
      for request, answer in zip(requests, found, strict=True)
  ]
  hidden, log_norm = score.score_documents(
      engine.step.model, engine.weights.target, texts
  )
  ends = np.cumsum([len(text) for text in texts])
  for one, other, end in zip(plain, found, ends, strict=True):
    assert one.hidden is None
    np.testing.assert_array_equal(one.tokens, other.tokens)
    start = end - len(other.hidden)
    np.testing.assert_allclose(
        other.hidden[:-1].astype(np.float32),
        hidden[start : end - 1].astype(np.float32),
        rtol=0.01,
        atol=1e-3,
    )
    # The pass takes it from rounded states, decoding in float32 does not.
    np.testing.assert_allclose(
        other.log_norm[:-1], log_norm[start : end - 1], atol=0.05
    )
    assert not other.hidden[-1].astype(np.float32).any()
    np.testing.assert_allclose(other.log_norm[-1], np.log(13), rtol=1e-6)
