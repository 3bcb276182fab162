import numpy as np

from speculative.retrieval import memory

_PROGRAM = """
import numpy as np
from speculative.retrieval import memory
big = np.ones(40_000_000, np.uint8)
del big
with memory.Peak() as peak:
  for _ in range(3):
    part = np.ones(20_000_000, np.uint8)
    del part
print(peak.grown)
"""


def test_the_peak_is_what_was_used_at_once_not_what_is_left(fresh_number):
  assert 15_000_000 < fresh_number(_PROGRAM) < 30_000_000


def test_a_machine_that_does_not_tell_says_nothing(monkeypatch, tmp_path):
  monkeypatch.setattr(memory, '_STATUS', tmp_path / 'absent')
  with memory.Peak() as peak:
    np.ones(1_000_000).sum()
  assert peak.grown == 0
