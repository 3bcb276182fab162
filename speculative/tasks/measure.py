"""Times settings in turn over the same prompts, and says what came out."""

from collections.abc import Sequence
import dataclasses
import time

from absl import logging

from speculative.bench import compare
from speculative.bench import metrics
from speculative.bench import report
from speculative.decoding.engine import OnTokens
from speculative.decoding.generation import Generation
from speculative.drafting.config import DrafterConfig
from speculative.tasks import common
from speculative.tokenizer.text_stream import TextStream


def of_batch(
    prepared: common.Prepared,
    settings: Sequence[DrafterConfig],
    index: int,
    *,
    repeats: int,
) -> list[list[Generation]]:
  """Decodes one batch with every setting in turn, again and again.

  Args:
    prepared: the run; every program is warm.
    settings: drafters to set side by side.
    index: of the batch.
    repeats: how often each setting decodes it.

  Returns:
    For every setting, its runs in order.
  """
  batch = prepared.batches[index]
  decode = dataclasses.replace(prepared.decode_of(index), rounds_per_call=0)
  runs: list[list[Generation]] = [[] for _ in settings]
  for _ in range(repeats):
    for i, drafter in enumerate(settings):
      engine = prepared.model.engine(drafter)
      ends = watch(prepared, len(batch))
      runs[i].append(engine.generate(batch, decode, **ends))
  return runs


def watch(prepared: common.Prepared, num_rows: int) -> dict[str, OnTokens]:
  """Returns the argument of a decoding that ends rows at stop strings.

  Args:
    prepared: the run.
    num_rows: of the batch.

  Returns:
    Nothing where there are no stop strings.
  """
  stops = prepared.decode.stop_strings
  if not stops:
    return {}
  tokenizer = prepared.model.tokenizer
  streams = [TextStream(tokenizer, stops) for _ in range(num_rows)]

  def on_tokens(row: int, new: list[int]) -> int | None:
    streams[row].push(new)
    return streams[row].num_tokens if streams[row].has_ended else None

  return {'on_tokens': on_tokens}


def texts_of(prepared: common.Prepared, generation: Generation) -> list[str]:
  """Returns what a batch says, cut before stop strings.

  Args:
    prepared: the run.
    generation: of a batch.
  """
  texts = []
  for ids in generation.token_ids:
    stream = TextStream(prepared.model.tokenizer, prepared.decode.stop_strings)
    texts.append(stream.push(ids) + stream.flush())
  return texts


def interleaved(
    prepared: common.Prepared,
    settings: Sequence[DrafterConfig],
    *,
    repeats: int,
) -> list[list[Generation]]:
  """Decodes every batch with every setting before the next batch.

  Args:
    prepared: the run; every program is warm.
    settings: drafters to set side by side.
    repeats: how often each batch is decoded by each setting, in turn.

  Returns:
    For every setting, the run of median decode time of every batch.
  """
  medians: list[list[Generation]] = [[] for _ in settings]
  started = time.perf_counter()
  for index in range(len(prepared.batches)):
    runs = of_batch(prepared, settings, index, repeats=repeats)
    for i, of_setting in enumerate(runs):
      medians[i].append(metrics.median_run(of_setting))
    elapsed = time.perf_counter() - started
    done = report.progress(index + 1, len(prepared.batches), elapsed, 'batch')
    logging.info('%s', done)
  return medians


def row_of(
    prepared: common.Prepared,
    drafter: DrafterConfig,
    plain: Sequence[Generation],
    runs: Sequence[Generation],
    *,
    name: str = '',
) -> dict:
  """Returns the flat result object of one setting.

  Args:
    prepared: the run.
    drafter: the setting.
    plain: runs of plain decoding, one a batch.
    runs: of this setting, over the same batches.
    name: of the setting; the drafter's when empty.
  """
  row = {
      'row/name': name or common.name(drafter),
      'row/drafter': 'none' if drafter.is_plain else drafter.kind,
      'row/num_draft_tokens': drafter.num_draft_tokens,
      'row/shape': drafter.shape,
  }
  row |= metrics.decode_metrics(runs)
  if drafter.is_plain:
    return row
  row['decode/acceptance_by_position'] = metrics.acceptance_by_position(runs)
  row['baseline/tokens_per_s'] = metrics.decode_metrics(plain)[
      'decode/tokens_per_s'
  ]
  row['speedup/measured'] = metrics.seconds_per_token(
      plain
  ) / metrics.seconds_per_token(runs)
  row |= metrics.without_loops(plain, runs)
  if prepared.decode.temperature == 0 or drafter.is_deterministic:
    differ = compare.unequal(
        [ids for g in plain for ids in g.token_ids],
        [ids for g in runs for ids in g.token_ids],
    )
    row['lossless/greedy_equal'] = not differ
    row['lossless/unequal_prompts'] = len(differ)
  return row


def reason(row: dict) -> str:
  """Returns in one sentence why a setting is faster or slower than plain.

  Args:
    row: as `row_of` returned it, of a drafter; where it has a speedup/reason,
      that alone says what to do.
  """
  brought, speedup = row['decode/tokens_per_round'], row['speedup/measured']
  cost = brought / speedup
  verdict = 'faster' if speedup > 1 else 'slower'
  advice = ''
  if speedup <= 1 and 'speedup/reason' not in row:
    advice = (
        '; a shorter draft (config.decode.num_draft_tokens) or plain decoding '
        'suits this text better'
    )
  return (
      f'{row["row/name"]}: a round costs {cost:.2f} plain passes and brings '
      f'{brought:.2f} tokens, so it is {verdict}{advice}.'
  )


def table(rows: Sequence[dict]) -> str:
  """Returns the Markdown table of result objects."""
  header = [
      'setting',
      'tokens/s',
      'tokens/round',
      'acceptance',
      'speed-up',
      'same tokens',
  ]
  cells = []
  for row in rows:
    equal = row.get('lossless/greedy_equal')
    cells.append(
        [
            row['row/name'],
            row['decode/tokens_per_s'],
            row['decode/tokens_per_round'],
            row.get('decode/acceptance_rate', ''),
            _speedup(row),
            {None: '', True: 'yes', False: 'no'}[equal],
        ]
    )
  return report.table(header, cells) + '\n'


def _speedup(row: dict) -> str:
  """Returns a speed-up with its interval, where there is one."""
  said = f'{row.get("speedup/measured", 1.0):.2f}'
  if row.get('speedup/low') is None:
    return said
  return f'{said} ({row["speedup/low"]:.2f}-{row["speedup/high"]:.2f})'
