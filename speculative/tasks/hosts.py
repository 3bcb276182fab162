"""Starts jax on one host or on many, on the platform that was asked for.

All hosts run the same task in step. Host 0 alone prints and writes; a mistake
on one of them ends them all with one line.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import dataclasses
import hashlib
import json
import os
import sys
import traceback
from typing import Any
import zlib

from absl import logging
import jax
from jax.experimental import multihost_utils
from ml_collections import config_dict
import numpy as np

from speculative import rendezvous
from speculative import watchdog
from speculative.errors import UserError

PLATFORMS = ('tpu', 'gpu', 'cpu')
_WATCHDOG_S = 600.0
# A week; threads cannot wait for ever longer times.
_LONGEST_S = 7 * 24 * 3600.0


@dataclasses.dataclass(frozen=True)
class Options:
  """What the command line says of hosts and devices.

  Attributes:
    distributed: 'yes' where other hosts take part.
    coordinator: HOST:PORT of host 0; '' leaves all three to jax, which knows
      Cloud TPU, Slurm and others.
    num_hosts: of all; None with `coordinator` absent.
    host: the number of this one; None with `coordinator` absent.
    connect_timeout_s: how long hosts wait for each other.
    watchdog_s: seconds without a finished round after which stacks are dumped;
      0 is never, and None 600 on several hosts.
    platform: 'tpu', 'gpu', 'cpu', or '' for what jax finds.
  """

  distributed: str = 'no'
  coordinator: str = ''
  num_hosts: int | None = None
  host: int | None = None
  connect_timeout_s: float = 300.0
  watchdog_s: float | None = None
  platform: str = ''

  def __post_init__(self) -> None:
    given = {
        '--coordinator': bool(self.coordinator),
        '--num_hosts': self.num_hosts is not None,
        '--host': self.host is not None,
    }
    if any(given.values()) and not all(given.values()):
      absent = [name for name, is_given in given.items() if not is_given]
      raise UserError(
          f'missing: {", ".join(absent)}; --coordinator=HOST:PORT, '
          '--num_hosts=N and --host=I go together, or none of them where jax '
          'finds the hosts itself (Cloud TPU, Slurm).'
      )
    if self.coordinator and self.distributed == 'no':
      raise UserError(
          '--coordinator was given without --distributed; add it on every host.'
      )
    for name, least in (('connect_timeout_s', 1), ('watchdog_s', 0)):
      value = getattr(self, name)
      if value is not None and not least <= value <= _LONGEST_S:
        raise UserError(
            f'--{name} needs to be in [{least}, {_LONGEST_S:.0f}], got '
            f'{value:g}.'
        )
    if self.platform and self.platform not in PLATFORMS:
      raise UserError(
          f'--platform is {self.platform!r}; it needs to be one of '
          f'{", ".join(PLATFORMS)}.'
      )


@contextlib.contextmanager
def started(options: Options, config: config_dict.ConfigDict) -> Iterator[None]:
  """Starts jax; on several hosts, all of them end if one does.

  Args:
    options: of the command line.
    config: of the run, the same on every host.

  Yields:
    Nothing, with the devices there and the watchdog watching.

  Raises:
    UserError: If hosts or the platform are absent. On several hosts, whatever
      is raised later ends the process here, with its line on every host.
  """
  if options.platform:
    jax.config.update('jax_platforms', options.platform)
  if options.distributed == 'no':
    _check_alone(os.environ)
    report_devices(options.platform)
    with watchdog.watching(options.watchdog_s or 0.0):
      yield
    return
  place, local_device_ids = _find_place(options)
  party = rendezvous.meet(
      place, timeout_s=options.connect_timeout_s, same=_digest(config)
  )
  try:
    if place.host:
      logging.set_verbosity(logging.WARNING)
    _initialize(place, local_device_ids, options.connect_timeout_s)
    report_devices(options.platform)
    silent_s = options.watchdog_s
    with watchdog.watching(
        _WATCHDOG_S if silent_s is None else silent_s, where=place.name
    ):
      yield
    party.close()
  except BaseException as error:
    _leave(party, error)


def report_devices(platform: str = '') -> None:
  """Starts jax and logs what it runs on.

  Args:
    platform: that it has to be; '' for any.

  Raises:
    UserError: If the platform that was asked for is not there.
  """
  try:
    devices = jax.devices()
  # Without a GPU, jax asserts that there is one.
  except (RuntimeError, AssertionError) as error:
    asked = f' for --platform={platform}' if platform else ''
    raise UserError(
        f'jax found no device{asked} ({error}); set '
        f'{"--platform" if platform else "JAX_PLATFORMS"} to a platform that '
        'is there, for instance cpu.'
    ) from error
  if platform and devices[0].platform != platform:
    raise UserError(
        f'--platform is {platform}, but jax runs on {devices[0].platform}; '
        f'install jax for {platform}, or see what JAX_PLATFORMS names.'
    )
  logging.info(
      'jax %s, process %d/%d, %d %s device(s)',
      jax.__version__,
      jax.process_index(),
      jax.process_count(),
      len(devices),
      devices[0].device_kind,
  )


def agree(value: Any, *, name: str) -> None:
  """Waits for all hosts and compares what they are about to do.

  Args:
    value: what JSON can express, to be equal on all hosts.
    name: of the value, in the plural.

  Raises:
    UserError: On every host, if a host has another value.
  """
  if jax.process_count() == 1:
    return
  mine = np.uint32(zlib.crc32(json.dumps(value).encode()))
  values = multihost_utils.process_allgather(mine)
  if differ := np.flatnonzero(values != values[0]).tolist():
    raise UserError(
        f'{name} of host {differ[0]} are not those of host 0; all hosts need '
        'the same files.'
    )


def share(text: str) -> str:
  """Returns what host 0 says, on every host.

  Args:
    text: of this host; it counts on host 0 alone.
  """
  if jax.process_count() == 1:
    return text
  data = np.frombuffer(text.encode(), np.uint8)
  size = multihost_utils.broadcast_one_to_all(np.int32(len(data)))
  if not size:
    return ''
  buffer = np.zeros(int(size), np.uint8)
  if jax.process_index() == 0:
    buffer[:] = data
  shared = np.asarray(multihost_utils.broadcast_one_to_all(buffer))
  return shared.astype(np.uint8).tobytes().decode()


def _platforms() -> str:
  """Returns the platforms jax may use, '' for any."""
  return jax.config.jax_platforms or ''


def _check_alone(environment: Mapping[str, str]) -> None:
  """Refuses one host of a TPU slice that has several."""
  platforms = (_platforms() or 'tpu').split(',')
  names = environment.get('TPU_WORKER_HOSTNAMES', '').split(',')
  if len(names) > 1 and 'tpu' in platforms:
    raise UserError(
        f'this TPU slice has {len(names)} hosts (TPU_WORKER_HOSTNAMES), but '
        'the command was started on one host only; start it on every host '
        '(gcloud: --worker=all) with --distributed.'
    )


def _find_place(
    options: Options,
) -> tuple[rendezvous.Place, list[int] | None]:
  """Returns this host's place, and the devices it may use if not all."""
  if options.coordinator:
    place = rendezvous.Place(
        options.coordinator, options.num_hosts, options.host
    )
    return place, None
  # What jax.distributed.initialize() does without arguments. Only this says
  # who takes part before jax waits for them.
  from jax._src import clusters

  try:
    coordinator, num_hosts, host, local_device_ids = (
        clusters.ClusterEnv.auto_detect_unset_distributed_params(
            None, None, None, None, None, round(options.connect_timeout_s)
        )
    )
  except RuntimeError as error:
    raise UserError(
        f'jax cannot find the hosts ({error}); name them with --coordinator, '
        '--num_hosts and --host.'
    ) from error
  if None in (coordinator, num_hosts, host):
    raise UserError(
        '--distributed finds its hosts by itself on Cloud TPU and under Slurm '
        'only; elsewhere add --coordinator=HOST:PORT, --num_hosts=N and '
        '--host=I.'
    )
  return rendezvous.Place(coordinator, num_hosts, host), local_device_ids


def _initialize(
    place: rendezvous.Place,
    local_device_ids: list[int] | None,
    timeout_s: float,
) -> None:
  # It would swallow SIGTERM, and nothing here asks it whether one came.
  if hasattr(jax.config, 'jax_enable_preemption_service'):
    jax.config.update('jax_enable_preemption_service', False)
  jax.distributed.initialize(
      place.coordinator,
      place.num_hosts,
      place.host,
      local_device_ids,
      # Everything has been found.
      cluster_detection_method='deactivate',
      initialization_timeout=round(timeout_s),
  )


def _digest(config: config_dict.ConfigDict) -> str:
  text = config.to_json_best_effort(sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


def _leave(party: rendezvous.Party, error: BaseException) -> None:
  """Ends the process and the other hosts'.

  At once: jax would wait for the others at exit, and they for this one.
  """
  if isinstance(error, UserError):
    party.fail(str(error))
  else:
    traceback.print_exception(error)
    party.fail(f'{type(error).__name__}: {error}')
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(1)
