import errno
import json
import os
import pathlib

import jax
import pytest

from speculative import api
from speculative.errors import UserError
from speculative.tasks import results


def _names(path: pathlib.Path) -> list[str]:
  return sorted(p.name for p in path.iterdir())


def _refuse(monkeypatch, target, name: str, code: int) -> None:
  """Makes a function of the file system fail as it does on a full disk."""

  def fail(*args, **kwargs):
    del args, kwargs
    raise OSError(code, os.strerror(code))

  monkeypatch.setattr(target, name, fail)


def test_json_is_written_whole_and_replaces_what_was_there(tmp_path):
  path = tmp_path / 'results.json'
  path.write_text('old')
  results.write_json(path, {'a/b': 1.5, 'c': None, 'd': [True, 'é']})
  assert json.loads(path.read_text()) == {
      'a/b': 1.5,
      'c': None,
      'd': [True, 'é'],
  }
  assert _names(tmp_path) == ['results.json']


@pytest.mark.parametrize(
    'target, name', [(pathlib.Path, 'write_text'), (os, 'replace')]
)
def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside(
    tmp_path, monkeypatch, target, name
):
  path = tmp_path / 'results.json'
  path.write_text('old')
  with monkeypatch.context() as patch:
    _refuse(patch, target, name, errno.ENOSPC)
    with pytest.raises(UserError, match='No space left.*--workdir') as caught:
      results.write_json(path, {'a': 1})
  assert '\n' not in str(caught.value)
  assert path.read_text() == 'old'
  assert _names(tmp_path) == ['results.json']


def test_the_file_is_never_there_in_part(tmp_path, monkeypatch):
  seen = []
  replace = os.replace

  def spy(source, target):
    seen.append((pathlib.Path(target).exists(), json.loads(source.read_text())))
    replace(source, target)

  monkeypatch.setattr(os, 'replace', spy)
  results.write_json(tmp_path / 'results.json', {'a': 1})
  assert seen == [(False, {'a': 1})]


def test_what_json_cannot_express_is_refused_before_anything_is_written(
    tmp_path,
):
  with pytest.raises(ValueError):
    results.write_json(tmp_path / 'results.json', {'gap': float('nan')})
  assert _names(tmp_path) == []


def test_a_workdir_starts_with_its_config_and_no_metrics(tmp_path, get_config):
  path = tmp_path / 'a' / 'b'
  results.Workdir(path, get_config({'decode.top_k': 7}))
  assert _names(path) == ['config.json', 'metrics.jsonl']
  config = json.loads((path / 'config.json').read_text())
  assert config['decode']['top_k'] == 7
  assert config['bench']['num_draft_tokens'] == [0]
  assert (path / 'metrics.jsonl').read_text() == ''


def test_metrics_are_appended_a_line_each(tmp_path, get_config):
  workdir = results.Workdir(tmp_path, get_config())
  workdir.metric({'decode/tokens': 1})
  workdir.metric({'decode/tokens': 2})
  lines = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  assert [json.loads(line)['decode/tokens'] for line in lines] == [1, 2]
  assert all('time/elapsed_s' in json.loads(line) for line in lines)


def test_results_of_an_earlier_run_do_not_stay_beside_a_new_config(
    tmp_path, get_config
):
  reports = ('outputs.jsonl', 'results.md', 'plan.md', 'verify.md')
  names = ('results.json', 'results.csv', 'metrics.jsonl', *reports)
  for name in (*names, 'notes.txt'):
    (tmp_path / name).write_text('old')
  results.Workdir(tmp_path, get_config())
  assert _names(tmp_path) == ['config.json', 'metrics.jsonl', 'notes.txt']
  assert (tmp_path / 'metrics.jsonl').read_text() == ''


def test_a_workdir_that_cannot_be_filled_is_not_left_behind(
    tmp_path, monkeypatch, get_config
):
  config = get_config()
  with monkeypatch.context() as patch:
    _refuse(patch, pathlib.Path, 'write_text', errno.ENOSPC)
    with pytest.raises(UserError, match='No space left'):
      results.Workdir(tmp_path / 'new', config)
    old = tmp_path / 'old'
    old.mkdir()
    (old / 'notes.txt').touch()
    with pytest.raises(UserError, match='No space left'):
      results.Workdir(old, config)
  assert _names(tmp_path) == ['old']
  assert _names(old) == ['notes.txt']


def test_metrics_on_a_full_disk_are_the_users_error(
    tmp_path, monkeypatch, get_config
):
  workdir = results.Workdir(tmp_path, get_config())
  _refuse(monkeypatch, pathlib.Path, 'open', errno.ENOSPC)
  with pytest.raises(UserError, match=r'metrics\.jsonl cannot be written'):
    workdir.metric({'a': 1})


def test_the_environment_names_versions_devices_and_commit():
  model = api.open_model('random://tiny', dtype='float32')
  found = results.environment(model)
  assert set(found) == {
      'env/jax',
      'env/jaxlib',
      'env/device_kind',
      'env/device_count',
      'env/host_count',
      'env/cpu_count',
      'env/dtype',
      'env/commit',
      'env/date',
  }
  assert found['env/jax'] == jax.__version__
  assert found['env/device_count'] == jax.device_count()
  assert found['env/dtype'] == 'float32'


def test_without_git_the_commit_is_empty(monkeypatch):
  _refuse(monkeypatch, results.subprocess, 'run', errno.ENOENT)
  model = api.open_model('random://tiny', dtype='float32')
  assert results.environment(model)['env/commit'] == ''


def test_of_several_hosts_the_first_one_writes_and_prints(
    tmp_path, monkeypatch, get_config, capsys
):
  results.say('first')
  monkeypatch.setattr(jax, 'process_index', lambda: 1)
  results.say('second')
  assert capsys.readouterr().out == 'first'
  workdir = results.Workdir(tmp_path / 'run', get_config())
  workdir.metric({'a': 1})
  workdir.finish({'a': 1})
  results.write_text(tmp_path / 'verify.md', 'text')
  assert _names(tmp_path) == []
