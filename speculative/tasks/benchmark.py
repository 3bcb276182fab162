"""Task `benchmark`: plain against speculative, prompts interleaved."""

from collections.abc import Sequence
import dataclasses
import pathlib
import time

from absl import logging
from ml_collections import config_dict

from speculative import config as config_lib
from speculative.bench import bandwidth
from speculative.bench import compiles
from speculative.bench import predict
from speculative.bench.prompts import Prompt
from speculative.decoding import engine as engine_lib
from speculative.drafting import changes
from speculative.drafting.config import DrafterConfig
from speculative.errors import UserError
from speculative.tasks import common
from speculative.tasks import measure
from speculative.tasks import predictions
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


def run(config: config_dict.ConfigDict, path: pathlib.Path) -> TaskResult:
  """Measures plain decoding and the drafter over prompts, in turn.

  Every prompt is decoded by every setting before the next prompt, config.
  bench.repeats times; the median of the repeats counts. Compilation happens
  before and is reported apart. So does the prediction, which rests on the times
  of a round's parts and on prompts that are not timed.

  Args:
    config: of the run.
    path: of the workdir.

  Returns:
    The TaskResult: env/* keys and `rows`, plain decoding first.

  Raises:
    UserError: Before anything is written or loaded.
  """
  repeats = common.repeats(config)
  settings = settings_of(config, config_lib.parse(config).drafter)
  drafters = list(settings.values())
  predicted = [name for name in settings if _is_predicted(settings[name])]
  prompts, aside = _prompts(config, predicted)
  prepared = common.prepare(
      config, path, prompts, calibration=aside, drafters=settings
  )
  started = time.perf_counter()
  with compiles.counted() as warm:
    common.warm_up(prepared, drafters)
  compile_s = time.perf_counter() - started
  foreseen = None
  if aside:
    foreseen = predictions.foresee(
        prepared, [settings[name] for name in predicted], repeats=repeats
    )
  with compiles.counted() as later:
    runs = measure.interleaved(prepared, drafters, repeats=repeats)
  shared = {
      'row/sampler': sampler_name(config),
      'row/prompts': pathlib.Path(config.data.prompts).name.split('.')[0],
      'row/batch': config.decode.batch_size,
      'time/compile_s': compile_s,
      'compile/count': warm.count,
      'compile/count_after_warm_up': later.count,
  }
  rows = [
      measure.row_of(prepared, drafter, runs[0], runs[i], name=name)
      | retrieved.keys(prepared, drafter, runs[i])
      | shared
      for i, (name, drafter) in enumerate(settings.items())
  ]
  for name, row in zip(settings, rows, strict=True):
    if foreseen and name in predicted:
      row |= foreseen.keys(predicted.index(name), row)
  rows[0]['decode/bandwidth_floor_ms'] = _floor_ms(prepared)
  for row in rows:
    prepared.workdir.metric(row)
  found = results.environment(prepared.model) | {'rows': rows}
  prepared.workdir.finish(found)
  said = f'{measure.table(rows)}\n{_sentences(rows[1:], predicted, foreseen)}'
  results.write_text(prepared.workdir.path / 'results.md', said)
  results.say(said)
  return TaskResult(found)


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


def _sentences(
    rows: Sequence[dict],
    predicted: Sequence[str],
    foreseen: predictions.Foreseen | None,
) -> str:
  """Returns lines on every setting: why it is fast, and what was foreseen."""
  lines = []
  for row in rows:
    lines += [measure.reason(row), *retrieved.sentences(row)]
    if foreseen and row['row/name'] in predicted:
      best = foreseen.best[predicted.index(row['row/name'])]
      lines.append(predict.verdict(row, most=best.most))
  return ''.join(f'{line}\n' for line in lines)


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
