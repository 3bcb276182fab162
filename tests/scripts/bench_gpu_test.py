"""What rounds cost with models of real shapes, on a CPU with tiny ones."""

import importlib
import json
import math
import pathlib
import sys
import types

import jax
import pytest

from speculative.models import llama
from speculative.models import params as params_lib
from speculative.testing import set_acceptance

_ROOT = pathlib.Path(__file__).parents[2]
# So that a right coin fails once in two million runs.
_SIGMAS = 5


@pytest.fixture
def script(monkeypatch) -> types.ModuleType:
  """The script as a module."""
  monkeypatch.setattr(sys, 'dont_write_bytecode', True)
  monkeypatch.syspath_prepend(str(_ROOT / 'scripts'))
  return importlib.import_module('bench_gpu')


@pytest.fixture
def parts(script) -> types.ModuleType:
  """What runs its parts."""
  return script.parts_lib


@pytest.fixture
def models(script) -> types.ModuleType:
  """What makes its models."""
  return script.models_lib


def _clock(*seconds: float):
  times = iter(seconds)
  return lambda: next(times)


def test_parts_that_no_longer_fit_are_left_out_by_name(parts, tmp_path):
  made = [parts.Part(name, lambda n=name: [{'row/name': n}]) for name in 'abcd']
  # Starts and ends: a takes 6, and c, of which as much is to be feared, is not
  # begun at 15 of 20; neither is d.
  outcome = parts.run_parts(
      made, tmp_path, limit_s=20, clock=_clock(0, 6, 6, 8, 15, 15)
  )
  assert [row['row/name'] for row in outcome.rows] == ['a', 'b']
  assert outcome.left_out == ['c', 'd']
  assert not outcome.failed


def test_a_part_is_taken_to_need_as_long_as_those_of_its_kind(parts, tmp_path):
  made = [
      parts.Part(name, lambda n=name: [{'row/name': n}])
      for name in ('long.1', 'short.1', 'long.2', 'short.2')
  ]
  outcome = parts.run_parts(
      made, tmp_path, limit_s=20, clock=_clock(0, 9, 9, 11, 15, 15, 17)
  )
  assert outcome.left_out == ['long.2']
  assert [row['row/name'] for row in outcome.rows][-1] == 'short.2'


def test_a_part_that_was_measured_keeps_its_rows_and_day(
    parts, tmp_path, monkeypatch
):
  calls = []

  def run():
    calls.append(1)
    return [{'row/name': 'a', 'time/round_ms': 0.5}]

  for day in ('2026-01-02', '2026-01-03'):
    monkeypatch.setattr(parts, '_today', lambda day=day: day)
    outcome = parts.run_parts(
        [parts.Part('a', run)], tmp_path, limit_s=9, clock=lambda: 0.0
    )
    assert outcome.rows == [
        {'row/name': 'a', 'time/round_ms': 0.5, 'env/date': '2026-01-02'}
    ]
  assert len(calls) == 1
  assert [path.name for path in tmp_path.iterdir()] == ['a.json']


def test_a_file_is_replaced_whole_or_not_at_all(parts, tmp_path, monkeypatch):
  path = tmp_path / 'results.json'
  parts.write_text(path, 'old')

  def fail(source, place):
    raise OSError

  with monkeypatch.context() as patch:
    patch.setattr(parts.os, 'replace', fail)
    with pytest.raises(OSError):
      parts.write_text(path, 'new')
  assert path.read_text() == 'old'
  parts.write_text(path, 'new')
  assert path.read_text() == 'new'


@pytest.mark.parametrize(
    'message, why',
    [
        (
            'RESOURCE_EXHAUSTED: too large\nand more',
            'RESOURCE_EXHAUSTED: too large',
        ),
        ('', 'JaxRuntimeError'),
    ],
)
def test_a_part_that_fails_says_why_and_the_rest_goes_on(
    parts, tmp_path, message, why
):
  def fail():
    raise jax.errors.JaxRuntimeError(message)

  made = [parts.Part('a', fail), parts.Part('b', lambda: [{'row/name': 'b'}])]
  outcome = parts.run_parts(made, tmp_path, limit_s=9, clock=lambda: 0.0)
  assert outcome.failed == {'a': why}
  assert [row['row/name'] for row in outcome.rows] == ['b']
  # It is tried again by the next call.
  assert not (tmp_path / 'a.json').exists()


def test_what_follows_from_several_rows_is_worked_out(parts):
  rows = [
      {'row/name': 'reading', 'device/read_bytes_per_s': 1e9},
      {
          'row/name': 'plain',
          'row/batch': 2,
          'time/round_ms': 4.0,
          'decode/tokens_per_s': 500.0,
          'decode/step_bytes': 3_000_000,
      },
      {'row/name': 'chain', 'row/batch': 2, 'decode/tokens_per_s': 750.0},
      {'row/name': 'chain', 'row/batch': 4, 'decode/tokens_per_s': 750.0},
      {'row/name': 'pass of 5', 'pass/positions': 5, 'time/pass_ms': 3.0},
      {'row/name': 'pass of 1', 'pass/positions': 1, 'time/pass_ms': 2.0},
  ]
  _, plain, chain, larger, five, one = parts.derived(rows)
  assert plain['decode/bandwidth_floor_ms'] == pytest.approx(3.0)
  assert plain['decode/bandwidth_share'] == pytest.approx(0.75)
  assert 'decode/against_plain' not in plain
  assert chain['decode/against_plain'] == pytest.approx(1.5)
  assert 'decode/against_plain' not in larger
  assert (five['pass/ratio'], one['pass/ratio']) == (1.5, 1.0)


def test_the_large_shapes_have_the_sizes_they_are_named_after(models):
  shape = models.SHAPES['8b']
  sizes = {
      name: params_lib.num_params(config)
      for name, config in {'target': shape.target, **shape.drafts}.items()
  }
  assert shape.target == llama.LLAMA3_8B
  assert sizes == {
      'target': 8_030_261_248,
      '1B': 1_235_814_400,
      '3 wide layers': 1_179_676_672,
  }
  assert sorted(shape.batches) == [1, 2, 4, 8, 16, 32, 64]
  assert {1, 65} <= set(shape.positions)


def test_weights_are_those_of_the_declaration_and_differ(models, key):
  config = models.SHAPES['tiny'].target
  made = models.random_params(key, config, jax.numpy.bfloat16)
  wanted = jax.eval_shape(
      lambda: params_lib.init(key, config, jax.numpy.bfloat16)
  )
  assert jax.tree.map(lambda x: (x.shape, x.dtype), made) == jax.tree.map(
      lambda x: (x.shape, x.dtype), wanted
  )
  first, second = (layer['q_proj'] for layer in made['layers'])
  assert (first != second).any()
  scaled = first.astype('float32') * math.sqrt(config.model_dim)
  assert 0.9 < float(scaled.std()) < 1.1


@pytest.mark.parametrize(
    'flags, message',
    [
        (['--shape=9b'], 'invalid choice'),
        (['--minutes=0'], '--minutes needs to be > 0, got 0'),
        (['--acceptance=1.5'], '--acceptance needs to be in 0 to 1, got 1.5'),
        (['--peer=vllm'], 'invalid choice'),
        # bench_gpu.sh would not read it.
        (['--shap=tiny'], 'unrecognized arguments: --shap=tiny'),
    ],
)
def test_flags_that_cannot_be_followed_are_refused(
    script, capsys, flags, message
):
  with pytest.raises(SystemExit):
    script.main(flags)
  assert message in capsys.readouterr().err


_CPU = {'env/platform': 'cpu', 'env/device_kind': 'cpu', 'env/jax': '0'}


def test_large_shapes_are_refused_on_a_cpu(script, monkeypatch, tmp_path):
  monkeypatch.setattr(script, 'probe', lambda: _CPU)
  with pytest.raises(SystemExit, match='--shape=8b needs an accelerator'):
    script.main([f'--out={tmp_path}'])
  assert not list(tmp_path.iterdir())


def test_parts_of_other_settings_are_not_gone_on_with(script, tmp_path):
  folder = script.begin(tmp_path, {'seed': 0})
  # Nothing was measured yet.
  script.begin(tmp_path, {'seed': 1})
  (folder / 'a.json').write_text('[]')
  script.begin(tmp_path, {'seed': 1})
  with pytest.raises(script.UserError, match=r'\(seed\); choose another --out'):
    script.begin(tmp_path, {'seed': 0})


def test_parts_of_another_peer_are_not_gone_on_with(script, tmp_path):
  def begin(**versions):
    return script.begin(tmp_path, {'seed': 0, 'env/peer': versions})

  folder = begin(torch='1')
  (folder / 'plain.batch1.json').write_text('[]')
  # It has measured nothing yet.
  begin(torch='2')
  (folder / 'transformers.batch1.json').write_text('[]')
  begin()
  begin(torch='2')
  with pytest.raises(script.UserError, match=r'\(env/peer\)'):
    begin(torch='1')


def test_the_table_shows_the_day_of_every_row(script):
  rows = [
      {'row/name': 'plain', 'row/batch': b, 'env/date': f'2026-01-0{b}'}
      for b in (1, 2)
  ]
  failed = {'a': 'too large', 'b': 'too slow', 'c': 'too large'}
  text = script.markdown(
      _CPU
      | {'settings': {'shape': 'tiny'}, 'env/jaxlib': '0', 'left_out': []}
      | {'env/platform_version': '0', 'env/speculative': '9'}
      | {'rows': rows, 'failed': failed}
  )
  assert 'speculative 9' in text
  assert 'Not measured: a, c: too large.\nNot measured: b: too slow.' in text
  *_, first, second = text.splitlines()
  assert '| 2026-01-01 |' in first and '| 2026-01-02 |' in second


@pytest.mark.slow
@pytest.mark.statistical
def test_the_tiny_shape_is_measured_and_gone_on_with(script, tmp_path, capsys):
  flags = ['--shape=tiny', f'--out={tmp_path}', '--peer=transformers']
  script.main(flags)
  out = capsys.readouterr().out
  found = json.loads((tmp_path / 'results.json').read_text())
  assert not found['left_out'] and found['env/jaxlib']
  assert all(row['env/date'] for row in found['rows'])
  # There is no environment for it, and the rest went on.
  names = ['transformers.batch1', 'transformers.batch4']
  assert list(found['failed']) == names
  assert f'Not measured: {", ".join(names)}: there is no environment' in out
  assert found['label'] == set_acceptance.LABEL
  rows = {(row['row/name'], row.get('row/batch')): row for row in found['rows']}
  assert list(rows) == [
      ('reading', None),
      ('plain', 1),
      ('chain of 4, draft small', 1),
      ('chain of 4, draft 1 wide layer', 1),
      ('64-node tree, drafts free', 1),
      ('pass of 1', 1),
      ('pass of 5', 1),
      ('pass of 65', 1),
      ('plain', 4),
      ('chain of 4, draft small', 4),
  ]
  drafted = [row for row in found['rows'] if 'row/num_draft_tokens' in row]
  assert [row['row/num_draft_tokens'] for row in drafted] == [4, 4, 64, 4]
  for row in drafted:
    assert row['row/label'] == set_acceptance.LABEL
    tested, rate = row['decode/tested'], row['decode/set_acceptance_rate']
    by = _SIGMAS * math.sqrt(rate * (1 - rate) * tested)
    assert abs(row['decode/accepted'] - rate * tested) <= by
    assert row['decode/tokens_per_round'] > 1.5
    assert row['time/round_ms'] > 0 and row['decode/against_plain'] > 0
  assert rows['plain', 1]['decode/bandwidth_share'] > 0
  assert rows['pass of 1', 1]['pass/ratio'] == 1
  # The table comes last, and every row of a draft says what it is.
  table = [line for line in out.splitlines() if line.startswith('|')]
  assert out.splitlines()[-len(table) :] == table
  assert sum(set_acceptance.LABEL in line for line in table) == len(drafted)
  assert (tmp_path / 'results.md').read_text() == out

  # One part again: the same seed keeps the same tokens, the rest is as it was.
  part = tmp_path / 'parts' / 'tree.batch1.json'
  (before,) = json.loads(part.read_text())
  part.unlink()
  others = {path: path.stat().st_mtime_ns for path in part.parent.iterdir()}
  script.main(flags)
  (after,) = json.loads(part.read_text())
  counted = ('decode/accepted', 'decode/tested', 'decode/tokens_per_round')
  assert [after[key] for key in counted] == [before[key] for key in counted]
  assert {path: path.stat().st_mtime_ns for path in others} == others
  with pytest.raises(SystemExit, match='another device, version or setting'):
    script.main([*flags, '--seed=1'])


def test_the_command_passes_its_flags_on(machine):
  ours = machine.add_python('3.12.0')
  done = machine.run(
      str(machine.checkout / 'scripts' / 'bench_gpu.sh'),
      '--shape=tiny',
      '--minutes=1',
      OURS_PYTHON=str(ours),
  )
  assert (done.returncode, done.stderr) == (0, '')
  (call,) = machine.take_calls('bench_gpu.py')
  assert call.endswith('--shape=tiny --minutes=1 --peer-python=')


@pytest.mark.parametrize(
    'flags, venv',
    [
        (['--shape=tiny'], '.venv'),
        (['--shape', 'tiny'], '.venv'),
        (['--peer=none'], '.venv-cuda'),
        (['--peer', 'none'], '.venv-cuda'),
    ],
    ids=['tiny', 'tiny apart', '8b', '8b apart'],
)
def test_the_command_makes_the_environment_of_the_shape(machine, flags, venv):
  machine.add_python('3.12.0')
  done = machine.run(str(machine.checkout / 'scripts' / 'bench_gpu.sh'), *flags)
  assert done.returncode == 0, done.stderr
  assert (machine.checkout / venv).is_dir()
  (install,) = machine.take_calls('pip install')
  assert install.endswith('[cuda]') == (venv == '.venv-cuda')


def test_without_the_peers_environment_the_rest_goes_on(machine):
  ours = machine.add_python('3.12.0', pip_says='No matching distribution')
  done = machine.run(
      str(machine.checkout / 'scripts' / 'bench_gpu.sh'),
      OURS_PYTHON=str(ours),
  )
  assert done.returncode == 0, done.stderr
  (call,) = machine.take_calls('bench_gpu.py')
  assert call.endswith('--peer-python=')
