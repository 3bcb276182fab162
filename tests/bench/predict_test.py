import dataclasses
import math

import pytest

from speculative import theory
from speculative.bench import predict
from speculative.bench.predict import Acceptance
from speculative.bench.predict import Times

# A plain step of 10 ms, 9 of them the pass; three drafted tokens take 1.5 ms.
_TIMES = Times(
    num_draft_tokens=3,
    plain_ms=10.0,
    pass_ms=[9.0, 9.5, 10.0, 11.0],
    propose_ms=1.5,
    round_ms=15.0,
)
_ACCEPTANCE = Acceptance(
    rate=0.8,
    by_position=[0.5, 0.9, 0.9],
    tokens_per_round=2.4,
    num_prompts=4,
    spread=0.1,
)


def _refused(times: Times) -> Acceptance:
  zeros = [0.0] * times.num_draft_tokens
  return Acceptance(0.0, zeros, 1.0, num_prompts=4, spread=0.0)


def _row(times=_TIMES, acceptance=_ACCEPTANCE, *, measured, tokens=2.4):
  row = {
      'row/name': 'lookup 3',
      'row/drafter': 'lookup',
      'row/num_draft_tokens': times.num_draft_tokens,
      'row/shape': times.shape,
      'speedup/measured': measured,
      'decode/tokens_per_round': tokens,
  }
  longest = predict.best([times], [acceptance])
  return row | predict.keys(
      times, acceptance, longest, measured=measured, num_timed=6
  )


def test_costs_by_hand():
  costs = predict.costs_of(_TIMES)
  assert costs.draft == pytest.approx(0.05)
  assert costs.verify == pytest.approx((1.0, 1.05, 1.1, 1.2))
  # 15 ms are 1.5 of drafts, 11 of the pass, the plain step's other 1, and 1.5.
  assert costs.overhead == pytest.approx(0.15)


def test_the_costs_of_a_round_are_the_round():
  costs = predict.costs_of(_TIMES)
  total = 3 * costs.draft + costs.verify[3] + costs.overhead
  assert total == pytest.approx(_TIMES.round_ms / _TIMES.plain_ms)
  found = predict.predict(costs, _ACCEPTANCE, 3)
  assert found.round_cost == pytest.approx(total)
  tokens = 1 + 0.5 + 0.5 * 0.9 + 0.5 * 0.9 * 0.9
  assert found.tokens_per_round == pytest.approx(tokens)
  assert found.speedup == pytest.approx(tokens / 1.5)
  iid = theory.expected_tokens(0.8, 3)
  assert found.speedup_iid == pytest.approx(iid / 1.5)


def test_noise_between_passes_does_not_count_twice():
  noisy = Times(2, 10.0, [9.0, 12.0, 11.0], propose_ms=1.0, round_ms=16.0)
  costs = predict.costs_of(noisy)
  total = 2 * costs.draft + costs.verify[2] + costs.overhead
  assert total == pytest.approx(1.6)


def test_more_positions_are_never_cheaper_and_no_part_costs_less_than_nothing():
  noisy = Times(2, 10.0, [9.0, 8.5, 8.8], propose_ms=1.0, round_ms=9.0)
  costs = predict.costs_of(noisy)
  assert costs.verify == (1.0, 1.0, 1.0)
  assert costs.overhead == 0.0


@pytest.mark.parametrize(
    'times',
    [
        _TIMES,
        Times(2, 10.0, [9.0, 8.5, 8.8], propose_ms=0.0, round_ms=9.0),
        Times(1, 10.0, [10.0, 10.0], propose_ms=0.1, round_ms=10.0),
    ],
    ids=['ordinary times', 'noise for the draft', 'all but free'],
)
def test_a_draft_that_is_never_right_is_not_worth_a_token(times):
  found = predict.best([times], [_refused(times)])
  assert found.num_draft_tokens == 0
  assert found.speedup == 1.0
  row = _row(times, _refused(times), measured=0.8, tokens=1.0)
  said = predict.verdict(row, most=times.num_draft_tokens)
  assert 'best K = 0' in said
  assert 'alpha 0.00 does not pay' in said
  assert said.endswith('use plain decoding.')


@pytest.mark.parametrize('round_ms', [11.0, 13.0, 40.0])
def test_the_best_length_is_that_of_the_theory(round_ms):
  times = Times(3, 10.0, [9.0, 9.5, 10.0, 11.0], 1.5, round_ms)
  found = predict.best([times], [_ACCEPTANCE])
  costs = predict.costs_of(times)
  assert found.num_draft_tokens == theory.best_num_draft_tokens(
      _ACCEPTANCE.by_position,
      draft_cost=costs.draft,
      verify_costs=costs.verify,
      overhead_cost=costs.overhead,
  )
  assert found.most == 3
  assert found.speedup >= 1


def test_a_setting_is_judged_by_its_own_numbers():
  # One drafted token takes a fiftieth of what the long draft says it takes.
  short = Times(1, 10.0, [9.0, 9.0, 9.0, 9.0], propose_ms=0.1, round_ms=10.1)
  long = Times(3, 10.0, [9.0, 9.0, 9.0, 9.0], propose_ms=15.0, round_ms=25.0)
  rates = [Acceptance(0.9, [0.9] * n, 1.9, 4, 0.1) for n in (1, 3)]
  found = predict.best([short, long], rates)
  assert (found.num_draft_tokens, found.most) == (1, 3)
  assert found.speedup == pytest.approx(1.9 / 1.01)


def test_rounds_of_two_kinds_take_their_mean_time():
  found = dataclasses.replace(_TIMES, propose_ms=0.5, round_ms=12.0)
  mean = predict.blend(_TIMES, found, 0.25)
  assert (mean.propose_ms, mean.round_ms) == (0.75, 12.75)
  assert predict.blend(_TIMES, found, 1.0) == dataclasses.replace(
      _TIMES, check_ms=_TIMES.target_ms
  )


def test_rounds_with_passes_of_two_sizes_are_charged_their_mean():
  # Trees of 2 nodes where the model drafts, 4 tokens where text does.
  pass_ms = [9.0, 9.5, 10.0, 11.0, 12.0]
  asked = Times(2, 10.0, pass_ms, 2.0, 14.0, shape='tree')
  found = dataclasses.replace(
      asked, num_draft_tokens=4, propose_ms=0.4, round_ms=15.0
  )
  mean = predict.blend(asked, found, 0.75)
  assert mean.num_draft_tokens == 2
  assert mean.target_ms == pytest.approx(0.75 * 10 + 0.25 * 12)
  costs = predict.costs_of(mean)
  assert costs.check == pytest.approx(1 + 0.15)
  assert costs.draft == pytest.approx(1.6 / 2 / 10)
  assert costs.overhead == pytest.approx(1.425 - 0.16 - 1.15)
  shares = predict.fractions(mean)
  assert shares['time/target_frac'] == pytest.approx(10.5 / 14.25)
  # What text drafts may be deeper than the tree has nodes.
  deep = dataclasses.replace(
      _ACCEPTANCE, rate=0.5, by_position=[0.5, 0.5, 0.9, 0.9]
  )
  row = _row(mean, deep, measured=1.4, tokens=2.0)
  assert row['decode/verify_cost'] == pytest.approx(1.15)
  tokens = 1 + 0.5 + 0.25 + 0.225 + 0.2025
  assert row['speedup/predicted'] == pytest.approx(tokens / 1.425)
  assert row['decode/best_num_draft_tokens'] == 2


def test_a_tree_counts_by_depth_and_costs_what_its_round_took():
  # Six nodes of two levels, in a pass over fewer positions than seven.
  times = Times(
      num_draft_tokens=6,
      plain_ms=10.0,
      pass_ms=[9.0, 9.5, 10.0, 11.0, 12.0, 13.0, 14.0],
      propose_ms=3.0,
      round_ms=13.0,
      shape='tree',
  )
  acceptance = dataclasses.replace(
      _ACCEPTANCE, rate=0.5, by_position=[0.6, 0.4]
  )
  found = predict.predict(predict.costs_of(times), acceptance, 6)
  assert found.round_cost == pytest.approx(1.3)
  assert found.tokens_per_round == pytest.approx(1 + 0.6 + 0.6 * 0.4)
  assert found.speedup == pytest.approx(1.84 / 1.3)
  assert found.speedup_iid == pytest.approx((1 + 0.5 + 0.25) / 1.3)
  # Nothing is said about smaller trees.
  assert predict.best([times], [acceptance]).num_draft_tokens == 6
  slow = dataclasses.replace(times, round_ms=20.0)
  assert predict.best([slow], [acceptance]).num_draft_tokens == 0
  row = _row(times, acceptance, measured=1.4, tokens=1.84)
  assert 'best K = 6 nodes (' in predict.verdict(row, most=6)


def test_fractions_sum_to_one():
  found = predict.fractions(_TIMES)
  assert found['time/draft_frac'] == pytest.approx(0.1)
  assert found['time/target_frac'] == pytest.approx(11 / 15)
  assert sum(found.values()) == pytest.approx(1.0)


def test_keys_hold_both_predictions_and_how_far_they_are_off():
  row = _row(measured=1.25)
  flat = [
      number
      for value in row.values()
      if not isinstance(value, str)
      for number in (value if isinstance(value, list) else [value])
  ]
  assert all(math.isfinite(number) for number in flat)
  assert row['speedup/predicted_error'] == pytest.approx(
      row['speedup/predicted'] / 1.25 - 1
  )
  assert row['speedup/predicted_iid_error'] == pytest.approx(
      row['speedup/predicted_iid'] / 1.25 - 1
  )
  assert row['decode/verify_costs'] == [1.0, 1.05, 1.1, 1.2]
  assert row['decode/verify_cost'] == pytest.approx(1.2)


def test_the_noise_is_that_of_two_means():
  t = 3.182  # Of three degrees of freedom.
  expected = t * 0.1 * math.sqrt(1 / 4 + 1 / 12)
  assert predict.noise(_ACCEPTANCE, 12) == pytest.approx(expected, rel=1e-3)
  one = Acceptance(0.8, [0.5], 2.4, num_prompts=1, spread=None)
  assert predict.noise(one, 12) is None


def test_a_close_prediction_needs_no_explanation():
  said = predict.verdict(_row(measured=1.55), most=3)
  assert said == (
      'lookup 3, J = 3: predicted 1.57x, measured 1.55x; best K = 3, the '
      'longest tried (1.57x predicted).'
  )


@pytest.mark.parametrize(
    'measured, tokens, fragment',
    [
        (1.2, 1.8, 'set aside get 2.40 tokens a round and the timed ones 1.80'),
        (1.2, 2.4, 'foreseen to cost 1.53 plain steps and cost 2.00'),
    ],
    ids=['other texts', 'other costs'],
)
def test_a_prediction_that_is_off_says_why(measured, tokens, fragment):
  said = predict.verdict(_row(measured=measured, tokens=tokens), most=4)
  assert f'{fragment})' in said
  assert '31 % off, mostly because' in said


def test_a_prediction_that_few_prompts_explain_says_so():
  spread = dataclasses.replace(_ACCEPTANCE, spread=0.4)
  row = _row(acceptance=spread, measured=1.2, tokens=1.8)
  assert 'as so few prompts may)' in predict.verdict(row, most=3)
