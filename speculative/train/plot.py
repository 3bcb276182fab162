"""Draws loss and held-out acceptance over the steps of a run."""

from collections.abc import Mapping
from collections.abc import Sequence
import importlib.util
import os
import pathlib
from typing import Any

from speculative.errors import UserError

# Of held-out alpha, between the domain and the number of the drafted token.
_ALPHA = 'alpha_heldout_'
_LINES = ('-', '--', ':', '-.')


def is_available() -> bool:
  """Returns whether matplotlib is installed."""
  return importlib.util.find_spec('matplotlib') is not None


def check(wanted: str, *, field: str = 'config.train.plot') -> None:
  """Refuses a plot that could not be drawn.

  Args:
    wanted: 'yes', 'no' or 'auto'.
    field: of the config that says so.

  Raises:
    UserError: If it is wanted and matplotlib is absent.
  """
  if wanted == 'yes' and not is_available():
    raise UserError(
        f"{field} is 'yes', but matplotlib is not installed; install the extra "
        "'train' (pip install 'speculative[train]'), or set it to 'no'."
    )


def draw(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
  """Writes a PNG, whole or not at all.

  Args:
    path: of the file.
    rows: lines of metrics.jsonl.
  """
  # It is large, and needed here alone.
  from matplotlib import figure  # noqa: PLC0415

  drawing = figure.Figure(figsize=(10, 4), layout='constrained')
  left, right = drawing.subplots(1, 2)
  for name, label in (('loss_1', 'training'), ('loss_heldout', 'held out')):
    steps, values = _series(rows, f'train/{name}')
    left.plot(steps, values, label=label)
  left.set(xlabel='step', ylabel='loss of the first drafted token')
  if left.lines:
    left.legend()
  _draw_alpha(right, rows)
  for axes in (left, right):
    axes.grid(alpha=0.3)
  beside = path.with_name(f'.{path.name}')
  drawing.savefig(beside, format='png', dpi=120)
  os.replace(beside, path)


def _draw_alpha(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
  """Draws alpha, a colour a domain and a kind of line a drafted token."""
  parts = {
      tuple(name.removeprefix('train/').split(_ALPHA))
      for row in rows
      for name in row
      if _ALPHA in name
  }
  domains = sorted({domain for domain, _ in parts})
  tokens = sorted({int(token) for _, token in parts})
  if len(domains) == 2:
    # All together are the one domain there is.
    domains = domains[:1]
  for color, domain in enumerate(domains):
    for line, token in enumerate(tokens):
      steps, values = _series(rows, f'train/{domain}{_ALPHA}{token}')
      axes.plot(
          steps,
          values,
          color=f'C{color}' if domain else 'black',
          linestyle=_LINES[line % len(_LINES)],
          label=f'{domain.strip("/") or "all"}, {token}',
      )
  axes.set(xlabel='step', ylabel='held-out alpha')
  if axes.lines:
    axes.legend(
        title='domain, drafted token',
        loc='center left',
        bbox_to_anchor=(1, 0.5),
        fontsize='small',
    )


def _series(
    rows: Sequence[Mapping[str, Any]], name: str
) -> tuple[list[float], list[float]]:
  found = [(row['train/step'], row[name]) for row in rows if name in row]
  return [step for step, _ in found], [value for _, value in found]
