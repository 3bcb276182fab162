"""Feeds corpora to what is built of them: checked, encoded, and told about."""

from collections.abc import Iterator
import os
import pathlib
from typing import Any

from absl import logging
from ml_collections import config_dict

from speculative import config as config_lib
from speculative.checkpoints import pretrained
from speculative.errors import UserError
from speculative.retrieval.build import Document
from speculative.retrieval.checked_file import Format
from speculative.tasks import datastore_encode
from speculative.tasks import results
from speculative.tasks.build_datastore_report import LeftOut
from speculative.tasks.datastore_encode import Settings
from speculative.tasks.datastore_inputs import Inputs
from speculative.tasks.progress import Progress
from speculative.tokenizer import base

NO_HELD_OUT = 'none'


def _listed(value: Any) -> tuple:
  """A tuple on the command line may come as its one member."""
  return (value,) if isinstance(value, str) else tuple(value)


def check_writable(path: pathlib.Path) -> None:
  """Refuses a place to which nothing can be written, before hours of work.

  Args:
    path: of what will be written at the end.

  Raises:
    UserError: Naming the directory.
  """
  above = next(p for p in path.absolute().parents if p.exists())
  if not os.access(above, os.W_OK):
    raise UserError(
        f'{path} cannot be written: {above} is not writable; name another file '
        'with config.datastore.store.'
    )


def check_place(path: pathlib.Path, form: Format) -> None:
  """Refuses to write over a file of another kind.

  Args:
    path: of what is written.
    form: that a file there needs to have.

  Raises:
    UserError: If it has another one, or cannot be read.
  """
  if path.is_dir():
    raise UserError(
        f'config.datastore.store is {path}, which is a directory; name a file '
        'in it.'
    )
  try:
    with open(path, 'rb') as file:
      start = file.read(len(form.magic))
  except FileNotFoundError:
    return
  except OSError as error:
    raise UserError(
        f'{path} cannot be read ({error.strerror or error}); name another '
        'file with config.datastore.store.'
    ) from error
  if start != form.magic:
    raise UserError(
        f'{path} is no {form.name}: it begins otherwise; name another file '
        'with config.datastore.store, or remove it.'
    )


def tokenizer_of(config: config_dict.ConfigDict) -> base.Tokenizer:
  """Returns the tokenizer of the target; reads no weights.

  Args:
    config: of the run.

  Raises:
    UserError: If there is none, or the config is wrong.
  """
  parsed = config_lib.parse(config)
  return pretrained.open_pretrained(
      parsed.target, cache_dir=parsed.cache_dir
  ).tokenizer


def inputs_of(
    config: config_dict.ConfigDict,
    tokenizer: base.Tokenizer,
    output: pathlib.Path,
) -> Inputs:
  """Returns what config.datastore names.

  Args:
    config: of the run.
    tokenizer: that collected text needs to have.
    output: path of what is built.

  Raises:
    UserError: See `Inputs`.
  """
  fields = config.datastore
  return Inputs(
      texts=_listed(fields.texts),
      rows=_listed(fields.rows),
      row_field=fields.row_field,
      stores=_listed(fields.stores),
      tokenizer=tokenizer.fingerprint,
      output=output,
  )


def settings_of(config: config_dict.ConfigDict, inputs: Inputs) -> Settings:
  """Returns what encodes.

  Args:
    config: of the run.
    inputs: that are encoded.

  Raises:
    UserError: If nothing is said of evaluated files, or one is an input.
  """
  fields = config.datastore
  held_out = _listed(fields.held_out)
  if not held_out:
    raise UserError(
        'config.datastore.held_out is empty; name the files that drafts will '
        f'be evaluated on, or {NO_HELD_OUT!r}.'
    )
  if held_out == (NO_HELD_OUT,):
    held_out = ()
  same = {pathlib.Path(p).expanduser().resolve() for p in held_out}
  for path in inputs.paths:
    if pathlib.Path(path).resolve() in same:
      raise UserError(
          f'config.datastore names {path}, which is in '
          'config.datastore.held_out too; drafts must not come from it.'
      )
  return Settings(
      model=config.target.model,
      cache_dir=config.cache_dir or None,
      held_out=held_out,
      overlap_tokens=fields.overlap_tokens,
      overlap_words=fields.overlap_words,
  )


class Feed:
  """Encodes documents as a build asks for them, and says how it goes.

  Attributes:
    num_tokens: encoded in this run.
    num_binary: files of this run that are no text.
    left_out: because they overlap with evaluated text.
  """

  def __init__(
      self,
      inputs: Inputs,
      settings: Settings,
      num_processes: int,
      workdir: results.Workdir,
  ) -> None:
    """Has encoded nothing yet.

    Args:
      inputs: what there is.
      settings: of the encoders.
      num_processes: that encode; 0 is one a core.
      workdir: of the run.
    """
    self._inputs, self._settings = inputs, settings
    self._num_processes, self._workdir = num_processes, workdir
    self._progress = Progress('datastore', inputs.size)
    self._size = 0
    self.num_tokens = self.num_binary = 0
    self.left_out: list[LeftOut] = []

  def documents(self, first: int) -> Iterator[Document]:
    """Yields documents from a number on.

    Args:
      first: that number.
    """
    if first:
      logging.info('Going on with document %d.', first)
    for encoded in datastore_encode.encode_all(
        self._inputs.items(first, on_skipped=self._progress.skip),
        self._settings,
        num_processes=self._num_processes,
    ):
      item = encoded.item
      self._size += item.size
      self.num_tokens += encoded.num_tokens
      self.num_binary += encoded.is_binary
      self._progress.look(encoded.num_tokens, item.size)
      num_left_out = encoded.num_left_out
      if encoded.found:
        self.left_out.append(LeftOut(item.where, num_left_out, encoded.found))
      yield Document(encoded.parts, item.source, num_left_out)

  def on_shard(self, num_tokens: int, seconds: float) -> None:
    """Writes a line of metrics.

    Args:
      num_tokens: that were sorted since the last line.
      seconds: that took.
    """
    row = self._progress.step(self._size, num_tokens)
    self._size = 0
    self._workdir.metric(row | {'datastore/shard_sort_s': round(seconds, 3)})
