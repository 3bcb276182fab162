import types

import numpy as np
import pytest

from speculative.bench.predict import Acceptance
from speculative.bench.predict import Best
from speculative.bench.predict import Times
from speculative.drafting.config import DrafterConfig
from speculative.errors import UserError
from speculative.tasks import benchmark_report
from speculative.tasks.predictions import Foreseen
from speculative.train import plot

# A plain step of 10 ms; a verify pass of three rows takes 7 ms more.
_FORESEEN = Foreseen(
    times=[Times(2, 10.0, [9.0, 12.0, 16.0], propose_ms=2.0, round_ms=20.0)],
    acceptance=[Acceptance(0.5, [0.5, 0.5], 1.75, num_prompts=2, spread=None)],
    best=[Best(num_draft_tokens=1, speedup=1.2, most=2)],
    num_timed=2,
)
_PLAIN = {
    'row/name': 'plain',
    'row/drafter': 'none',
    'row/shape': 'chain',
    'decode/tokens_per_s': 100.0,
    'decode/tokens_per_round': 1.0,
    'decode/sequence_p50_s': 0.5,
    'decode/times_floor': 1.25,
}
_LOOKUP = _PLAIN | {
    'row/name': 'lookup 2',
    'row/drafter': 'lookup',
    'row/num_draft_tokens': 2,
    'decode/tokens_per_round': 1.8,
    'decode/times_floor': 0.75,
    'decode/draft_yield': 0.4,
    'speedup/measured': 0.9,
}


def _row():
  return _LOOKUP | _FORESEEN.keys(0, _LOOKUP)


def _runs():
  generation = types.SimpleNamespace(
      token_ids=[[1, 2, 3, 4], [5, 6]],
      round_starts=[np.array([0, 3]), np.array([0, 1])],
  )
  return [generation]


def test_the_oracle_is_told_the_tokens_of_every_round():
  found = benchmark_report.explained(
      _row(), _FORESEEN, 0, _runs(), dtype='float32'
  )
  # Rounds brought 3, 1, 1 and 1 tokens and cost 2 plain steps each: the first
  # is cheapest as a round of one drafted token and one of none, 1.5 + 1.
  round_of_two = 0.1 + 1.3 + 0.1
  gain = 8.0 / (min(2.0, round_of_two + 1.0) + 3.0)
  assert found['speedup/oracle'] == pytest.approx(0.9 * gain)
  assert 'a verify pass of 3 rows costs 1.70 plain' in found['speedup/reason']
  assert 'use K <= 1' in found['speedup/reason']


def test_trees_have_a_reason_and_no_oracle():
  row = _row() | {'row/shape': 'tree'}
  found = benchmark_report.explained(
      row, _FORESEEN, 0, _runs(), dtype='float32'
  )
  assert set(found) == {'speedup/reason'}


def test_the_report_has_two_tables_and_a_line_for_everything_that_is_said():
  row = _row() | {'speedup/oracle': 1.35, 'speedup/reason': 'lookup 2: why.'}
  lines = benchmark_report.text([_PLAIN, row], _FORESEEN).splitlines()
  tables = [line for line in lines if line.startswith('| ')]
  assert [line.split('|')[1].strip() for line in tables] == [
      'setting',
      'plain',
      'lookup 2',
  ] * 2
  said = lines[lines.index(tables[-1]) + 2 :]
  assert [line.split(': ')[0] for line in said] == [
      'plain',
      'lookup 2',
      'lookup 2',
      'lookup 2',
      'lookup 2',
      'lookup 2, J = 2',
  ]
  assert '1.25 times' in said[0] and '0.75 times' in said[2]
  assert '1.35x, 50 % more' in said[3]
  assert said[4] == 'lookup 2: why.'


def test_lengths_of_one_drafter_are_one_series():
  settings = {
      'plain': DrafterConfig('lookup', num_draft_tokens=0),
      'lookup 2': DrafterConfig('lookup', num_draft_tokens=2),
      'far': DrafterConfig('lookup', max_ngram=8, num_draft_tokens=2),
      'lookup 4': DrafterConfig('lookup', num_draft_tokens=4),
      'farther': DrafterConfig('lookup', max_ngram=8, num_draft_tokens=6),
      'tree': DrafterConfig('retrieval', shape='tree', store='x'),
  }
  rows = [{'row/name': name} for name in settings]
  found = benchmark_report.series_of(settings, rows)
  assert {k: [r['row/name'] for r in rows] for k, rows in found.items()} == {
      'lookup': ['lookup 2', 'lookup 4'],
      # Another look-up has the name already.
      'far': ['far', 'farther'],
      'tree': ['tree'],
  }


@pytest.mark.parametrize(
    ('wanted', 'match'),
    [
        ('maybe', "config.bench.plot is 'maybe'; .*auto, yes, no"),
        ('yes', "config.bench.plot is 'yes', but matplotlib"),
    ],
)
def test_a_plot_that_cannot_be_drawn_is_refused(monkeypatch, wanted, match):
  monkeypatch.setattr(plot, 'is_available', lambda: False)
  benchmark_report.check_plot('auto')
  with pytest.raises(UserError, match=match):
    benchmark_report.check_plot(wanted)


def test_scores_stand_in_a_table_with_their_intervals():
  score = {
      'quality/pass_at_1': 0.25,
      'quality/pass_at_1_low': 0.125,
      'quality/pass_at_1_high': 0.5,
      'quality/prompts': 8,
  }
  said = benchmark_report.text([_PLAIN | score, _LOOKUP | score], None)
  (header,) = [x for x in said.splitlines() if 'pass_at_1' in x]
  assert header.split() == ['|', 'setting', '|', 'pass_at_1', '|']
  assert said.count('0.250 (0.125-0.500)') == 2
  # Of one prompt there is no interval.
  score |= {'quality/pass_at_1_low': None, 'quality/pass_at_1_high': None}
  said = benchmark_report.text([_PLAIN | score, _LOOKUP | score], None)
  assert said.count('| 0.250 ') == 2
  assert 'pass_at' not in benchmark_report.text([_PLAIN, _LOOKUP], None)


@pytest.fixture
def write(tmp_path):
  """Writes results of plain decoding and a look-up; returns their text."""

  def call(env=None, plot='no'):
    workdir = types.SimpleNamespace(
        path=tmp_path, metric=lambda row: None, finish=lambda found: None
    )
    about = {'row/prompts': 'x', 'row/sampler': 'greedy', 'row/batch': 1}
    found = {
        'env/commit': 'abc',
        'env/date': '2026-01-01',
        'env/device_kind': 'cpu',
        'env/dtype': 'float32',
        'env/jax': '1',
        'rows': [_PLAIN | about, _LOOKUP | about],
    } | (env or {})
    benchmark_report.write(
        workdir,
        found,
        {
            'plain': DrafterConfig('lookup', num_draft_tokens=0),
            'lookup 2': DrafterConfig('lookup', num_draft_tokens=2),
        },
        foreseen=None,
        note='',
        plot=plot,
        again='no',
    )
    return (tmp_path / 'results.md').read_text()

  return call


def test_parts_of_several_commits_are_told(write):
  assert 'commit' not in write()
  said = write({'env/commit': '+abc'})
  assert 'at different commits (unknown, abc)' in said.splitlines()[-1]


def test_a_plot_for_which_there_is_no_room_is_the_users_error(
    write, monkeypatch
):
  def refuse(*args, **kwargs):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(plot, 'is_available', lambda: True)
  monkeypatch.setattr(benchmark_report.plots, 'draw', refuse)
  with pytest.raises(
      UserError, match='plot.png cannot be written .No space'
  ) as e:
    write(plot='yes')
  assert '\n' not in str(e.value)
