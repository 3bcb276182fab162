"""Text of any size for bench_retrieval.py: of files, and drawn like them."""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import pathlib
import shutil
import time

import numpy as np

from speculative.errors import UserError
from speculative.tasks import datastore_encode
from speculative.tasks.datastore_inputs import Inputs
from speculative.tokenizer import base
from speculative.train import store as store_lib

_HELD_OUT = 50
# Of a drawn document.
_DRAWN_TOKENS = 1000
# Tokens of the text that are written at once.
_WRITTEN_TOKENS = 1 << 22


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
  """Encoded files.

  Attributes:
    documents: ids of each.
    held_out: of those to look up.
    tokens_per_s: encoded, by all processes.
  """

  documents: Sequence[np.ndarray]
  held_out: Sequence[np.ndarray]
  tokens_per_s: float


def encode(
    tokenizer: base.Tokenizer,
    model: str,
    texts: Sequence[str],
    *,
    num_tokens: int,
    num_processes: int,
) -> Corpus:
  """Encodes files until there are enough.

  Args:
    tokenizer: of the model.
    model: its reference.
    texts: files, as config.datastore.texts names them.
    num_tokens: of the documents that are not held out, separators included.
    num_processes: that encode; 0 is one a core.

  Returns:
    The Corpus, with fewer tokens if there are no more files.

  Raises:
    UserError: If the files are absent, or too few.
  """
  inputs = Inputs(
      texts=texts,
      rows=(),
      row_field='',
      stores=(),
      tokenizer=tokenizer.fingerprint,
      output=pathlib.Path('datastore.store'),
  )
  settings = datastore_encode.Settings(
      model=model,
      cache_dir=None,
      held_out=(),
      overlap_tokens=1,
      overlap_words=1,
  )
  documents, held_out, found, encoded = [], [], 0, 0
  started = time.perf_counter()
  for number, one in enumerate(
      datastore_encode.encode_all(
          inputs.items(0), settings, num_processes=num_processes
      ),
      1,
  ):
    encoded += one.num_tokens
    kept = [part for part in one.parts if len(part)]
    if number % _HELD_OUT == 0:
      held_out += kept
    else:
      documents += kept
      found += sum(len(part) + 1 for part in kept)
    if found >= num_tokens and held_out:
      break
  elapsed = time.perf_counter() - started
  if not held_out or not documents:
    raise UserError(
        f'--texts names {number} files, of which every {_HELD_OUT}th that has '
        'tokens is held out; name more.'
    )
  return Corpus(documents, held_out, encoded / elapsed)


def drawn(
    documents: Sequence[np.ndarray], rng: np.random.Generator, *, num: int
) -> np.ndarray:
  """Draws texts whose pairs of tokens are pairs of the documents' texts.

  Args:
    documents: ids of each.
    rng: of the draws.
    num: of texts.

  Returns:
    uint32 ids [num, 1000].
  """
  tokens_N = np.concatenate(documents)
  order_N = np.argsort(tokens_N, kind='stable')
  # What follows each token, side by side; the first follows the last.
  after_N = tokens_N[(order_N + 1) % len(tokens_N)]
  counts = np.bincount(tokens_N)
  first = np.cumsum(counts) - counts
  texts_DT = np.empty((num, _DRAWN_TOKENS), np.uint32)
  last_D = tokens_N[rng.integers(0, len(tokens_N), num)]
  for step in range(_DRAWN_TOKENS):
    which_D = (rng.random(num) * counts[last_D]).astype(np.int64)
    last_D = after_N[first[last_D] + which_D]
    texts_DT[:, step] = last_D
  return texts_DT


def texts_of(
    corpus: Corpus, num_tokens: int, rng: np.random.Generator
) -> tuple[Iterator[np.ndarray], int]:
  """Returns documents that have so many tokens, and how many are the files'.

  Args:
    corpus: comes first.
    num_tokens: of all, a separator for every document included.
    rng: of what is drawn where the corpus is too small.
  """
  real = sum(len(ids) + 1 for ids in corpus.documents)
  missing = max(0, num_tokens - real)

  def documents() -> Iterator[np.ndarray]:
    yield from corpus.documents
    if missing:
      num = -(-missing // (_DRAWN_TOKENS + 1))
      yield from drawn(corpus.documents, rng, num=num)

  return _cut(documents(), num_tokens), min(real, num_tokens)


def _cut(
    documents: Iterable[np.ndarray], num_tokens: int
) -> Iterator[np.ndarray]:
  """Yields documents, the last one cut, up to so many tokens."""
  left = num_tokens
  for ids in documents:
    # The last place is the separator's.
    if left < 2:
      return
    yield ids[: left - 1]
    left -= len(ids) + 1


def write_text(
    path: pathlib.Path, documents: Iterable[np.ndarray], tokenizer: str
) -> None:
  """Writes documents as task `collect` would.

  Args:
    path: of the directory, replaced.
    documents: ids of each.
    tokenizer: fingerprint.
  """
  shutil.rmtree(path, ignore_errors=True)
  writer = store_lib.Writer(path, tokenizer=tokenizer)
  waiting, size = [], 0
  for ids in documents:
    waiting.append(store_lib.Document(ids))
    size += len(ids)
    if size >= _WRITTEN_TOKENS:
      writer.add(waiting)
      waiting, size = [], 0
  if waiting:
    writer.add(waiting)
  writer.close()
