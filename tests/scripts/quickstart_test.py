"""The quick start's shell part, with Pythons that only record their calls."""

_NO_WHEEL = 'ERROR: No matching distribution found for jax>=0.7.2'
_NO_NETWORK = 'WARNING: Retrying after NewConnectionError'


def _start(machine, *flags, **env):
  script = machine.checkout / 'scripts' / 'quickstart.sh'
  return machine.run(str(script), *flags, **env)


def _installs(machine):
  return machine.take_calls('-m pip install')


def test_a_fresh_machine_installs_the_checkout_and_runs(machine):
  machine.add_python('3.12.1')
  result = _start(machine)
  assert result.returncode == 0, result.stderr
  calls = machine.take_calls('-m ')
  root = machine.checkout
  assert calls[0] == f'3.12.1 -m venv --clear {root}/.venv'
  assert calls[-2].endswith(f'--editable {root}')
  assert calls[-1] == (
      f'3.12.1 -P -m speculative.run --config={root}/configs/quickstart.py '
      f'--workdir={root}/workdir/quickstart'
  )


def test_a_second_run_installs_nothing(machine):
  machine.add_python('3.12.1')
  _start(machine)
  assert len(_installs(machine)) == 1
  assert _start(machine).returncode == 0
  assert _installs(machine) == []


def test_a_changed_setup_is_installed_again(machine):
  machine.add_python('3.12.1')
  _start(machine)
  (machine.checkout / 'setup.py').write_text('second')
  _installs(machine)
  _start(machine)
  assert len(_installs(machine)) == 1


def test_an_install_that_failed_is_repeated(machine):
  machine.add_python('3.12.1', pip_says=_NO_NETWORK)
  assert _start(machine).returncode == 1
  (machine.checkout / '.venv' / 'bin' / 'python').unlink()
  machine.add_python('3.12.1')
  _installs(machine)
  assert _start(machine).returncode == 0
  assert len(_installs(machine)) == 1


def test_an_environment_at_hand_is_kept_when_a_newer_python_appears(machine):
  machine.add_python('3.12.1')
  _start(machine)
  machine.add_python('3.13.0')
  machine.take_calls('')
  _start(machine)
  assert machine.take_calls('-m venv') == []


def test_python_variable_replaces_an_environment_of_another_version(machine):
  machine.add_python('3.12.1')
  _start(machine)
  machine.add_python('3.13.0')
  machine.take_calls('')
  assert _start(machine, PYTHON='python3.13').returncode == 0
  assert len(machine.take_calls('3.13.0 -m venv --clear')) == 1


def test_an_environment_whose_python_is_gone_is_made_again(machine):
  machine.add_python('3.12.1')
  _start(machine)
  (machine.checkout / '.venv' / 'bin' / 'python').unlink()
  machine.take_calls('')
  assert _start(machine).returncode == 0
  assert len(machine.take_calls('-m venv')) == 1


def test_a_folder_that_is_no_environment_is_left_alone(machine):
  machine.add_python('3.12.1')
  mine = machine.checkout / '.venv' / 'mine.txt'
  mine.parent.mkdir()
  mine.write_text('kept')
  result = _start(machine)
  assert result.returncode == 1
  assert result.stderr.count('\n') == 1
  assert 'is in the way' in result.stderr
  assert mine.read_text() == 'kept'


def test_a_python_without_wheels_gives_way_to_the_next_and_says_so(machine):
  machine.add_python('3.12.1')
  machine.add_python('3.99.0', pip_says=_NO_WHEEL)
  result = _start(machine)
  assert result.returncode == 0
  assert 'Python 3.99.0 cannot install the packages' in result.stderr
  assert _NO_WHEEL in result.stderr
  assert len(machine.take_calls('3.12.1 -P -m speculative.run')) == 1


def test_no_python_with_wheels_is_an_error(machine):
  machine.add_python('3.99.0', pip_says=_NO_WHEEL)
  result = _start(machine)
  assert result.returncode != 0
  assert result.stderr.splitlines()[-1].startswith(
      'error: no Python found here can install the packages'
  )
  assert machine.take_calls('speculative.run') == []


def test_no_network_is_one_error_and_no_other_python_is_tried(machine):
  machine.add_python('3.12.1')
  machine.add_python('3.13.0', pip_says=_NO_NETWORK)
  result = _start(machine)
  assert result.returncode == 1
  errors = [line for line in result.stderr.splitlines() if 'error' in line]
  assert len(errors) == 1
  assert 'the package index cannot be reached' in errors[0]
  assert machine.take_calls('3.12.1 -m venv') == []


def test_a_full_disk_is_named(machine):
  machine.add_python(
      '3.13.0', pip_says='OSError: [Errno 28] No space left on device'
  )
  result = _start(machine)
  assert result.returncode == 1
  assert 'error: the disk is full' in result.stderr


def test_no_python_stops_before_anything_is_made(machine):
  result = _start(machine)
  assert result.returncode == 1
  assert result.stderr.startswith('error: no working Python')
  assert not (machine.checkout / '.venv').exists()


def test_the_prompt_and_other_flags_reach_the_command_line(machine):
  machine.add_python('3.12.1')
  _start(
      machine,
      '--prompt',
      'two  words',
      '--config.seed=3',
      '--workdir=elsewhere',
  )
  (call,) = machine.take_calls('speculative.run')
  assert call.endswith(
      f'--config={machine.checkout}/configs/quickstart.py --workdir=elsewhere '
      '--config.generate.prompt=two  words --config.seed=3'
  )


def test_a_prompt_without_its_text_is_an_error(machine):
  machine.add_python('3.12.1')
  result = _start(machine, '--prompt')
  assert result.returncode == 1
  assert result.stderr == (
      'error: --prompt needs a text, as in --prompt "Hello".\n'
  )


def test_help_is_printed_without_installing(machine):
  result = _start(machine, '--help')
  assert result.returncode == 0
  assert 'bash scripts/quickstart.sh [--prompt' in result.stdout
  assert not (machine.checkout / '.venv').exists()
