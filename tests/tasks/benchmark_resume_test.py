"""A benchmark that was stopped goes on, and measures nothing twice."""

import json
import pathlib
import subprocess
import sys
import time

import pytest

from speculative.bench import bandwidth
from speculative.errors import UserError
from speculative.tasks import benchmark
from speculative.tasks import measure


@pytest.fixture
def run(tmp_path, get_config, write_prompts, monkeypatch):
  """Runs the task over two prompts, with a quick look at the memory."""
  monkeypatch.setattr(bandwidth, '_BYTES', 1 << 20)

  def call(fields=None):
    # The last two are set aside.
    prompts = write_prompts(('abcab', 'xyxy', 'cab', 'bac'))
    config = get_config(
        {'data.prompts': prompts, 'bench.repeats': 2} | (fields or {})
    )
    return benchmark.run(config, tmp_path / 'run')

  return call


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_and_one_that_ended_says_it_again(
    run, tmp_path, monkeypatch, capsys
):
  timed, of_batch = [], measure.of_batch

  def stop(prepared, settings, index, **kwargs):
    if index == 1 and not timed.count(1):
      timed.append(1)
      raise KeyboardInterrupt
    timed.append(index)
    return of_batch(prepared, settings, index, **kwargs)

  monkeypatch.setattr(measure, 'of_batch', stop)
  fields = {'bench.plot': 'no'}
  with pytest.raises(KeyboardInterrupt):
    run(fields)
  path = tmp_path / 'run'
  assert not (path / 'results.json').exists()
  first = (path / 'prompts.jsonl').read_text()
  assert first.count('\n') == 2 * 2

  monkeypatch.setattr(
      benchmark.predictions, 'foresee', lambda *a, **k: pytest.fail('again')
  )
  found = run(fields).results
  assert timed == [0, 1, 1]
  assert (path / 'prompts.jsonl').read_text().startswith(first)
  assert found['rows'][1]['speedup/predicted'] > 0
  assert found['rows'][1]['compile/count_after_warm_up'] == 0
  assert 'measured before' not in capsys.readouterr().out

  monkeypatch.setattr(
      benchmark.common, 'warm_up', lambda *args: pytest.fail('warmed up')
  )
  again = run(fields).results
  assert timed == [0, 1, 1]
  assert again == found
  assert json.loads((path / 'results.json').read_text()) == found
  assert 'was measured before, on ' in capsys.readouterr().out

  written = (path / 'prompts.jsonl').read_bytes()
  with pytest.raises(UserError, match='config.bench.repeats=2, this one has 3'):
    run(fields | {'bench.repeats': 3})
  assert (path / 'prompts.jsonl').read_bytes() == written
  assert (path / 'results.json').exists()


def _start(path, prompts):
  command = [
      sys.executable,
      '-m',
      'speculative.run',
      '--config=configs/quickstart.py:tiny',
      '--config.task=benchmark',
      '--config.decode.max_new_tokens=16',
      '--config.bench.calibration_prompts=0',
      '--config.bench.repeats=1',
      '--config.bench.plot=no',
      f'--config.data.prompts={prompts}',
      f'--workdir={path}',
  ]
  root = pathlib.Path(__file__).parents[2]
  return subprocess.Popen(
      command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
  )


@pytest.mark.slow
def test_a_run_that_was_killed_repeats_no_prompt(tmp_path, write_prompts):
  # So many that it is in the middle of them when the first ones are seen.
  num = 400
  prompts = write_prompts([f'{n} abc' for n in range(num)])
  path = tmp_path / 'run'
  file = path / 'prompts.jsonl'
  process = _start(path, prompts)
  try:
    while not file.exists() or file.read_bytes().count(b'\n') < 6:
      assert process.poll() is None
      time.sleep(0.02)
  finally:
    process.kill()
    process.wait()
    process.stdout.close()
  before = file.read_bytes()
  assert not (path / 'results.json').exists()
  # Cut within a line, as a full disk would have it, too.
  file.write_bytes(before[:-7])

  said, _ = _start(path, prompts).communicate(timeout=300)
  assert b'\nlookup 4: ' in said
  records = [json.loads(line) for line in file.read_text().split('\n')[:-1]]
  names = [(r['prompt'], r['repeat'], r['setting']) for r in records]
  assert names == [
      (prompt, 0, setting)
      for prompt in range(num)
      for setting in ('plain', 'lookup 4')
  ]
  # Of two records a batch, those of the last one are new.
  kept = (before.count(b'\n') - 1) // 2 * 2
  assert kept >= 4
  lines = file.read_bytes().split(b'\n')
  assert lines[:kept] == before.split(b'\n')[:kept]
  assert lines[kept : kept + 2] != before.split(b'\n')[kept : kept + 2]
