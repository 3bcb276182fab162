"""The index of a token store, and the lock of its writer."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
from typing import Any
import weakref

from speculative.errors import UserError

FORMAT = 'speculative-tokens'
NAME = 'index.json'
_LOCK = '.lock'


@dataclasses.dataclass(frozen=True)
class Shard:
  """What the index says of a shard.

  Attributes:
    name: of its directory.
    num_documents: in it.
    num_tokens: in it.
    facts: whatever else its writer noted, JSON.
  """

  name: str
  num_documents: int
  num_tokens: int
  facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Index:
  """What index.json says.

  Attributes:
    tokenizer: fingerprint of the tokenizer that made the ids.
    mark: of the target that wrote or scores the text, '' for none.
    domains: names, in the order of domains.npy.
    about: how the text was made; a writer that goes on needs the same.
    shards: finished ones.
  """

  tokenizer: str
  mark: str
  domains: tuple[str, ...]
  about: Mapping[str, Any]
  shards: tuple[Shard, ...] = ()

  @property
  def num_documents(self) -> int:
    """Documents of all shards."""
    return sum(shard.num_documents for shard in self.shards)

  @property
  def num_tokens(self) -> int:
    """Tokens of all shards."""
    return sum(shard.num_tokens for shard in self.shards)


@contextlib.contextmanager
def writing(path: pathlib.Path) -> Iterator[None]:
  """Turns what the file system refuses into the user's error.

  Args:
    path: of what is written.

  Raises:
    UserError: Naming the path.
  """
  try:
    yield
  except OSError as error:
    raise UserError(
        f'{path} cannot be written ({error.strerror or error}); free some '
        'space there, or get the right to write, and run the same again.'
    ) from error


def read(path: pathlib.Path) -> Index:
  """Reads the index.

  Args:
    path: of the store.

  Returns:
    The Index.

  Raises:
    UserError: If there is none, or it is none of ours.
  """
  try:
    fields = json.loads((path / NAME).read_text(encoding='utf-8'))
    if fields.pop('format') != FORMAT:
      raise ValueError('its format is another')
    shards = tuple(Shard(**shard) for shard in fields.pop('shards'))
    fields['domains'] = tuple(fields['domains'])
    return Index(shards=shards, **fields)
  except FileNotFoundError as error:
    raise UserError(
        f'{path} is no token store: it has no {NAME}; name a directory that '
        'task collect has written.'
    ) from error
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
    raise UserError(
        f'{path} is no token store: {NAME} cannot be read ({error}); name a '
        'directory that task collect has written.'
    ) from error


def write(path: pathlib.Path, index: Index) -> None:
  """Replaces the index.

  Args:
    path: of the store.
    index: all of it.
  """
  text = json.dumps({'format': FORMAT} | dataclasses.asdict(index), indent=1)
  beside = path / f'.{NAME}'
  try:
    beside.write_text(text + '\n', encoding='utf-8')
    os.replace(beside, path / NAME)
  finally:
    beside.unlink(missing_ok=True)


def check_same(path: pathlib.Path, name: str, there: Any, wanted: Any) -> None:
  """Refuses a store of another kind.

  Args:
    path: of the store.
    name: of what is compared.
    there: what the store has.
    wanted: what it needs to have.

  Raises:
    UserError: If they differ.
  """
  if there != wanted:
    raise UserError(
        f'the token store {path} was made with {name} {_short(there)}, not '
        f'{_short(wanted)}; use what it was made with, or another directory.'
    )


def _short(value: Any) -> str:
  text = value if isinstance(value, str) else json.dumps(value)
  return repr(text) if len(text) <= 24 else f'{text[:16]!r}...'


def check(path: pathlib.Path, there: Index, wanted: Index) -> None:
  """Refuses to go on with a store that was made in another way.

  Args:
    path: of the store.
    there: its index.
    wanted: what the writer would have written.

  Raises:
    UserError: Naming what differs.
  """
  check_same(path, 'tokenizer', there.tokenizer, wanted.tokenizer)
  check_same(path, 'target', there.mark, wanted.mark)
  check_same(path, 'domains', there.domains, wanted.domains)
  # As JSON gives it back: lists for tuples.
  about = json.loads(json.dumps(wanted.about))
  for name in sorted(there.about.keys() | about.keys()):
    check_same(path, name, there.about.get(name), about.get(name))


def lock(path: pathlib.Path) -> Callable[[], object]:
  """Keeps other processes from writing.

  Args:
    path: of the store.

  Returns:
    What lets them, to be called at the end; forgetting it does so too.

  Raises:
    UserError: If another process writes.
  """
  file = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT)
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except OSError as error:
    os.close(file)
    raise UserError(
        f'another process writes to the token store {path}; wait for it, or '
        'name another directory.'
    ) from error
  return _Unlock(file)


class _Unlock:
  """Closes a file when called, once, or when nobody holds this any more."""

  def __init__(self, file: int) -> None:
    self._close = weakref.finalize(self, os.close, file)

  def __call__(self) -> None:
    self._close()


def check_empty(path: pathlib.Path) -> None:
  """Refuses to make a store among other files.

  Args:
    path: where it would lie.

  Raises:
    UserError: If it is a file, or a directory with something in it.
  """
  if not path.exists():
    return
  # A writer that died before its first index leaves these.
  left = {_LOCK, f'.{NAME}'}
  if not path.is_dir() or {p.name for p in path.iterdir()} - left:
    raise UserError(
        f'{path} is there but is no token store; name another directory.'
    )
