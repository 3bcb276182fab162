"""What rounds cost with models of real shapes, on a CPU with tiny ones."""

import importlib
import json
import math
import pathlib
import stat
import subprocess
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


def test_a_part_that_was_measured_is_not_measured_again(parts, tmp_path):
  calls = []

  def run():
    calls.append(1)
    return [{'row/name': 'a', 'time/round_ms': 0.5}]

  for _ in range(2):
    outcome = parts.run_parts(
        [parts.Part('a', run)], tmp_path, limit_s=9, clock=lambda: 0.0
    )
    assert outcome.rows == [{'row/name': 'a', 'time/round_ms': 0.5}]
  assert len(calls) == 1


def test_a_part_that_fails_says_why_and_the_rest_goes_on(parts, tmp_path):
  def fail():
    raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: too large\nand more')

  made = [parts.Part('a', fail), parts.Part('b', lambda: [{'row/name': 'b'}])]
  outcome = parts.run_parts(made, tmp_path, limit_s=9, clock=lambda: 0.0)
  assert outcome.failed == {'a': 'RESOURCE_EXHAUSTED: too large'}
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
  with pytest.raises(script.UserError, match='choose another --out'):
    script.begin(tmp_path, {'seed': 0})


def _peer(path: pathlib.Path, says: str) -> str:
  """Writes what poses as the peer's Python."""
  path.write_text(f'#!/usr/bin/env bash\n{says}\n')
  path.chmod(path.stat().st_mode | stat.S_IXUSR)
  return str(path)


@pytest.mark.parametrize(
    'says, message',
    [
        ('echo "torch sees no GPU" >&2; exit 1', 'torch sees no GPU'),
        ('exit 3', 'it says nothing'),
        ('exec sleep 9', 'nothing within 1 s'),
    ],
)
def test_a_peer_that_cannot_be_had_is_named(
    script, parts, tmp_path, says, message
):
  python = _peer(tmp_path / 'python', says)
  args = script.parse_args(['--shape=tiny', f'--peer-python={python}'])
  with pytest.raises(parts.Unmeasured, match=message):
    script.peer_rows(args, platform='cpu', timeout_s=1)


def test_what_the_peer_measured_before_its_time_was_up_counts(script, tmp_path):
  one = '{"batch": 1, "tokens_per_s": 5.0, "versions": {"torch": "2"}}'
  python = _peer(
      tmp_path / 'python', f"echo '{one}'; printf '{{\"batch'; exec sleep 9"
  )
  args = script.parse_args(['--shape=tiny', f'--peer-python={python}'])
  rows = script.peer_rows(args, platform='cpu', timeout_s=2)
  assert [(r['row/batch'], r['decode/tokens_per_s']) for r in rows] == [(1, 5)]


def test_the_shape_is_told_as_transformers_names_it(script, models):
  fields = script.llama_fields(models.SHAPES['8b'].drafts['1B'])
  # Of Llama 3.2 1B's config.json.
  assert fields['hidden_size'] == 2048 and fields['num_hidden_layers'] == 16
  assert fields['intermediate_size'] == 8192 and fields['head_dim'] == 64
  assert fields['tie_word_embeddings'] and fields['rope_theta'] == 500_000.0


@pytest.mark.slow
@pytest.mark.statistical
def test_the_tiny_shape_is_measured_and_gone_on_with(script, tmp_path, capsys):
  flags = ['--shape=tiny', f'--out={tmp_path}', '--peer=transformers']
  script.main(flags)
  out = capsys.readouterr().out
  found = json.loads((tmp_path / 'results.json').read_text())
  assert not found['left_out'] and found['env/date'] and found['env/jaxlib']
  # There is no environment for it, and the rest went on.
  assert list(found['failed']) == ['transformers']
  assert 'Not measured: transformers: there is no environment' in out
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
    [(['--shape=tiny'], '.venv'), (['--peer=none'], '.venv-cuda')],
    ids=['tiny', '8b'],
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


def test_the_peer_is_valid_python_and_needs_no_package_of_ours():
  path = _ROOT / 'scripts' / 'bench_gpu_peer.py'
  done = subprocess.run(
      [sys.executable, '-m', 'py_compile', str(path)],
      capture_output=True,
      text=True,
      check=False,
  )
  assert done.returncode == 0, done.stderr
  assert 'import speculative' not in path.read_text()
