"""What is measured of retrieved drafts, and the tables made of it."""

import importlib
import json
import pathlib
import re
import types

import pytest

from speculative import config as config_lib
from speculative.tasks import benchmark_settings

_SCRIPTS = pathlib.Path(__file__).parents[2] / 'scripts'


@pytest.fixture
def script(monkeypatch) -> types.ModuleType:
  """The script as a module."""
  monkeypatch.syspath_prepend(str(_SCRIPTS))
  return importlib.import_module('bench_rest')


def _row(name, tokens_per_round=1.5, **others):
  return {
      'row/name': name,
      'row/prompts': 'HumanEval',
      'row/sampler': others.pop('sampler', 'greedy'),
      'decode/tokens_per_s': 30.0,
      'decode/tokens_per_round': tokens_per_round,
      'decode/draft_yield': 0.25,
      'speedup/measured': 1.25,
      **others,
  }


def _retrieved(name, tokens=2_000_000, **others):
  keys = {
      'retrieval/matched_len': 2.5,
      'retrieval/matched_len_histogram': [0.5, 0.25, 0.25],
      'retrieval/share_of_round': 0.031,
      'datastore/tokens': tokens,
      'lossless/greedy_equal': True,
  }
  return _row(name, **(keys | others))


def _results(*rows):
  plain = _row('plain', tokens_per_round=1.0)
  return {'env/jax': '0', 'env/device_kind': 'cpu', 'rows': [plain, *rows]}


_FOUND = {
    'code.greedy': _results(_row('look-up 4'), _retrieved('datastore 7')),
    'code.greedy.cascade': _results(_row('cascade 4')),
    'study': _results(
        _retrieved('nodes 24', tokens_per_round=1.7),
        _retrieved('nodes 7', tokens_per_round=1.6),
        _retrieved('random 7', tokens_per_round=1.4),
        _retrieved('longest 2', tokens_per_round=1.3),
    ),
    'size.b.store.12': _results(_retrieved('nodes 24', tokens=125_000)),
}


def test_every_step_has_its_own_plain_decoding(script):
  rows = script.main_rows(_FOUND)
  assert [(row['row/step'], row['row/name']) for row in rows] == [
      ('code.greedy', 'plain'),
      ('code.greedy', 'look-up 4'),
      ('code.greedy', 'datastore 7'),
      ('code.greedy.cascade', 'plain'),
      ('code.greedy.cascade', 'cascade 4'),
  ]


def test_studies_are_in_order_and_share_the_usual_setting(script):
  found = {
      name: [(x, row['decode/tokens_per_round']) for x, row in points]
      for name, points in script.studies(_FOUND).items()
  }
  assert found == {
      'nodes': [(7, 1.6), (24, 1.7)],
      'random': [(7, 1.4)],
      'shorter': [],
      'longest': [(2, 1.3), (16, 1.7)],
      'size': [(0.125, 1.5), (2.0, 1.7)],
  }


def _cells(line):
  return [cell.strip() for cell in line.strip('|').split('|')]


def test_tables_leave_empty_what_a_row_lacks(script):
  lines = [_cells(line) for line in script.tables(_FOUND).splitlines()]
  assert lines[4] == (
      ['code.greedy', 'HumanEval', 'greedy', 'datastore 7', '30.0', '1.50', '']
      + ['0.25', '2.5', '', '3.1%', '1.25', '', 'yes']
  )
  assert ['0.125', '1.50', '', '0.25', '1.25'] in lines
  assert lines[-1] == ['datastore 7', '50.0%', '25.0%', '25.0%']


def test_a_part_of_the_runs_has_tables_too(script):
  said = script.tables({'code.greedy': _results(_row('look-up 4'))})
  rules = [line for line in said.splitlines() if line.startswith('|--')]
  assert len(rules) == 1


@pytest.mark.slow
@pytest.mark.parametrize('found', [_FOUND, {}], ids=['all', 'none'])
def test_runs_are_drawn(script, tmp_path, found):
  pytest.importorskip('matplotlib')
  script.draw(tmp_path / 'rest.png', found)
  assert [p.name for p in tmp_path.iterdir()] == ['rest.png']
  assert (tmp_path / 'rest.png').read_bytes()[:4] == b'\x89PNG'


def test_prompts_of_middle_length_are_picked_in_their_order(script, tmp_path):
  texts = ['aaa', 'a', 'aaaa', 'aa', 'aaaaaaaaa']
  rows = [json.dumps({'prompt': text, 'n': 1}) + '\n' for text in texts]
  (tmp_path / 'all.jsonl').write_text(''.join(rows))
  out = tmp_path / 'some.jsonl'
  script.main(['', 'pick', str(tmp_path / 'all.jsonl'), '3', str(out)])
  assert out.read_text() == rows[0] + rows[2] + rows[3]


def _command(machine, *flags):
  for name in ('a.store', 'b.store', 'c.jsonl', 'd.jsonl'):
    (machine.home / name).touch()
  script = f'{machine.checkout}/scripts/bench_rest.sh'
  return script, '--store=a.store', '--code=c.jsonl', '--out=out', *flags


def _steps(calls):
  """Returns the calls that measure, by the names of their steps."""
  runs = [call for call in calls if '-m speculative.run' in call]
  return {call.split('--workdir=out/')[1].split()[0]: call for call in runs}


def test_every_step_is_a_run_with_its_settings(machine):
  python = machine.add_python('3.99.0')
  command = _command(
      machine, '--size-store=b.store', '--config.bench.repeats=2'
  )
  done = machine.run(*command, OURS_PYTHON=str(python))
  assert done.returncode == 0, done.stderr
  calls = machine.take_calls('')
  steps = _steps(calls)
  names = ['code.greedy', 'code.sampled', 'study', *list(steps)[3:]]
  assert list(steps) == names
  assert re.fullmatch(r'size\.b\.store\.\d+', names[3])
  code, sampled, study, size = steps.values()
  assert 'temperature=0.8' in sampled and 'temperature' not in code
  assert study.count('name=') == 6 + 2 + 5 + 2
  assert "('name=nodes 24,num_draft_tokens=24',)" in size
  assert '--config.drafter.store=b.store' in size
  # The last of a flag counts.
  assert all(run.endswith('--config.bench.repeats=2') for run in steps.values())
  assert calls[-1].endswith(f'bench_rest.py show out {" ".join(names)}')


def test_every_setting_is_one_of_the_drafter_it_changes(machine, config_of):
  python = machine.add_python('3.99.0')
  command = _command(
      machine,
      '--draft=x',
      '--cascade-draft=y',
      '--chat=d.jsonl',
      '--size-store=b.store',
  )
  done = machine.run(*command, OURS_PYTHON=str(python))
  assert done.returncode == 0, done.stderr
  steps = _steps(machine.take_calls(''))
  assert len(steps) == 2 * 2 * 2 + 2
  for name, call in steps.items():
    config = config_of(call)
    drafter = config_lib.parse(config).drafter
    settings = benchmark_settings.settings_of(config, drafter)
    assert len(settings) == 1 + len(config.bench.settings)
    if name == 'code.greedy':
      assert [d.label for d in settings.values()][-2:] == [
          'hybrid',
          'hybrid(retrieval)',
      ]
      assert settings['datastore 7'].retrieval.sources == 'store'


def test_runs_of_something_else_are_not_shown_as_these(machine):
  python = machine.add_python('3.99.0')
  command = _command(machine)
  out = machine.home / 'out'
  assert machine.run(*command, OURS_PYTHON=str(python)).returncode == 0
  (out / 'prompts.jsonl').touch()
  # Nothing has been measured yet.
  other = (*command, '--prompts=2')
  assert machine.run(*other, OURS_PYTHON=str(python)).returncode == 0
  assert not (out / 'prompts.jsonl').exists()
  (out / 'code.greedy').mkdir()
  (out / 'code.greedy' / 'results.json').touch()
  machine.take_calls('')
  assert machine.run(*other, OURS_PYTHON=str(python)).returncode == 0
  assert 'code.greedy' not in _steps(machine.take_calls(''))
  for again in (command, (*other, '--config.bench.repeats=2')):
    done = machine.run(*again, OURS_PYTHON=str(python))
    assert done.returncode == 1
    assert 'choose another --out' in done.stderr


@pytest.mark.parametrize(
    'flag, message',
    [
        ('--store=z.store', 'there is no z.store'),
        ('--size-store=z.store', 'there is no z.store'),
        ('--tokens=x', "--tokens is 'x'"),
        ('--study-prompts=', "--study-prompts is ''"),
    ],
)
def test_flags_that_cannot_be_followed_leave_nothing(machine, flag, message):
  done = machine.run(*_command(machine, flag))
  assert done.returncode == 1
  assert done.stderr.startswith(f'error: {message}')
  assert not (machine.home / 'out').exists()


def test_files_are_needed(machine):
  done = machine.run(f'{machine.checkout}/scripts/bench_rest.sh')
  assert done.returncode == 1
  assert done.stderr.startswith('error: --store=FILE and --code=FILE')
