"""Makes a datastore of documents, shard by shard, and goes on after a kill.

A finished shard waits, as a datastore of its own, in `NAME.partial` beside the
file (see `parts`); the file itself comes last, in one piece. Documents fill a
shard in their order until the next one does not fit, so shards do not depend on
where a build was stopped, nor on what was appended and what was there before.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
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

# Source of documents that a datastore has already.
_OLD = -1


@dataclasses.dataclass(frozen=True, eq=False)
class Document:
  """One text, or what is left of it without what is evaluated.

  Attributes:
    parts: ids of it, [T] each; several where it was cut, none where all of it
      was left out.
    source: its number among the sources.
    num_left_out: tokens of it that were.
  """

  parts: Sequence[np.ndarray]
  source: int = 0
  num_left_out: int = 0


@dataclasses.dataclass(frozen=True)
class Plan:
  """What is to be built.

  Attributes:
    path: of the datastore.
    facts: of it; the sources without counts.
    shard_tokens: most of a shard, separators included; at least 2.
    inputs: tells one build from another, JSON; a build that goes on needs what
      it began with.
  """

  path: pathlib.Path
  facts: Facts
  shard_tokens: int
  inputs: Any


@dataclasses.dataclass(frozen=True)
class Built:
  """What this run of a build took.

  Attributes:
    store: the finished datastore.
    num_sorted: tokens whose suffix arrays this run made.
    sort_s: time that took.
    encode_s: time spent waiting for documents.
    peak_bytes: a token, of the shard whose suffix array took most memory; 0
      where nothing was made or this machine does not tell.
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
    self._peak = 0

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
      )
      self.last_s = time.perf_counter() - started
    self.sort_s += self.last_s
    self.num_sorted += len(tokens)
    # The tokens were there before. A last shard of few tokens takes little,
    # though much a token.
    total = peak.grown + tokens.nbytes
    if peak.grown and total > self._peak:
      self._peak, self.peak_bytes = total, total / len(tokens)
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
        yield Document([tokens], _OLD)
  yield from documents(max(0, first - num_old))


@dataclasses.dataclass(frozen=True, eq=False)
class _Piece:
  """What goes into a shard as a whole, with a separator behind it.

  Attributes:
    place: in the documents.
    tokens: of it; None where there are none of the document.
    source: of the document.
    num_left_out: tokens of the document that were, at its first piece.
  """

  place: Place
  tokens: np.ndarray | None
  source: int
  num_left_out: int


def _pieces(
    documents: Iterable[Document], first: Place, plan: Plan
) -> Iterator[_Piece]:
  """Yields parts of documents; those too long for a shard in pieces."""
  longest = plan.shard_tokens - 1
  for number, document in enumerate(documents, first.document):
    found = []
    for part in document.parts:
      if len(part) and not 0 <= part.min() <= part.max() < (
          plan.facts.vocab_size
      ):
        raise ValueError(f'document {number} has ids outside the vocabulary.')
      found += [part[i : i + longest] for i in range(0, len(part), longest)]
    done = first.piece if number == first.document else 0
    for piece, tokens in list(enumerate(found or [None]))[done:]:
      yield _Piece(
          Place(number, piece),
          tokens,
          document.source,
          0 if piece else document.num_left_out,
      )


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
    plan: Plan, pieces: Iterable[_Piece], first: Place
) -> Iterator[_Filled]:
  """Yields full shards, and what is left at the end if there is anything."""
  separator = plan.facts.vocab_size
  narrow = datastore.id_bytes(separator) == 2
  # Pages are used as they fill.
  buffer = np.empty(plan.shard_tokens, np.uint16 if narrow else np.uint32)
  size, counts, after = 0, Counts(len(plan.facts.sources)), first
  for piece in pieces:
    num_tokens = 0 if piece.tokens is None else len(piece.tokens) + 1
    if size + num_tokens > len(buffer):
      yield _Filled(buffer[:size], counts, piece.place)
      size, counts = 0, Counts(len(plan.facts.sources))
    after = Place(piece.place.document + 1)
    if num_tokens:
      end = size + num_tokens
      buffer[size : end - 1] = piece.tokens
      buffer[end - 1] = separator
      size = end
    if piece.source != _OLD:
      counts.add(piece.source, num_tokens, piece.num_left_out)
  if size or counts.any():
    yield _Filled(buffer[:size], counts, after)
