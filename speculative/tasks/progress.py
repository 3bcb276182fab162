"""How far a long task is, in lines and in metrics."""

import time
from typing import Any

from absl import logging

# Seconds between two lines while a step is not finished.
_EVERY_S = 30.0


class Progress:
  """Counts tokens, and says now and then how it goes."""

  def __init__(self, group: str, total: int) -> None:
    """Starts the clock.

    Args:
      group: of the metrics' keys.
      total: what all steps together will have done.
    """
    self._group, self._total = group, total
    self._started = self._said = time.monotonic()
    self._done = self._tokens = self._recent = self._recent_done = 0

  def skip(self, num_done: int) -> None:
    """Takes out of the total what an earlier run did.

    Args:
      num_done: of the total.
    """
    self._total -= num_done

  def look(self, num_tokens: int, num_done: int = 0) -> None:
    """Counts tokens of a step that is not finished.

    Args:
      num_tokens: since the last look.
      num_done: of the total, since then; a step counts them again.
    """
    self._recent += num_tokens
    self._recent_done += num_done
    if time.monotonic() - self._said > _EVERY_S:
      self._say()

  def step(self, num_done: int, num_tokens: int) -> dict[str, Any]:
    """Counts a finished step; returns a line of metrics.

    Args:
      num_done: of the total.
      num_tokens: of the whole step.
    """
    self._done += num_done
    self._tokens += num_tokens
    self._recent = self._recent_done = 0
    self._say()
    return self.results()

  def results(self) -> dict[str, Any]:
    """Returns tokens and tokens a second of this run."""
    elapsed = max(time.monotonic() - self._started, 1e-9)
    return {
        f'{self._group}/new_tokens': self._tokens,
        f'{self._group}/tokens_per_s': round(self._tokens / elapsed, 1),
    }

  def _say(self) -> None:
    self._said = time.monotonic()
    elapsed = self._said - self._started
    left = '?'
    if done := self._done + self._recent_done:
      rest = max(0, self._total - done) * elapsed / done
      left = f'{rest / 60:.0f} min'
    tokens = self._tokens + self._recent
    logging.info(
        '%s: %d of %d, %d tokens, %.0f tokens/s, %s left',
        self._group,
        done,
        self._total,
        tokens,
        tokens / max(elapsed, 1e-9),
        left,
    )
