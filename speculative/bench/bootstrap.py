"""Confidence intervals of functions of sums, by drawing units again.

A unit is what was timed at once: a prompt, or a batch of them. Whatever a unit
brought in all settings is drawn together (paired), so what makes a prompt easy
or hard for all of them widens no comparison.

The interval is that between percentiles of what resamples say, taken so far out
that a mean of few units has about the t interval it should have (the expanded
percentile interval of Hesterberg 2015, arXiv:1411.5279).
"""

from collections.abc import Callable
from collections.abc import Sequence

import numpy as np
from scipy import stats

from speculative.bench.paired import Interval

_NUM_RESAMPLES = 2000
# A matrix of so many counts is held at once.
_MOST_COUNTS = 2**22


def interval(
    statistic: Callable[..., np.ndarray],
    units: Sequence[np.ndarray],
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> Interval | None:
  """Returns an estimate from all units, and its interval.

  Args:
    statistic: of the sums of each of `units`, arrays of one shape.
    units: numbers of the units, [U] each and in one order.
    confidence: in (0, 1).
    seed: of the resamples; the same one gives the same interval.

  Returns:
    The Interval; None for fewer than two units, or where the statistic of no
    resample is finite.
  """
  columns_UX = np.stack([np.asarray(u, np.float64) for u in units], axis=1)
  num_units = len(columns_UX)
  if num_units < 2:
    return None
  rng = np.random.default_rng(seed)
  shares_U = np.full(num_units, 1 / num_units)
  chunk = max(1, _MOST_COUNTS // num_units)
  sums = []
  for start in range(0, _NUM_RESAMPLES, chunk):
    size = min(chunk, _NUM_RESAMPLES - start)
    counts_RU = rng.multinomial(num_units, shares_U, size=size)
    sums.append(counts_RU @ columns_UX)
  with np.errstate(divide='ignore', invalid='ignore'):
    values_R = statistic(*np.concatenate(sums).T)
    estimate = float(statistic(*columns_UX.sum(axis=0)))
  values_R = values_R[np.isfinite(values_R)]
  if not len(values_R) or not np.isfinite(estimate):
    return None
  t = stats.t.ppf((1 + confidence) / 2, num_units - 1)
  tail = stats.norm.cdf(-t * np.sqrt(num_units / (num_units - 1)))
  low, high = np.quantile(values_R, [tail, 1 - tail])
  return Interval(estimate, float(low), float(high))
