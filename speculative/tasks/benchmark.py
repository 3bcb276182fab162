"""Task `benchmark`: plain against speculative, prompts interleaved."""

from collections.abc import Sequence
import dataclasses
import functools
import pathlib
import time
from typing import Any

from absl import logging
from ml_collections import config_dict

from speculative import config as config_lib
from speculative.bench import bandwidth
from speculative.bench import compiles
from speculative.bench import explain
from speculative.bench import groups
from speculative.bench import metrics
from speculative.bench import quality
from speculative.bench import records
from speculative.bench import report
from speculative.bench.prompts import Prompt
from speculative.decoding import engine as engine_lib
from speculative.decoding.generation import Generation
from speculative.drafting.config import DrafterConfig
from speculative.tasks import benchmark_report
from speculative.tasks import benchmark_settings
from speculative.tasks import common
from speculative.tasks import measure
from speculative.tasks import predictions
from speculative.tasks import prompt_log
from speculative.tasks import results
from speculative.tasks import retrieved
from speculative.tasks.results import TaskResult


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
  settings = benchmark_settings.settings_of(
      config, config_lib.parse(config).drafter
  )
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
  prepared = common.load(opened, answers=log.facts.get('answers'))
  env = results.environment(prepared.model)
  # Results of an earlier run are removed once nobody else can be at it.
  log.open(env)
  was_finished = not log.left
  try:
    prepared = dataclasses.replace(
        _with_answers(opened, prepared, log),
        workdir=results.Workdir(path, config),
    )
    if log.left:
      _measure(prepared, plan, log)
    rows = _rows(config, prepared, plan, log)
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
  finally:
    log.close()
  return TaskResult(found)


def _with_answers(
    opened: common.Prepared,
    prepared: common.Prepared,
    log: prompt_log.PromptLog,
) -> common.Prepared:
  """Returns the run after the answers to earlier turns that the log keeps.

  They are given once: another time a device may round, and answer, otherwise.
  """
  if any(prepared.answers) and 'answers' not in log.facts:
    log.note({'answers': prepared.answers})
  known = log.facts.get('answers', prepared.answers)
  if known == prepared.answers:
    return prepared
  return common.load(opened, answers=known)


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
  first = index * len(prepared.batches[0])
  prompts = prepared.prompts[first:]
  return [
      record
      for repeat in range(plan.repeats)
      for name, of_setting in zip(plan.settings, runs, strict=True)
      for record in records.of_generation(
          of_setting[repeat],
          setting=name,
          repeat=repeat,
          batch=index,
          first_prompt=first,
          first_seed=prepared.decode_of(index).seed,
          prompt_lens=[len(ids) for ids in batch],
          groups=[prompt.group for prompt in prompts[: len(batch)]],
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
      'row/sampler': benchmark_settings.sampler_name(config),
      'row/prompts': benchmark_settings.prompts_name(config),
      'row/batch': config.decode.batch_size,
  } | {k: v for k, v in log.facts.items() if '/' in k}
  plain = records.medians_of(log.records, common.PLAIN)
  of_batches = records.groups_of(log.records)
  rows = []
  for name, drafter in plan.settings.items():
    repeats = records.repeats_of(log.records, name)
    runs = [metrics.median_run(of_batch) for of_batch in repeats]
    row = measure.row_of(prepared, drafter, plain, runs, name=name)
    row |= metrics.sequence_times(repeats) | metrics.loop_times(runs)
    row |= shared | retrieved.keys(
        prepared,
        drafter,
        runs,
        once=functools.partial(log.once, 'query_ms', name),
    )
    row |= explain.floor_keys(row, floor_ms=floor_ms)
    row |= _scores(config, prepared, log, name)
    if not drafter.is_plain:
      row |= metrics.intervals(plain, runs)
      row |= groups.keys(plain, runs, of_batches)
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
  """Returns how good a setting's answers are, if their set has a measure.

  Code of answers is run once. Rows are no part of what a run is known by, as
  they change nothing that is measured: others are scored anew.
  """
  task_set, run_code = config.data.task_set, config.bench.run_code
  if task_set == 'none':
    return {}
  rows = [prompt.row for prompt in prepared.prompts]
  answers = records.answers(log.records, name)
  return log.once(
      f'scores, task_set={task_set} run_code={run_code} '
      f'rows={prompt_log.digest(rows)}',
      name,
      lambda: quality.score(
          task_set,
          rows,
          [answers[i] for i in range(len(rows))],
          run_code=run_code,
      ),
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
