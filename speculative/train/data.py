"""Training text in packed rows, in an order that can be taken up anywhere.

Documents stand one behind the other in rows of T tokens; what does not fit goes
on in the next row. Its last token is repeated there, so that every token but
the first of a document is predicted exactly once.

  T = 5; documents a b c d, e f g    row 0: a b c d e    document 1 1 1 1 2
                                     row 1: e f g . .    document 1 1 1 0 0

  The lone e of row 0 predicts nothing, and f is predicted in row 1.

Without scores the target reads the rows themselves, and would take the rest of
a document for a beginning: what does not fit is left out then, and every row
starts with a document's first token.

The order of documents is a function of the seed and the epoch, and a Position
in it is three numbers: whoever continues from them sees what an uninterrupted
run would have seen.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import hashlib

import flax.struct
import jax
import ml_dtypes
import numpy as np

from speculative.train.joined import Joined

Array = jax.Array | np.ndarray

# Streams of the hash, one a use.
_SPLIT, _ORDER = 1, 2


@flax.struct.dataclass
class Batch:
  """Rows of tokens; row t of a document is about predicting token t + 1.

  Attributes:
    tokens_BT: int32.
    document_BT: int32, number of the document in its row, from 1; 0 pads.
    positions_BT: int32, from 0 at the document's first token.
    domain_BT: int32.
    weight_BT: float32, what predicting the next token counts; 0 where the next
      token is not in the row.
    hidden_BTD: bfloat16, the target's hidden state at the token before, zero at
      a document's first; None where the store is not scored.
    log_norm_BT: float32, log-sum-exp of the target's logits at this token; None
      where the store is not scored.
  """

  tokens_BT: Array
  document_BT: Array
  positions_BT: Array
  domain_BT: Array
  weight_BT: Array
  hidden_BTD: Array | None = None
  log_norm_BT: Array | None = None


@dataclasses.dataclass(frozen=True)
class Position:
  """Where the next row begins.

  Attributes:
    epoch: times that all documents have been seen.
    index: into the order of this epoch.
    offset: token of that document.
  """

  epoch: int = 0
  index: int = 0
  offset: int = 0


def _hash(seed: int, stream: int, epoch: int, count: int) -> np.ndarray:
  """Returns uint64 [count], well mixed; the same on every machine."""
  return _stir(np.arange(count, dtype=np.uint64), seed, stream, epoch)


def _stir(x: np.ndarray, *words: int) -> np.ndarray:
  for word in words:
    x = _mix(x ^ _mix(np.full(1, word % 2**64, np.uint64)))
  return x


def _mix(x: np.ndarray) -> np.ndarray:
  """One step of splitmix64; overflow is meant."""
  x = x + np.uint64(0x9E3779B97F4A7C15)
  x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return x ^ (x >> np.uint64(31))


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
  """Documents to train on, and those that are held out.

  Attributes:
    train: their numbers in the store.
    held_out: likewise.
  """

  train: np.ndarray
  held_out: np.ndarray


def groups(store: Joined) -> np.ndarray:
  """Returns uint64 [documents], equal for answers to the same prompt.

  Args:
    store: the text; what has no prompt is its own.
  """
  found = np.zeros(store.num_documents, np.uint64)
  for i in range(store.num_documents):
    document = store.document(i)
    said = document.tokens[: document.prompt_len or None].astype('<u4')
    digest = hashlib.blake2b(said.tobytes(), digest_size=8).digest()
    found[i] = int.from_bytes(digest, 'little')
  return found


def split(groups: np.ndarray, *, seed: int, every: int) -> Split:
  """Holds out one group of documents in `every`.

  All answers to a prompt stand on one side, whatever else is in the store:
  otherwise a draft would be judged on what it has all but seen.

  Args:
    groups: uint64 [documents], of every document.
    seed: of the choice.
    every: how rare held-out groups are.
  """
  ranks = _stir(groups, seed, _SPLIT, 0)
  held = ranks % np.uint64(every) == 0
  if len(groups) >= 2 and held.all() == held.any():
    # So few that none, or all, would be held out.
    held = ranks == ranks.min()
  return Split(np.flatnonzero(~held), np.flatnonzero(held))


class Packer:
  """Makes batches of some documents of a store."""

  def __init__(
      self,
      store: Joined,
      documents: np.ndarray,
      *,
      batch_size: int,
      seq_len: int,
      seed: int,
      prompt_weight: float = 0.0,
      scores: str = 'yes',
  ) -> None:
    """Reads nothing but lengths.

    Args:
      store: the text.
      documents: which of it; those of one token are left out.
      batch_size: B.
      seq_len: T.
      seed: of the order.
      prompt_weight: what predicting a token of a prompt counts.
      scores: 'no' leaves out what the target said of the text, and of every
        document what does not fit into the row it starts in.
    """
    self._store = store
    self._documents = documents[store.lens()[documents] >= 2]
    self._shape = (batch_size, seq_len)
    self._seed, self._prompt_weight = seed, prompt_weight
    self._domains = {name: i for i, name in enumerate(store.domains)}
    self._order: tuple[int, np.ndarray] | None = None
    self._goes_on = scores == 'yes'
    self._hidden_dim = 0
    if scores == 'yes' and self.num_documents:
      self._hidden_dim = store.document(int(documents[0])).hidden.shape[-1]

  @property
  def num_documents(self) -> int:
    """Documents that take part."""
    return len(self._documents)

  def _document(self, position: Position):
    if self._order is None or self._order[0] != position.epoch:
      ranks = _hash(self._seed, _ORDER, position.epoch, self.num_documents)
      order = self._documents[np.argsort(ranks, kind='stable')]
      self._order = position.epoch, order
    return self._store.document(int(self._order[1][position.index]))

  def batch(
      self, position: Position, *, at_the_end: str = 'wrap'
  ) -> tuple[Batch, Position]:
    """Makes the batch at a position.

    Args:
      position: of its first row.
      at_the_end: 'wrap' goes on with the next epoch, 'pad' leaves rows empty.

    Returns:
      The Batch, of numpy arrays, and the Position after it.
    """
    batch = self._empty()
    epoch = position.epoch
    B, T = self._shape
    for b in range(B):
      at, number = 0, 0
      # A single token would predict nothing.
      while T - at >= 2 and (at_the_end == 'wrap' or position.epoch == epoch):
        number += 1
        document = self._document(position)
        start = position.offset
        stop = min(len(document.tokens), start + T - at)
        self._fill(batch, b, at, number, document, start, stop)
        at += stop - start
        position = self._after(position, stop, len(document.tokens))
    return batch, position

  def _after(self, position: Position, stop: int, size: int) -> Position:
    if stop < size and self._goes_on:
      return dataclasses.replace(position, offset=stop - 1)
    if position.index + 1 < self.num_documents:
      return Position(position.epoch, position.index + 1)
    return Position(position.epoch + 1)

  def _empty(self) -> Batch:
    B, T = self._shape
    integers = [np.zeros((B, T), np.int32) for _ in range(4)]
    hidden = log_norm = None
    if self._hidden_dim:
      hidden = np.zeros((B, T, self._hidden_dim), ml_dtypes.bfloat16)
      log_norm = np.zeros((B, T), np.float32)
    weight = np.zeros((B, T), np.float32)
    return Batch(*integers, weight, hidden, log_norm)

  def _fill(self, batch, b, at, number, document, start, stop) -> None:
    """Writes tokens start to stop of a document from row b, place `at` on."""
    size = stop - start
    here = slice(at, at + size)
    index = np.arange(start, stop)
    batch.tokens_BT[b, here] = document.tokens[start:stop]
    batch.document_BT[b, here] = number
    batch.positions_BT[b, here] = index
    batch.domain_BT[b, here] = self._domains[document.domain]
    weight = np.where(index + 1 >= document.prompt_len, 1, self._prompt_weight)
    weight[-1] = 0
    batch.weight_BT[b, here] = weight
    if batch.hidden_BTD is None:
      return
    skip = 1 if start == 0 else 0
    batch.hidden_BTD[b, at + skip : at + size] = document.hidden[
        start + skip - 1 : stop - 1
    ]
    batch.log_norm_BT[b, here] = document.log_norm[start:stop]

  def once(self, max_batches: int) -> Iterator[Batch]:
    """Yields batches of the first epoch, the last one padded.

    Args:
      max_batches: how many at most.
    """
    position = Position()
    for _ in range(max_batches):
      if position.epoch:
        return
      batch, position = self.batch(position, at_the_end='pad')
      yield batch


def stack(batches: Sequence[Batch]) -> Batch:
  """Returns batches as one with a leading axis."""
  return jax.tree.map(lambda *x: np.stack(x), *batches)


def count_tokens(
    store: Joined, documents: np.ndarray, vocab_size: int
) -> np.ndarray:
  """Returns int64 [V], how often each token stands behind a prompt.

  Args:
    store: the text.
    documents: which of it.
    vocab_size: V.
  """
  counts = np.zeros(vocab_size, np.int64)
  # Counting costs V a time, so not document by document.
  for some in np.array_split(documents, max(1, len(documents) // 1000)):
    texts = [store.document(int(i)) for i in some]
    tokens = np.concatenate(
        [np.zeros(0, np.int64), *(t.tokens[t.prompt_len :] for t in texts)]
    )
    counts += np.bincount(tokens.astype(np.int64), minlength=vocab_size)
  return counts


def choose_head_ids(
    counts_V: np.ndarray, head_size: int, always: Sequence[int]
) -> np.ndarray:
  """Returns int32 [head_size], the most frequent tokens, ascending.

  Args:
    counts_V: how often each occurs; of equals, lower ids come first.
    head_size: how many.
    always: ids that are among them however rare, such as ends.

  Returns:
    The ids.
  """
  rank_V = counts_V.astype(np.int64)
  rank_V[list(always)] = np.iinfo(np.int64).max
  chosen = np.argsort(-rank_V, kind='stable')[:head_size]
  return np.sort(chosen).astype(np.int32)
