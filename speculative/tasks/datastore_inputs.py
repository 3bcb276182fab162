"""What a datastore is made of: files, rows of JSONL files, collected text."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import glob
import gzip
import json
import os
import pathlib
import sysconfig
from typing import Any
import zlib

import numpy as np

from speculative.errors import UserError
from speculative.retrieval.store_file import Source
from speculative.train import overlap
from speculative.train import prompt_text
from speculative.train import store as store_lib

# Names for source trees that are in another place on every machine.
_TREES = {'python:stdlib': 'stdlib', 'python:packages': 'purelib'}


@dataclasses.dataclass(frozen=True, eq=False)
class Item:
  """One document that has not been read or encoded.

  Attributes:
    where: file, and line or number in it.
    source: number of its source.
    size: bytes that reading it takes, for progress.
    path: of a file that is the text; '' where one of the others is set.
    text: that was read already.
    tokens: that were collected.
  """

  where: str
  source: int
  size: int
  path: str = ''
  text: str = ''
  tokens: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class _Input:
  """One source and what it names.

  Attributes:
    name: as the user gave it.
    kind: 'text', 'rows' or 'store'.
    paths: of files, or of one store.
  """

  name: str
  kind: str
  paths: tuple[str, ...]


class Inputs:
  """All documents, in an order that is always the same.

  Attributes:
    sources: without counts.
    size: bytes that reading all of it takes.
  """

  def __init__(
      self,
      *,
      texts: Sequence[str],
      rows: Sequence[str],
      row_field: str,
      stores: Sequence[str],
      tokenizer: str,
      output: pathlib.Path,
  ) -> None:
    """Looks for everything; reads an index and a row at most.

    Args:
      texts: files that are a document each: globs, or 'python:stdlib' and
        'python:packages' for the sources of this Python.
      rows: JSONL files, compressed where they end in .gz: globs.
      row_field: whose texts are the document; '' for all of a row.
      stores: token stores of task `collect`.
      tokenizer: fingerprint those need to have.
      output: path of the datastore, which is no input to itself.

    Raises:
      UserError: If nothing is named, or something is absent or unfit.
    """
    self._field, self._tokenizer = row_field, tokenizer
    found = [
        *[_Input(name, 'text', _text_files(name)) for name in texts],
        *[_Input(name, 'rows', _files(name, 'rows')) for name in rows],
        *[
            _Input(name, 'store', (os.path.expanduser(name),))
            for name in stores
        ],
    ]
    self._inputs = _once(found, output)
    if not self._inputs:
      raise UserError(
          'config.datastore.texts, .rows and .stores are empty; name what the '
          'datastore is to be made of.'
      )
    self.sources = tuple(Source(i.name) for i in self._inputs)
    for found in self._inputs:
      if found.kind == 'rows':
        for path in found.paths:
          next(_rows(path, row_field, 0), None)
      elif found.kind == 'store':
        for path in found.paths:
          store_lib.open_store(path, tokenizer=tokenizer)
    self.size = sum(map(_size, self.paths))

  @property
  def paths(self) -> list[str]:
    """Every file, and the directory of every store."""
    return [path for found in self._inputs for path in found.paths]

  def identity(self) -> Any:
    """Tells these inputs from others, and from themselves once they change."""
    return [
        self._field,
        [
            [found.name, found.kind, [_mark(path) for path in found.paths]]
            for found in self._inputs
        ],
    ]

  def items(
      self,
      first: int,
      *,
      on_skipped: Callable[[int], None] = lambda size: None,
  ) -> Iterator[Item]:
    """Yields documents.

    Args:
      first: number of the first one; those before it are not read where that
        can be told.
      on_skipped: called with the size of each of those.

    Raises:
      UserError: If one cannot be read.
    """
    number = 0
    for source, found in enumerate(self._inputs):
      for path in found.paths:
        if found.kind == 'text':
          if number >= first:
            yield Item(path, source, _size(path), path=path)
          else:
            on_skipped(_size(path))
          number += 1
        else:
          each = self._rows if found.kind == 'rows' else self._documents
          for item in each(path, source):
            if number >= first:
              yield item
            else:
              on_skipped(item.size)
            number += 1

  def _rows(self, path: str, source: int) -> Iterator[Item]:
    return _rows(path, self._field, source)

  def _documents(self, path: str, source: int) -> Iterator[Item]:
    store = store_lib.open_store(path, tokenizer=self._tokenizer)
    size = _size(path) // max(1, store.num_documents)
    for number in range(store.num_documents):
      yield Item(
          f'{path}#{number}',
          source,
          size,
          tokens=store.document(number).tokens,
      )


def _once(inputs: list[_Input], output: pathlib.Path) -> list[_Input]:
  """Returns inputs that name no file twice, nor what a build writes."""
  written = os.path.realpath(output)
  # Of its parts, and of those of a finished build.
  below = tuple(f'{written}.partial{end}{os.sep}' for end in ('', '.done'))
  seen, found = set(), []
  for each in inputs:
    paths = []
    for path in each.paths:
      real = os.path.realpath(path)
      is_own = real == written or real.startswith(below)
      if not is_own and (each.kind, real) not in seen:
        seen.add((each.kind, real))
        paths.append(path)
    found.append(dataclasses.replace(each, paths=tuple(paths)))
  return found


def _text_files(name: str) -> tuple[str, ...]:
  if name not in _TREES:
    return _files(name, 'texts')
  root = sysconfig.get_path(_TREES[name])
  found = sorted(glob.glob(f'{glob.escape(root)}/**/*.py', recursive=True))
  # The library of some installations holds the packages.
  inner = f'{sysconfig.get_path("purelib")}{os.sep}'
  if name == 'python:stdlib':
    found = [
        path
        for path in found
        if not path.startswith(inner) and 'site-packages' not in path
    ]
  if not found:
    raise UserError(
        f'config.datastore.texts names {name!r}, but {root} has no .py files.'
    )
  return tuple(found)


def _files(name: str, field: str) -> tuple[str, ...]:
  found = prompt_text.find_files([name], field=field, group='datastore')
  return tuple(path for _, path in found)


def _size(path: str) -> int:
  files = pathlib.Path(path)
  if files.is_dir():
    return sum(p.stat().st_size for p in files.glob('*/tokens.npy'))
  return files.stat().st_size


def _mark(path: str) -> list[Any]:
  files = pathlib.Path(path)
  if files.is_dir():
    # Finished shards of a store do not change, but there may be more of them.
    return [path, len(list(files.glob('shard_*')))]
  stat = files.stat()
  return [path, stat.st_size, stat.st_mtime_ns]


def _rows(path: str, field: str, source: int) -> Iterator[Item]:
  """Yields the rows of a JSONL file."""
  try:
    with open(path, 'rb') as raw:
      file = gzip.open(raw) if path.endswith('.gz') else raw
      before = 0
      for number, line in enumerate(file, 1):
        if not line.strip():
          continue
        where = f'{path}:{number}'
        at = raw.tell()
        yield Item(where, source, at - before, text=_row(line, field, where))
        before = at
  except (OSError, EOFError, zlib.error) as error:
    raise UserError(
        f'{path} cannot be read: {error}; fetch it again.'
    ) from error


def _row(line: bytes, field: str, where: str) -> str:
  try:
    row = json.loads(line)
  except ValueError as error:
    raise UserError(f'{where} is not JSON: {error}.') from error
  if field:
    if not isinstance(row, dict) or field not in row:
      raise UserError(
          f'{where} has no field {field!r}; name another with '
          'config.datastore.row_field.'
      )
    row = row[field]
  return '\n'.join(overlap.texts_in(row))
