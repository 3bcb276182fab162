import math

import numpy as np
import pytest
from scipy import stats

from speculative.bench import paired
from speculative.errors import UserError


def test_equal_denominators_give_the_paired_t_interval():
  first_U = np.array([3.0, 5.0, 4.0, 8.0])
  second_U = np.array([4.0, 5.0, 6.0, 9.0])
  rounds_U = np.full(4, 2.0)
  found = paired.compare_ratios(
      (first_U, rounds_U), (second_U, rounds_U), confidence=0.9
  )
  assert (found.first, found.second) == (2.5, 3.0)
  assert found.num_units == 4
  assert found.difference.estimate == 0.5
  # Differences of the ratios: 0.5, 0, 1, 0.5; their sample variance is 1 / 6.
  by = stats.t.ppf(0.95, 3) * math.sqrt(1 / 6 / 4)
  assert found.difference.low == pytest.approx(0.5 - by, rel=1e-12)
  assert found.difference.high == pytest.approx(0.5 + by, rel=1e-12)
  theirs = stats.ttest_rel(second_U / 2, first_U / 2).confidence_interval(0.9)
  assert found.difference.low == pytest.approx(theirs.low, rel=1e-12)


def test_sums_are_divided_rather_than_ratios_averaged():
  tokens_U = np.array([12.0, 12.0])
  found = paired.compare_ratios(
      (tokens_U, np.array([12.0, 4.0])), (tokens_U, np.array([6.0, 2.0]))
  )
  # Means of ratios would be 2 and 4.
  assert (found.first, found.second) == (1.5, 3.0)
  # The second needs half as many rounds for every prompt: no doubt is left.
  assert found.quotient.estimate == 2.0
  assert found.quotient.low == pytest.approx(2.0, rel=1e-12)
  assert found.quotient.high == pytest.approx(2.0, rel=1e-12)
  # By hand: residuals -0.75, 0.75 and -1.5, 1.5, differences -0.75, 0.75.
  by = stats.t.ppf(0.975, 1) * math.sqrt(2 * 0.75**2 / 2)
  assert found.difference.high == pytest.approx(1.5 + by, rel=1e-12)


@pytest.mark.statistical
def test_the_intervals_hold_the_truth_as_often_as_they_say():
  rng = np.random.default_rng(0)
  inside = np.zeros(2)
  num_trials, num_units = 2000, 40
  tokens_U = np.full(num_units, 256.0)
  for _ in range(num_trials):
    # Prompts differ far more than the settings do.
    easy_U = rng.uniform(60, 200, num_units)
    rounds = [easy_U * c + rng.normal(0, 6, num_units) for c in (1, 0.95)]
    found = paired.compare_ratios((tokens_U, rounds[0]), (tokens_U, rounds[1]))
    truth = 256 / (0.95 * 130) - 256 / 130, 1 / 0.95
    for i, interval in enumerate((found.difference, found.quotient)):
      inside[i] += interval.low <= truth[i] <= interval.high
  # 95 % of 2000, give or take four standard deviations and a little bias.
  assert np.all(abs(inside / num_trials - 0.95) < 0.025)


def test_one_prompt_gives_no_interval():
  one_U = np.ones(1)
  with pytest.raises(UserError, match='at least 2 prompts, got 1'):
    paired.compare_ratios((one_U, one_U), (one_U, one_U))
