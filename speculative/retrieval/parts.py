"""The finished shards of a build that is not finished.

NAME.partial/plan.json   tells what is being built
             part_00000  a datastore of one shard, or of none where all that
                         counts are documents left out
             .lock       held by the process at work
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
from typing import Any

from speculative.errors import UserError
from speculative.retrieval import datastore
from speculative.retrieval import store_writer
from speculative.retrieval.datastore import Datastore
from speculative.retrieval.datastore import Facts
from speculative.retrieval.datastore import ShardView
from speculative.retrieval.store_file import Source

_PLAN = 'plan.json'
_LOCK = '.lock'
# In `about` of a datastore: the plan that made it.
_MADE_BY = 'made_by'


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
    what = [
        dataclasses.asdict(facts),
        inputs,
        before and before.header.digest,
    ]
    self._id = hashlib.sha256(json.dumps(what).encode()).hexdigest()
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
      store_writer.lock(self._file, self._path)
      self._begin()
    except BaseException:
      self._file.close()
      raise
    return self

  def __exit__(self, *exception: object) -> None:
    self._file.close()

  def _begin(self) -> None:
    plan = self._directory / _PLAN
    try:
      there = json.loads(plan.read_text())['id']
    except FileNotFoundError:
      self._write_plan(plan)
      return
    except (OSError, ValueError, KeyError, TypeError):
      there = None
    if there == self._id:
      return
    if self._before and there == self._before.header.about.get(_MADE_BY):
      # Killed after the datastore was replaced: all there was to do is done.
      self.is_finished = True
      shutil.rmtree(self._directory)
      return
    raise UserError(
        f'{self._directory} holds an unfinished datastore of other documents '
        'or settings; run what it was begun with again, or remove it.'
    )

  def _write_plan(self, plan: pathlib.Path) -> None:
    beside = plan.with_name(f'.{_PLAN}')
    with store_writer.writing(plan):
      beside.write_text(json.dumps({'id': self._id}))
      os.replace(beside, plan)

  def _stores(self) -> list[Datastore]:
    found = sorted(self._directory.glob('part_*'))
    return [
        datastore.open_store(path, tokenizer=self._facts.tokenizer)
        for path in found
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
    number = len(list(self._directory.glob('part_*')))
    facts = dataclasses.replace(
        self._facts,
        sources=counts.added_to(self._facts.sources),
        about={'next': dataclasses.astuple(after)},
    )
    datastore.write(self._directory / f'part_{number:05d}', facts, shards)

  def finish(self) -> None:
    """Puts all shards into the datastore, and removes the directory.

    Raises:
      UserError: If it cannot be written.
    """
    stores = self._stores()
    sources = self._facts.sources
    for store in stores:
      sources = tuple(map(Source.plus, sources, store.facts.sources))
    shards = [shard for store in stores for shard in store.shards]
    if self._before is not None:
      sources = self._before.facts.sources + sources
      shards = [*self._before.shards[:-1], *shards]
    facts = dataclasses.replace(
        self._facts,
        sources=sources,
        about={**self._facts.about, _MADE_BY: self._id},
    )
    datastore.write(self._path, facts, shards)
    shutil.rmtree(self._directory)
