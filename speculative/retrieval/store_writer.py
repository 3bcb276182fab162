"""Writes files of arrays, whole or not at all; see `checked_file`."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
from typing import Any
from typing import BinaryIO

import numpy as np

from speculative.errors import UserError
from speculative.retrieval import checked_file
from speculative.retrieval.checked_file import Array
from speculative.retrieval.checked_file import Format


class FileWriter:
  """Writes arrays one after the other; see `replacing`."""

  def __init__(self, file: BinaryIO, form: Format) -> None:
    """Leaves room for what comes first in the file but is known last."""
    self._file, self._format = file, form
    self._file.write(bytes(checked_file.PREAMBLE.size))

  def add(self, data: np.ndarray) -> Array:
    """Writes an array.

    Args:
      data: of the type that the file has; a memory map is read block by block.

    Returns:
      Where it lies.
    """
    offset = self._pad()
    digest = hashlib.sha256()
    for block in checked_file.blocks(data):
      digest.update(block)
      self._file.write(block)
    return Array(offset, len(data), digest.hexdigest())

  def finish(self, header: Any) -> None:
    """Writes the header, and where it is.

    Args:
      header: of the whole file, a dataclass.
    """
    offset = self._pad()
    text = json.dumps(dataclasses.asdict(header)).encode()
    self._file.write(text)
    self._file.seek(0)
    digest = hashlib.sha256(text).digest()
    self._file.write(
        checked_file.PREAMBLE.pack(
            self._format.magic,
            self._format.version,
            0,
            offset,
            len(text),
            digest,
        )
    )

  def _pad(self) -> int:
    self._file.write(bytes(-self._file.tell() % checked_file.ALIGNMENT))
    return self._file.tell()


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
        'space there, or name another file.'
    ) from error


def lock(file: BinaryIO, path: pathlib.Path, name: str) -> None:
  """Keeps other processes out until a file is closed.

  Args:
    file: open.
    path: of the file it is about.
    name: of what that is, in words.

  Raises:
    UserError: If one is in.
  """
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except OSError as error:
    raise UserError(
        f'another process writes the {name} {path}; wait for it, or name '
        'another file.'
    ) from error


@contextlib.contextmanager
def replacing(
    path: pathlib.Path, form: Format, finish: Callable[[], Any]
) -> Iterator[FileWriter]:
  """Writes a file that takes the place of another when all of it is there.

  Args:
    path: of the file.
    form: of it.
    finish: gives the header, a dataclass, when all arrays have been added.

  Yields:
    What adds arrays.

  Raises:
    UserError: If it cannot be written, or another process is at it; an older
      file is untouched then.
  """
  beside = path.with_name(f'.{path.name}.new')
  with writing(path), open(beside, 'a+b') as locked:
    lock(locked, path, form.name)
    if not _is_there(beside, locked):
      raise UserError(
          f'another process has written the {form.name} {path} just now; run '
          'the same again.'
      )
    try:
      with open(beside, 'w+b') as file:
        writer = FileWriter(file, form)
        yield writer
        writer.finish(finish())
        file.flush()
        os.fsync(file.fileno())
      os.replace(beside, path)
    except BaseException:
      beside.unlink(missing_ok=True)
      raise


def _is_there(path: pathlib.Path, file: BinaryIO) -> bool:
  """Whether a name still belongs to the file it was opened as."""
  try:
    return os.path.samestat(path.stat(), os.fstat(file.fileno()))
  except FileNotFoundError:
    return False
