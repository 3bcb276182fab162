"""Task `build_datastore`: corpora to draft from, or what follows what in it."""

from collections.abc import Iterator
import dataclasses
import pathlib
from typing import Any

from absl import logging
import jax
from ml_collections import config_dict

from speculative.errors import UserError
from speculative.retrieval import bigram_table
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
from speculative.tasks import build_bigram
from speculative.tasks import build_datastore_report as report_lib
from speculative.tasks import datastore_encode
from speculative.tasks import datastore_feed
from speculative.tasks import results
from speculative.tasks.build_datastore_report import LeftOut
from speculative.tasks.build_datastore_report import Made
from speculative.tasks.results import TaskResult

MODES = ('build', 'append', 'inspect', 'reduce', 'bigram')
_NAME = 'datastore.store'


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
      ('successors', 1, bigram_table.MOST_SUCCESSORS),
      ('overlap_tokens', 1, None),
      ('overlap_words', 1, None),
      ('num_processes', 0, None),
  ):
    if fields[name] < least or (most and fields[name] > most):
      bounds = f'>= {least}' + (f' and <= {most}' if most else '')
      raise UserError(
          f'config.datastore.{name} needs to be {bounds}, got {fields[name]}.'
      )


def run(config: config_dict.ConfigDict, path: pathlib.Path) -> TaskResult:
  """Builds a datastore, appends to it, looks into it or makes it smaller.

  Or counts a bigram table of the same inputs.

  Args:
    config: of the run.
    path: of the workdir; the datastore, or table, lies in it unless
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
  is_table = fields.mode == 'bigram'
  name = build_bigram.NAME if is_table else _NAME
  store = pathlib.Path(fields.store or path / name).expanduser()
  form = bigram_table.FORMAT if is_table else store_file.FORMAT
  datastore_feed.check_place(store, form)
  tasks = {'inspect': _inspect, 'reduce': _reduce, 'bigram': build_bigram.build}
  made = tasks.get(fields.mode, _build)(config, path, store)
  found = made.values | _environment(made.dtype)
  made.workdir.finish(found)
  text = report_lib.report(found, made)
  results.write_text(path / 'datastore.md', text)
  results.say(text)
  return TaskResult(found)


def _made(
    store: Datastore,
    values: dict[str, Any],
    workdir: results.Workdir,
    left_out: tuple[LeftOut, ...] = (),
) -> Made:
  """Returns what a mode leaves to report.

  Args:
    store: at the end.
    values: results of this mode alone.
    workdir: of the run.
    left_out: documents that overlap with evaluated text.
  """
  return Made(
      title='Datastore',
      said=report_lib.said(store),
      sources=store.facts.sources,
      values=values | report_lib.summary(store),
      dtype=f'ids of {store.header.id_bytes} bytes',
      workdir=workdir,
      left_out=left_out,
  )


def _environment(dtype: str) -> dict[str, Any]:
  devices = jax.devices()
  return results.versions() | {
      'env/device_kind': devices[0].device_kind,
      'env/device_count': len(devices),
      'env/dtype': dtype,
  }


def _inspect(
    config: config_dict.ConfigDict, path: pathlib.Path, store: pathlib.Path
) -> Made:
  """Reads all of a datastore, and compares every checksum."""
  found = datastore.open_store(store, verify='all')
  values = {}
  if config.target.model:
    tokenizer = datastore_feed.tokenizer_of(config).fingerprint
    values['datastore/is_of_target'] = tokenizer == found.header.tokenizer
  return _made(found, values, results.Workdir(path, config))


def _reduce(
    config: config_dict.ConfigDict, path: pathlib.Path, store: pathlib.Path
) -> Made:
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
  return _made(built.store, values | _rates(built), workdir)


def _rates(built: Built, num_encoded: int = 0) -> dict[str, Any]:
  """Returns what a build took, where it had anything to do."""
  values = report_lib.rates(
      num_sorted=built.num_sorted,
      sort_s=built.sort_s,
      num_encoded=num_encoded,
      encode_s=built.encode_s,
  )
  if built.peak_bytes:
    values['datastore/peak_bytes_per_token'] = round(built.peak_bytes, 1)
  return values


def _build(
    config: config_dict.ConfigDict, path: pathlib.Path, store: pathlib.Path
) -> Made:
  """Builds or appends."""
  fields = config.datastore
  tokenizer = datastore_feed.tokenizer_of(config)
  inputs = datastore_feed.inputs_of(config, tokenizer, store)
  settings = datastore_feed.settings_of(config, inputs)
  # Read once here, so that a mistake is found before anything is written.
  encoder = datastore_encode.Encoder(settings)
  overlap = encoder.overlap
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
          overlap.digest if overlap else datastore_feed.NO_HELD_OUT,
          [fields.overlap_tokens, fields.overlap_words],
      ],
  )
  del encoder, overlap
  workdir = results.Workdir(path, config)
  feed = datastore_feed.Feed(inputs, settings, fields.num_processes, workdir)
  built = build.build(
      plan, feed.documents, before=before, on_shard=feed.on_shard
  )
  workdir.metric({'datastore/tokens': built.store.num_tokens})
  values = _rates(built, feed.num_tokens)
  values['datastore/binary_files'] = feed.num_binary
  return _made(built.store, values, workdir, tuple(feed.left_out))
