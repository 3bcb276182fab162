"""What is measured of a trained draft."""

from speculative import config as config_lib
from speculative.tasks import benchmark_settings


def _command(machine, *flags):
  for name in ('c.jsonl', 'd.jsonl'):
    (machine.home / name).touch()
  script = f'{machine.checkout}/scripts/bench_draft.sh'
  return script, '--code=c.jsonl', '--chat=d.jsonl', '--out=out', *flags


def test_every_step_is_a_run_of_both_settings(machine, config_of):
  python = machine.add_python('3.99.0')
  done = machine.run(*_command(machine), OURS_PYTHON=str(python))
  assert done.returncode == 0, done.stderr
  calls = machine.take_calls('')
  runs = [call for call in calls if '-m speculative.run' in call]
  steps = [call.split('--workdir=out/')[1].split()[0] for call in runs]
  assert steps == ['code.greedy', 'code.sampled', 'chat.greedy', 'chat.sampled']
  for call in runs:
    config = config_of(call)
    drafter = config_lib.parse(config).drafter
    settings = benchmark_settings.settings_of(config, drafter)
    kinds = [drafter.kind for drafter in settings.values()][1:]
    assert kinds == ['hybrid', 'lm']
  assert 'bench_draft.py out' in calls[-1]


def test_runs_of_an_earlier_script_are_not_shown_as_these(machine):
  python = machine.add_python('3.99.0')
  out = machine.home / 'out'
  (out / 'code.greedy.hybrid').mkdir(parents=True)
  (out / 'code.greedy.hybrid' / 'results.json').touch()
  (out / 'of.txt').write_text('package://smollm2_135m_instruct c d\n')
  done = machine.run(*_command(machine), OURS_PYTHON=str(python))
  assert done.returncode == 1
  assert 'choose another --out' in done.stderr
  assert not machine.take_calls('')


def test_a_file_that_is_not_there_leaves_nothing(machine):
  done = machine.run(*_command(machine, '--chat=z.jsonl'))
  assert done.returncode == 1
  assert done.stderr.startswith('error: there is no z.jsonl')
  assert not (machine.home / 'out').exists()
