import numpy as np
import pytest
from scipy import stats

from speculative.bench import bootstrap


def _ratio(top, bottom):
  return top / bottom


def test_the_mean_of_normal_units_has_the_interval_of_its_law():
  values_U = np.random.default_rng(0).normal(5.0, 2.0, 400)
  found = bootstrap.interval(_ratio, [values_U, np.ones(400)])
  assert found.estimate == pytest.approx(values_U.mean())
  # The law of a resample's mean is known: normal, with the units' deviation.
  by = stats.norm.ppf(0.975) * values_U.std() / np.sqrt(400)
  assert found.low == pytest.approx(values_U.mean() - by, abs=0.1 * by)
  assert found.high == pytest.approx(values_U.mean() + by, abs=0.1 * by)


def test_two_units_give_the_quantiles_of_their_four_resamples():
  # Ratios 1, 2, 2 and 3, with probability 1/4 each.
  units = [np.array([1.0, 3.0]), np.ones(2)]
  found = bootstrap.interval(_ratio, units, confidence=0.1)
  assert (found.estimate, found.low, found.high) == (2.0, 2.0, 2.0)
  found = bootstrap.interval(_ratio, units, confidence=0.9)
  assert (found.low, found.high) == (1.0, 3.0)


def test_what_a_unit_brought_in_both_settings_is_drawn_together():
  plain_U = np.random.default_rng(0).uniform(1, 9, 50)
  found = bootstrap.interval(_ratio, [plain_U, plain_U / 2])
  # Prompts differ ninefold, and the speed-up of each is two.
  assert found.low == pytest.approx(2.0)
  assert found.high == pytest.approx(2.0)


def test_a_seed_gives_its_interval_whatever_is_held_at_once(monkeypatch):
  units = [np.arange(1.0, 21.0), np.ones(20)]
  first = bootstrap.interval(_ratio, units)
  assert bootstrap.interval(_ratio, units) == first
  assert bootstrap.interval(_ratio, units, seed=1) != first
  monkeypatch.setattr(bootstrap, '_MOST_COUNTS', 100)
  assert bootstrap.interval(_ratio, units) == first


@pytest.mark.parametrize(
    'units',
    [[np.ones(1)] * 2, [np.zeros(4)] * 2],
    ids=['one unit', 'nothing over nothing'],
)
def test_where_nothing_is_known_there_is_no_interval(units):
  assert bootstrap.interval(_ratio, units) is None


@pytest.mark.statistical
@pytest.mark.parametrize(
    'num_units, at_least', [(8, 0.91), (40, 0.92)], ids=['8', '40']
)
def test_the_interval_holds_the_truth_about_as_often_as_it_says(
    num_units, at_least
):
  rng = np.random.default_rng(0)
  inside = 0
  for seed in range(500):
    easy_U = rng.uniform(1, 4, num_units)
    # The speed-up of the sums is two.
    rates_U = rng.normal(2.0, 0.4, num_units)
    units = [easy_U * rates_U, easy_U]
    found = bootstrap.interval(_ratio, units, seed=seed)
    inside += found.low <= 2.0 <= found.high
  # Four standard deviations of 500 trials are 0.04.
  assert at_least <= inside / 500 <= 0.98
