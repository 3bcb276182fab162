"""Slices by name; the devices of one where the TPU compiler is installed."""

import os
import subprocess
import sys

import numpy as np
import pytest

from speculative import topology
from speculative.errors import UserError


@pytest.mark.parametrize(
    ('name', 'shape', 'num_chips', 'num_devices'),
    [
        ('v4:2x2x4', (2, 2, 4), 16, 16),
        ('v5e:2x4', (2, 4), 8, 8),
        ('v5p:2x2x1', (2, 2, 1), 4, 4),
        ('v6e:1x1', (1, 1), 1, 1),
        ('tpu7x:2x2x2', (2, 2, 2), 8, 16),
    ],
)
def test_a_name_is_read(name, shape, num_chips, num_devices):
  found = topology.parse(name)
  assert found.shape == shape
  assert (found.num_chips, found.num_devices) == (num_chips, num_devices)


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('v4', "'v4' is not of the form .* generations: v4, v5e"),
        ('v4-8', 'not of the form'),
        ('v4:2x2x', 'not of the form'),
        ('v4:axb', 'not of the form'),
        ('v5e:2x2_twisted', 'not of the form'),
        ('', 'not of the form'),
        ('v9:2x2', 'unknown generation; use one of v4, v5e, v5p, v6e, tpu7x'),
        ('v5e:2x2x1', '3 sides, but a v5e slice has 2: write it like v5e:2x4'),
        ('v4:2x2', '2 sides, but a v4 slice has 3'),
        ('v4:0x2x2', '0 chips; a v4 slice has 1 to 4096'),
        ('v5e:32x32', '1024 chips; a v5e slice has 1 to 256'),
    ],
)
def test_a_name_without_a_slice_is_refused(name, message):
  with pytest.raises(UserError, match=message) as caught:
    topology.devices(name)
  assert '\n' not in str(caught.value)


def test_without_libtpu_the_error_says_what_to_install(monkeypatch):
  monkeypatch.delenv('TPU_LIBRARY_PATH', raising=False)
  monkeypatch.setattr(topology.importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(UserError, match=r"pip install 'speculative\[tpu\]'"):
    topology.devices('v4:2x2x1')


@pytest.mark.tpu_compiler
@pytest.mark.parametrize(
    'name', ['v4:2x2x4', 'v5e:2x4', 'v5p:2x2x2', 'v6e:4x4', 'tpu7x:2x2x2']
)
def test_devices_stand_where_their_chips_do(name):
  slice_ = topology.parse(name)
  devices = topology.devices(name)
  assert devices.size == slice_.num_devices
  assert len(set(devices.flat)) == devices.size
  for place, device in np.ndenumerate(devices):
    sides = len(slice_.shape)
    assert tuple(device.coords[:sides]) == place[:sides]
    assert (device.core_on_chip,) == (place[sides:] or (0,))


@pytest.mark.tpu_compiler
def test_what_libtpu_refuses_is_one_line():
  with pytest.raises(
      UserError, match="no topology 'v5e:3x3'.*like v5e:2x4"
  ) as e:
    topology.devices('v5e:3x3')
  assert '\n' not in str(e.value)


@pytest.mark.tpu_compiler
def test_the_environment_is_left_as_it_was():
  before = dict(os.environ)
  topology.devices('v5e:2x2')
  assert dict(os.environ) == before


@pytest.mark.tpu_compiler
@pytest.mark.slow
def test_two_processes_may_compile_at_once():
  source = (
      'from speculative import topology\n'
      "print(topology.devices('v5e:2x2').size, flush=True)\n"
      'input()\n'
  )
  command = [sys.executable, '-c', source]
  pipes = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE, 'text': True}
  with (
      subprocess.Popen(command, **pipes) as one,
      subprocess.Popen(command, **pipes) as other,
  ):
    # Both hold libtpu until they are answered.
    assert [p.stdout.readline() for p in (one, other)] == ['4\n', '4\n']
    for process in (one, other):
      process.communicate('\n')
