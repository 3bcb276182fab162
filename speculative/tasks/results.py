"""What every task writes, and how: nothing half-written, keys as documented.

Of several hosts, the first one writes and prints.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import time
from typing import Any

import jax
import jaxlib
from ml_collections import config_dict

from speculative import api
from speculative.errors import UserError
from speculative.models.draft import DraftModel

# What an earlier run may have left, which would not belong to this run's
# config.
_RESULTS = (
    'results.json',
    'results.csv',
    'results.md',
    'outputs.jsonl',
    'collect.md',
    'datastore.md',
    'plan.md',
    'plot.png',
    'verify.md',
)


@dataclasses.dataclass(frozen=True)
class TaskResult:
  """What a task returns to the command line, a notebook or a test.

  Attributes:
    results: as written to results.json.
    exit_status: 0 unless the task's own check failed.
  """

  results: dict[str, Any]
  exit_status: int = 0


@contextlib.contextmanager
def writing(path: pathlib.Path) -> Iterator[None]:
  """Turns what the file system refuses into the user's error.

  Args:
    path: of what is written.

  Raises:
    UserError: Naming the path.
  """
  try:
    yield
  except OSError as error:
    raise UserError(
        f'{path} cannot be written ({error.strerror or error}); free some '
        'space, or name another directory with --workdir.'
    ) from error


def is_first_host() -> bool:
  """Returns whether this process is the one that prints and writes."""
  return jax.process_index() == 0


def say(text: str) -> None:
  """Prints text for the user, on the first host only.

  Args:
    text: with its line ends.
  """
  if is_first_host():
    print(text, end='', flush=True)


def write_text(path: pathlib.Path, text: str) -> None:
  """Writes a file beside its place and renames it there; on the first host.

  Args:
    path: of the file.
    text: all of it.

  Raises:
    UserError: If it cannot be written; an older file is untouched then.
  """
  if not is_first_host():
    return
  beside = path.with_name(f'.{path.name}.{os.getpid()}')
  with writing(path):
    try:
      beside.write_text(text, encoding='utf-8')
      os.replace(beside, path)
    finally:
      beside.unlink(missing_ok=True)


def write_json(path: pathlib.Path, value: object) -> None:
  """Writes indented JSON, whole or not at all.

  Args:
    path: of the file.
    value: what JSON can express; NaN is not.

  Raises:
    UserError: See write_text.
  """
  write_text(path, json.dumps(value, indent=2, allow_nan=False) + '\n')


class Workdir:
  """The directory of one run: config.json, metrics.jsonl, results.json."""

  def __init__(
      self,
      path: pathlib.Path,
      config: config_dict.ConfigDict,
      *,
      metrics: str = '',
  ) -> None:
    """Makes the directory and writes the resolved config.

    Args:
      path: of the directory; results of an earlier run in it are removed.
      config: of the run; written with defaults filled in.
      metrics: lines of an earlier part of this run, to go on behind.

    Raises:
      UserError: If it cannot be made or written; it is not left behind then.
    """
    is_new = not path.exists()
    self.path = path
    self._metrics = path / 'metrics.jsonl'
    self._started = time.time()
    if not is_first_host():
      return
    try:
      with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        for name in _RESULTS:
          (path / name).unlink(missing_ok=True)
      write_json(path / 'config.json', config.to_dict())
      write_text(self._metrics, metrics)
    except Exception:
      if is_new:
        shutil.rmtree(path, ignore_errors=True)
      raise

  def metric(self, values: Mapping[str, Any]) -> None:
    """Appends one line of metrics."""
    if not is_first_host():
      return
    row = {'time/elapsed_s': round(time.time() - self._started, 3), **values}
    line = json.dumps(row, allow_nan=False) + '\n'
    with writing(self._metrics):
      with self._metrics.open('a', encoding='utf-8') as file:
        file.write(line)

  def finish(self, results: dict[str, Any]) -> None:
    """Writes results.json."""
    write_json(self.path / 'results.json', results)


def _commit() -> str:
  """Returns the commit of the checkout the package runs from, or ''."""
  root = pathlib.Path(__file__).resolve().parents[2]
  try:
    said = subprocess.run(
        ['git', '-C', str(root), 'rev-parse', '--short', 'HEAD'],
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
  except (OSError, subprocess.TimeoutExpired):
    return ''
  return said.stdout.strip()


def versions() -> dict[str, Any]:
  """Returns the env/* keys that have nothing to do with devices."""
  return {
      'env/jax': jax.__version__,
      'env/jaxlib': jaxlib.__version__,
      'env/cpu_count': os.cpu_count(),
      'env/commit': _commit(),
      'env/date': time.strftime('%Y-%m-%d'),
  }


def environment(model: api.LanguageModel | DraftModel) -> dict[str, Any]:
  """Returns the env/* keys of a run."""
  devices = jax.devices()
  return versions() | {
      'env/device_kind': devices[0].device_kind,
      'env/device_count': len(devices),
      'env/host_count': jax.process_count(),
      'env/dtype': model.precision.dtype,
  }
