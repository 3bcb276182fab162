"""The finished shards of a build that is not finished.

NAME.partial/plan.json   tells what is being built
             part_00000  a datastore of one shard, or of none where all that
                         counts are documents left out
             .lock       held by the process at work

A finished build renames it to NAME.partial.done before it removes anything, so
that what is half removed is never gone on with. The plan goes last there: it
tells a rerun of an append that was killed late that all is done.
"""

from collections.abc import Mapping
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
from typing import Any

from absl import logging

from speculative.errors import UserError
from speculative.retrieval import datastore
from speculative.retrieval import store_file
from speculative.retrieval import store_writer
from speculative.retrieval.datastore import Datastore
from speculative.retrieval.datastore import Facts
from speculative.retrieval.datastore import ShardView
from speculative.retrieval.store_file import Source

_PLAN = 'plan.json'
_LOCK = '.lock'
# In `about` of a datastore: the plan that made it, and of what it was made.
_MADE_BY = 'made_by'
_MADE_OF = 'made_of'


@dataclasses.dataclass(frozen=True)
class Place:
  """Where a build is in its documents.

  Attributes:
    document: number of the next one.
    piece: of that document, if it is too long for one shard.
  """

  document: int = 0
  piece: int = 0


class Counts:
  """Documents and tokens of every source."""

  def __init__(self, num_sources: int) -> None:
    """Starts at zero.

    Args:
      num_sources: how many.
    """
    self._counts = [Source('') for _ in range(num_sources)]

  def add(self, source: int, num_tokens: int, num_left_out: int) -> None:
    """Counts a document.

    Args:
      source: its number.
      num_tokens: with the separator; 0 where there is no document.
      num_left_out: tokens that were left out of it, or before it.
    """
    one = Source(
        '',
        num_documents=int(num_tokens > 0),
        num_tokens=num_tokens,
        num_left_out=int(num_left_out > 0),
        left_out_tokens=num_left_out,
    )
    self._counts[source] = self._counts[source].plus(one)

  def any(self) -> bool:
    """Whether anything was counted."""
    return any(each != Source('') for each in self._counts)

  def added_to(self, sources: tuple[Source, ...]) -> tuple[Source, ...]:
    """Returns sources with these counts added.

    Args:
      sources: as many.
    """
    return tuple(
        source.plus(each)
        for source, each in zip(sources, self._counts, strict=True)
    )


class Parts:
  """Keeps finished shards; a context, since one process may be at work."""

  def __init__(
      self,
      path: pathlib.Path,
      facts: Facts,
      inputs: Any,
      *,
      before: Datastore | None,
  ) -> None:
    """Looks at nothing yet.

    Args:
      path: of the datastore.
      facts: of it; the sources without counts.
      inputs: tells one build from another, JSON.
      before: a datastore of which all shards but the last stay.
    """
    self._path, self._facts, self._before = path, facts, before
    self._directory = path.with_name(f'{path.name}.partial')
    self._done = path.with_name(f'{path.name}.partial.done')
    what = [dataclasses.asdict(facts), inputs]
    self._plan = {
        'id': _digest([*what, before and before.header.digest]),
        'inputs': _digest(what),
    }
    self.is_finished = False

  def __enter__(self) -> 'Parts':
    """Makes the directory.

    Raises:
      UserError: If something else is being built there, or by someone else.
    """
    with store_writer.writing(self._directory):
      self._directory.mkdir(parents=True, exist_ok=True)
      self._file = open(self._directory / _LOCK, 'wb')
    try:
      store_writer.lock(self._file, self._path, store_file.FORMAT.name)
      self._begin()
    except BaseException:
      self._file.close()
      raise
    return self

  def __exit__(self, *exception: object) -> None:
    self._file.close()

  def _begin(self) -> None:
    there = _read_plan(self._directory)
    if there is None:
      self._clear()
      there = _read_plan(self._done)
      if there is not None and self._is_done(there):
        self.is_finished = True
        _remove(self._directory)
      else:
        self._write_plan()
      _remove(self._done)
    elif there.get('id') == self._plan['id']:
      return
    elif self._is_done(there):
      # Killed after the datastore was replaced: all there was to do is done.
      self.is_finished = True
      self._retire()
    elif self._made_before(there):
      # Left of the build before this one, which has no use for it any more.
      self._clear()
      self._write_plan()
    else:
      raise UserError(
          f'{self._directory} holds an unfinished datastore of other documents '
          'or settings; run what it was begun with again, or remove it.'
      )

  def _made_before(self, plan: Mapping[str, Any]) -> bool:
    """Whether a plan is of the build that made the present datastore."""
    if self._before is None or 'id' not in plan:
      return False
    return plan['id'] == self._before.header.about.get(_MADE_BY)

  def _is_done(self, plan: Mapping[str, Any]) -> bool:
    """Whether a plan is of that build, and this call is its rerun."""
    is_same = plan.get('inputs') == self._plan['inputs']
    return self._made_before(plan) and is_same

  def _clear(self) -> None:
    """Removes the plan and then the parts; parts without a plan are no use."""
    with store_writer.writing(self._directory):
      (self._directory / _PLAN).unlink(missing_ok=True)
      for path in self._directory.glob('part_*'):
        path.unlink()

  def _write_plan(self) -> None:
    plan = self._directory / _PLAN
    beside = plan.with_name(f'.{_PLAN}')
    with store_writer.writing(plan):
      beside.write_text(json.dumps(self._plan))
      os.replace(beside, plan)

  def _retire(self) -> None:
    """Removes the directory, of which a half is never found under its name."""
    _remove(self._done)
    try:
      os.replace(self._directory, self._done)
    except OSError as error:
      logging.warning('%s stays: %s.', self._directory, error)
      return
    _remove(self._done)

  def _paths(self) -> list[pathlib.Path]:
    """Returns the paths of all parts, in order.

    Raises:
      UserError: If some are missing.
    """
    found = {path.name for path in self._directory.glob('part_*')}
    names = [_part_name(number) for number in range(len(found))]
    if found != set(names):
      absent = next(name for name in names if name not in found)
      raise UserError(
          f'{self._directory} has no {absent}, but later parts of the '
          'datastore; remove the directory and run the same again.'
      )
    return [self._directory / name for name in names]

  def _stores(self, *, verify: str = 'header') -> list[Datastore]:
    return [
        datastore.open_store(
            path, tokenizer=self._facts.tokenizer, verify=verify
        )
        for path in self._paths()
    ]

  def place(self) -> Place:
    """Returns where to go on."""
    stores = self._stores()
    return Place(*stores[-1].facts.about['next']) if stores else Place()

  def add(self, shards: list[ShardView], counts: Counts, after: Place) -> None:
    """Keeps a shard.

    Args:
      shards: one, or none.
      counts: of the documents in it, and of those left out.
      after: what comes next.

    Raises:
      UserError: If it cannot be written.
    """
    name = _part_name(len(self._paths()))
    facts = dataclasses.replace(
        self._facts,
        sources=counts.added_to(self._facts.sources),
        about={'next': dataclasses.astuple(after)},
    )
    datastore.write(self._directory / name, facts, shards)

  def finish(self) -> None:
    """Puts all shards into the datastore, and removes the directory.

    Raises:
      UserError: If it cannot be written, or a part is missing or damaged.
    """
    # All of it, since the datastore gets checksums of what is read here.
    stores = self._stores(verify='all')
    about = {}
    sources = self._facts.sources
    for store in stores:
      sources = tuple(map(Source.plus, sources, store.facts.sources))
    shards = [shard for store in stores for shard in store.shards]
    if self._before is not None:
      sources = self._before.facts.sources + sources
      shards = [*self._before.shards[:-1], *shards]
      about = self._before.facts.about
    facts = dataclasses.replace(
        self._facts,
        sources=sources,
        about={
            **about,
            **self._facts.about,
            _MADE_BY: self._plan['id'],
            _MADE_OF: self._plan['inputs'],
        },
    )
    datastore.write(self._path, facts, shards)
    self._retire()


def _part_name(number: int) -> str:
  return f'part_{number:05d}'


def _digest(what: Any) -> str:
  return hashlib.sha256(json.dumps(what).encode()).hexdigest()


def _read_plan(directory: pathlib.Path) -> Mapping[str, Any] | None:
  """Returns a plan, {} if it cannot be read, None if there is none."""
  try:
    plan = json.loads((directory / _PLAN).read_text())
  except FileNotFoundError:
    return None
  except (OSError, ValueError):
    return {}
  return plan if isinstance(plan, dict) else {}


def _remove(directory: pathlib.Path) -> None:
  """Removes a directory, its plan last; what cannot be removed is left."""
  try:
    for path in directory.glob('part_*'):
      path.unlink()
    if directory.exists():
      shutil.rmtree(directory)
  except OSError as error:
    logging.warning('%s stays: %s.', directory, error)
