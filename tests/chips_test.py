import pytest

from speculative import chips
from speculative.errors import UserError


@pytest.mark.parametrize(
    'name, bidirectional_gb_per_s',
    # What Google's pages and Jouppi et al. give a chip; v4: 6 links of 50 GB/s
    # in each of two directions.
    [('v4', 600), ('v5e', 400), ('v5p', 1200), ('v6e', 800), ('tpu7x', 1200)],
)
def test_the_links_add_up_to_the_figure_of_a_chip(name, bidirectional_gb_per_s):
  chip = chips.find(name)
  both_directions = chip.ici_axes * 2 * chip.ici_axis_bytes_per_s
  assert both_directions == bidirectional_gb_per_s * 1e9


def test_a_ring_has_two_directions_of_one_axis():
  assert chips.find('v5e').ici_axis_bytes_per_s == 100e9


@pytest.mark.parametrize('name', list(chips.CHIPS))
def test_numbers_are_of_the_right_size(name):
  chip = chips.find(name)
  assert chip.name == name
  assert 16 <= chip.hbm_gib <= 192
  # The system takes little; v5p's page rounds down.
  share = chip.usable_hbm_gib * chip.num_devices / chip.hbm_gib
  assert 0.95 < share < 1.01
  # A slipped exponent would leave these; the generations lie within ten.
  assert 8e11 <= chip.hbm_bytes_per_s <= 8e12
  assert 1e14 <= chip.bf16_flops <= 3e15
  assert 4e10 <= chip.ici_link_bytes_per_s <= 1.1e11


def test_a_topology_names_its_chip():
  assert chips.find('v4:2x2x4') is chips.CHIPS['v4']


def test_an_unknown_generation_is_refused_with_those_known():
  with pytest.raises(UserError, match="'v9' names no known.*v4, v5e, v5p"):
    chips.find('v9')
