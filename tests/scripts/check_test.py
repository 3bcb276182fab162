"""What scripts/test.sh and .ci/run call, with Pythons that only record it."""

import pathlib
import shutil

import pytest

_ROOT = pathlib.Path(__file__).parent.parent.parent


@pytest.fixture(name='checkout')
def _checkout(machine):
  """The machine's checkout with .ci/run, of which the tests run copies."""
  (machine.checkout / '.ci').mkdir()
  shutil.copy(_ROOT / '.ci' / 'run', machine.checkout / '.ci' / 'run')
  return machine.checkout


def _fail_on(path, arguments):
  """Makes a posing Python fail when its arguments start like this."""
  shebang, rest = path.read_text().split('\n', 1)
  check = f'case "$*" in \'{arguments}\'*) exit 7 ;; esac'
  path.write_text(f'{shebang}\n{check}\n{rest}')


def _stages(machine):
  """Returns the calls of the three tools: 'VERSION -m TOOL arguments'."""
  return [
      call
      for call in machine.take_calls(' -m ')
      if call.split(' ')[2] in ('ruff', 'pyink', 'pytest')
  ]


def _tests(machine):
  return [call for call in _stages(machine) if '-m pytest' in call]


def test_lint_format_and_tests_run_in_this_order(machine, checkout):
  machine.add_python('3.12.1')
  result = machine.run(str(checkout / 'scripts/test.sh'), '-k', 'rope')
  assert result.returncode == 0, result.stderr
  assert _stages(machine) == [
      '3.12.1 -m ruff check scripts setup.py',
      '3.12.1 -m pyink --check --quiet --diff scripts setup.py',
      '3.12.1 -m pytest -k rope',
  ]
  assert (checkout / '.venv-test-3.12').is_dir()


@pytest.mark.parametrize('stage', ['-m ruff', '-m pyink'])
def test_bad_lint_or_format_fails_before_the_tests(machine, checkout, stage):
  _fail_on(machine.add_python('3.12.1'), stage)
  result = machine.run(str(checkout / 'scripts/test.sh'))
  assert result.returncode == 1
  assert _tests(machine) == []


def test_the_exit_code_is_that_of_pytest(machine, checkout):
  _fail_on(machine.add_python('3.12.1'), '-m pytest')
  assert machine.run(str(checkout / 'scripts/test.sh')).returncode == 7


def test_ci_runs_all_on_the_default_and_numerics_on_the_newest(
    machine, checkout
):
  machine.add_python('3.12.1', path=machine.bin / 'python3')
  machine.add_python('3.13.0')
  result = machine.run(str(checkout / '.ci/run'))
  assert result.returncode == 0, result.stderr
  assert _tests(machine) == [
      '3.12.1 -m pytest',
      '3.13.0 -m pytest tests/decoding tests/drafting tests/models tests/hlo '
      'tests/topology_test.py tests/tasks/plan_tpu_test.py',
  ]


@pytest.mark.parametrize(
    ('system', 'extras'),
    [('Linux x86_64', 'dev,train,tpu'), ('Darwin arm64', 'dev,train')],
)
def test_ci_installs_libtpu_once_where_there_is_one(
    machine, checkout, system, extras
):
  uname = machine.bin / 'uname'
  uname.write_text(f'#!/usr/bin/env bash\necho {system}\n')
  uname.chmod(0o755)
  machine.add_python('3.12.1', path=machine.bin / 'python3')
  machine.add_python('3.13.0')
  result = machine.run(str(checkout / '.ci/run'))
  assert result.returncode == 0, result.stderr
  (install,) = (
      call
      for call in machine.take_calls('-m pip install')
      if call.startswith('3.13.0')
  )
  assert install.endswith(f'[{extras}]')


def test_ci_says_so_when_no_newer_python_works(machine, checkout):
  machine.add_python('3.12.1', path=machine.bin / 'python3')
  machine.add_python('3.99.0', pip_says='ERROR: No matching distribution')
  result = machine.run(str(checkout / '.ci/run'))
  assert result.returncode == 0, result.stderr
  assert 'no working Python newer than 3.12.1' in result.stdout
  assert _tests(machine) == ['3.12.1 -m pytest']


def test_ci_uses_the_newest_when_the_default_cannot_be_used(machine, checkout):
  machine.add_python(
      '3.9.1', path=machine.bin / 'python3', refused='is older than 3.11'
  )
  machine.add_python('3.12.1')
  result = machine.run(str(checkout / '.ci/run'))
  assert result.returncode == 0, result.stderr
  assert _tests(machine) == ['3.12.1 -m pytest']


@pytest.mark.parametrize('version', ['3.12.1', '3.13.0'])
def test_ci_fails_when_either_run_fails(machine, checkout, version):
  pythons = {
      '3.12.1': machine.add_python('3.12.1', path=machine.bin / 'python3'),
      '3.13.0': machine.add_python('3.13.0'),
  }
  _fail_on(pythons[version], '-m pytest')
  assert machine.run(str(checkout / '.ci/run')).returncode == 7


def test_ci_fails_without_any_python(machine, checkout):
  assert machine.run(str(checkout / '.ci/run')).returncode == 1
