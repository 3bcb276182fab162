"""What every task writes, and how: nothing half-written, keys as documented."""

from collections.abc import Mapping
import dataclasses
import json
import os
import pathlib
import subprocess
import time
from typing import Any

import jax
import jaxlib
from ml_collections import config_dict

from speculative import api


@dataclasses.dataclass(frozen=True)
class TaskResult:
  """What a task returns to the command line, a notebook or a test.

  Attributes:
    results: as written to results.json.
    exit_status: 0 unless the task's own check failed.
  """

  results: dict[str, Any]
  exit_status: int = 0


def write_text(path: pathlib.Path, text: str) -> None:
  """Writes a file beside its place and renames it there."""
  beside = path.with_name(f'.{path.name}.{os.getpid()}')
  beside.write_text(text, encoding='utf-8')
  os.replace(beside, path)


def write_json(path: pathlib.Path, value: object) -> None:
  """Writes indented JSON, whole or not at all."""
  write_text(path, json.dumps(value, indent=2) + '\n')


class Workdir:
  """The directory of one run: config.json, metrics.jsonl, results.json."""

  def __init__(
      self, path: pathlib.Path, config: config_dict.ConfigDict
  ) -> None:
    """Makes the directory and writes the resolved config.

    Args:
      path: of the directory.
      config: of the run; written with defaults filled in.
    """
    path.mkdir(parents=True, exist_ok=True)
    self.path = path
    self._metrics = path / 'metrics.jsonl'
    self._started = time.time()
    write_json(path / 'config.json', config.to_dict())
    write_text(self._metrics, '')

  def metric(self, values: Mapping[str, Any]) -> None:
    """Appends one line of metrics."""
    row = {'time/elapsed_s': round(time.time() - self._started, 3), **values}
    with self._metrics.open('a', encoding='utf-8') as file:
      file.write(json.dumps(row) + '\n')

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


def environment(model: api.LanguageModel) -> dict[str, Any]:
  """Returns the env/* keys of a run."""
  devices = jax.devices()
  return {
      'env/jax': jax.__version__,
      'env/jaxlib': jaxlib.__version__,
      'env/device_kind': devices[0].device_kind,
      'env/device_count': len(devices),
      'env/cpu_count': os.cpu_count(),
      'env/dtype': model.precision.dtype,
      'env/commit': _commit(),
      'env/date': time.strftime('%Y-%m-%d'),
  }
