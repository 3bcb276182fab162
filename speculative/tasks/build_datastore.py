"""Task `build_datastore`: a corpus that drafts are looked up in."""

from collections.abc import Iterator
import dataclasses
import pathlib
from typing import Any

from absl import logging
import jax
from ml_collections import config_dict

from speculative import config as config_lib
from speculative.checkpoints import pretrained
from speculative.errors import UserError
from speculative.retrieval import build
from speculative.retrieval import datastore
from speculative.retrieval import device_store
from speculative.retrieval import reduce
from speculative.retrieval import store_file
from speculative.retrieval import suffix_array
from speculative.retrieval.build import Built
from speculative.retrieval.build import Document
from speculative.retrieval.build import Plan
from speculative.retrieval.datastore import Datastore
from speculative.retrieval.datastore import Facts
from speculative.retrieval.store_file import Source
from speculative.tasks import build_datastore_report as report_lib
from speculative.tasks import datastore_encode
from speculative.tasks import results
from speculative.tasks.build_datastore_report import LeftOut
from speculative.tasks.datastore_encode import Settings
from speculative.tasks.datastore_inputs import Inputs
from speculative.tasks.progress import Progress
from speculative.tasks.results import TaskResult
from speculative.tokenizer import base

MODES = ('build', 'append', 'inspect', 'reduce')
NO_HELD_OUT = 'none'
_NAME = 'datastore.store'


def _listed(value: Any) -> tuple:
  """A tuple on the command line may come as its one member."""
  return (value,) if isinstance(value, str) else tuple(value)


def _check(fields: config_dict.ConfigDict) -> None:
  """Refuses config.datastore before a tokenizer is looked for."""
  if fields.mode not in MODES:
    raise UserError(
        f'config.datastore.mode is {fields.mode!r}; it needs to be one of '
        f'{", ".join(MODES)}.'
    )
  for name, least, most in (
      # No search is for more.
      ('depth', 1, device_store.MOST_NGRAM),
      ('shard_tokens', 2, suffix_array.MOST_TOKENS),
      ('overlap_tokens', 1, None),
      ('overlap_words', 1, None),
      ('num_processes', 0, None),
  ):
    if fields[name] < least or (most and fields[name] > most):
      bounds = f'>= {least}' + (f' and <= {most}' if most else '')
      raise UserError(
          f'config.datastore.{name} needs to be {bounds}, got {fields[name]}.'
      )


def _check_place(store: pathlib.Path) -> None:
  """Refuses to write over what is no datastore."""
  if store.is_dir():
    raise UserError(
        f'config.datastore.store is {store}, which is a directory; name a file '
        'in it.'
    )
  try:
    with open(store, 'rb') as file:
      start = file.read(len(store_file.MAGIC))
  except FileNotFoundError:
    return
  except OSError as error:
    raise UserError(
        f'{store} cannot be read ({error.strerror or error}); name another '
        'file with config.datastore.store.'
    ) from error
  if start != store_file.MAGIC:
    raise UserError(
        f'{store} is no datastore: it begins otherwise; name another file with '
        'config.datastore.store, or remove it.'
    )


def run(config: config_dict.ConfigDict, path: pathlib.Path) -> TaskResult:
  """Builds a datastore, appends to it, looks into it or makes it smaller.

  Args:
    config: of the run.
    path: of the workdir; the datastore lies in it unless
      config.datastore.store names another file.

  Returns:
    The TaskResult, with the datastore/* keys.

  Raises:
    UserError: For whatever is wrong with config, files or datastores, before
      anything is written where it can be known by then. What was in the place
      of the datastore stays usable.
  """
  if jax.process_count() > 1:
    raise UserError(
        'a datastore is built by one host; leave --distributed out.'
    )
  fields = config.datastore
  _check(fields)
  store = pathlib.Path(fields.store or path / _NAME).expanduser()
  _check_place(store)
  task = {'inspect': _inspect, 'reduce': _reduce}.get(fields.mode, _build)
  made = task(config, path, store)
  found = (
      made.values | report_lib.summary(made.store) | _environment(made.store)
  )
  made.workdir.finish(found)
  text = report_lib.report(found, made.store, made.left_out)
  results.write_text(path / 'datastore.md', text)
  results.say(text)
  return TaskResult(found)


@dataclasses.dataclass(frozen=True, eq=False)
class _Made:
  """What a mode leaves to report.

  Attributes:
    store: at the end.
    values: results of this mode alone.
    workdir: of the run.
    left_out: documents that overlap with evaluated text.
  """

  store: Datastore
  values: dict[str, Any]
  workdir: results.Workdir
  left_out: tuple[LeftOut, ...] = ()


def _environment(store: Datastore) -> dict[str, Any]:
  devices = jax.devices()
  return results.versions() | {
      'env/device_kind': devices[0].device_kind,
      'env/device_count': len(devices),
      'env/dtype': f'ids of {store.header.id_bytes} bytes',
  }


def _tokenizer(config: config_dict.ConfigDict) -> base.Tokenizer:
  parsed = config_lib.parse(config)
  return pretrained.open_pretrained(
      parsed.target, cache_dir=parsed.cache_dir
  ).tokenizer


def _inspect(
    config: config_dict.ConfigDict, path: pathlib.Path, store: pathlib.Path
) -> _Made:
  """Reads all of a datastore, and compares every checksum."""
  found = datastore.open_store(store, verify='all')
  values = {}
  if config.target.model:
    same = _tokenizer(config).fingerprint == found.header.tokenizer
    values['datastore/is_of_target'] = same
  return _Made(found, values, results.Workdir(path, config))


def _reduce(
    config: config_dict.ConfigDict, path: pathlib.Path, store: pathlib.Path
) -> _Made:
  """Makes a smaller datastore of another one."""
  fields = config.datastore
  if not fields.from_store:
    raise UserError(
        'config.datastore.from_store is empty; name the datastore to reduce.'
    )
  rules = reduce.Rules(fields.repeat_tokens, fields.max_tokens)
  source = datastore.open_store(fields.from_store, verify='all')
  rules.check(source.header.depth)
  workdir = results.Workdir(path, config)
  found = reduce.reduction(source, rules)
  dropped = {
      'dropped_repeat_tokens': found.num_repeated,
      'dropped_rare_tokens': found.num_rare,
      'tokens_before': source.num_tokens,
  }
  facts = dataclasses.replace(
      source.facts,
      sources=(Source(f'reduced {source.path.name}'),),
      about={
          'reduced': dropped | dataclasses.asdict(rules),
          'sources': [dataclasses.asdict(s) for s in source.facts.sources],
      },
  )
  plan = Plan(store, facts, fields.shard_tokens, inputs=source.header.digest)

  def documents(first: int) -> Iterator[Document]:
    for number, tokens in enumerate(reduce.documents(source, found)):
      if number >= first:
        yield Document([tokens])

  built = build.build(plan, documents)
  values = {f'datastore/{name}': value for name, value in dropped.items()}
  workdir.metric(values)
  return _Made(built.store, values | _rates(built), workdir)


def _rates(built: Built, num_encoded: int = 0) -> dict[str, Any]:
  """Returns what a build took, where it had anything to do."""
  values = {'datastore/new_tokens': built.num_sorted}
  if built.num_sorted:
    values |= {
        'datastore/sort_s': round(built.sort_s, 3),
        'datastore/build_tokens_per_s': round(built.num_sorted / built.sort_s),
    }
  if built.peak_bytes:
    values['datastore/peak_bytes_per_token'] = round(built.peak_bytes, 1)
  if num_encoded:
    values |= {
        'datastore/encode_s': round(built.encode_s, 3),
        'datastore/encode_tokens_per_s': round(num_encoded / built.encode_s),
    }
  return values


def _settings(config: config_dict.ConfigDict, inputs: Inputs) -> Settings:
  """Returns what encodes, checked."""
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
          'config.datastore.held_out too; a datastore must not hold it.'
      )
  return Settings(
      model=config.target.model,
      cache_dir=config.cache_dir or None,
      held_out=held_out,
      overlap_tokens=fields.overlap_tokens,
      overlap_words=fields.overlap_words,
  )


def _build(
    config: config_dict.ConfigDict, path: pathlib.Path, store: pathlib.Path
) -> _Made:
  """Builds or appends."""
  fields = config.datastore
  tokenizer = _tokenizer(config)
  inputs = Inputs(
      texts=_listed(fields.texts),
      rows=_listed(fields.rows),
      row_field=fields.row_field,
      stores=_listed(fields.stores),
      tokenizer=tokenizer.fingerprint,
      output=store,
  )
  settings = _settings(config, inputs)
  # Read once here, so that a mistake is found before anything is written.
  encoder = datastore_encode.Encoder(settings)
  before, depth = None, fields.depth
  if fields.mode == 'append':
    before = datastore.open_store(
        store, tokenizer=tokenizer.fingerprint, verify='all'
    )
    depth = before.header.depth
    if depth != fields.depth:
      logging.warning(
          'config.datastore.depth is %d, but %s is sorted by %d tokens, and so '
          'is what is appended.',
          fields.depth,
          store,
          depth,
      )
  plan = Plan(
      store,
      Facts(
          tokenizer.fingerprint,
          tokenizer.vocab_size,
          depth=depth,
          sources=inputs.sources,
      ),
      fields.shard_tokens,
      inputs=[
          inputs.identity(),
          encoder.overlap.digest if encoder.overlap else NO_HELD_OUT,
          [fields.overlap_tokens, fields.overlap_words],
      ],
  )
  del encoder
  workdir = results.Workdir(path, config)
  feed = _Feed(inputs, settings, fields.num_processes, workdir)
  built = build.build(
      plan, feed.documents, before=before, on_shard=feed.on_shard
  )
  workdir.metric({'datastore/tokens': built.store.num_tokens})
  values = _rates(built, feed.num_tokens)
  values['datastore/binary_files'] = feed.num_binary
  return _Made(built.store, values, workdir, tuple(feed.left_out))


class _Feed:
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
    self._inputs, self._settings = inputs, settings
    self._num_processes, self._workdir = num_processes, workdir
    self._progress = Progress('datastore', inputs.size)
    self._size = 0
    self.num_tokens = self.num_binary = 0
    self.left_out: list[LeftOut] = []

  def documents(self, first: int) -> Iterator[Document]:
    """Yields documents from a number on."""
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
    """Writes a line of metrics."""
    row = self._progress.step(self._size, num_tokens)
    self._size = 0
    self._workdir.metric(row | {'datastore/shard_sort_s': round(seconds, 3)})
