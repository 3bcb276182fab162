"""What task `verify` found, as keys and as text."""

from collections.abc import Sequence
import dataclasses

from speculative.bench import metrics
from speculative.bench import report
from speculative.tasks.verify_cases import Budget
from speculative.tasks.verify_cases import Outcome


def row_of(outcome: Outcome) -> dict:
  """Returns the flat result object of one case."""
  worst = min(outcome.laws, key=lambda test: test.p_value, default=None)
  row = {
      'row/name': outcome.case.name,
      'verify/passed': outcome.passed,
      'verify/rows_equal': outcome.num_equal,
      'verify/rows_differ': len(outcome.divergences),
      'decode/tokens_per_round': metrics.decode_metrics(outcome.generations)[
          'decode/tokens_per_round'
      ],
  }
  if outcome.batching is not None:
    row |= {
        'verify/batching_equal': outcome.batching.num_equal,
        'verify/batching_differ': outcome.batching.num_differ,
        'verify/first_batching_difference': next(
            map(dataclasses.asdict, outcome.batching.differences), None
        ),
    }
  if worst is not None:
    row |= {
        'verify/statistic': worst.statistic,
        'verify/degrees': worst.degrees,
        'verify/p_value': worst.p_value,
        'verify/impossible': sum(test.impossible for test in outcome.laws),
        'verify/samples': worst.num_samples,
        'verify/smallest_bias': max(t.smallest_bias for t in outcome.laws),
    }
  return row


def text(
    outcomes: Sequence[Outcome],
    rows: Sequence[dict],
    budget: Budget,
    *,
    fault: str,
    num_tokens: int,
    tokens_per_round: float,
) -> str:
  """Returns the report as Markdown.

  Args:
    outcomes: one a case.
    rows: their result objects.
    budget: how much was decoded, and the rate of false alarms of one law.
    fault: the verifier that was put in place, or ''.
    num_tokens: decoded for comparison.
    tokens_per_round: of these.
  """
  divergences = [d for outcome in outcomes for d in outcome.divergences]
  passed = all(outcome.passed for outcome in outcomes)
  num_laws = sum(len(outcome.laws) for outcome in outcomes)
  lines = [
      table(rows),
      '',
      f'{"passed" if passed else "FAILED"}: {len(outcomes)} cases, '
      f'{num_tokens} tokens, {len(divergences)} rows differ'
      f'{_said_of_laws(outcomes, budget)}{_said_of_batching(rows)}, '
      f'{tokens_per_round:.2f} tokens per round',
  ]
  if num_laws:
    lines.append(
        'A right verifier would fail this once in '
        f'{1 / (num_laws * budget.false_alarm_rate):.0f} runs with other seeds.'
    )
  if fault:
    lines.append(f'The verifier was wrong on purpose: {fault}.')
  lines += [f'Left plain decoding: {found}' for found in divergences[:8]]
  return '\n'.join(lines) + '\n'


def _said_of_laws(outcomes: Sequence[Outcome], budget: Budget) -> str:
  """Returns ', 3 laws tested', or that those of rows that draw were not."""
  if not budget.num_samples and any(o.case.num_laws for o in outcomes):
    return ', laws not tested (config.verify.num_samples is 0)'
  return f', {sum(len(o.laws) for o in outcomes)} laws tested'


def _said_of_batching(rows: Sequence[dict]) -> str:
  """Returns ', 1 of 50 rows differ in batches', '' where not asked for."""
  if 'verify/batching_differ' not in rows[0]:
    return ''
  differ = sum(row['verify/batching_differ'] for row in rows)
  total = differ + sum(row['verify/batching_equal'] for row in rows)
  return f', {differ} of {total} rows differ in batches'


def table(rows: Sequence[dict]) -> str:
  columns = {
      'case': lambda row: row['row/name'],
      'equal': lambda row: row['verify/rows_equal'],
      'differ': lambda row: row['verify/rows_differ'],
      'alone = in batches': _batching_cell,
      'statistic': lambda row: row.get('verify/statistic', ''),
      'degrees': lambda row: row.get('verify/degrees', ''),
      'p-value': lambda row: _digits(row, 'verify/p_value', '.2g'),
      'samples': lambda row: row.get('verify/samples', ''),
      'smallest bias': lambda row: _digits(row, 'verify/smallest_bias', '.3f'),
      '': lambda row: 'passed' if row['verify/passed'] else 'FAILED',
  }
  if 'verify/batching_equal' not in rows[0]:
    del columns['alone = in batches']
  return report.table(
      list(columns), [[cell(row) for cell in columns.values()] for row in rows]
  )


def _batching_cell(row: dict) -> str:
  """Returns '49 of 50'."""
  equal = row['verify/batching_equal']
  return f'{equal} of {equal + row["verify/batching_differ"]}'


def _digits(row: dict, key: str, form: str) -> str:
  return format(row[key], form) if key in row else ''
