"""Compares two ratios of sums that were measured on the same units.

Tokens per round of two settings over the same prompts are such ratios. A prompt
is one unit whatever the number of its seeds: texts that start from one prompt
are more alike than texts of several, so only prompts can be taken as
independent.

A ratio of sums R = sum(n) / sum(d) moves with unit u, to first order, by the
residual (n_u - R d_u) / mean(d) over the number of units. The difference of two
such residuals of one unit is what a paired t interval is taken of. Where all
denominators are equal it is the t interval of the paired differences n / d, to
the last digit.
"""

import dataclasses

import numpy as np
from scipy import stats

from speculative.errors import UserError


@dataclasses.dataclass(frozen=True)
class Interval:
  """An estimate and its confidence interval.

  Attributes:
    estimate: from all units.
    low: end of the interval.
    high: its other end.
  """

  estimate: float
  low: float
  high: float


@dataclasses.dataclass(frozen=True)
class PairedRatios:
  """Two ratios of sums over the same units.

  Attributes:
    first: ratio of the first setting.
    second: of the second.
    difference: second minus first.
    quotient: second over first.
    num_units: pairs the intervals rest on.
    confidence: of each interval alone.
  """

  first: float
  second: float
  difference: Interval
  quotient: Interval
  num_units: int
  confidence: float


def compare_ratios(
    first: tuple[np.ndarray, np.ndarray],
    second: tuple[np.ndarray, np.ndarray],
    *,
    confidence: float = 0.95,
) -> PairedRatios:
  """Compares two ratios of sums, paired by unit.

  The quotient's interval is that of its logarithm.

  Args:
    first: numerators and denominators of the units, positive, [U] each.
    second: of the same units in the same order.
    confidence: of an interval, in (0, 1).

  Returns:
    The PairedRatios.

  Raises:
    UserError: If there are fewer than two units: nothing is known then of how
      much they differ.
  """
  num_units = len(first[0])
  if num_units < 2:
    raise UserError(
        f'an interval needs at least 2 prompts, got {num_units}; add some.'
    )
  ratios, residuals = [], []
  for top_U, bottom_U in (first, second):
    top_U, bottom_U = (np.asarray(x, np.float64) for x in (top_U, bottom_U))
    ratio = top_U.sum() / bottom_U.sum()
    ratios.append(float(ratio))
    residuals.append((top_U - ratio * bottom_U) / bottom_U.mean())
  a, b = ratios
  t = stats.t.ppf((1 + confidence) / 2, num_units - 1) / np.sqrt(num_units)
  by = float(t * np.std(residuals[1] - residuals[0], ddof=1))
  log_by = float(t * np.std(residuals[1] / b - residuals[0] / a, ddof=1))
  return PairedRatios(
      first=a,
      second=b,
      difference=Interval(b - a, b - a - by, b - a + by),
      quotient=Interval(
          b / a, b / a * np.exp(-log_by).item(), b / a * np.exp(log_by).item()
      ),
      num_units=num_units,
      confidence=confidence,
  )
