"""A machine of small shell scripts that pose as Pythons, and a posing peer."""

import ast
from collections.abc import Callable
import importlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap
import types

from ml_collections import config_dict
import pytest

_ROOT = pathlib.Path(__file__).parent.parent.parent
_TOOLS = (
    'awk bash cat chmod cksum cp cut dirname env grep head ls mkdir mv rm sed '
    'sleep sort tail touch tr'
).split()

# Answers what the scripts ask a Python: what it is, to make an environment (a
# folder with a copy of itself), and to install or run, which it only records.
_POSING = """\
    #!/usr/bin/env bash
    calls={calls}
    printf '%s\\n' "{version} $*" >>"$calls"
    case "$*" in
      '-I -c '*) printf '%s\\n' '{answer}' ;;
      '-m venv '*)
        mkdir -p "$4/bin"
        cp "$0" "$4/bin/python"
        touch "$4/pyvenv.cfg"
        ;;
      '-m pip install '*)
        printf '%s\\n' '{pip_says}'
        exit {pip_code}
        ;;
    esac
"""
# Adds to a prompt the numbers from its sum on; writes down what it was asked.
_FAKE_PEER = """\
    import argparse, json, sys
    sys.path.insert(0, {scripts!r})
    import peer_protocol

    parser = argparse.ArgumentParser()
    parser.add_argument('--settings', type=json.loads)
    args, _ = parser.parse_known_args()

    def run(request):
      print('a library says something')
      with open({asked!r}, 'a') as file:
        said = request['setting'], request['ids'], request['max_new_tokens']
        file.write(json.dumps(said) + '\\n')
      num = request['max_new_tokens'] - (request['setting'] == 'short')
      if request['setting'] == 'broken':
        raise RuntimeError('no such thing\\nat all')
      first = sum(request['ids'])
      # Look-up brings one more than asked for.
      num += request['setting'] == 'lookup'
      return {{
          'token_ids': list(range(first, first + num)),
          'num_counted': num - 1,
          'prefill_s': 0.5,
          'decode_s': 2.0,
      }}

    def load():
      if 'unready' in args.settings:
        raise ValueError('cannot be loaded')
      if 'silent' in args.settings:
        sys.exit(1)
      return peer_protocol.Served({{'dtype': 'float32', 'fake': '7'}}, run)

    peer_protocol.serve(load)
"""


class Machine:
  """A PATH, a home and a checkout that hold nothing but what a test puts there.

  Attributes:
    bin: the one directory on PATH; the tools of the scripts are linked there.
    home: HOME, where version managers keep their Pythons.
    checkout: a copy of the scripts beside a setup.py.
  """

  def __init__(self, root: pathlib.Path):
    self.bin = root / 'bin'
    self.home = root / 'home'
    self.checkout = root / 'check out'
    self._calls = root / 'calls.log'
    for folder in (self.bin, self.home, self.checkout):
      folder.mkdir()
    for tool in _TOOLS:
      (self.bin / tool).symlink_to(shutil.which(tool))
    shutil.copytree(_ROOT / 'scripts', self.checkout / 'scripts')
    (self.checkout / 'setup.py').write_text('first')

  def add_python(
      self,
      version: str,
      *,
      path: pathlib.Path | None = None,
      refused: str = '',
      pip_says: str = '',
  ) -> pathlib.Path:
    """Puts a posing Python on PATH as python3.NN, or at a path.

    Args:
      version: what it says it is, as in '3.99.0'.
      path: where it lies, if not on PATH under its usual name.
      refused: why the probe finds it unusable; empty when it is usable.
      pip_says: what its pip prints before it fails; empty when it succeeds.

    Returns:
      Its path.
    """
    path = path or self.bin / f'python{version.rpartition(".")[0]}'
    answer = f'usable {version} {path}'
    if refused:
      answer = f'unusable {version} {refused}'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        textwrap.dedent(_POSING).format(
            calls=f"'{self._calls}'",
            version=version,
            answer=answer,
            pip_says=pip_says,
            pip_code=1 if pip_says else 0,
        )
    )
    path.chmod(0o755)
    return path

  def run(
      self, *command: str, cwd: pathlib.Path | None = None, **env: str
  ) -> subprocess.CompletedProcess:
    """Runs bash with arguments on this machine."""
    return subprocess.run(
        [self.bin / 'bash', *command],
        env={'PATH': str(self.bin), 'HOME': str(self.home), **env},
        cwd=cwd or self.home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )

  def take_calls(self, containing: str) -> list[str]:
    """Returns, and forgets, what Pythons were asked: 'VERSION arguments'."""
    if not self._calls.exists():
      return []
    lines = self._calls.read_text().splitlines()
    self._calls.unlink()
    return [line for line in lines if containing in line]


@pytest.fixture
def machine(tmp_path: pathlib.Path) -> Machine:
  """A machine without any Python."""
  if os.name != 'posix':
    pytest.skip('shell scripts are not run here: no POSIX system')
  return Machine(tmp_path)


@pytest.fixture
def config_of(monkeypatch) -> Callable[[str], config_dict.ConfigDict]:
  """Returns a function that reads the config of a call of speculative.run."""
  monkeypatch.syspath_prepend(str(_ROOT))

  def read(call: str) -> config_dict.ConfigDict:
    name, variant = re.search(r'/configs/(\w+)\.py:(\w+)', call).groups()
    config = importlib.import_module(f'configs.{name}').get_config(variant)
    found = re.findall(r'--config\.([\w.]+)=(.*?)(?= --|$)', call)
    flat = {}
    for field, value in found:
      like = config
      for part in field.split('.'):
        like = like[part]
      is_text = isinstance(like, str)
      flat[field] = value if is_text else ast.literal_eval(value)
    config.update_from_flattened_dict(flat)
    return config

  return read


@pytest.fixture
def peers(monkeypatch) -> types.SimpleNamespace:
  """The parts of the comparison as modules."""
  monkeypatch.syspath_prepend(str(_ROOT / 'scripts'))
  names = ('contestants', 'identity', 'protocol', 'report', 'turns')
  modules = {name: importlib.import_module(f'peer_{name}') for name in names}
  main = importlib.import_module('bench_vs_transformers')
  return types.SimpleNamespace(main=main, **modules)


@pytest.fixture
def fake_peer(tmp_path):
  """A script that poses as a peer, what it was asked, and how to start it."""
  script, asked = tmp_path / 'fake.py', tmp_path / 'asked.jsonl'
  script.write_text(
      textwrap.dedent(_FAKE_PEER).format(
          scripts=str(_ROOT / 'scripts'), asked=str(asked)
      )
  )

  def take_asked():
    lines = asked.read_text().splitlines() if asked.exists() else []
    asked.unlink(missing_ok=True)
    return [tuple(json.loads(line)) for line in lines]

  def command(*settings):
    said = json.dumps(dict.fromkeys(settings, ''))
    return [sys.executable, script, f'--settings={said}']

  return types.SimpleNamespace(
      command=command, script=script, take_asked=take_asked
  )
