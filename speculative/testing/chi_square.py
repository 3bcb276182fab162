"""Compares counted draws with the law they should follow."""

import numpy as np
from scipy import special

# Where a cell expects fewer draws the chi-square law is a poor approximation.
_LEAST_EXPECTED = 10.0


def p_value(counts: np.ndarray, law: np.ndarray) -> float:
  """Returns how probable a deviation at least this large is under the law.

  Cells with few expected draws are pooled into one. A draw that the law
  excludes makes the value 0.

  Args:
    counts: draws of every outcome.
    law: probability of every outcome; same shape.

  Returns:
    The p-value of Pearson's chi-square test.
  """
  counts = np.asarray(counts, np.float64).ravel()
  expected = np.asarray(law, np.float64).ravel() * counts.sum()
  if counts[expected == 0].any():
    return 0.0
  rare = expected < _LEAST_EXPECTED
  counts = np.append(counts[~rare], counts[rare].sum())
  expected = np.append(expected[~rare], expected[rare].sum())
  counts, expected = counts[expected > 0], expected[expected > 0]
  statistic = ((counts - expected) ** 2 / expected).sum()
  return float(special.chdtrc(max(len(expected) - 1, 1), statistic))
