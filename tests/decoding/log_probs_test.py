"""What is recorded of the law beside each token, small enough for the eye."""

import dataclasses

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding import log_probs
from speculative.decoding.config import DecodeConfig

# Float32 logits of passes of different widths.
_ATOL = 1e-4
_TOP = DecodeConfig(max_new_tokens=24, num_top_log_probs=4)


def test_nothing_is_recorded_unless_asked_for():
  assert log_probs.empty('none', 2, 8) is None
  assert log_probs.of_tokens(None, jnp.zeros((1, 1, 3)), jnp.zeros((1, 1))) is (
      None
  )
  assert log_probs.chosen_lists(None, []) is None
  assert log_probs.top_lists(None, [], num_top=3) is None


def test_of_tokens_by_hand():
  law = [[[0.5, 0.25, 0.25], [0.125, 0.0, 0.875]]]
  logits = jnp.log(jnp.asarray(law)) + 7
  tokens = jnp.asarray([[1, 2]])
  chosen = log_probs.of_tokens(log_probs.empty('chosen', 1, 8), logits, tokens)
  np.testing.assert_allclose(
      chosen.chosen_BT, np.log([[0.25, 0.875]]), rtol=1e-5
  )
  assert chosen.top_ids_BTE.shape == (1, 2, 0)
  top = jax.device_get(
      log_probs.of_tokens(log_probs.empty('top', 1, 8), logits, tokens)
  )
  np.testing.assert_array_equal(top.chosen_BT, chosen.chosen_BT)
  # Equals in the order of their ids; what has no probability is left out, and
  # so is what a vocabulary of three lacks.
  ((first, second),) = log_probs.top_lists(top, [(0, 2)], num_top=20)
  assert [i for i, _ in first] == [0, 1, 2]
  assert [i for i, _ in second] == [2, 0]
  np.testing.assert_allclose(
      [p for _, p in first + second],
      np.log([0.5, 0.25, 0.25, 0.875, 0.125]),
      rtol=1e-5,
  )
  assert log_probs.top_lists(top, [(1, 2)], num_top=1) == [[second[:1]]]


@pytest.mark.parametrize('temperature', [0.0, 0.9])
@pytest.mark.parametrize('engine', ['plain', 'with_relative'])
def test_log_probs_are_the_targets_own_whatever_drew_the_token(
    request, prompts, full_logits, engine, temperature
):
  """Those of one full pass over the text, warped by nothing."""
  config = dataclasses.replace(
      _TOP,
      temperature=temperature,
      top_p=0.8,
      presence_penalty=0.5,
      logit_bias=((5, 2.0),),
  )
  got = request.getfixturevalue(engine).generate(prompts, config)
  if engine != 'plain':
    assert 0 < got.acceptance_rate < 1
  texts = [[*p, *ids] for p, ids in zip(prompts, got.token_ids, strict=True)]
  logits_BTV = full_logits(texts)
  for row, prompt in enumerate(prompts):
    rows_TV = logits_BTV[row, len(prompt) - 1 : len(texts[row]) - 1]
    law_TV = np.asarray(jax.nn.log_softmax(rows_TV, axis=-1))
    chosen = law_TV[np.arange(len(law_TV)), got.token_ids[row]]
    np.testing.assert_allclose(got.log_probs[row], chosen, atol=_ATOL)
    expected = -np.sort(-law_TV, axis=-1)[:, :4]
    listed = [[p for _, p in pairs] for pairs in got.top_log_probs[row]]
    np.testing.assert_allclose(listed, expected, atol=_ATOL)
    for t, pairs in enumerate(got.top_log_probs[row]):
      for token_id, value in pairs:
        assert value == pytest.approx(law_TV[t, token_id], abs=_ATOL)


@pytest.mark.parametrize('engine', ['with_lookup', 'with_relative'])
def test_speculation_records_what_plain_decoding_records(
    request, plain, prompts, engine
):
  # A stop id cuts them too.
  config = dataclasses.replace(_TOP, stop_ids=(3,))
  expected = plain.generate(prompts, config)
  got = request.getfixturevalue(engine).generate(prompts, config)
  assert got.token_ids == expected.token_ids
  assert 0 < got.acceptance_rate < 1
  assert 'stop' in got.reasons
  for row, ids in enumerate(got.token_ids):
    assert len(got.top_log_probs[row]) == len(got.log_probs[row]) == len(ids)
    for t, token_id in enumerate(ids):
      pairs = got.top_log_probs[row][t]
      others = expected.top_log_probs[row][t]
      values = [value for _, value in pairs]
      assert values == sorted(values, reverse=True)
      np.testing.assert_allclose(
          values, [value for _, value in others], atol=_ATOL
      )
      assert {i for i, _ in pairs} == {i for i, _ in others}
      # A greedy row emits the likeliest, and says the same of it twice.
      assert pairs[0][0] == token_id
      assert pairs[0][1] == pytest.approx(got.log_probs[row][t], abs=1e-6)


def test_the_likeliest_are_as_many_as_asked_for_of_all_there_are(
    plain, prompts
):
  """The vocabulary has 13 tokens."""
  for asked, there in ((1, 1), (13, 13), (20, 13)):
    config = dataclasses.replace(_TOP, num_top_log_probs=asked)
    got = plain.generate(prompts, config)
    assert {len(p) for row in got.top_log_probs for p in row} == {there}
  for pairs in got.top_log_probs[0]:
    assert np.exp([p for _, p in pairs]).sum() == pytest.approx(1, abs=1e-5)


def test_the_chosen_are_recorded_with_the_likeliest_and_without(plain, prompts):
  top = plain.generate(prompts, _TOP)
  chosen = plain.generate(
      prompts,
      dataclasses.replace(_TOP, num_top_log_probs=0, log_probs='chosen'),
  )
  assert chosen.top_log_probs is None
  for row in range(len(prompts)):
    np.testing.assert_allclose(
        top.log_probs[row], chosen.log_probs[row], atol=1e-6
    )
