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
  assert chips.find(name).ici_bytes_per_s == bidirectional_gb_per_s * 1e9


def test_a_ring_has_two_directions_of_one_axis():
  chip = chips.find('v5e')
  assert (chip.ici_links, chip.ici_axes) == (4, 2)
  assert chip.ici_axis_bytes_per_s == 100e9


def test_capacity_is_binary():
  assert chips.find('v6e').hbm_bytes == 34_359_738_368


def test_rows_where_arithmetic_takes_over():
  assert chips.find('v5e').critical_rows == pytest.approx(240.5, abs=0.1)
  assert chips.find('v4').critical_rows == pytest.approx(223.9, abs=0.1)


@pytest.mark.parametrize('name', list(chips.CHIPS))
def test_numbers_are_of_the_right_size(name):
  chip = chips.find(name)
  assert chip.name == name
  assert 16 <= chip.hbm_gib <= 192
  # A slipped exponent would leave these; the generations lie within ten.
  assert 8e11 <= chip.hbm_bytes_per_s <= 8e12
  assert 1e14 <= chip.bf16_flops <= 3e15
  assert 4e10 <= chip.ici_link_bytes_per_s <= 1.1e11


def test_a_topology_names_its_chip():
  assert chips.find('v4:2x2x4') is chips.CHIPS['v4']


def test_an_unknown_generation_is_refused_with_those_known():
  with pytest.raises(UserError, match="'v9' names no known.*v4, v5e, v5p"):
    chips.find('v9')
