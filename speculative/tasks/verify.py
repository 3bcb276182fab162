"""Task `verify`: is the output still the target's, token for token?

Greedy rows, and sampled rows with a deterministic drafter, have to equal plain
decoding of the same seed in float32. With a sampled draft only the law is
promised, which one run cannot show.
"""

import dataclasses
import pathlib
import time

from absl import logging
from ml_collections import config_dict

from speculative import config as config_lib
from speculative.bench import compare
from speculative.bench import metrics
from speculative.bench import report
from speculative.bench.compare import Divergence
from speculative.decoding.engine import Generation
from speculative.errors import UserError
from speculative.tasks import common
from speculative.tasks import results
from speculative.tasks.results import TaskResult


def _check(config: config_dict.ConfigDict) -> None:
  run_config = config_lib.parse(config)
  drafter = run_config.drafter
  if drafter.is_plain:
    raise UserError(
        'verify compares a drafter with plain decoding; set '
        "config.drafter.kind to 'lookup' or 'lm' and "
        'config.decode.num_draft_tokens above 0.'
    )
  if run_config.decode.temperature > 0 and not drafter.is_deterministic:
    raise UserError(
        f'verify compares tokens, but at temperature '
        f'{run_config.decode.temperature} a {drafter.kind!r} draft promises '
        'the distribution only; set config.decode.temperature=0.'
    )


def run(config: config_dict.ConfigDict, path: pathlib.Path) -> TaskResult:
  """Compares the drafter's tokens with plain decoding's.

  Args:
    config: of the run.
    path: of the workdir.

  Returns:
    The TaskResult: `verify/passed`, and exit status 1 where a row differs.

  Raises:
    UserError: Before anything is written or loaded.
  """
  _check(config)
  prepared = common.prepare(config, path, config_lib.load_prompts(config))
  precision = prepared.model.precision
  if precision.dtype != 'float32':
    logging.warning(
        'Verifying in %s: near ties may differ; equality is promised in '
        'float32.',
        precision.dtype,
    )
  divergences: list[Divergence] = []
  generations: list[Generation] = []
  started = time.perf_counter()
  for index in range(len(prepared.batches)):
    generation, differ = _compare_batch(prepared, index)
    generations.append(generation)
    divergences += differ
    elapsed = time.perf_counter() - started
    logging.info(
        '%s  %.2f tokens/round  %d differ',
        report.progress(index + 1, len(prepared.batches), elapsed, 'batch'),
        metrics.decode_metrics(generations)['decode/tokens_per_round'],
        len(divergences),
    )
  found = _results(prepared, generations, divergences)
  prepared.workdir.metric(found)
  prepared.workdir.finish(found)
  passed = found['verify/passed']
  print(
      f'{"passed" if passed else "FAILED"}: {len(prepared.prompts)} prompts, '
      f'{found["decode/tokens"]} tokens, {len(divergences)} rows differ, '
      f'{found["decode/tokens_per_round"]:.2f} tokens per round'
  )
  return TaskResult(found, exit_status=0 if passed else 1)


def _compare_batch(
    prepared: common.Prepared, index: int
) -> tuple[Generation, list[Divergence]]:
  """Returns the drafter's run of a batch and where rows left plain decoding."""
  model, batch = prepared.model, prepared.batches[index]
  decode = dataclasses.replace(prepared.decode_of(index), rounds_per_call=0)
  plain_engine = model.engine(common.plain(model.drafter))
  plain = plain_engine.generate(batch, decode)
  other = model.engine().generate(batch, decode)
  differ = []
  for row, ids in enumerate(batch):
    found = compare.divergence(
        plain_engine.step.model,
        plain_engine.weights.target,
        prompt=index * len(prepared.batches[0]) + row,
        prompt_ids=ids,
        plain=plain.token_ids[row],
        other=other.token_ids[row],
    )
    if found is not None:
      logging.warning('Differs from plain decoding: %s', found)
      differ.append(found)
  return other, differ


def _results(
    prepared: common.Prepared,
    generations: list[Generation],
    divergences: list[Divergence],
) -> dict:
  passed = not divergences
  found = metrics.decode_metrics(generations)
  # Times of this task are not measurements: its runs are not warmed up.
  found = {k: v for k, v in found.items() if not k.endswith(('_s', 'token'))}
  return (
      found
      | results.environment(prepared.model)
      | {
          'verify/passed': passed,
          'verify/cases': len(prepared.prompts),
          'lossless/greedy_equal': passed,
          'lossless/first_divergence': (
              None if passed else dataclasses.asdict(divergences[0])
          ),
          'lossless/unequal_prompts': len(divergences),
      }
  )
