import mmap

import pytest

from speculative.errors import UserError
from speculative.tasks import memory_maps


def test_maps_of_the_process_are_counted():
  before = memory_maps.num_maps()
  if not before:
    pytest.skip('this system does not tell')
  held = mmap.mmap(-1, 40 * mmap.PAGESIZE, prot=mmap.PROT_READ)
  assert memory_maps.num_maps() > before
  held.close()
  assert memory_maps.num_maps() <= before


def test_a_run_that_would_crash_the_compiler_ends_with_the_reason(
    tmp_path, monkeypatch
):
  most = tmp_path / 'most'
  monkeypatch.setattr(memory_maps, '_MOST', most)
  monkeypatch.setattr(memory_maps, 'num_maps', lambda: 90)
  memory_maps.check(3, 12)  # nobody knows
  most.write_text('200\n')
  memory_maps.check(3, 12)
  most.write_text('100\n')
  with pytest.raises(UserError, match='90 pieces .* 3 of 12 .* 100;'):
    memory_maps.check(3, 12)
