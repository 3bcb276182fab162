"""Two processes of four devices say what one process of eight says; float32.

Run as a program, this file is one of the processes.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import json
import os
import pathlib
import socket
import subprocess
import sys

from ml_collections import config_dict
import pytest

from speculative import api
from speculative.drafting.config import DrafterConfig
from speculative.tasks import hosts

_ROOT = pathlib.Path(__file__).parent.parent
_TARGET, _DRAFT = 'random://tiny_mesh', 'random://tiny_mesh_draft'
# A greedy row beside one that draws.
_PROMPTS = ('ab ab ab ab', 'to be or not')
_ROWS = ({}, {'temperature': 0.8, 'top_p': 0.9, 'seed': 3})


def _answers(kind: str, data: int, model: int) -> list[list[int]]:
  """Returns the tokens of all prompts with a drafter on a mesh."""
  loaded = api.load(
      _TARGET,
      dtype='float32',
      drafter=DrafterConfig(
          kind=kind,
          model=_DRAFT if kind == 'lm' else '',
          dtype='float32',
          num_draft_tokens=3,
      ),
      mesh=api.MeshConfig(data=data, model=model),
  )
  result = loaded.generate(_PROMPTS, rows=_ROWS, max_new_tokens=12)
  return result.generation.token_ids


def _free_port() -> int:
  with socket.create_server(('127.0.0.1', 0)) as server:
    return server.getsockname()[1]


def _run(
    commands: list[list[str]],
    environments: list[Mapping[str, str]],
    directories: Sequence[pathlib.Path] = (_ROOT, _ROOT),
) -> list[subprocess.CompletedProcess]:
  """Runs a process a host, all at once."""
  settings = {
      'JAX_NUM_CPU_DEVICES': '4',
      'JAX_CPU_COLLECTIVES_IMPLEMENTATION': 'gloo',
      'PYTHONPATH': str(_ROOT),
  }
  running = [
      subprocess.Popen(
          [sys.executable, *command],
          cwd=directory,
          env={**os.environ, **settings, **environment},
          stdout=subprocess.PIPE,
          stderr=subprocess.PIPE,
          text=True,
          # What a random model says need not be text.
          errors='replace',
      )
      for command, environment, directory in zip(
          commands, environments, directories, strict=False
      )
  ]
  try:
    outputs = [process.communicate(timeout=240) for process in running]
  finally:
    for process in running:
      process.kill()
  return [
      subprocess.CompletedProcess(process.args, process.returncode, *output)
      for process, output in zip(running, outputs, strict=True)
  ]


def _errors(stderr: str) -> list[str]:
  return [s for s in stderr.splitlines() if s.startswith('error:')]


def _flags(port: int, host: int) -> list[str]:
  return [
      '--distributed',
      f'--coordinator=127.0.0.1:{port}',
      '--num_hosts=2',
      f'--host={host}',
  ]


def _command(workdir: pathlib.Path, *arguments: str) -> list[str]:
  return [
      '-m',
      'speculative.run',
      f'--config={_ROOT}/configs/quickstart.py:tiny',
      f'--config.target.model={_TARGET}',
      '--config.target.dtype=float32',
      '--config.generate.compare=no',
      '--config.generate.prompt=ab ab ab ab',
      '--config.decode.max_new_tokens=12',
      '--config.decode.num_draft_tokens=3',
      '--config.mesh.model=8',
      f'--workdir={workdir}',
      *arguments,
  ]


@pytest.mark.slow
def test_two_hosts_say_what_one_says_with_a_draft_model():
  port = _free_port()
  program = [str(pathlib.Path(__file__)), str(port)]
  done = _run([[*program, str(i), 'lm', '2', '4'] for i in (0, 1)], [{}, {}])
  expected = _answers('lm', 2, 4)
  for process in done:
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout.splitlines()[-1]) == expected


@pytest.mark.slow
def test_the_command_says_the_same_and_its_first_host_alone_writes(tmp_path):
  # Slurm's variables, so that jax finds the hosts by itself.
  slurm = {
      'JAX_COORDINATOR_PORT': str(_free_port()),
      'SLURM_JOB_ID': '1',
      'SLURM_STEP_NODELIST': '127.0.0.1',
      'SLURM_NTASKS': '2',
      'SLURM_LOCALID': '0',
  }
  first, second = _run(
      [
          _command(tmp_path / str(i), '--distributed', '--watchdog_s=500')
          for i in (0, 1)
      ],
      [slurm | {'SLURM_PROCID': str(i)} for i in (0, 1)],
  )
  assert first.returncode == 0, first.stderr
  assert second.returncode == 0, second.stderr
  lines = (tmp_path / '0/outputs.jsonl').read_text().splitlines()
  token_ids = [json.loads(line)['token_ids'] for line in lines]
  assert token_ids == [_answers('lookup', 1, 8)[0]]
  results = json.loads((tmp_path / '0/results.json').read_text())
  assert results['env/device_count'] == 8
  assert results['env/host_count'] == 2
  assert not (tmp_path / '1').exists()

  def said(process):
    # The CPU's collectives announce themselves.
    lines = process.stdout.splitlines()
    return [s for s in lines if s and not s.startswith('[Gloo]')]

  assert said(first)
  assert said(second) == []
  assert 'process 0/2, 8 cpu device(s)' in first.stderr
  assert 'cpu device(s)' not in second.stderr


@pytest.mark.slow
def test_a_mistake_on_one_host_ends_both_with_its_line(tmp_path):
  port = _free_port()
  # The same command on both, but host 1 lacks the file.
  (tmp_path / '0').mkdir()
  (tmp_path / '0/prompts.jsonl').write_text('{"prompt": "ab"}\n')
  fields = ['from data', 'prompts.jsonl']
  first, second = _run(
      [
          _command(
              tmp_path / 'run',
              f'--config.generate.prompt={fields[0]}',
              f'--config.data.prompts={fields[1]}',
              *_flags(port, i),
          )
          for i in (0, 1)
      ],
      [{}, {}],
      directories=[tmp_path / '0', tmp_path],
  )
  assert (first.returncode, second.returncode) == (1, 1)
  (line,) = _errors(second.stderr)
  assert "'prompts.jsonl', which is no file" in line
  assert _errors(first.stderr) == [
      line.replace('error: ', 'error: host 1 of 2 ended: ')
  ]
  assert not (tmp_path / 'run').exists()


@pytest.mark.slow
def test_a_host_that_does_not_come_is_counted_in_one_line(tmp_path):
  (done,) = _run(
      [
          _command(
              tmp_path / 'run',
              *_flags(_free_port(), 0),
              '--connect_timeout_s=1',
          )
      ],
      [{}],
  )
  assert done.returncode == 1
  assert done.stdout == ''
  (line,) = _errors(done.stderr)
  assert 'error: 1 of 2 hosts came within 1 s, absent: 1;' in line
  assert '--worker=all' in line
  assert 'Traceback' not in done.stderr
  assert list(tmp_path.iterdir()) == []


def _main(port: int, host: int, kind: str, data: int, model: int) -> None:
  options = hosts.Options(
      distributed='yes',
      coordinator=f'127.0.0.1:{port}',
      num_hosts=2,
      host=host,
  )
  with hosts.started(options, config_dict.ConfigDict()):
    print(json.dumps(_answers(kind, data, model)))


if __name__ == '__main__':
  _main(*map(int, sys.argv[1:3]), sys.argv[3], *map(int, sys.argv[4:]))
