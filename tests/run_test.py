"""Starts the command itself; mistakes behind the flags have a file apart."""

from collections.abc import Mapping
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys

import pytest

from speculative import run
from speculative.tasks.results import TaskResult

_ROOT = pathlib.Path(__file__).parent.parent
_CONFIG = '--config=configs/quickstart.py:tiny'
_WORKDIR = '--workdir={tmp}/run'

# What the command is started with: arguments, and what its one line says.
_MISTAKES = {
    'a misspelt field': (
        [_CONFIG, _WORKDIR, '--config.decode.num_draft_token=3'],
        ["'num_draft_token'", "did you mean 'num_draft_tokens'?"],
    ),
    'a misspelt group': (
        [_CONFIG, _WORKDIR, '--config.decod.top_k=3'],
        ["'decod'", "did you mean 'decode'?"],
    ),
    'a field like no other': (
        [_CONFIG, _WORKDIR, '--config.decode.zzz=3'],
        ["'zzz'", 'configs/common.py'],
    ),
    'a misspelt field in the config file': (
        ['--config={tmp}/misspelt.py', _WORKDIR],
        ["'num_draft_token'", "did you mean 'num_draft_tokens'?"],
    ),
    'a wrong type': (
        [_CONFIG, _WORKDIR, '--config.decode.top_k=many'],
        ['--config.decode.top_k=many', 'int'],
    ),
    'a misspelt flag': (
        [_CONFIG, _WORKDIR, '--workdri=x'],
        ["'workdri'", 'Did you mean: workdir'],
    ),
    'an absent config file': (
        ['--config=configs/absent.py:tiny', _WORKDIR],
        ["'configs/absent.py'", 'name a configs/*.py file'],
    ),
    'an absent config file with fields': (
        ['--config=configs/absent.py', _WORKDIR, '--config.seed=1'],
        ["'configs/absent.py'", 'name a configs/*.py file'],
    ),
    'an unknown variant': (
        ['--config=configs/quickstart.py:tinny', _WORKDIR],
        ["'tinny'", "'tiny'"],
    ),
    'no config': ([_WORKDIR], ['--config is missing', 'configs/*.py']),
    'no workdir': ([_CONFIG], ['--workdir is missing', 'name a directory']),
    'a coordinator without the number of hosts': (
        [_CONFIG, _WORKDIR, '--distributed', '--coordinator=127.0.0.1:8476'],
        ['missing: --num_hosts, --host', '--num_hosts=N'],
    ),
    'a platform that is absent': (
        [_CONFIG, _WORKDIR, '--platform=gpu'],
        ['no device for --platform=gpu', 'for instance cpu'],
    ),
    'an argument that is no flag': (
        [_CONFIG, _WORKDIR, 'extra'],
        ['unexpected', 'extra'],
    ),
}

Results = Mapping[str, subprocess.CompletedProcess]


def _start(
    arguments: list[str], tmp: pathlib.Path, **environment: str
) -> subprocess.CompletedProcess:
  return subprocess.run(
      [sys.executable, '-m', 'speculative.run']
      + [argument.replace('{tmp}', str(tmp)) for argument in arguments],
      cwd=_ROOT,
      env=os.environ | {'CUDA_VISIBLE_DEVICES': ''} | environment,
      capture_output=True,
      text=True,
      encoding='utf-8',
      check=False,
  )


def _errors(stderr: str) -> list[str]:
  """Returns the lines that the log did not write."""
  return [
      line
      for line in stderr.splitlines()
      if not (line[:1] in 'IW' and line[1:5].isdigit())
  ]


@pytest.fixture(scope='module')
def directory(tmp_path_factory) -> pathlib.Path:
  """Where the commands would write; holds a config with a mistake."""
  path = tmp_path_factory.mktemp('run')
  (path / 'misspelt.py').write_text(
      'from configs import common\n'
      'def get_config():\n'
      '  config = common.get_config()\n'
      '  config.decode.num_draft_token = 3\n'
      '  return config\n'
  )
  return path


@pytest.fixture(scope='module')
def results(directory) -> Results:
  """Starts every mistaken command, two at a time: each takes a second."""
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    done = pool.map(
        lambda name: _start(_MISTAKES[name][0], directory), _MISTAKES
    )
    return dict(zip(_MISTAKES, done, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize('name', _MISTAKES)
def test_a_mistaken_command_says_one_line_and_writes_nothing(
    results, directory, name
):
  done = results[name]
  assert done.returncode == 1
  assert done.stdout == ''
  (line,) = _errors(done.stderr)
  assert line.startswith('error: ')
  for fragment in _MISTAKES[name][1]:
    assert fragment in line
  assert sorted(p.name for p in directory.iterdir()) == ['misspelt.py']


@pytest.mark.slow
def test_a_platform_that_is_absent_is_one_line(tmp_path):
  done = _start([_CONFIG, _WORKDIR], tmp_path, JAX_PLATFORMS='no_such_chip')
  assert done.returncode == 1
  (line,) = _errors(done.stderr)
  assert line.startswith('error: ')
  assert 'no_such_chip' in line and 'set JAX_PLATFORMS' in line
  assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_run_prints_the_text_and_writes_its_files(tmp_path):
  done = _start(
      [
          _CONFIG,
          _WORKDIR,
          '--config.generate.compare=no',
          '--config.decode.max_new_tokens=5',
          '--config.generate.prompt=ab ab ab ab',
      ],
      tmp_path,
  )
  assert done.returncode == 0, done.stderr
  assert _errors(done.stderr) == []
  path = tmp_path / 'run'
  assert sorted(p.name for p in path.iterdir()) == [
      'config.json',
      'metrics.jsonl',
      'outputs.jsonl',
      'results.json',
  ]
  config = json.loads((path / 'config.json').read_text())
  assert config['decode']['max_new_tokens'] == 5
  output = json.loads((path / 'outputs.jsonl').read_text())
  assert output['prompt'] == 'ab ab ab ab'
  # Bytes of the random model may be line ends, which text mode rewrites.
  assert done.stdout.split() == output['text'].split()
  results = json.loads((path / 'results.json').read_text())
  assert results['decode/tokens'] == len(output['token_ids']) <= 5
  assert results['env/device_kind'] == 'cpu'


@pytest.mark.parametrize('status', [0, 1])
def test_the_exit_status_is_the_tasks(monkeypatch, tmp_path, status):
  class Flag:

    def __init__(self, value):
      self.value = value

  class Config:
    task = 'verify'

  monkeypatch.setattr(run.logging, 'set_verbosity', lambda level: None)
  monkeypatch.setattr(run, '_CONFIG', Flag(Config))
  monkeypatch.setattr(run, '_WORKDIR', Flag(str(tmp_path)))
  monkeypatch.setitem(
      run._TASKS, 'verify', lambda config, path: TaskResult({}, status)
  )
  assert run.main(['run']) == status


def test_every_task_is_known_by_the_name_of_its_module():
  for name, task in run._TASKS.items():
    assert task.__module__ == f'speculative.tasks.{name}'
