"""Tables of runs in a directory, and how they ran."""

import importlib
import json
import pathlib
import types

import pytest

_SCRIPTS = pathlib.Path(__file__).parents[2] / 'scripts'
_ENV = {
    'env/date': '2000-01-01',
    'env/jax': '0',
    'env/device_kind': 'cpu',
    'env/cpu_count': 2,
    'env/dtype': 'float32',
}


@pytest.fixture
def script(monkeypatch) -> types.ModuleType:
  """The script as a module."""
  monkeypatch.syspath_prepend(str(_SCRIPTS))
  return importlib.import_module('bench_rows')


@pytest.fixture
def runs(tmp_path) -> pathlib.Path:
  """A directory of three runs, one over all prompts there are."""
  for name, num in (('a', 40), ('b', 40), ('c', 0)):
    config = {
        'data': {'prompts': 'x/Some.jsonl.gz', 'num_prompts': num},
        'decode': {'max_new_tokens': 128},
        'bench': {'repeats': 3},
    }
    (tmp_path / name).mkdir()
    (tmp_path / name / 'config.json').write_text(json.dumps(config))
    (tmp_path / name / 'results.json').write_text(json.dumps(_ENV))
  return tmp_path


def test_steps_that_are_not_named_are_left_out(script, runs):
  assert list(script.read(runs)) == ['a', 'b', 'c']
  assert list(script.read(runs, ['c', 'a', 'd'])) == ['a', 'c']


def test_steps_that_ran_alike_are_told_together(script, runs):
  said = script.provenance(runs, script.read(runs)).splitlines()
  env = '2000-01-01, jax 0, cpu, 2 cores, float32; '
  what = 'prompts of Some.jsonl.gz, 128 tokens, 3 timed runs'
  assert said == [f'a, b: {env}40 {what}', f'c: {env}all {what}']


def test_a_table_leaves_empty_what_a_row_lacks(script):
  columns = (('x', 'a', '.2f'), ('same', 'b', ''))
  lines = script.table(columns, [{'a': 1.234}, {'b': True}]).splitlines()
  assert [line.replace(' ', '') for line in lines[2:]] == ['|1.23||', '||yes|']
