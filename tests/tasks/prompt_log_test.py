import contextlib
import json
import os

import pytest

from speculative.bench.prompts import Prompt
from speculative.errors import UserError
from speculative.tasks import common
from speculative.tasks import prompt_log
from speculative.tasks.prompt_log import PromptLog

_ENV = {'env/commit': 'abc', 'env/date': '2026-01-01'}


def _log(path, identity=None, num_records=(2, 2, 1)) -> PromptLog:
  return PromptLog(path, identity or {'seed': 0}, num_records=num_records)


@contextlib.contextmanager
def _opened(path, env=None, **kwargs):
  log = _log(path, **kwargs)
  log.open(_ENV | (env or {}))
  yield log
  log.close()


def _batch(number: int, num: int = 2) -> list[dict]:
  # Some line ends that JSON leaves as they are.
  return [
      {'batch': number, 'row': row, 's': 0.1 + 0.2, 'text': 'é\u2028\x85\r\n'}
      for row in range(num)
  ]


def test_a_new_log_reads_nothing_and_writes_nothing_before_it_is_opened(
    tmp_path,
):
  log = _log(tmp_path)
  assert list(log.left) == [0, 1, 2]
  assert list(tmp_path.iterdir()) == []
  log.open(_ENV)
  log.close()
  assert (tmp_path / 'prompts.jsonl').read_bytes() == b''
  assert json.loads((tmp_path / 'benchmark.json').read_text()) == {
      'identity': {'seed': 0},
      'env': {'env/commit': ['abc'], 'env/date': ['2026-01-01']},
      'facts': {},
  }


def test_a_stopped_run_goes_on_behind_its_last_whole_batch(tmp_path):
  with _opened(tmp_path) as first:
    first.note({'floor_ms': 1.5})
    first.add(_batch(0))
    first.add(_batch(1))
  path = tmp_path / 'prompts.jsonl'
  whole = path.read_bytes()
  # Killed after one record of the second batch and half of the other.
  *lines, last, _ = whole.split(b'\n')
  path.write_bytes(b'\n'.join([*lines, last[: len(last) // 2]]))

  with _opened(tmp_path, {'env/commit': 'def'}) as second:
    assert list(second.left) == [1, 2]
    assert second.records == _batch(0) == first.records[:2]
    assert second.facts == {'floor_ms': 1.5}
    second.add(_batch(1))
    assert path.read_bytes() == whole
    second.add(_batch(2, 1))
    assert not second.left
  assert second.env == {'env/commit': 'abc+def', 'env/date': '2026-01-01'}

  # One that measures nothing.
  with _opened(tmp_path, {'env/commit': 'ghi'}) as third:
    assert third.records == second.records and not third.left
  assert third.env['env/commit'] == 'abc+def'


def test_a_batch_that_is_not_whole_is_refused_and_not_written(tmp_path):
  with _opened(tmp_path) as log:
    with pytest.raises(ValueError, match='batch 0 has 2 records, got 1'):
      log.add(_batch(0, 1))
  assert (tmp_path / 'prompts.jsonl').read_bytes() == b''


def test_a_log_of_another_run_is_refused_by_what_differs(tmp_path):
  with _opened(tmp_path, identity={'seed': 0, 'config.bench.repeats': 3}):
    pass
  before = (tmp_path / 'benchmark.json').read_text()
  with pytest.raises(UserError, match='repeats=3, this one has 2; set') as e:
    _log(tmp_path, {'seed': 0, 'config.bench.repeats': 2})
  assert '\n' not in str(e.value)
  assert (tmp_path / 'benchmark.json').read_text() == before


def test_records_of_nobody_knows_what_are_left_alone(tmp_path):
  (tmp_path / 'prompts.jsonl').write_text('{}\n')
  with pytest.raises(UserError, match='has a prompts.jsonl but no benchmark'):
    _log(tmp_path)
  assert (tmp_path / 'prompts.jsonl').read_text() == '{}\n'


def test_two_processes_cannot_measure_into_one_workdir(tmp_path):
  with _opened(tmp_path):
    with pytest.raises(UserError, match='another process measures into'):
      _log(tmp_path).open(_ENV)
  with _opened(tmp_path):
    pass


def test_what_another_process_measured_in_between_is_gone_on_from(tmp_path):
  # It was read while the first one measured; then it loaded weights.
  second = _log(tmp_path)
  with _opened(tmp_path) as first:
    first.note({'floor_ms': 1.5})
    first.add(_batch(0))
  written = (tmp_path / 'prompts.jsonl').read_bytes()
  second.open(_ENV)
  assert (tmp_path / 'prompts.jsonl').read_bytes() == written
  assert second.records == _batch(0) and list(second.left) == [1, 2]
  assert second.facts == {'floor_ms': 1.5}
  second.close()


def test_another_benchmark_that_came_in_between_is_left_alone(tmp_path):
  second = _log(tmp_path, {'seed': 1})
  with _opened(tmp_path) as first:
    first.add(_batch(0))
  before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
  with pytest.raises(UserError, match='seed=0, this one has 1'):
    second.open(_ENV)
  after = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
  assert after == before
  # It holds no lock either.
  with _opened(tmp_path):
    pass


def test_nothing_is_cut_while_another_process_measures(tmp_path):
  second = _log(tmp_path)
  path = tmp_path / 'prompts.jsonl'
  with _opened(tmp_path) as first:
    first.add(_batch(0))
    # In the middle of a batch.
    with path.open('ab') as file:
      file.write(b'{"batch": 1')
    written = path.read_bytes()
    with pytest.raises(UserError, match='another process measures into'):
      second.open(_ENV)
    assert path.read_bytes() == written


def test_what_was_found_once_is_found_by_later_runs(tmp_path):
  numbers = iter([0.1 + 0.2, 7.0, 8.0])
  with _opened(tmp_path) as first:
    assert first.once('ms', 'a', lambda: next(numbers)) == 0.1 + 0.2
    assert first.once('ms', 'b', lambda: next(numbers)) == 7.0
  with _opened(tmp_path) as second:
    assert second.once('ms', 'a', lambda: next(numbers)) == 0.1 + 0.2
    assert second.once('ms', 'b', lambda: next(numbers)) == 7.0


def test_of_several_hosts_the_others_write_nothing(tmp_path, monkeypatch):
  monkeypatch.setattr(prompt_log.results.jax, 'process_index', lambda: 1)
  log = _log(tmp_path)
  log.open(_ENV)
  log.note({'floor_ms': 1.0})
  log.add(_batch(0))
  assert log.records == _batch(0)
  assert list(tmp_path.iterdir()) == []


@pytest.fixture
def identity(get_config, write_prompts):
  """Returns the identity of a run with some fields."""

  def call(fields=None, texts=('abcab', 'bac')):
    prompts = write_prompts(texts)
    config = get_config({'data.prompts': prompts} | (fields or {}))
    chosen = [Prompt(text, 'no') for text in texts]
    return prompt_log.identity_of(config, common.open_run(config, chosen))

  return call


def test_the_identity_is_of_all_that_changes_what_is_measured(
    identity, monkeypatch
):
  before = identity()
  assert before['config.drafter.kind'] == 'lookup'
  assert before['config.drafter.retrieval.max_ngram'] == 16
  assert before['env/dtype'] == 'float32'
  assert identity() == before
  # Whatever has nothing to do with times and tokens may change.
  assert identity({'bench.plot': 'no', 'data.num_prompts': 0}) == before

  def differing(*args):
    after = identity(*args)
    return {name for name in before if before[name] != after[name]}

  assert differing({'bench.repeats': 7}) == {'config.bench.repeats'}
  assert differing({'decode.top_k': 7}) == {'config.decode.top_k'}
  assert differing({}, ('abcab', 'bad')) == {'tokens of the prompts'}
  monkeypatch.setattr(prompt_log.metadata, 'version', lambda name: '9.9')
  assert differing() == {'version of speculative'}


def _files(reference: str) -> str:
  return prompt_log._files(reference, cache_dir='')


def test_files_are_known_by_sizes_and_times(tmp_path):
  assert _files('') == _files('random://tiny') == _files('target') == ''
  directory = tmp_path / 'draft'
  directory.mkdir()
  file = directory / 'weights'
  file.write_bytes(b'1')
  os.utime(file, ns=(0, 0))
  before = _files(str(directory))
  assert _files(str(directory)) == before != ''
  os.utime(file, ns=(0, 1))
  assert _files(str(directory)) != before


def test_a_draft_of_the_package_is_known_by_its_bytes(tmp_path, monkeypatch):
  monkeypatch.setattr(prompt_log.sources, 'DRAFTS', tmp_path)
  file = tmp_path / 'some/config.json'
  file.parent.mkdir()
  file.write_text('1')
  before = _files('package://some')
  # As another installation has it.
  os.utime(file, ns=(0, 0))
  assert _files('package://some') == before != ''
  file.write_text('2')
  assert _files('package://some') != before


def test_a_draft_of_the_hub_is_known_by_its_commit(tmp_path, monkeypatch):
  monkeypatch.setattr(
      prompt_log.sources,
      'resolve',
      lambda reference, *, cache_dir: tmp_path / 'snapshots' / 'abc',
  )
  assert _files('hf://org/name') == 'abc'
