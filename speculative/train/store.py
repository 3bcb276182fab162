"""Training text on disk: token ids in shards, whole or not there at all.

  index.json            format, tokenizer, mark, domains, about, shards
  shard_00000/
    tokens.npy          uint16 or uint32 [N], document after document
    starts.npy          int64 [documents + 1], where each begins; the last is N
    prompt_lens.npy     int32 [documents], tokens of it that are prompt
    domains.npy         int16 [documents], into the index's domains
    hidden.npy          uint16 [N, D], bits of bfloat16; once it is scored
    log_norm.npy        float32 [N]; once it is scored

A shard is written beside its place and renamed, and the index, rewritten in the
same way, comes last: a process that dies leaves at most a directory that no
index names, which the next writer removes. Hidden states are the target's after
its final norm, and log_norm the log-sum-exp of its logits, so that the target's
log-probability of token v after token t of a document is

  dot(head[v], hidden[t]) - log_norm[t].

Where the target's weights are bfloat16, or `score` made both, log_norm is that
of the logits of the kept states. Where a float32 target recorded its new tokens
(see `recording`), it is of the states before they were rounded to bfloat16: all
log-probabilities after that token are then off by one amount, which is no more
than the most that rounding moves a logit.

At the last token of a document, which predicts nothing in it, hidden may be
zero: text that was scored while the target wrote it lacks that one.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import os
import pathlib
import shutil
from typing import Any

import ml_dtypes
import numpy as np

from speculative.errors import UserError
from speculative.train import store_index
from speculative.train.store_index import Index
from speculative.train.store_index import Shard


@dataclasses.dataclass(frozen=True, eq=False)
class Document:
  """One text.

  Attributes:
    tokens: ids, [T].
    prompt_len: how many of them, from the start, the target did not write; 0
      for plain text.
    domain: one of the store's.
    hidden: bfloat16 [T, D], see above; None where nobody has scored it.
    log_norm: float32 [T]; None where nobody has scored it.
  """

  tokens: np.ndarray
  prompt_len: int = 0
  domain: str = 'text'
  hidden: np.ndarray | None = None
  log_norm: np.ndarray | None = None


class Writer:
  """Appends shards to a store; one process at a time.

  Attributes:
    path: of the store.
    index: as on disk.
  """

  def __init__(
      self,
      path: str | os.PathLike[str],
      *,
      tokenizer: str,
      mark: str = '',
      domains: Sequence[str] = ('text',),
      about: Mapping[str, Any] | None = None,
  ) -> None:
    """Makes a store, or goes on after the last finished shard of one.

    Args:
      path: of the directory; what a dead writer left in it is removed.
      tokenizer: fingerprint.
      mark: of the target, '' for none.
      domains: every domain a document may have.
      about: how the text is made, JSON.

    Raises:
      UserError: If the directory holds something else, or a store that was made
        in another way, if another process writes to it, or if it cannot be
        written.
    """
    self.path = pathlib.Path(path)
    wanted = Index(tokenizer, mark, tuple(domains), dict(about or {}))
    with store_index.writing(self.path):
      self._open(wanted)

  def _open(self, wanted: Index) -> None:
    if (self.path / store_index.NAME).exists():
      self.index = store_index.read(self.path)
      store_index.check(self.path, self.index, wanted)
      self._unlock = store_index.lock(self.path)
      # Another writer may have been at work until a moment ago.
      self.index = store_index.read(self.path)
    else:
      store_index.check_empty(self.path)
      self.path.mkdir(parents=True, exist_ok=True)
      self._unlock = store_index.lock(self.path)
      self.index = wanted
      store_index.write(self.path, wanted)
    named = {shard.name for shard in self.index.shards}
    for found in self.path.glob('*shard_*'):
      if found.name not in named:
        shutil.rmtree(found)

  def close(self) -> None:
    """Lets another process write."""
    self._unlock()

  def add(
      self,
      documents: Sequence[Document],
      *,
      facts: Mapping[str, Any] | None = None,
  ) -> Shard:
    """Writes one shard.

    Args:
      documents: none of them empty; there may be no documents where all that
        counts are the facts. Where every one has hidden states, the shard is
        scored.
      facts: kept in the index, JSON.

    Returns:
      The Shard.

    Raises:
      ValueError: If a document is empty, longer in its prompt than in all, or
        of an unknown domain.
      UserError: If the shard cannot be written; nothing is left of it then.
    """
    lens = np.array([len(d.tokens) for d in documents], np.int64)
    prompt_lens = np.array([d.prompt_len for d in documents], np.int32)
    if (
        (lens < 1).any()
        or (prompt_lens < 0).any()
        or (prompt_lens > lens).any()
    ):
      raise ValueError('a document is empty, or its prompt longer than it.')
    domains = [self.index.domains.index(d.domain) for d in documents]
    tokens = np.concatenate([[0], *[d.tokens for d in documents]])[1:]
    narrow = not len(tokens) or tokens.max() < 2**16
    name = f'shard_{len(self.index.shards):05d}'
    arrays = {
        'tokens': tokens.astype(np.uint16 if narrow else np.uint32),
        'starts': np.concatenate([[0], np.cumsum(lens)]).astype(np.int64),
        'prompt_lens': prompt_lens,
        'domains': np.array(domains, np.int16),
    }
    if documents and all(d.hidden is not None for d in documents):
      hidden = np.concatenate([d.hidden for d in documents])
      arrays['hidden'] = hidden.view(np.uint16)
      arrays['log_norm'] = np.concatenate([d.log_norm for d in documents])
    shard = Shard(name, len(documents), len(tokens), dict(facts or {}))
    with store_index.writing(self.path / name):
      self._write(shard, arrays)
    return shard

  def _write(self, shard: Shard, arrays: Mapping[str, np.ndarray]) -> None:
    path, beside = self.path / shard.name, self.path / f'.{shard.name}'
    index = dataclasses.replace(self.index, shards=(*self.index.shards, shard))
    shutil.rmtree(beside, ignore_errors=True)
    try:
      beside.mkdir()
      for name, array in arrays.items():
        np.save(beside / f'{name}.npy', array)
      os.replace(beside, path)
      store_index.write(self.path, index)
    except OSError:
      for left in (beside, path):
        shutil.rmtree(left, ignore_errors=True)
      raise
    self.index = index


class Store:
  """A finished store, or the finished shards of one, read by memory map.

  Attributes:
    path: of the directory.
    index: as it was when the store was opened.
  """

  def __init__(self, path: pathlib.Path, index: Index) -> None:
    """Keeps both; `open_store` is the way to call this."""
    self.path, self.index = path, index
    self._ends = np.cumsum([shard.num_documents for shard in index.shards])
    self._arrays: dict[int, dict[str, np.ndarray]] = {}

  @property
  def num_documents(self) -> int:
    """Documents of all shards."""
    return self.index.num_documents

  @property
  def num_tokens(self) -> int:
    """Tokens of all shards."""
    return self.index.num_tokens

  @property
  def is_scored(self) -> bool:
    """Whether every shard has hidden states."""
    return all(map(self.is_shard_scored, range(len(self.index.shards))))

  def is_shard_scored(self, shard: int) -> bool:
    """Tells whether a shard has hidden states.

    Args:
      shard: its number.
    """
    return (self.path / self.index.shards[shard].name / 'log_norm.npy').exists()

  def lens(self) -> np.ndarray:
    """Returns int64 [documents], tokens of every document."""
    each = [
        np.diff(self.arrays(shard)['starts'])
        for shard in range(len(self.index.shards))
    ]
    return np.concatenate([np.zeros(0, np.int64), *each])

  def document(self, index: int) -> Document:
    """Returns a document, its arrays views into the files.

    Args:
      index: in [0, num_documents).

    Raises:
      IndexError: If there is no such document.
      UserError: If its shard is damaged.
    """
    if not 0 <= index < self.num_documents:
      raise IndexError(f'{index} is not in [0, {self.num_documents}).')
    shard = int(np.searchsorted(self._ends, index, side='right'))
    row = (
        index - int(self._ends[shard]) + self.index.shards[shard].num_documents
    )
    arrays = self.arrays(shard)
    span = slice(*arrays['starts'][row : row + 2])
    return Document(
        tokens=arrays['tokens'][span],
        prompt_len=int(arrays['prompt_lens'][row]),
        domain=self.index.domains[arrays['domains'][row]],
        hidden=arrays['hidden'][span] if 'hidden' in arrays else None,
        log_norm=arrays['log_norm'][span] if 'log_norm' in arrays else None,
    )

  def arrays(self, shard: int) -> Mapping[str, np.ndarray]:
    """Returns the arrays of a shard by name; hidden is bfloat16.

    Args:
      shard: its number.

    Raises:
      UserError: If a file is absent or does not fit the others.
    """
    if shard not in self._arrays:
      self._arrays[shard] = self._read(self.index.shards[shard])
    return self._arrays[shard]

  def _read(self, shard: Shard) -> dict[str, np.ndarray]:
    path = self.path / shard.name
    names = ['tokens', 'starts', 'prompt_lens', 'domains']
    if (path / 'log_norm.npy').exists():
      names += ['hidden', 'log_norm']
    try:
      arrays = {name: _load(path / f'{name}.npy') for name in names}
    except (OSError, ValueError) as error:
      raise UserError(
          f'shard {path} is damaged ({error}); make the store again.'
      ) from error
    lens = {
        'tokens': shard.num_tokens,
        'starts': shard.num_documents + 1,
        'prompt_lens': shard.num_documents,
        'domains': shard.num_documents,
        'hidden': shard.num_tokens,
        'log_norm': shard.num_tokens,
    }
    for name, array in arrays.items():
      if len(array) != lens[name]:
        raise UserError(
            f'shard {path} is damaged: {name} has {len(array)} entries where '
            f'the index says {lens[name]}; make the store again.'
        )
    if 'hidden' in arrays:
      arrays['hidden'] = arrays['hidden'].view(ml_dtypes.bfloat16)
    return arrays


def _load(path: pathlib.Path) -> np.ndarray:
  # An empty file cannot be mapped; the array of an empty shard can be read.
  array = np.load(path, mmap_mode=None if path.stat().st_size < 256 else 'r')
  return array.view(np.ndarray)


def open_store(
    path: str | os.PathLike[str], *, tokenizer: str = '', mark: str = ''
) -> Store:
  """Opens a store to read.

  Args:
    path: of the directory.
    tokenizer: fingerprint it has to have, '' for any.
    mark: of the target it has to be of, '' for any.

  Returns:
    The Store, with the shards that are finished now.

  Raises:
    UserError: If it is no store, or of another tokenizer or target.
  """
  path = pathlib.Path(path)
  index = store_index.read(path)
  if tokenizer:
    store_index.check_same(path, 'tokenizer', index.tokenizer, tokenizer)
  if mark:
    store_index.check_same(path, 'target', index.mark, mark)
  return Store(path, index)


def write_scores(
    path: str | os.PathLike[str], *, hidden: np.ndarray, log_norm: np.ndarray
) -> None:
  """Adds hidden states to a shard.

  Args:
    path: of the shard.
    hidden: bfloat16 [N, D].
    log_norm: float32 [N].

  Raises:
    UserError: If they cannot be written; the shard is as before then.
  """
  path = pathlib.Path(path)
  # log_norm comes last: a shard counts as scored once it is there.
  arrays = {
      'hidden': hidden.view(np.uint16),
      'log_norm': log_norm.astype(np.float32),
  }
  with store_index.writing(path):
    try:
      for name, array in arrays.items():
        np.save(path / f'.{name}.npy', array)
      for name in arrays:
        os.replace(path / f'.{name}.npy', path / f'{name}.npy')
    finally:
      for name in arrays:
        (path / f'.{name}.npy').unlink(missing_ok=True)
