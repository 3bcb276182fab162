"""Task `collect`: text for training a draft, written by the target itself."""

import dataclasses
import functools
import pathlib
import signal
from typing import Any

from absl import logging
import jax
from ml_collections import config_dict

from speculative import api
from speculative import config as config_lib
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.errors import UserError
from speculative.tasks import collect_report
from speculative.tasks import results
from speculative.tasks.progress import Progress
from speculative.tasks.results import TaskResult
from speculative.train import collect
from speculative.train import overlap as overlap_lib
from speculative.train import prompt_text
from speculative.train import rolling
from speculative.train import score
from speculative.train import store as store_lib
from speculative.train import store_index
from speculative.train.collect import Plan
from speculative.train.overlap import Found
from speculative.train.overlap import Overlap
from speculative.train.prompt_text import Start
from speculative.train.recording import Recording
from speculative.train.rolling import Roller

NO_HELD_OUT = 'none'
# What a shell reports of a process that SIGTERM ended.
_STOPPED = 143
_AT_LEAST_ONE = (
    'batch_size',
    'num_tokens',
    'max_prompt_tokens',
    'text_tokens',
    'shard_documents',
    'overlap_tokens',
    'overlap_words',
)


def _listed(value: Any) -> tuple:
  """A tuple on the command line may come as its one member."""
  return (value,) if isinstance(value, str) else tuple(value)


def _check(fields: config_dict.ConfigDict) -> None:
  """Refuses config.collect before a model is looked for."""
  for name in _AT_LEAST_ONE:
    if fields[name] < 1:
      raise UserError(
          f'config.collect.{name} needs to be >= 1, got {fields[name]}.'
      )
  if fields.num_documents < 0:
    raise UserError(
        'config.collect.num_documents needs to be >= 0, got '
        f'{fields.num_documents}.'
    )
  for name, known in (
      ('score', ('yes', 'no')),
      ('text_use', ('prompt', 'plain')),
  ):
    if fields[name] not in known:
      raise UserError(
          f'config.collect.{name} is {fields[name]!r}; it needs to be one of '
          f'{", ".join(known)}.'
      )
  held_out = _listed(fields.held_out)
  if not held_out:
    raise UserError(
        'config.collect.held_out is empty; name the files that drafts will be '
        f'evaluated on, or {NO_HELD_OUT!r}.'
    )
  if held_out != (NO_HELD_OUT,):
    same = {pathlib.Path(p).expanduser().resolve() for p in held_out}
    for field in ('prompts', 'answered', 'texts'):
      for _, path in prompt_text.find_files(
          _listed(fields[field]), field=field
      ):
        if pathlib.Path(path).resolve() in same:
          raise UserError(
              f'config.collect.{field} names {path}, which is in '
              'config.collect.held_out too; a draft must not be trained on it.'
          )


@dataclasses.dataclass(frozen=True, eq=False)
class _Prepared:
  """A run whose mistakes, if any, have been found.

  Attributes:
    model: whose weights have not been read.
    plan: of all documents.
    overlap: with what is evaluated; None where nothing is compared.
    dropped_starts: prompts that are evaluated, and what they share.
    num_too_long: prompts left out for their length.
  """

  model: api.LanguageModel
  plan: Plan
  overlap: Overlap | None
  dropped_starts: list[tuple[Start, Found]]
  num_too_long: int


def _read_overlap(
    fields: config_dict.ConfigDict, model: api.LanguageModel
) -> Overlap | None:
  held_out = _listed(fields.held_out)
  if held_out == (NO_HELD_OUT,):
    return None
  return Overlap(
      overlap_lib.read(held_out),
      lambda text: model.tokenizer.encode(text, special='literal'),
      num_tokens=fields.overlap_tokens,
      num_words=fields.overlap_words,
  )


def _starts(
    fields: config_dict.ConfigDict, model: api.LanguageModel, seed: int
) -> tuple[list[Start], int]:
  """Returns what documents begin with, and how many are too long for it."""

  def encode(text: str, chat_template: str) -> list[int]:
    return model.encode(text, chat_template=chat_template)

  found = prompt_text.from_prompts(_listed(fields.prompts), encode)
  answered, num_too_long = prompt_text.from_answered(
      _listed(fields.answered),
      encode,
      lambda text: model.tokenizer.encode(text, special='literal'),
      num_tokens=fields.text_tokens,
  )
  found += answered
  found += prompt_text.from_texts(
      _listed(fields.texts),
      encode,
      kind=fields.text_use,
      num_tokens=fields.text_tokens,
      seed=seed,
  )
  short = [
      start
      for start in found
      if start.kind == 'plain' or len(start.tokens) <= fields.max_prompt_tokens
  ]
  return short, num_too_long + len(found) - len(short)


def _prepare(config: config_dict.ConfigDict) -> _Prepared:
  fields = config.collect
  _check(fields)
  run_config = config_lib.parse(config)
  if run_config.layers != 'unrolled':
    raise UserError(
        f'config.target.layers is {run_config.layers!r}; task collect needs '
        "'unrolled' ones, leave it out."
    )
  model = run_config.open_model()
  longest = fields.max_prompt_tokens + fields.num_tokens
  if max(longest, fields.text_tokens) > model.max_seq_len:
    raise UserError(
        f'config.collect asks for texts of {max(longest, fields.text_tokens)} '
        f'tokens, but {config.target.model} was made for '
        f'{model.max_seq_len}; lower max_prompt_tokens, num_tokens or '
        'text_tokens.'
    )
  decode: DecodeConfig = dataclasses.replace(
      run_config.decode_for(model),
      max_new_tokens=fields.num_tokens,
      log_probs='none',
      num_top_log_probs=0,
  )
  if decode.stop_strings:
    raise UserError(
        'config.decode.stop_strings are not looked for while collecting; leave '
        'them out.'
    )
  starts, num_too_long = _starts(fields, model, config.seed)
  overlap = _read_overlap(fields, model)
  dropped = []
  if overlap is not None:
    starts, dropped = collect.drop_evaluated(starts, overlap)
  plan = collect.make_plan(
      starts,
      decode,
      temperatures=_listed(fields.temperatures),
      num_documents=fields.num_documents,
      seed=config.seed % 2**32,
  )
  return _Prepared(model, plan, overlap, dropped, num_too_long)


def _about(config: config_dict.ConfigDict, run: _Prepared) -> dict[str, Any]:
  """Returns what a store has to have been made with for a run to go on."""
  fields, plan = config.collect, run.plan
  decode = dataclasses.asdict(plan.decode)
  for name in ('seed', 'temperature', 'rounds_per_call'):
    del decode[name]
  return {
      'seed': plan.seed,
      'temperatures': plan.temperatures,
      'shard_documents': fields.shard_documents,
      # In bfloat16, texts follow from these two as well.
      'batch_size': fields.batch_size,
      'dtype': run.model.precision.dtype,
      'starts': collect.digest(plan.starts),
      'decode': decode,
      'overlap': [fields.overlap_tokens, fields.overlap_words],
      'held_out': run.overlap.digest if run.overlap else NO_HELD_OUT,
  }


class _Stop:
  """Whether SIGTERM came; a second one ends the process."""

  def __init__(self) -> None:
    self.asked = False
    self._before = None

  def __enter__(self) -> '_Stop':
    try:
      self._before = signal.signal(signal.SIGTERM, self._ask)
    except ValueError:
      # Only the main thread may listen.
      logging.warning('SIGTERM will end this run at once.')
    return self

  def __exit__(self, *exception: object) -> None:
    if self._before is not None:
      signal.signal(signal.SIGTERM, self._before)

  def _ask(self, *unused: object) -> None:
    del unused
    self.asked = True
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    logging.info('SIGTERM: ending after the running shard.')


def run(config: config_dict.ConfigDict, path: pathlib.Path) -> TaskResult:
  """Collects documents, goes on where an earlier run stopped, scores them.

  Args:
    config: of the run.
    path: of the workdir; the store lies in it unless config.collect.store
      names another place.

  Returns:
    The TaskResult, with the collect/* keys; after SIGTERM its status is not 0
    and there is no results.json, unless nothing was left to do.

  Raises:
    UserError: Before weights are read and anything is written, for whatever is
      wrong with config, files, model or store; later, if the store cannot be
      written any more.
  """
  if jax.process_count() > 1:
    raise UserError('text is collected by one host; leave --distributed out.')
  prepared = _prepare(config)
  writer, workdir = _open(config, path, prepared)
  with _Stop() as stop:
    timing = _collect(config, prepared, writer, workdir, stop)
    if config.collect.score == 'yes':
      timing |= _score(prepared, writer, workdir, stop)
  writer.close()
  found = timing | collect_report.summary(
      writer.index,
      num_dropped_prompts=len(prepared.dropped_starts),
      num_too_long=prepared.num_too_long,
      num_documents=prepared.plan.num_documents,
      is_checked=prepared.overlap is not None,
  )
  found |= results.environment(prepared.model)
  text = collect_report.report(
      found, writer.index, prepared.dropped_starts, store=str(writer.path)
  )
  results.write_text(path / 'collect.md', text)
  if stop.asked and not _is_finished(config, prepared, writer):
    logging.info('Stopped; the same command goes on from here.')
    return TaskResult(found, _STOPPED)
  workdir.finish(found)
  results.say(text)
  return TaskResult(found)


def _open(
    config: config_dict.ConfigDict, path: pathlib.Path, run: _Prepared
) -> tuple[store_lib.Writer, results.Workdir]:
  """Opens store and workdir, and neither where one of them is refused."""
  store = pathlib.Path(config.collect.store or path / 'store').expanduser()
  open_writer = functools.partial(
      store_lib.Writer,
      store,
      tokenizer=run.model.tokenizer.fingerprint,
      mark=run.model.identity.mark,
      domains=sorted({start.domain for start in run.plan.starts}),
      about=_about(config, run),
  )
  with store_index.writing(store):
    is_there = (store / store_index.NAME).exists()
    if not is_there:
      store_index.check_empty(store)
  # A store that is there comes first: another process may be at work in both.
  writer = open_writer() if is_there else None
  workdir = results.Workdir(path, config)
  return writer or open_writer(), workdir


def _is_finished(
    config: config_dict.ConfigDict, run: _Prepared, writer: store_lib.Writer
) -> bool:
  if collect_report.next_document(writer.index) < run.plan.num_documents:
    return False
  return (
      config.collect.score == 'no'
      or store_lib.open_store(writer.path).is_scored
  )


def _make_roller(
    config: config_dict.ConfigDict, run: _Prepared
) -> Roller | None:
  lens = [len(s.tokens) for s in run.plan.starts if s.kind == 'prompt']
  if not lens:
    return None
  engine = run.model.engine('none')
  if config.collect.score == 'yes':
    engine = Engine(Recording(engine.step.model), engine.weights)
  return Roller(
      engine,
      rolling.shape_of(
          engine,
          num_rows=config.collect.batch_size,
          prompt_len=max(lens),
          num_tokens=config.collect.num_tokens,
      ),
  )


def _collect(
    config: config_dict.ConfigDict,
    run: _Prepared,
    writer: store_lib.Writer,
    workdir: results.Workdir,
    stop: _Stop,
) -> dict[str, Any]:
  """Writes the shards that are missing; returns what it took."""
  size, total = config.collect.shard_documents, run.plan.num_documents
  first = collect_report.next_document(writer.index)
  roller = _make_roller(config, run)
  progress = Progress('collect', total - first)
  while first < total and not stop.asked:
    span = range(first, min(first + size, total))
    batch = collect.collect(
        run.plan,
        span,
        roller,
        overlap=run.overlap,
        decode_text=run.model.decode,
        on_look=progress.look,
    )
    writer.add(
        batch.documents, facts=collect_report.facts(batch, span, run.plan)
    )
    first = span.stop
    row = progress.step(len(span), batch.num_new)
    workdir.metric({'collect/made_documents': first} | row | _busy(roller))
  return progress.results() | _busy(roller)


def _busy(roller: Roller | None) -> dict[str, Any]:
  if roller is None or not roller.all_rounds:
    return {}
  share = roller.busy_rounds / roller.all_rounds
  return {'collect/busy_rows_frac': round(share, 4)}


def _score(
    run: _Prepared,
    writer: store_lib.Writer,
    workdir: results.Workdir,
    stop: _Stop,
) -> dict[str, Any]:
  """Scores the shards that were not while they were written."""
  store = store_lib.open_store(writer.path)
  model = run.model.engine('none').step.model
  params = run.model.load_weights().target
  todo = [
      shard
      for shard in range(len(store.index.shards))
      if not store.is_shard_scored(shard)
  ]
  counts = [store.index.shards[shard].num_tokens for shard in todo]
  progress = Progress('score', sum(counts))
  for shard, count in zip(todo, counts, strict=True):
    if stop.asked:
      break
    score.score_shard(model, params, store, shard, on_pass=progress.look)
    workdir.metric({'score/shard': shard} | progress.step(count, count))
  return progress.results()
