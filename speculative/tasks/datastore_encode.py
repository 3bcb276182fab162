"""Text into token ids in several processes, in order, and what is evaluated.

Of a text that overlaps with evaluated ones, the pieces that do and one on each
side of them are cut out, and what is left are documents of their own: a file of
thousands of lines may share a list of numbers with a test. Where more than a
quarter of a text overlaps, all of it is left out, since its author had the
evaluated one in mind.
"""

from collections import deque
from collections.abc import Iterable
from collections.abc import Iterator
from concurrent import futures
import dataclasses
import functools
import itertools
import multiprocessing
from multiprocessing import connection
import os
import pathlib
import threading

import numpy as np

from speculative.checkpoints import pretrained
from speculative.errors import UserError
from speculative.tasks.datastore_inputs import Item
from speculative.train import overlap as overlap_lib
from speculative.train import prompt_text
from speculative.train.overlap import Found
from speculative.train.overlap import Overlap

# Items, and bytes of text, that a process gets at once.
_BATCH_ITEMS = 64
_BATCH_BYTES = 1 << 18
# Batches a process that are under way or wait for their turn.
_AHEAD = 4
# Characters encoded at once: longer texts are cut at a line end.
_PIECE = 1 << 20
# Characters of a piece that is cut out, up to the end of its line; and the most
# of a text that may be.
_CUT = 1024
_MOST = 0.25


@dataclasses.dataclass(frozen=True)
class Settings:
  """What a process needs to know.

  Attributes:
    model: whose tokenizer it is.
    cache_dir: of fetched checkpoints.
    held_out: evaluated files; empty where nothing is compared.
    overlap_tokens: see `Overlap`.
    overlap_words: see `Overlap`.
  """

  model: str
  cache_dir: str | None
  held_out: tuple[str, ...]
  overlap_tokens: int
  overlap_words: int


@dataclasses.dataclass(frozen=True, eq=False)
class Encoded:
  """One document.

  Attributes:
    item: it came from, without its text.
    parts: ids of what is left of it, one array where nothing is cut out.
    num_tokens: of all of it.
    found: what it shares with evaluated text, None for nothing.
    is_binary: whether its file holds NUL bytes, and none of it was taken.
  """

  item: Item
  parts: tuple[np.ndarray, ...]
  num_tokens: int
  found: Found | None
  is_binary: bool = False

  @property
  def num_left_out(self) -> int:
    """Tokens that are not in the parts; at least 1 where text was found."""
    left_out = self.num_tokens - sum(map(len, self.parts))
    return max(left_out, 1 if self.found else 0)


class Encoder:
  """Encodes and compares, in one process."""

  def __init__(self, settings: Settings) -> None:
    """Reads the tokenizer and the evaluated files.

    Args:
      settings: see there.

    Raises:
      UserError: If one of them cannot be read.
    """
    self.tokenizer = pretrained.open_pretrained(
        settings.model, cache_dir=settings.cache_dir
    ).tokenizer
    self.overlap = None
    if settings.held_out:
      self.overlap = Overlap(
          overlap_lib.read(settings.held_out),
          self._ids,
          num_tokens=settings.overlap_tokens,
          num_words=settings.overlap_words,
      )

  def _ids(self, text: str) -> list[int]:
    return self.tokenizer.encode(text, special='literal')

  def encode(self, item: Item) -> Encoded:
    """Encodes one document.

    Args:
      item: of the inputs.

    Raises:
      UserError: If its file cannot be read.
    """
    text, tokens = item.text, item.tokens
    if item.path:
      text = _read(item.path)
      if '\0' in text:
        return Encoded(item, (), 0, None, is_binary=True)
    if tokens is not None:
      text = self.tokenizer.decode(tokens.tolist()) if self.overlap else ''
    else:
      # What JSON can write but Unicode does not have.
      text = text.encode('utf-8', 'replace').decode('utf-8')
      tokens = self._tokens(text)
    found = self.overlap.find(tokens.tolist(), text) if self.overlap else None
    parts = (tokens,)
    if found:
      # Collected text is short, and its special tokens are no text.
      kept = [] if item.tokens is not None else self._around(text)
      parts = tuple(map(self._tokens, kept))
    bare = dataclasses.replace(item, text='', tokens=None)
    return Encoded(bare, parts, len(tokens), found)

  def _tokens(self, text: str) -> np.ndarray:
    ids = []
    for piece in prompt_text.pieces(text, _PIECE):
      ids += self._ids(piece)
    return np.array(ids, np.uint32)

  def _finds(self, text: str) -> bool:
    return self.overlap.find(self._tokens(text).tolist(), text) is not None

  def _around(self, text: str) -> list[str]:
    """Returns what is left of a text around evaluated pieces."""
    pieces = prompt_text.pieces(text, _CUT)
    alone = np.array([self._finds(piece) for piece in pieces])
    is_found = alone.copy()
    for i, pair in enumerate(itertools.pairwise(pieces)):
      if not alone[i : i + 2].any() and self._finds(''.join(pair)):
        is_found[i : i + 2] = True
    if is_found.mean() > _MOST:
      return []
    is_near = is_found.copy()
    is_near[1:] |= is_found[:-1]
    is_near[:-1] |= is_found[1:]
    left = [
        ''.join(piece for piece, _ in group)
        for near, group in itertools.groupby(
            zip(pieces, is_near, strict=True), key=lambda each: each[1]
        )
        if not near
    ]
    return [part for part in left if not self._finds(part)]


def _read(path: str) -> str:
  try:
    return pathlib.Path(path).read_text(encoding='utf-8', errors='replace')
  except OSError as error:
    raise UserError(f'{path} cannot be read: {error.strerror}.') from error


def encode_all(
    items: Iterable[Item], settings: Settings, *, num_processes: int
) -> Iterator[Encoded]:
  """Encodes documents.

  Args:
    items: in order; read as they are needed.
    settings: of the encoders.
    num_processes: 1 works in this process, 0 takes one a core.

  Yields:
    As many, in the same order.

  Raises:
    UserError: If one cannot be read.
  """
  num_processes = num_processes or os.cpu_count() or 1
  if num_processes == 1:
    encoder = Encoder(settings)
    yield from map(encoder.encode, items)
    return
  # A fork would copy the threads' locks of libraries that are at work.
  context = multiprocessing.get_context('spawn')
  with futures.ProcessPoolExecutor(
      num_processes, mp_context=context, initializer=_end_with_parent
  ) as pool:
    waiting = deque()
    try:
      for batch in _batches(items):
        waiting.append(pool.submit(_encode_batch, settings, batch))
        if len(waiting) >= _AHEAD * num_processes:
          yield from waiting.popleft().result()
      while waiting:
        yield from waiting.popleft().result()
    except futures.BrokenExecutor as error:
      raise UserError(
          'a process that encodes text has ended; lower '
          'config.datastore.num_processes if it ran out of memory.'
      ) from error
    finally:
      pool.shutdown(wait=False, cancel_futures=True)


def _batches(items: Iterable[Item]) -> Iterator[list[Item]]:
  batch, size = [], 0
  for item in items:
    batch.append(item)
    size += item.size
    if len(batch) >= _BATCH_ITEMS or size >= _BATCH_BYTES:
      yield batch
      batch, size = [], 0
  if batch:
    yield batch


@functools.lru_cache(maxsize=1)
def _encoder(settings: Settings) -> Encoder:
  return Encoder(settings)


def _encode_batch(settings: Settings, batch: list[Item]) -> list[Encoded]:
  encoder = _encoder(settings)
  return [encoder.encode(item) for item in batch]


def _end_with_parent() -> None:
  """Has a process end when the one that started it is killed."""
  parent = multiprocessing.parent_process()

  def wait() -> None:
    connection.wait([parent.sentinel])
    os._exit(1)

  threading.Thread(target=wait, daemon=True).start()
