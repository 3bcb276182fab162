"""Makes a datastore of documents, shard by shard, and goes on after a kill.

A finished shard waits, as a datastore of its own, in `NAME.partial` beside the
file (see `parts`); the file itself comes last, in one piece. Documents fill a
shard in their order until the next one does not fit, so shards do not depend on
where a build was stopped, nor on what was appended and what was there before.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import dataclasses
import pathlib
import time
from typing import Any

import numpy as np

from speculative.retrieval import datastore
from speculative.retrieval import memory
from speculative.retrieval.datastore import Datastore
from speculative.retrieval.datastore import Facts
from speculative.retrieval.datastore import ShardView
from speculative.retrieval.parts import Counts
from speculative.retrieval.parts import Parts
from speculative.retrieval.parts import Place

# Positions in a shard are below 2^31.
MAX_SHARD_TOKENS = 2**31 - 1
# Source of documents that a datastore has already.
_OLD = -1


@dataclasses.dataclass(frozen=True, eq=False)
class Document:
  """One text.

  Attributes:
    tokens: ids, [T]; None where it is left out because it is evaluated.
    source: its number among the sources.
  """

  tokens: np.ndarray | None
  source: int = 0


@dataclasses.dataclass(frozen=True)
class Plan:
  """What is to be built.

  Attributes:
    path: of the datastore.
    facts: of it; the sources without counts.
    shard_tokens: most of a shard, separators included; at least 2.
    inputs: tells one build from another, JSON; a build that goes on needs what
      it began with.
    num_threads: that sort at once; 0 is one a core.
  """

  path: pathlib.Path
  facts: Facts
  shard_tokens: int
  inputs: Any
  num_threads: int = 0


@dataclasses.dataclass(frozen=True)
class Built:
  """What this run of a build took.

  Attributes:
    store: the finished datastore.
    num_sorted: tokens whose suffix arrays this run made.
    sort_s: time that took.
    encode_s: time spent waiting for documents.
    peak_bytes: most memory while a suffix array was made, a token of its
      shard; 0 where nothing was made or this machine does not tell.
  """

  store: Datastore
  num_sorted: int
  sort_s: float
  encode_s: float
  peak_bytes: float


def build(
    plan: Plan,
    documents: Callable[[int], Iterable[Document]],
    *,
    before: Datastore | None = None,
    on_shard: Callable[[int, float], None] = lambda tokens, seconds: None,
) -> Built:
  """Builds a datastore, or appends to one.

  Args:
    plan: what to build.
    documents: gives them from a number on, always in the same order.
    before: a datastore whose documents come first; its last shard, which may
      not be full, is made again together with the first new documents.
    on_shard: called with tokens of a new shard and seconds it took to sort.

  Returns:
    The Built; `plan.path` is replaced.

  Raises:
    UserError: If something cannot be written, or an unfinished build of
      something else is in the way. What was at `plan.path` stays usable.
    ValueError: If a document has ids outside the vocabulary.
  """
  work = _Work()
  with Parts(
      pathlib.Path(plan.path),
      plan.facts,
      [plan.shard_tokens, plan.inputs],
      before=before,
  ) as parts:
    if not parts.is_finished:
      first = parts.place()
      pieces = _pieces(
          work.timed(_joined(before, documents, first.document)), first, plan
      )
      for filled in _fill(plan, pieces, first):
        parts.add(work.sort(filled.tokens, plan), filled.counts, filled.next)
        on_shard(len(filled.tokens), work.last_s)
      parts.finish()
  return Built(
      store=datastore.open_store(plan.path),
      num_sorted=work.num_sorted,
      sort_s=work.sort_s,
      encode_s=work.encode_s,
      peak_bytes=work.peak_bytes,
  )


class _Work:
  """Does the parts of a build, and measures them."""

  def __init__(self) -> None:
    self.num_sorted = 0
    self.sort_s = self.last_s = self.encode_s = self.peak_bytes = 0.0

  def timed(self, documents: Iterable[Document]) -> Iterator[Document]:
    """Passes documents on."""
    iterator = iter(documents)
    while True:
      started = time.perf_counter()
      document = next(iterator, None)
      self.encode_s += time.perf_counter() - started
      if document is None:
        return
      yield document

  def sort(self, tokens: np.ndarray, plan: Plan) -> list[ShardView]:
    """Makes a shard; none of no tokens."""
    if not len(tokens):
      return []
    with memory.Peak() as peak:
      started = time.perf_counter()
      shard = datastore.make_shard(
          tokens,
          separator=plan.facts.vocab_size,
          depth=plan.facts.depth,
          num_threads=plan.num_threads,
      )
      self.last_s = time.perf_counter() - started
    self.sort_s += self.last_s
    self.num_sorted += len(tokens)
    if peak.grown:
      # The tokens were there before.
      each = (peak.grown + tokens.nbytes) / len(tokens)
      self.peak_bytes = max(self.peak_bytes, each)
    return [shard]


def split(shard: ShardView, *, separator: int) -> Iterator[np.ndarray]:
  """Yields the documents of a shard without their separators.

  Args:
    shard: whose tokens are read.
    separator: that ends each.
  """
  tokens = shard.tokens()
  start = 0
  for end in np.flatnonzero(tokens == separator).tolist():
    yield tokens[start:end]
    start = end + 1


def _joined(
    before: Datastore | None,
    documents: Callable[[int], Iterable[Document]],
    first: int,
) -> Iterator[Document]:
  """Yields documents from a number on, those of the last old shard first."""
  num_old = 0
  if before is not None and before.shards:
    last = before.shards[-1]
    num_old = last.num_documents
    old = split(last, separator=before.header.separator)
    for number, tokens in enumerate(old):
      if number >= first:
        yield Document(tokens, _OLD)
  yield from documents(max(0, first - num_old))


def _pieces(
    documents: Iterable[Document], first: Place, plan: Plan
) -> Iterator[tuple[Place, Document]]:
  """Yields documents with their place; one too long for a shard in pieces."""
  longest = plan.shard_tokens - 1
  for number, document in enumerate(documents, first.document):
    tokens = document.tokens
    if tokens is None:
      yield Place(number), document
      continue
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < (
        plan.facts.vocab_size
    ):
      raise ValueError(f'document {number} has ids outside the vocabulary.')
    done = first.piece if number == first.document else 0
    for piece in range(done, -(-len(tokens) // longest)):
      part = tokens[piece * longest : (piece + 1) * longest]
      yield Place(number, piece), Document(part, document.source)


@dataclasses.dataclass(frozen=True, eq=False)
class _Filled:
  """Documents of one shard.

  Attributes:
    tokens: ids with separators; valid until the next shard is filled.
    counts: of every source.
    next: what comes after them.
  """

  tokens: np.ndarray
  counts: Counts
  next: Place


def _fill(
    plan: Plan, pieces: Iterable[tuple[Place, Document]], first: Place
) -> Iterator[_Filled]:
  """Yields full shards, and what is left at the end if there is anything."""
  separator = plan.facts.vocab_size
  narrow = datastore.id_bytes(separator) == 2
  # Pages are used as they fill.
  buffer = np.empty(plan.shard_tokens, np.uint16 if narrow else np.uint32)
  size, counts, after = 0, Counts(len(plan.facts.sources)), first
  for place, document in pieces:
    tokens = document.tokens
    after = Place(place.document + 1)
    if tokens is None:
      counts.left_out(document.source)
      continue
    if size + len(tokens) >= len(buffer):
      yield _Filled(buffer[:size], counts, place)
      size, counts = 0, Counts(len(plan.facts.sources))
    end = size + len(tokens)
    buffer[size:end] = tokens
    buffer[end] = separator
    size = end + 1
    if document.source != _OLD:
      counts.taken(document.source, len(tokens) + 1)
  if size or counts.any():
    yield _Filled(buffer[:size], counts, after)
