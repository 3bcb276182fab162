"""Checkpoints of a run: whole or not there at all.

DIR/00000120/state/         arrays, by Orbax
DIR/00000120/progress.json  written last: a directory that has it is complete
"""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import json
import os
import pathlib
import shutil
from typing import Any

from absl import logging
import jax
from orbax.checkpoint import v1 as ocp

from speculative.errors import UserError

_PROGRESS, _STATE = 'progress.json', 'state'


@contextlib.contextmanager
def _few_words() -> Iterator[None]:
  """Keeps the dozens of lines that Orbax logs a checkpoint from the log."""
  before = logging.get_verbosity()
  logging.set_verbosity(logging.WARNING)
  try:
    yield
  finally:
    logging.set_verbosity(before)


def _flat(state: Any) -> dict[str, jax.Array]:
  leaves = jax.tree.leaves(state)
  return {f'{i:04d}': leaf for i, leaf in enumerate(leaves)}


def steps(path: pathlib.Path) -> list[int]:
  """Returns the steps that have a complete checkpoint, ascending.

  Args:
    path: of all checkpoints.
  """
  return sorted(
      int(found.parent.name) for found in path.glob(f'[0-9]*/{_PROGRESS}')
  )


def save(
    path: pathlib.Path,
    step: int,
    state: Any,
    progress: Mapping[str, Any],
    *,
    keep: int,
) -> None:
  """Writes a checkpoint; older ones go once it is complete.

  Args:
    path: of all checkpoints.
    step: its number.
    state: tree of arrays.
    progress: what else is needed to go on, JSON.
    keep: how many complete ones stay.
  """
  # Orbax takes absolute paths only.
  here = path.absolute() / f'{step:08d}'
  first = jax.process_index() == 0
  if first:
    # A write that was interrupted, or the same step again after one.
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir(parents=True)
  with _few_words():
    ocp.save(here / _STATE, _flat(state))
  if not first:
    return
  beside = here / f'.{_PROGRESS}'
  beside.write_text(json.dumps(dict(progress), indent=2) + '\n')
  os.replace(beside, here / _PROGRESS)
  for old in steps(path)[:-keep]:
    shutil.rmtree(path / f'{old:08d}')


def read_progress(path: pathlib.Path, step: int) -> dict[str, Any]:
  """Returns what `save` was given beside the arrays.

  Args:
    path: of all checkpoints.
    step: of a complete one.
  """
  return json.loads((path / f'{step:08d}' / _PROGRESS).read_text())


def load(path: pathlib.Path, step: int, like: Any) -> Any:
  """Returns the state of a checkpoint.

  Args:
    path: of all checkpoints.
    step: of a complete one.
    like: a state of the same shapes; the arrays come to lie as its do.

  Returns:
    The state, bit for bit.

  Raises:
    UserError: If it cannot be read.
  """
  wanted = {
      name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
      for name, x in _flat(like).items()
  }
  here = path.absolute() / f'{step:08d}' / _STATE
  try:
    with _few_words():
      found = ocp.load(here, wanted)
  # Orbax raises errors of many kinds for what it cannot read.
  except Exception as error:
    raise UserError(
        f'checkpoint {here} cannot be read '
        f'({" ".join(str(error).split()):.200}); remove its directory to go on '
        'from the one before.'
    ) from error
  leaves = [found[name] for name in wanted]
  return jax.tree.unflatten(jax.tree.structure(like), leaves)
