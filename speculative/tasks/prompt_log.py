"""The raw results of a benchmark on disk, and how a stopped run goes on.

WORKDIR/prompts.jsonl   a record a prompt, setting and repeat (`bench.records`),
                        a batch at a time: all a batch brought, or nothing of it
WORKDIR/benchmark.json  what has to be the same to go on, and what is measured
                        once: predictions, floors, searches, scores, and
                        answers to the first of several turns

Everything in results.json is made from these two, also by the run that
measured. `records.answers` says what a setting answered, for whoever judges it.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import fcntl
import hashlib
from importlib import metadata
import json
import pathlib
from typing import Any
from typing import BinaryIO

from absl import logging
from ml_collections import config_dict

from speculative.bench.records import Record
from speculative.checkpoints import sources
from speculative.errors import UserError
from speculative.tasks import common
from speculative.tasks import hosts
from speculative.tasks import results

RECORDS, FACTS = 'prompts.jsonl', 'benchmark.json'
# Groups of the config on which what is measured depends, and the fields of
# config.bench; of config.data nothing but what the prompts' tokens say.
_GROUPS = ('seed', 'target', 'drafter', 'decode', 'mesh')
_FIELDS = ('repeats', 'num_draft_tokens', 'settings', 'calibration_prompts')
# What an interrupted run may go on under; all are told at the end.
_CHANGING = ('env/commit', 'env/date')


def identity_of(
    config: config_dict.ConfigDict, run: common.Prepared
) -> dict[str, Any]:
  """Returns what has to be the same for a run to go on, as JSON has it.

  Args:
    config: of the run.
    run: whose weights need not have been read.
  """
  fields = {name: config[name] for name in _GROUPS}
  fields['bench'] = {name: config.bench[name] for name in _FIELDS}
  found = _flat(fields, 'config')
  for name in (
      'target.model',
      'drafter.model',
      'drafter.store',
      'drafter.table',
  ):
    if files := _files(found[f'config.{name}'], config.cache_dir):
      found[f'files of config.{name}'] = files
  found |= {
      'mark of the target': run.model.identity.mark,
      # Of first turns; what the model answers to them is noted.
      'tokens of the prompts': digest([run.batches, run.calibration]),
      'version of speculative': _version(),
  }
  later = [p.next_turns for p in (*run.prompts, *run.aside)]
  if any(later):
    found['later turns'] = digest(later)
  env = results.environment(run.model)
  found |= {k: v for k, v in env.items() if k not in _CHANGING}
  return json.loads(json.dumps(found))


def _flat(value: Any, name: str) -> dict[str, Any]:
  """Returns the leaves of nested mappings by their dotted names."""
  if not isinstance(value, Mapping | config_dict.ConfigDict):
    return {name: value}
  found = {}
  for key, part in value.items():
    found |= _flat(part, f'{name}.{key}')
  return found


def digest(value: object) -> str:
  """Returns 16 hexadecimal digits that tell values apart.

  Args:
    value: what JSON can express.
  """
  said = json.dumps(value, sort_keys=True)
  return hashlib.sha256(said.encode()).hexdigest()[:16]


def _version() -> str:
  """Returns the version of the package, '' where it is not installed."""
  try:
    return metadata.version('speculative')
  except metadata.PackageNotFoundError:
    return ''


def _files(reference: str, cache_dir: str) -> str:
  """Returns what tells the files of a reference apart, '' where it does itself.

  A draft that is trained again lies where the last one lay, so that sizes and
  times count; one that comes with the package is known by its bytes, as times
  are those of an installation; one of the hub by its commit.
  """
  scheme, separator, _ = reference.partition('://')
  if separator:
    if scheme not in ('package', 'hf'):
      return ''
    path = sources.resolve(reference, cache_dir=cache_dir or None)
    return path.name if scheme == 'hf' else digest(_contents(path))
  path = pathlib.Path(reference).expanduser()
  if not reference or not path.exists():
    return ''
  stats = [(str(file), file.stat()) for file in _walk(path)]
  return digest(
      [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]
  )


def _contents(path: pathlib.Path) -> list[list[str]]:
  return [
      [
          str(file.relative_to(path)),
          hashlib.sha256(file.read_bytes()).hexdigest(),
      ]
      for file in _walk(path)
  ]


def _walk(path: pathlib.Path) -> list[pathlib.Path]:
  """Returns the files of a directory, or the file itself."""
  files = sorted(path.rglob('*')) if path.is_dir() else [path]
  return [file for file in files if file.is_file()]


class PromptLog:
  """Records of a run, on disk and in memory.

  Of several hosts, the first one reads and writes, and all know what it read.

  Attributes:
    records: of the batches that are done, in order.
    facts: what is measured once a run, by name.
  """

  def __init__(
      self,
      path: pathlib.Path,
      identity: Mapping[str, Any],
      *,
      num_records: Sequence[int],
  ) -> None:
    """Reads what an earlier run has left; writes nothing.

    Args:
      path: of the workdir.
      identity: of this run.
      num_records: that every batch brings.

    Raises:
      UserError: If what is there is of another run, naming what differs, or
        another process measures there.
    """
    self._path = path
    # Times of files differ from host to host.
    self._identity = json.loads(hosts.share(json.dumps(identity)))
    self._num_records = num_records
    self._file: BinaryIO | None = None
    if results.is_first_host():
      _check_free(path / RECORDS)
    self._read()

  @property
  def left(self) -> range:
    """Numbers of the batches that are not done."""
    return range(self.num_done, len(self._num_records))

  def _read(self) -> None:
    self.records: list[Record] = []
    self.facts: dict[str, Any] = {}
    self._env: dict[str, list[str]] = {name: [] for name in _CHANGING}
    self._size = self.num_done = 0
    text = hosts.share(_read_text(self._path / FACTS))
    lines = hosts.share(_read_text(self._path / RECORDS))
    if not text and not lines:
      return
    if not text:
      raise UserError(
          f'{self._path} has a {RECORDS} but no {FACTS} that says of what; '
          'move it away, or name another --workdir.'
      )
    found = json.loads(text)
    before, now = found['identity'], self._identity
    for name in sorted({*before, *now}):
      if before.get(name) != now.get(name):
        raise UserError(
            f'{self._path} holds a benchmark with {name}={before.get(name)!r}, '
            f'this one has {now.get(name)!r}; set it back, or name another '
            '--workdir.'
        )
    self.facts, self._env = found['facts'], found['env']
    batch, size = [], 0
    # The last line may have been cut short; texts may hold other line ends.
    for line in lines.split('\n')[:-1]:
      if not self.left:
        break
      try:
        batch.append(json.loads(line))
      except ValueError:
        break
      size += len(line.encode()) + 1
      if len(batch) == self._num_records[self.num_done]:
        self.records += batch
        self._size, self.num_done, batch = size, self.num_done + 1, []

  def open(self, env: Mapping[str, str]) -> None:
    """Makes the files ready to go on, and the workdir where it is absent.

    They are read again: since they were, another process may have measured.

    Args:
      env: the env/* keys; if anything is left to measure they are noted.

    Raises:
      UserError: If another process measures there, nothing can be written, or
        what is there has become another run's. It is as it was then.
    """
    path = self._path / RECORDS
    try:
      if results.is_first_host():
        with results.writing(path):
          self._path.mkdir(parents=True, exist_ok=True)
          self._file = path.open('ab')
          _lock(self._file, fcntl.LOCK_EX, path)
      self._read()
      if self.left:
        for name, noted in self._env.items():
          if env[name] not in noted:
            noted.append(env[name])
      if self._file is not None:
        with results.writing(path):
          # Of a batch that was not finished, nothing stays.
          self._file.truncate(self._size)
        self._write_facts()
    except BaseException:
      self.close()
      raise
    if self.num_done:
      logging.info(
          'Going on: %d of %d batches are done.',
          self.num_done,
          len(self._num_records),
      )

  def note(self, facts: Mapping[str, Any]) -> None:
    """Keeps what is measured once.

    Args:
      facts: by name, JSON.
    """
    # As they are read, so that a run that goes on finds the same.
    self.facts |= json.loads(json.dumps(facts))
    if results.is_first_host():
      self._write_facts()

  def once(self, group: str, name: str, make: Callable[[], Any]) -> Any:
    """Returns what was found before under a name; else finds and keeps it.

    Args:
      group: a fact, by name of what it holds.
      name: of what is wanted.
      make: finds it, JSON.
    """
    if name not in self.facts.get(group, {}):
      self.note({group: self.facts.get(group, {}) | {name: make()}})
    return self.facts[group][name]

  def _write_facts(self) -> None:
    results.write_json(
        self._path / FACTS,
        {'identity': self._identity, 'env': self._env, 'facts': self.facts},
    )

  def add(self, found: Sequence[Record]) -> None:
    """Appends what the next batch brought, all of it at once.

    Args:
      found: its records.
    """
    if len(found) != self._num_records[self.num_done]:
      raise ValueError(
          f'batch {self.num_done} has {self._num_records[self.num_done]} '
          f'records, got {len(found)}.'
      )
    # As they are read, so that a run that goes on finds the same.
    lines = [json.dumps(r, ensure_ascii=False, allow_nan=False) for r in found]
    self.records += map(json.loads, lines)
    self.num_done += 1
    if self._file is None:
      return
    with results.writing(self._path / RECORDS):
      self._file.write(''.join(f'{line}\n' for line in lines).encode())
      self._file.flush()

  def close(self) -> None:
    """Lets other processes write."""
    if self._file is not None:
      self._file.close()
      self._file = None

  @property
  def env(self) -> dict[str, str]:
    """Commits and dates of all that was measured, as the env/* keys."""
    return {name: '+'.join(noted) for name, noted in self._env.items()}


def _check_free(path: pathlib.Path) -> None:
  """Refuses a file that another process holds, before much is loaded."""
  if not path.exists():
    return
  with results.writing(path):
    with path.open('rb') as file:
      _lock(file, fcntl.LOCK_SH, path)


def _lock(file: BinaryIO, kind: int, path: pathlib.Path) -> None:
  try:
    fcntl.flock(file, kind | fcntl.LOCK_NB)
  except BlockingIOError as error:
    raise UserError(
        f'another process measures into {path}; wait for it, or name another '
        '--workdir.'
    ) from error


def _read_text(path: pathlib.Path) -> str:
  """Returns a file's text on the first host, '' where there is none."""
  if not results.is_first_host() or not path.exists():
    return ''
  try:
    # Bytes of a text that was cut within a character.
    return path.read_text(encoding='utf-8', errors='replace')
  except OSError as error:
    raise UserError(
        f'{path} cannot be read ({error.strerror or error}); name another '
        'directory with --workdir.'
    ) from error
