"""The tables of `speculative.calibration`, the comparison with Chen et al."""

from collections.abc import Sequence

from speculative import calibration
from speculative.bench import report

# The two fits to the same 14.1 ms differ, and stand in one file.
_COUNTED = (
    'The account of Chen et al. 2023, counted by hand: the weights and the '
    'all-reduces of the layers alone, no cache and no collectives of embedding '
    'or sampling. Its latency, fitted to the same time, is therefore a little '
    'longer than that of a plan, which counts all of these.'
)


def render(numbers: calibration.Account) -> str:
  """Returns the comparison as Markdown tables."""
  steps = report.table(
      ['one step on 16 TPU v4, ms', 'model', 'paper', 'how'],
      _step_rows(numbers),
  )
  implied = report.table(
      [
          'Table 1, K = 4',
          'ms',
          'alpha',
          'best K',
          'ms there',
          'ms at K = 3',
          'below the floor of',
      ],
      [
          [
              i.name,
              i.token_ms,
              f'{i.alpha:.3f}',
              i.best_k,
              i.best_ms,
              i.ms_at_3,
              ' and '.join(i.floors_beaten) or 'none',
          ]
          for i in numbers.implied
      ],
  )
  deep = report.table(
      [
          'a deep draft, ms',
          '4 chips',
          '16 chips',
          'two fits: 4',
          '16',
          'latency among 4 for 5 ms, us',
      ],
      [
          [
              s.name,
              s.on_4_ms,
              s.on_16_ms,
              s.two_fits_on_4_ms,
              s.two_fits_on_16_ms,
              s.latency_on_4_us,
          ]
          for s in numbers.deep_drafts
      ]
      + [['paper', calibration.DEEP_DRAFT_MS, 'more', '', '', '']],
  )
  return '\n\n'.join([_COUNTED, steps, implied, deep]) + '\n'


def _step_rows(numbers: calibration.Account) -> Sequence[Sequence[object]]:
  billions = numbers.target_params / 1e9
  return [
      [
          f'floor, {billions:.1f}B in bfloat16',
          numbers.weights_ms,
          '',
          'weights over bandwidth',
      ],
      ['floor, 70B in bfloat16', numbers.nominal_floor_ms, '', 'the same'],
      [
          'plain',
          calibration.PLAIN_MS,
          calibration.PLAIN_MS,
          f'fit: {numbers.latency_us:.1f} us an all-reduce',
      ],
      ['verification, 5 positions', numbers.verify_ms, '', 'predicted'],
      [
          'draft',
          numbers.draft_ms,
          calibration.DRAFT_MS,
          f'predicted, {100 * numbers.draft_error:+.0f} %',
      ],
      [
          'plain and draft',
          f'{calibration.PLAIN_MS} and {calibration.DRAFT_MS}',
          'the same',
          f'fit of two: {numbers.two_fits_latency_us:.1f} us an all-reduce and '
          f'{numbers.two_fits_step_ms:.2f} ms a step',
      ],
  ]
