"""Task `benchmark`: plain against speculative, prompts interleaved."""

from collections.abc import Sequence
import dataclasses
import pathlib
import time
from typing import Any

from absl import logging
from ml_collections import config_dict

from speculative import config as config_lib
from speculative.bench import bandwidth
from speculative.bench import compiles
from speculative.bench import explain
from speculative.bench import metrics
from speculative.bench import quality
from speculative.bench import records
from speculative.bench import report
from speculative.bench.prompts import Prompt
from speculative.decoding import engine as engine_lib
from speculative.decoding.generation import Generation
from speculative.drafting import changes
from speculative.drafting.config import DrafterConfig
from speculative.errors import UserError
from speculative.tasks import benchmark_report
from speculative.tasks import common
from speculative.tasks import measure
from speculative.tasks import predictions
from speculative.tasks import prompt_log
from speculative.tasks import results
from speculative.tasks import retrieved
from speculative.tasks.results import TaskResult


def settings_of(
    config: config_dict.ConfigDict, drafter: DrafterConfig
) -> dict[str, DrafterConfig]:
  """Returns the drafters to measure by the names of their rows, plain first.

  Args:
    config: of the run.
    drafter: config.drafter.

  Raises:
    UserError: If config.bench names what cannot be measured.
  """
  drafters = {common.PLAIN: common.plain(drafter)}
  lengths = config.bench.num_draft_tokens
  if config.bench.settings:
    if tuple(lengths) not in ((), (0,)):
      raise UserError(
          f'config.bench.num_draft_tokens is {lengths}, which config.bench.'
          'settings leave no room for; leave it at (0,), and put '
          'num_draft_tokens= into the settings.'
      )
    return drafters | _listed(config.bench.settings, drafter)
  if not all(isinstance(n, int) and n >= 0 for n in lengths):
    raise UserError(
        f'config.bench.num_draft_tokens is {lengths}; it needs to hold whole '
        'numbers >= 0, for instance (2, 4, 8).'
    )
  # Each once and in order; 0 is plain decoding, which is measured anyway.
  lengths = [n for n in dict.fromkeys(lengths) if n]
  if drafter.is_plain and not lengths or drafter.kind == 'none':
    return drafters
  for n in lengths or [drafter.num_draft_tokens]:
    of_length = dataclasses.replace(drafter, num_draft_tokens=n)
    drafters[common.name(of_length)] = of_length
  return drafters


def _listed(
    texts: Sequence[str], drafter: DrafterConfig
) -> dict[str, DrafterConfig]:
  """Returns the drafters of config.bench.settings by their names."""
  if isinstance(texts, str) or not all(isinstance(t, str) for t in texts):
    raise UserError(
        f'config.bench.settings is {texts!r}; it needs to hold texts, for '
        "instance ('kind=lookup', 'retrieval.max_ngram=4')."
    )
  found = {}
  for text in texts:
    name, changed = changes.parse(text, drafter)
    if name in found or name == common.PLAIN:
      raise UserError(
          f'config.bench.settings has {name!r} twice, or calls it as plain '
          'decoding is called; give each a name= of its own.'
      )
    if changed.is_plain:
      raise UserError(
          f'the setting {text!r} drafts nothing; plain decoding is measured '
          'anyway, leave it out.'
      )
    found[name] = changed
  return found


def sampler_name(config: config_dict.ConfigDict) -> str:
  """Returns 'greedy', or for instance 'T0.8_p0.95'."""
  decode = config.decode
  if decode.temperature == 0:
    return 'greedy'
  name = f'T{decode.temperature:g}'
  if decode.top_k:
    name += f'_k{decode.top_k}'
  if decode.top_p < 1:
    name += f'_p{decode.top_p:g}'
  return name


@dataclasses.dataclass(frozen=True)
class _Plan:
  """What is to be measured.

  Attributes:
    settings: drafters by the names of their rows, plain first.
    predicted: names of those that something is predicted of.
    prompts: to time.
    aside: to predict from.
    repeats: how often a batch is timed with each setting.
  """

  settings: dict[str, DrafterConfig]
  predicted: list[str]
  prompts: Sequence[Prompt]
  aside: Sequence[Prompt]
  repeats: int


def _plan(config: config_dict.ConfigDict) -> _Plan:
  repeats = common.repeats(config)
  benchmark_report.check_plot(config.bench.plot)
  quality.check(config.data.task_set, run_code=config.bench.run_code)
  settings = settings_of(config, config_lib.parse(config).drafter)
  predicted = [name for name in settings if _is_predicted(settings[name])]
  prompts, aside = _prompts(config, predicted)
  return _Plan(settings, predicted, prompts, aside, repeats)


def run(config: config_dict.ConfigDict, path: pathlib.Path) -> TaskResult:
  """Measures plain decoding and the drafter over prompts, in turn.

  Every prompt is decoded by every setting before the next prompt, config.
  bench.repeats times; the median of the repeats counts. Compilation happens
  before and is reported apart. So does the prediction, which rests on the times
  of a round's parts and on prompts that are not timed.

  What a batch of prompts brought is kept in prompts.jsonl as the run goes on,
  and all results are made from there: a run that was stopped goes on, and one
  that was finished tells its results again.

  Args:
    config: of the run.
    path: of the workdir.

  Returns:
    The TaskResult: env/* keys and `rows`, plain decoding first.

  Raises:
    UserError: Before anything is written or loaded, also where the workdir
      holds another benchmark.
  """
  plan = _plan(config)
  opened = common.open_run(
      config, plan.prompts, calibration=plan.aside, drafters=plan.settings
  )
  log = prompt_log.PromptLog(
      path,
      prompt_log.identity_of(config, opened),
      num_records=[
          len(batch) * plan.repeats * len(plan.settings)
          for batch in opened.batches
      ],
  )
  prepared = common.load(opened, config, path)
  env = results.environment(prepared.model)
  log.open(env)
  was_finished = not log.left
  try:
    if log.left:
      _measure(prepared, plan, log)
    rows = _rows(config, prepared, plan, log)
  finally:
    log.close()
  found = env | log.env | {'rows': rows}
  benchmark_report.write(
      prepared.workdir,
      found,
      plan.settings,
      foreseen=_foreseen(log),
      note=quality.note(config.data.task_set, run_code=config.bench.run_code),
      plot=config.bench.plot,
      again='yes' if was_finished else 'no',
  )
  return TaskResult(found)


def _measure(
    prepared: common.Prepared, plan: _Plan, log: prompt_log.PromptLog
) -> None:
  """Compiles, predicts, and decodes the batches that are left."""
  drafters = list(plan.settings.values())
  started = time.perf_counter()
  with compiles.counted() as warm:
    common.warm_up(prepared, drafters)
  log.note(
      {
          'time/compile_s': time.perf_counter() - started,
          'compile/count': warm.count,
          # Not known of a run that is stopped.
          'compile/count_after_warm_up': None,
      }
  )
  if plan.aside and 'foreseen' not in log.facts:
    foreseen = predictions.foresee(
        prepared,
        [plan.settings[name] for name in plan.predicted],
        repeats=plan.repeats,
    )
    log.note({'foreseen': foreseen.as_json()})
  if 'floor_ms' not in log.facts:
    log.note({'floor_ms': _floor_ms(prepared)})
  with compiles.counted() as later:
    _decode(prepared, plan, log)
  log.note({'compile/count_after_warm_up': later.count})


def _decode(
    prepared: common.Prepared, plan: _Plan, log: prompt_log.PromptLog
) -> None:
  """Decodes the batches that are left and keeps what each brought."""
  before, total = log.num_done, len(prepared.batches)
  started = time.perf_counter()
  for index in log.left:
    runs = measure.of_batch(
        prepared, list(plan.settings.values()), index, repeats=plan.repeats
    )
    log.add(_records(prepared, plan, index, runs))
    elapsed = time.perf_counter() - started
    done = report.progress(index + 1, total, elapsed, 'batch', before=before)
    logging.info('%s', done)


def _records(
    prepared: common.Prepared,
    plan: _Plan,
    index: int,
    runs: Sequence[Sequence[Generation]],
) -> list[dict]:
  """Returns the records of a batch, in the order in which it was decoded."""
  batch = prepared.batches[index]
  return [
      record
      for repeat in range(plan.repeats)
      for name, of_setting in zip(plan.settings, runs, strict=True)
      for record in records.of_generation(
          of_setting[repeat],
          setting=name,
          repeat=repeat,
          batch=index,
          first_prompt=index * len(prepared.batches[0]),
          first_seed=prepared.decode_of(index).seed,
          prompt_lens=[len(ids) for ids in batch],
          texts=measure.texts_of(prepared, of_setting[repeat]),
      )
  ]


def _foreseen(log: prompt_log.PromptLog) -> predictions.Foreseen | None:
  found = log.facts.get('foreseen')
  return predictions.from_json(found) if found else None


def _rows(
    config: config_dict.ConfigDict,
    prepared: common.Prepared,
    plan: _Plan,
    log: prompt_log.PromptLog,
) -> list[dict]:
  """Returns a result object a setting, from what was kept."""
  foreseen, floor_ms = _foreseen(log), log.facts['floor_ms']
  shared = {
      'row/sampler': sampler_name(config),
      'row/prompts': pathlib.Path(config.data.prompts).name.split('.')[0],
      'row/batch': config.decode.batch_size,
  } | {k: v for k, v in log.facts.items() if '/' in k}
  plain = records.medians_of(log.records, common.PLAIN)
  rows = []
  for name, drafter in plan.settings.items():
    repeats = records.repeats_of(log.records, name)
    runs = [metrics.median_run(of_batch) for of_batch in repeats]
    row = measure.row_of(prepared, drafter, plain, runs, name=name)
    row |= metrics.sequence_times(repeats) | metrics.loop_times(runs)
    row |= retrieved.keys(prepared, drafter, runs) | shared
    row |= explain.floor_keys(row, floor_ms=floor_ms)
    row |= _scores(config, prepared, log, name)
    if not drafter.is_plain:
      row |= metrics.intervals(plain, runs)
    if foreseen and name in plan.predicted:
      index = plan.predicted.index(name)
      row |= foreseen.keys(index, row)
      row |= benchmark_report.explained(
          row, foreseen, index, runs, dtype=prepared.model.precision.dtype
      )
    rows.append(row)
  rows[0]['decode/bandwidth_floor_ms'] = floor_ms
  return rows


def _scores(
    config: config_dict.ConfigDict,
    prepared: common.Prepared,
    log: prompt_log.PromptLog,
    name: str,
) -> dict[str, Any]:
  """Returns how good a setting's answers are, if their set has a measure."""
  answers = records.answers(log.records, name)
  return quality.score(
      config.data.task_set,
      [prompt.row for prompt in prepared.prompts],
      [answers[i] for i in range(len(prepared.prompts))],
      run_code=config.bench.run_code,
  )


def _is_predicted(drafter: DrafterConfig) -> bool:
  """Tells whether what a drafter will gain follows from parts of a round."""
  # How often a cascade asks its draft depends on the text.
  return not drafter.is_plain and drafter.kind != 'cascade'


def _prompts(
    config: config_dict.ConfigDict, predicted: Sequence[str]
) -> tuple[Sequence[Prompt], Sequence[Prompt]]:
  """Returns the prompts to time and those to predict from.

  How long a batch takes depends on its slowest row, which is not predicted.
  """
  if not predicted:
    return config_lib.load_prompts(config), ()
  if config.decode.batch_size > 1:
    logging.info('Nothing is predicted for batches.')
    return config_lib.load_prompts(config), ()
  split = config_lib.load_split(config)
  return split.timed, split.calibration


def _floor_ms(prepared: common.Prepared) -> float:
  """Returns the milliseconds a plain step needs to read its bytes."""
  engine = prepared.model.engine(common.plain(prepared.model.drafter))
  weights = engine.weights.target
  batch = prepared.batches[0]
  total = bandwidth.plain_step_bytes(
      engine.step.model,
      weights,
      batch=len(batch),
      num_slots=engine_lib.cache_slots(
          engine.step,
          prompt_len=max(len(ids) for ids in batch),
          max_new_tokens=prepared.decode.max_new_tokens,
          max_seq_len=prepared.decode.max_seq_len,
      ),
  )
  rate = bandwidth.read_rate(prepared.model.precision.param_dtype)
  return 1e3 * total / rate
