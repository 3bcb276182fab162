"""A benchmark that was stopped goes on, and measures nothing twice."""

import fcntl
import json
import pathlib
import subprocess
import sys
import time

import pytest

from speculative.bench import queries
from speculative.errors import UserError
from speculative.tasks import benchmark
from speculative.tasks import measure


@pytest.fixture
def run(run_benchmark):
  """Runs the task over two prompts; the last two are set aside."""

  def call(fields=None):
    return run_benchmark(fields, texts=('abcab', 'xyxy', 'cab', 'bac'))

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


@pytest.mark.slow
def test_a_finished_run_times_no_search_again(
    run, store_on_host, monkeypatch, tmp_path
):
  times = iter(range(1, 9))
  monkeypatch.setattr(queries, 'query_ms', lambda *a, **k: float(next(times)))
  fields = store_on_host | {
      'drafter.retrieval.placement': 'whole',
      'bench.calibration_prompts': 0,
      'bench.plot': 'no',
      'bench.settings': ('name=A,retrieval.length=2', 'name=B'),
  }
  found = run(fields).results
  assert [row['retrieval/query_ms'] for row in found['rows'][1:]] == [1, 2]
  assert run(fields).results == found
  said = json.loads((tmp_path / 'run/benchmark.json').read_text())
  assert said['facts']['query_ms'] == {'A': 1.0, 'B': 2.0}


def test_a_process_that_comes_second_leaves_the_files_of_the_first(
    run, tmp_path, monkeypatch
):
  path, held = tmp_path / 'run', []

  def rival(self):
    """Another process begins, and tells results, while weights are read."""
    del self
    path.mkdir()
    for name in ('results.json', 'results.md', 'config.json'):
      (path / name).write_text('of the first')
    file = (path / 'prompts.jsonl').open('ab')
    file.write(b'{"of": "the first"}\n')
    file.flush()
    fcntl.flock(file, fcntl.LOCK_EX)
    held.append(file)

  monkeypatch.setattr(benchmark.common.api.LanguageModel, 'load_weights', rival)
  with pytest.raises(UserError, match='another process measures into'):
    run()
  files = {file.name: file.read_text() for file in path.iterdir()}
  assert files == {
      'results.json': 'of the first',
      'results.md': 'of the first',
      'config.json': 'of the first',
      'prompts.jsonl': '{"of": "the first"}\n',
  }
  # Now that it is there from the start, no weight is read.
  monkeypatch.setattr(
      benchmark.common.api.LanguageModel,
      'load_weights',
      lambda self: pytest.fail('loaded'),
  )
  with pytest.raises(UserError, match='another process measures into'):
    run()
  held[0].close()


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
