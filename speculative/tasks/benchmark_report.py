"""What a benchmark tells: its tables, sentences, CSV and plot."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from absl import logging

from speculative.bench import explain
from speculative.bench import plots
from speculative.bench import predict
from speculative.bench import report
from speculative.decoding.generation import Generation
from speculative.drafting.config import DrafterConfig
from speculative.errors import UserError
from speculative.models import precision
from speculative.tasks import common
from speculative.tasks import measure
from speculative.tasks import results
from speculative.tasks import retrieved
from speculative.tasks.predictions import Foreseen
from speculative.train import config as train_config
from speculative.train import plot as plot_lib

_TIMES = (
    ('P50 (s)', 'decode/sequence_p50_s'),
    ('P90 (s)', 'decode/sequence_p90_s'),
    ('P99 (s)', 'decode/sequence_p99_s'),
    ('128 tokens (s)', 'decode/tokens_128_s'),
    ('± (s)', 'decode/tokens_128_deviation_s'),
    ('a round (ms)', 'decode/round_ms'),
    ('of the floor', 'decode/times_floor'),
    ('with an oracle', 'speedup/oracle'),
)

# Of keys that say what answers are worth, with their intervals.
_QUALITY = 'quality/'


def check_plot(wanted: str) -> None:
  """Refuses a plot that could not be drawn.

  Args:
    wanted: config.bench.plot.

  Raises:
    UserError: If it is no choice, or wanted and matplotlib is absent.
  """
  if wanted not in train_config.PLOTS:
    raise UserError(
        f'config.bench.plot is {wanted!r}; it needs to be one of '
        f'{", ".join(train_config.PLOTS)}.'
    )
  plot_lib.check(wanted, field='config.bench.plot')


def explained(
    row: dict[str, Any],
    foreseen: Foreseen,
    index: int,
    runs: Sequence[Generation],
    *,
    dtype: str,
) -> dict[str, Any]:
  """Returns the keys that say why a setting is as fast as it is.

  Args:
    row: of the setting, with what was foreseen.
    foreseen: of the settings with a prediction.
    index: of the setting among these.
    runs: of it, one a batch.
    dtype: number format of the target.
  """
  found = {
      'speedup/reason': explain.reason(
          row,
          most=foreseen.best[index].most,
          dtype=dtype,
          fastest_dtype=precision.choose('auto').dtype,
      )
  }
  if row['row/shape'] == 'chain':
    gain = explain.oracle_gain(
        predict.costs_of(foreseen.times[index]),
        row['row/num_draft_tokens'],
        [tokens for g in runs for tokens in _round_tokens(g)],
    )
    found['speedup/oracle'] = gain * row['speedup/measured']
  return found


def _round_tokens(generation: Generation) -> list[int]:
  """Returns the tokens of every round of every row."""
  ends = [len(ids) for ids in generation.token_ids]
  return [
      int(after - before)
      for starts, end in zip(generation.round_starts, ends, strict=True)
      for before, after in zip(starts, [*starts[1:], end], strict=True)
  ]


def write(
    workdir: results.Workdir,
    found: dict[str, Any],
    settings: Mapping[str, DrafterConfig],
    *,
    foreseen: Foreseen | None,
    note: str,
    plot: str,
    again: str,
) -> None:
  """Writes and prints what was found.

  Args:
    workdir: of the run.
    found: the results.
    settings: drafters by the names of their rows, plain first.
    foreseen: of those with a prediction, if anything was predicted.
    note: on what the answers are worth, or ''.
    plot: config.bench.plot.
    again: 'yes' where an earlier run had measured all there is.
  """
  rows = found['rows']
  for row in rows:
    workdir.metric(row)
  workdir.finish(found)
  said = text(rows, foreseen) + (f'{note}\n' if note else '')
  results.write_text(workdir.path / 'results.md', said)
  results.write_text(workdir.path / 'results.csv', report.csv(rows))
  _draw(workdir, found, settings, plot)
  if again == 'yes':
    said += (
        f'\nAll of this was measured before, on {found["env/date"]} at commit '
        f'{found["env/commit"] or "unknown"}; name another --workdir to '
        'measure again.\n'
    )
  results.say(said)


def text(rows: Sequence[dict[str, Any]], foreseen: Foreseen | None) -> str:
  """Returns results.md.

  Args:
    rows: of the results, plain first.
    foreseen: of those with a prediction, if anything was predicted.
  """
  header = [name for name, _ in _TIMES]
  cells = [
      [row['row/name'], *(_cell(row.get(key)) for _, key in _TIMES)]
      for row in rows
  ]
  times = report.table(['setting', *header], cells)
  tables = f'{measure.table(rows)}\n{times}\n\n{_quality(rows)}'
  return tables + _sentences(rows, foreseen)


def _quality(rows: Sequence[dict[str, Any]]) -> str:
  """Returns a table of what answers are worth, '' where nothing is known."""
  names = [key for key in rows[0] if f'{key}_low' in rows[0]]
  names = [key for key in names if key.startswith(_QUALITY)]
  if not names:
    return ''

  def cell(row: dict[str, Any], key: str) -> str:
    low, high = row[f'{key}_low'], row[f'{key}_high']
    ends = '' if low is None else f' ({low:.3f}-{high:.3f})'
    return f'{row[key]:.3f}{ends}'

  header = ['setting', *(key.removeprefix(_QUALITY) for key in names)]
  cells = [[r['row/name'], *(cell(r, key) for key in names)] for r in rows]
  return report.table(header, cells) + '\n\n'


def _cell(value: float | None) -> object:
  return '' if value is None else value


def _sentences(
    rows: Sequence[dict[str, Any]], foreseen: Foreseen | None
) -> str:
  """Returns lines on every setting: why it is fast, and what was foreseen."""
  lines, best = [], iter(foreseen.best if foreseen else ())
  for row in rows:
    is_plain = row['row/drafter'] == 'none'
    if not is_plain:
      lines += [measure.reason(row), *retrieved.sentences(row)]
    lines.append(explain.floor_sentence(row))
    if 'speedup/predicted' not in row:
      continue
    if 'speedup/oracle' in row:
      lines.append(explain.oracle_sentence(row))
    lines.append(row['speedup/reason'])
    lines.append(predict.verdict(row, most=next(best).most))
  return ''.join(f'{line}\n' for line in lines)


def series_of(
    settings: Mapping[str, DrafterConfig], rows: Sequence[dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
  """Returns the rows of every drafter, which differ in their length alone.

  Args:
    settings: drafters by the names of their rows.
    rows: of the results.

  Returns:
    By name of the row where a drafter has one length, else by what its drafter
    is called, or by the first of its rows where that is another's.
  """
  by_drafter: dict[DrafterConfig, list[dict[str, Any]]] = {}
  for row in rows:
    drafter = settings[row['row/name']]
    if not drafter.is_plain:
      by_drafter.setdefault(common.plain(drafter), []).append(row)
  found: dict[str, list[dict[str, Any]]] = {}
  for drafter, of_one in by_drafter.items():
    name = of_one[0]['row/name']
    shape = '' if drafter.shape == 'chain' else f' {drafter.shape}'
    called = f'{drafter.label}{shape}'
    is_free = len(of_one) > 1 and called not in found
    found[called if is_free else name] = of_one
  return found


def _draw(
    workdir: results.Workdir,
    found: dict[str, Any],
    settings: Mapping[str, DrafterConfig],
    wanted: str,
) -> None:
  """Draws plot.png, if it is wanted and can be."""
  plain, *rows = found['rows']
  if wanted == 'no' or not rows or not results.is_first_host():
    return
  if not plot_lib.is_available():
    logging.info("No plot.png: matplotlib comes with the extra 'train'.")
    return
  plots.draw(
      workdir.path / 'plot.png',
      plain,
      series_of(settings, rows),
      title=(
          f'{plain["row/prompts"]}, {plain["row/sampler"]}, batch '
          f'{plain["row/batch"]}: {found["env/device_kind"]}, '
          f'{found["env/dtype"]}, jax {found["env/jax"]}, {found["env/date"]}'
      ),
  )
