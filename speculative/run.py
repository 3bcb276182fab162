"""Runs one task described by a config file.

  python -m speculative.run --config=configs/x.py --workdir=DIR

Kept short on purpose: everything worth testing or calling from a notebook
lives in speculative.tasks.
"""

from collections.abc import Sequence
import sys

from absl import app
from absl import flags
from absl import logging
from ml_collections import config_flags

from speculative import config as config_lib
from speculative.errors import UserError
from speculative.tasks import benchmark
from speculative.tasks import build_datastore
from speculative.tasks import collect
from speculative.tasks import generate
from speculative.tasks import hosts
from speculative.tasks import plan
from speculative.tasks import train_draft
from speculative.tasks import verify

_TASKS = {
    'benchmark': benchmark.run,
    'build_datastore': build_datastore.run,
    'collect': collect.run,
    'generate': generate.run,
    'plan': plan.run,
    'train_draft': train_draft.run,
    'verify': verify.run,
}

_CONFIG = config_flags.DEFINE_config_file(
    'config', None, 'Path to a configs/*.py file.', lock_config=True
)
_WORKDIR = flags.DEFINE_string('workdir', None, 'Where results are written.')
_DISTRIBUTED = flags.DEFINE_bool(
    'distributed', False, 'Run with other hosts; one process on each.'
)
_COORDINATOR = flags.DEFINE_string(
    'coordinator', '', 'HOST:PORT of host 0, where jax does not find it itself.'
)
_NUM_HOSTS = flags.DEFINE_integer('num_hosts', None, 'With --coordinator.')
_HOST = flags.DEFINE_integer('host', None, 'Number of this host, from 0.')
_CONNECT_TIMEOUT_S = flags.DEFINE_float(
    'connect_timeout_s', 300.0, 'How long hosts wait for each other.'
)
_WATCHDOG_S = flags.DEFINE_float(
    'watchdog_s',
    None,
    'Dump all stacks when no round ends for so long; 0 is never, and the '
    'default, 600 with --distributed.',
)
_PLATFORM = flags.DEFINE_string(
    'platform', '', 'tpu, gpu or cpu: end at once where it is absent.'
)


def parse_flags(argv: Sequence[str]) -> list[str]:
  """Returns what is left of the arguments; a mistake ends the process."""
  try:
    rest = flags.FLAGS(list(argv))
    if _CONFIG.value is None:
      raise UserError('--config is missing; name a configs/*.py file.')
    # A file that could not be read says so only when it is looked at.
    _ = _CONFIG.value.task
    return rest
  except Exception as error:
    sys.exit(_fail(config_lib.flag_error(error)))


def main(argv: Sequence[str]) -> int:
  """Runs the task that the flags name; returns the exit status."""
  logging.set_verbosity(logging.INFO)
  try:
    if len(argv) > 1:
      raise UserError(f'unexpected arguments: {" ".join(argv[1:])}.')
    config = _CONFIG.value
    if config.task not in _TASKS:
      raise UserError(
          f'config.task is {config.task!r}; known: {", ".join(_TASKS)}.'
      )
    workdir = config_lib.check_workdir(_WORKDIR.value)
    # A plan is for devices that are not there, and one host makes it.
    if config.task == 'plan':
      if _DISTRIBUTED.value:
        raise UserError('a plan is made by one host; leave --distributed out.')
      return plan.run(config, workdir).exit_status
    with hosts.started(_options(), config):
      return _TASKS[config.task](config, workdir).exit_status
  except UserError as error:
    return _fail(error)


def _options() -> hosts.Options:
  return hosts.Options(
      distributed='yes' if _DISTRIBUTED.value else 'no',
      coordinator=_COORDINATOR.value,
      num_hosts=_NUM_HOSTS.value,
      host=_HOST.value,
      connect_timeout_s=_CONNECT_TIMEOUT_S.value,
      watchdog_s=_WATCHDOG_S.value,
      platform=_PLATFORM.value,
  )


def _fail(error: UserError) -> int:
  print('error:', ' '.join(str(error).split()), file=sys.stderr)
  return 1


if __name__ == '__main__':
  app.run(main, flags_parser=parse_flags)
