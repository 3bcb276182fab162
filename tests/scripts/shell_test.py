"""Every shell script parses, runs from a clone and can be called by name."""

import os
import pathlib
import subprocess

import pytest

_ROOT = pathlib.Path(__file__).parent.parent.parent
_COMMANDS = [*sorted((_ROOT / 'scripts').glob('*.sh')), _ROOT / '.ci' / 'run']
_SOURCED = sorted((_ROOT / 'scripts' / 'lib').glob('*.sh'))


def _name(path: pathlib.Path) -> str:
  return str(path.relative_to(_ROOT))


@pytest.mark.parametrize('path', [*_COMMANDS, *_SOURCED], ids=_name)
def test_a_script_parses(path):
  result = subprocess.run(
      ['bash', '-n', path], capture_output=True, text=True, check=False
  )
  assert (result.returncode, result.stderr) == (0, '')


@pytest.mark.parametrize('path', _COMMANDS, ids=_name)
def test_a_command_is_executable_and_stops_at_the_first_failure(path):
  text = path.read_text()
  assert os.access(path, os.X_OK), 'chmod +x'
  assert text.startswith('#!/usr/bin/env bash\n')
  assert '\nset -euo pipefail\n' in text


@pytest.mark.parametrize('path', _SOURCED, ids=_name)
def test_a_sourced_part_is_not_executable(path):
  assert not os.access(path, os.X_OK), 'chmod -x'
