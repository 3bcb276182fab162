import os
import pathlib
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def fresh_number():
  """Runs a program in a process of its own; returns the number it prints.

  Memory that earlier tests have given back to the allocator but not to the
  system would count as in use already.
  """
  if not os.access('/proc/self/clear_refs', os.W_OK):
    pytest.skip('this machine does not tell: the peak was not checked')

  def call(program: str) -> float:
    done = subprocess.run(
        [sys.executable, '-c', program],
        env=os.environ | {'PYTHONPATH': str(_ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)

  return call
