"""Draws loss and held-out acceptance over the steps of a run."""

from collections.abc import Mapping
from collections.abc import Sequence
import importlib.util
import os
import pathlib
from typing import Any

from speculative.errors import UserError


def is_available() -> bool:
  """Returns whether matplotlib is installed."""
  return importlib.util.find_spec('matplotlib') is not None


def check(wanted: str) -> None:
  """Refuses a plot that could not be drawn.

  Args:
    wanted: 'yes', 'no' or 'auto'.

  Raises:
    UserError: If it is wanted and matplotlib is absent.
  """
  if wanted == 'yes' and not is_available():
    raise UserError(
        "config.train.plot is 'yes', but matplotlib is not installed; install "
        "the extra 'train' (pip install 'speculative[train]'), or set it to "
        "'no'."
    )


def draw(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
  """Writes a PNG, whole or not at all.

  Args:
    path: of the file.
    rows: lines of metrics.jsonl.
  """
  # It is large, and needed here alone.
  from matplotlib import figure  # noqa: PLC0415

  drawing = figure.Figure(figsize=(9, 4), layout='constrained')
  left, right = drawing.subplots(1, 2)
  for name, label in (('loss_1', 'training'), ('loss_heldout', 'held out')):
    steps, values = _series(rows, f'train/{name}')
    left.plot(steps, values, label=label)
  left.set(xlabel='step', ylabel='loss of the first drafted token')
  names = {
      name
      for row in rows
      for name in row
      if name.rsplit('/', 1)[-1].startswith('alpha_heldout_')
  }
  for name in sorted(names):
    steps, values = _series(rows, name)
    label = name.removeprefix('train/').replace('alpha_heldout', '')
    right.plot(steps, values, label=label.replace('/_', ' ').strip('/_'))
  right.set(xlabel='step', ylabel='held-out alpha, by drafted token')
  for axes in (left, right):
    if axes.lines:
      axes.legend()
    axes.grid(alpha=0.3)
  beside = path.with_name(f'.{path.name}')
  drawing.savefig(beside, format='png', dpi=120)
  os.replace(beside, path)


def _series(
    rows: Sequence[Mapping[str, Any]], name: str
) -> tuple[list[float], list[float]]:
  found = [(row['train/step'], row[name]) for row in rows if name in row]
  return [step for step, _ in found], [value for _, value in found]
