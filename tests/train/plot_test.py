import pytest

from speculative.errors import UserError
from speculative.train import plot

_ROWS = [
    {'train/step': 0, 'train/alpha_heldout_1': 0.1, 'train/loss_heldout': 3.0},
    {'train/step': 1, 'train/loss_1': 2.5},
    {'train/step': 2, 'train/alpha_heldout_1': 0.2, 'train/loss_heldout': 2.0},
]


def test_a_plot_is_written_whole(tmp_path):
  pytest.importorskip('matplotlib', reason='no plot was drawn')
  plot.draw(tmp_path / 'plot.png', _ROWS)
  assert (tmp_path / 'plot.png').read_bytes().startswith(b'\x89PNG')
  assert [p.name for p in tmp_path.iterdir()] == ['plot.png']


def test_a_plot_without_matplotlib_is_refused_where_it_was_asked_for(
    monkeypatch,
):
  monkeypatch.setattr(plot, 'is_available', lambda: False)
  plot.check('auto')
  plot.check('no')
  with pytest.raises(UserError, match="matplotlib .*set it to 'no'"):
    plot.check('yes')


def test_numbers_are_taken_from_the_rows_that_have_them():
  assert plot._series(_ROWS, 'train/alpha_heldout_1') == ([0, 2], [0.1, 0.2])
