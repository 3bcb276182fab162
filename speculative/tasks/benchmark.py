"""Task `benchmark`: plain against speculative, prompts interleaved."""

import dataclasses
import pathlib
import time

from ml_collections import config_dict

from speculative import config as config_lib
from speculative.bench import bandwidth
from speculative.bench import compiles
from speculative.drafting.config import DrafterConfig
from speculative.errors import UserError
from speculative.tasks import common
from speculative.tasks import measure
from speculative.tasks import results
from speculative.tasks.results import TaskResult


def _settings(
    config: config_dict.ConfigDict, drafter: DrafterConfig
) -> list[DrafterConfig]:
  lengths = [n for n in config.bench.num_draft_tokens if n]
  if drafter.kind == 'none':
    return [common.plain(drafter)]
  return [common.plain(drafter)] + [
      dataclasses.replace(drafter, num_draft_tokens=n)
      for n in lengths or [drafter.num_draft_tokens]
      if n
  ]


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


def run(config: config_dict.ConfigDict, path: pathlib.Path) -> TaskResult:
  """Measures plain decoding and the drafter over prompts, in turn.

  Every prompt is decoded by every setting before the next prompt, config.
  bench.repeats times; the median of the repeats counts. Compilation happens
  before and is reported apart.

  Args:
    config: of the run.
    path: of the workdir.

  Returns:
    The TaskResult: env/* keys and `rows`, plain decoding first.

  Raises:
    UserError: Before anything is written or loaded.
  """
  if config.bench.repeats < 1:
    raise UserError(
        f'config.bench.repeats needs to be >= 1, got {config.bench.repeats}.'
    )
  prompts = config_lib.load_prompts(config)
  prepared = common.prepare(config, path, prompts)
  settings = _settings(config, prepared.model.drafter)
  started = time.perf_counter()
  with compiles.counted() as warm:
    common.warm_up(prepared, settings)
  compile_s = time.perf_counter() - started
  with compiles.counted() as later:
    runs = measure.interleaved(prepared, settings, repeats=config.bench.repeats)
  shared = {
      'row/sampler': sampler_name(config),
      'row/prompts': pathlib.Path(config.data.prompts).name.split('.')[0],
      'row/batch': config.decode.batch_size,
      'time/compile_s': compile_s,
      'compile/count': warm.count,
      'compile/count_after_warm_up': later.count,
  }
  rows = [
      measure.row_of(prepared, drafter, runs[0], runs[i]) | shared
      for i, drafter in enumerate(settings)
  ]
  rows[0]['decode/bandwidth_floor_ms'] = _floor_ms(prepared)
  for row in rows:
    prepared.workdir.metric(row)
  found = results.environment(prepared.model) | {'rows': rows}
  prepared.workdir.finish(found)
  results.write_text(prepared.workdir.path / 'results.md', measure.table(rows))
  print(measure.table(rows))
  return TaskResult(found)


def _floor_ms(prepared: common.Prepared) -> float:
  """Returns the milliseconds a plain step needs to read its bytes."""
  engine = prepared.model.engine(common.plain(prepared.model.drafter))
  weights = engine.weights.target
  total = bandwidth.plain_step_bytes(
      engine.step.model,
      weights,
      batch=len(prepared.batches[0]),
      prompt_len=max(len(ids) for ids in prepared.batches[0]),
      new_tokens=prepared.decode.max_new_tokens,
  )
  rate = bandwidth.read_rate(prepared.model.precision.param_dtype)
  return 1e3 * total / rate
