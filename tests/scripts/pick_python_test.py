"""The choice of a Python, among scripts that pose as Pythons."""

import subprocess
import sys

_PICK = '. "$0/scripts/lib/pick_python.sh"; usable_pythons'


def _pick(machine, **env):
  return machine.run('-euc', _PICK, str(machine.checkout), **env)


def _versions(result):
  return [line.split()[0] for line in result.stdout.splitlines()]


def test_newest_comes_first_by_number_not_by_letters(machine):
  for version in ('3.11.9', '3.100.1', '3.12.10', '3.12.9'):
    machine.add_python(
        version, path=machine.home / f'.pyenv/versions/{version}/bin/python3'
    )
  assert _versions(_pick(machine)) == ['3.100.1', '3.12.10', '3.12.9', '3.11.9']


def test_a_path_with_spaces_survives(machine):
  path = machine.add_python('3.12.1', path=machine.home / 'a b' / 'python3.12')
  result = _pick(machine, PATH=f'{machine.bin}:{path.parent}')
  assert result.stdout == f'3.12.1 {path}\n'


def test_pythons_of_version_managers_are_found(machine):
  machine.add_python('3.11.9')
  folders = {
      '3.12.1': '.pyenv/versions/3.12.1',
      '3.13.1': '.local/share/uv/python/cpython-3.13.1-linux-x86_64-gnu',
      '3.14.1': 'miniconda3/envs/jax',
  }
  for version, folder in folders.items():
    machine.add_python(version, path=machine.home / folder / 'bin/python3')
  assert _versions(_pick(machine)) == ['3.14.1', '3.13.1', '3.12.1', '3.11.9']


def test_one_on_path_wins_over_a_managers_of_the_same_version(machine):
  path = machine.add_python('3.12.1')
  machine.add_python(
      '3.12.1', path=machine.home / '.pyenv/versions/3.12.1/bin/python3'
  )
  assert _pick(machine).stdout == f'3.12.1 {path}\n'


def test_a_shim_that_fails_is_passed_over(machine):
  machine.add_python('3.12.1')
  shim = machine.bin / 'python3.13'
  shim.write_text('#!/usr/bin/env bash\necho command not found >&2; exit 127\n')
  shim.chmod(0o755)
  assert _versions(_pick(machine)) == ['3.12.1']


def test_an_unusable_python_is_passed_over(machine):
  machine.add_python('3.11.9')
  machine.add_python('3.15.0', refused='is a pre-release')
  assert _versions(_pick(machine)) == ['3.11.9']


def test_python_variable_overrides_a_newer_one(machine):
  machine.add_python('3.13.0')
  old = machine.add_python('3.11.9', path=machine.home / 'mine')
  assert _pick(machine, PYTHON=str(old)).stdout == f'3.11.9 {old}\n'


def test_python_variable_may_be_a_name_on_path(machine):
  machine.add_python('3.13.0')
  machine.add_python('3.11.9')
  assert _versions(_pick(machine, PYTHON='python3.11')) == ['3.11.9']


def test_an_unusable_python_variable_is_an_error_not_a_fallback(machine):
  machine.add_python('3.13.0')
  old = machine.add_python(
      '3.9.1', path=machine.home / 'old', refused='is older than 3.11'
  )
  result = _pick(machine, PYTHON=str(old))
  assert (result.returncode, result.stdout) == (1, '')
  assert result.stderr == (
      f'error: PYTHON={old} cannot be used: 3.9.1 is older than 3.11. '
      'Name a Python >= 3.11 with venv, or unset PYTHON.\n'
  )


def test_no_python_at_all_is_one_line(machine):
  result = _pick(machine)
  assert (result.returncode, result.stdout) == (1, '')
  assert result.stderr == (
      'error: no working Python >= 3.11 found (none on PATH). '
      'Install one with venv, or set PYTHON=.\n'
  )


def test_the_reasons_of_all_unusable_ones_stand_in_one_line(machine):
  machine.add_python('3.11.2', refused='lacks the module ensurepip')
  machine.add_python('3.15.0', refused='is a pre-release')
  result = _pick(machine)
  assert result.returncode == 1
  assert result.stderr.count('\n') == 1
  assert (
      '(3.11.2 lacks the module ensurepip; 3.15.0 is a pre-release)'
      in result.stderr
  )


def test_the_probe_accepts_the_python_that_runs_these_tests(machine):
  result = _pick(machine, PYTHON=sys.executable)
  version, _, path = result.stdout.strip().partition(' ')
  assert version == '.'.join(map(str, sys.version_info[:3]))
  said = subprocess.run(
      [path, '-c', 'import sys; print(*sys.version_info[:3], sep=".")'],
      capture_output=True,
      text=True,
      check=True,
  )
  assert said.stdout.strip() == version


def _probe_source(machine):
  result = machine.run(
      '-euc',
      '. "$0/scripts/lib/pick_python.sh"; printf %s "$_PROBE"',
      str(machine.checkout),
  )
  return result.stdout


def _probe_with(machine, before):
  """Runs the probe in this Python after some of it was replaced."""
  result = subprocess.run(
      [sys.executable, '-I', '-c', before + _probe_source(machine)],
      capture_output=True,
      text=True,
      check=True,
  )
  return result.stdout


def test_the_probe_refuses_a_python_without_what_venv_needs(machine):
  said = _probe_with(machine, 'import sys; sys.modules["ensurepip"] = None')
  assert said.startswith('unusable')
  assert said.endswith('lacks the module ensurepip\n')


def test_the_probe_refuses_an_old_python(machine):
  said = _probe_with(
      machine, 'import sys; sys.version_info = (3, 10, 13, "final", 0)'
  )
  assert said == 'unusable 3.10.13 is older than 3.11\n'


def test_the_probe_refuses_a_pre_release(machine):
  said = _probe_with(
      machine, 'import sys; sys.version_info = (3, 99, 0, "candidate", 1)'
  )
  assert said == 'unusable 3.99.0 is a pre-release\n'
