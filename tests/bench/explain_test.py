import itertools

import numpy as np
import pytest

from speculative.bench import explain
from speculative.bench.predict import Costs


def _costs(draft=0.1, verify=(1.0, 1.0, 1.2, 1.9, 2.6), overhead=0.05):
  return Costs(draft=draft, verify=verify, check=verify[-1], overhead=overhead)


def _by_force(costs: list[float], tokens: int) -> float:
  """Returns the least cost over all ways to emit so many tokens in rounds."""
  least = np.inf
  for num_rounds in range(1, tokens + 1):
    lengths = itertools.product(range(len(costs)), repeat=num_rounds)
    for drafted in lengths:
      if sum(drafted) + num_rounds == tokens:
        least = min(least, sum(costs[K] for K in drafted))
  return least


def test_the_least_cost_is_that_of_the_best_of_all_ways():
  rng = np.random.default_rng(0)
  for _ in range(20):
    costs = [1.0, *np.cumsum(rng.uniform(0, 1, 5)) + 1]
    least = explain.cheapest(costs)
    assert least[0] == 0
    for tokens in range(1, 7):
      assert least[tokens] == pytest.approx(_by_force(costs, tokens))


def test_the_gain_of_an_oracle_is_that_of_brute_force():
  costs, rounds = _costs(), [1, 5, 2, 4, 3, 1]
  of_round = [1.0, 0.1 + 1.05, 0.2 + 1.25, 0.3 + 1.95, 0.4 + 2.65]
  best = sum(_by_force(of_round, tokens) for tokens in rounds)
  found = explain.oracle_gain(costs, 4, rounds)
  assert found == pytest.approx(6 * of_round[4] / best)
  # A round of three tokens and one of two are cheaper than one of five.
  assert _by_force(of_round, 5) < of_round[4]


def test_where_everything_is_kept_and_long_passes_are_free_nothing_is_gained():
  costs = _costs(draft=0.0, verify=(1.0,) * 5, overhead=0.0)
  assert explain.oracle_gain(costs, 4, [5, 5]) == pytest.approx(1.0)
  assert explain.oracle_gain(costs, 4, []) == 1.0


def test_leviathans_oracle_pays_for_drafts_that_are_kept_alone():
  costs = _costs(draft=0.5, verify=(1.0,) * 5, overhead=0.0)
  # Each round cost 3 plain passes; now 1, and 1.5 or two of 1.
  assert explain.oracle_gain(costs, 4, [1, 2]) == pytest.approx(6 / 2.5)


@pytest.mark.parametrize(
    ('round_ms', 'brought', 'times'), [(6.0, 3.0, 0.5), (6.0, 1.0, 1.5)]
)
@pytest.mark.parametrize('batch', [1, 8])
def test_the_floor_is_that_of_a_plain_step_whatever_a_batch_may_hold(
    round_ms, brought, times, batch
):
  row = {
      'row/name': 'a',
      'row/batch': batch,
      'decode/round_ms': round_ms,
      'decode/tokens_per_round': brought,
  }
  row |= explain.floor_keys(row, floor_ms=4.0)
  beats = times < 1
  assert row['decode/times_floor'] == times
  assert row['decode/beats_floor'] is beats
  said = explain.floor_sentence(row)
  assert f'{times:.2f} times' in said
  assert ('below' if beats else 'above') in said


def _row(**fields):
  row = {
      'row/name': 'lm 4',
      'row/num_draft_tokens': 4,
      'row/shape': 'chain',
      'decode/best_num_draft_tokens': 2,
      'decode/verify_cost': 1.7,
      'decode/draft_cost': 0.05,
      'decode/overhead_cost': 0.1,
      'decode/draft_yield': 0.5,
  }
  return row | {name.replace('__', '/'): v for name, v in fields.items()}


@pytest.mark.parametrize(
    ('fields', 'dtype', 'said'),
    [
        (
            {},
            'float32',
            'a verify pass of 5 rows costs 1.70 plain passes here: use K <= 2 '
            'or bfloat16.',
        ),
        ({}, 'bfloat16', 'passes here: use K <= 2.'),
        (
            {'decode__best_num_draft_tokens': 0},
            'bfloat16',
            'here: use plain decoding.',
        ),
        (
            {'decode__draft_cost': 0.4, 'decode__best_num_draft_tokens': 4},
            'float32',
            'drafting 4 tokens costs 1.60 plain passes here: keep K = 4 or a '
            'cheaper draft.',
        ),
        (
            {'decode__overhead_cost': 2.0},
            'float32',
            'a round takes 2.00 plain passes beside draft and verify pass here:'
            ' use K <= 2.',
        ),
        (
            {
                'decode__verify_cost': 1.0,
                'decode__draft_cost': 0.01,
                'decode__best_num_draft_tokens': 8,
            },
            'float32',
            'a round costs no more than 1.14 plain passes, and 50 % of what is '
            'drafted is kept: use K = 8, the longest tried, or more.',
        ),
        (
            {'row__shape': 'tree'},
            'bfloat16',
            'a verify pass of up to 5 rows costs 1.70 plain passes here: of '
            'the sizes tried use 2 nodes.',
        ),
    ],
)
def test_the_reason_names_what_costs_most_and_what_to_do(fields, dtype, said):
  found = explain.reason(
      _row(**fields), most=8, dtype=dtype, fastest_dtype='bfloat16'
  )
  assert found.startswith('lm 4: ')
  assert found.endswith(said)


def test_the_longest_length_tried_need_not_be_the_best():
  found = explain.reason(
      _row(decode__best_num_draft_tokens=4),
      most=4,
      dtype='bfloat16',
      fastest_dtype='bfloat16',
  )
  assert found.endswith('use K = 4, the longest tried, or more.')


def test_the_oracle_is_set_beside_what_was_measured():
  row = {
      'row/name': 'lm 4',
      'row/num_draft_tokens': 4,
      'speedup/oracle': 1.5,
      'speedup/measured': 1.2,
  }
  said = explain.oracle_sentence(row)
  assert 'K <= 4' in said and '1.50x, 25 % more' in said
