import errno

import pytest

from speculative.bench import plots

_SPEEDUP, _TIME, _SHARE, _ROUND = plots.PANELS

_PLAIN = {
    'row/name': 'plain',
    'row/num_draft_tokens': 0,
    'decode/tokens_128_s': 4.0,
    'decode/tokens_128_deviation_s': None,
    'decode/tokens_per_round': 1.0,
    'decode/round_ms': 30.0,
}


def _row(K: int, **fields):
  return {
      'row/name': f'lm {K}',
      'row/num_draft_tokens': K,
      'speedup/measured': 1.5,
      'speedup/low': 1.25,
      'speedup/high': 2.0,
      'decode/tokens_128_s': 2.0,
      'decode/tokens_128_deviation_s': 0.5,
      'decode/tokens_per_round': 2.5,
      'decode/round_ms': 40.0 + K,
      'decode/acceptance_by_position': [0.5] * K,
  } | fields


def test_a_curve_begins_with_plain_decoding_and_goes_by_length():
  points = plots.curve(_ROUND, _PLAIN, [_row(4), _row(2)])
  assert [(p.num_draft_tokens, p.value) for p in points] == [
      (0, 30.0),
      (2, 42.0),
      (4, 44.0),
  ]


def test_plain_decoding_is_once_as_fast_as_itself():
  first, second = plots.curve(_SPEEDUP, _PLAIN, [_row(4)])
  assert (first.value, first.below, first.above) == (1.0, 0.0, 0.0)
  assert (second.value, second.below, second.above) == (1.5, 0.25, 0.5)


def test_times_have_their_deviation_on_both_sides_where_it_is_known():
  first, second = plots.curve(_TIME, _PLAIN, [_row(4)])
  assert (first.value, first.below, first.above) == (4.0, 0.0, 0.0)
  assert (second.value, second.below, second.above) == (2.0, 0.5, 0.5)


def test_the_share_of_a_round_is_of_what_it_could_have_brought():
  values = [p.value for p in plots.curve(_SHARE, _PLAIN, [_row(4)])]
  assert values == [1.0, 2.5 / 5]


def test_the_floor_is_that_of_plain_steps():
  plain = _PLAIN | {'decode/bandwidth_floor_ms': 20.0}
  floors = [plots.floor_of(panel, plain) for panel in plots.PANELS]
  assert floors == [None, pytest.approx(128 * 0.02), None, 20.0]
  assert plots.floor_of(_ROUND, _PLAIN) is None


def test_an_interval_that_misses_its_estimate_draws_no_bar_backwards():
  row = _row(4, **{'speedup/low': 1.6})
  assert plots.point(_SPEEDUP, row).below == 0.0


def test_predictions_are_those_of_rows_that_have_one():
  row = _row(2, **{'speedup/predicted': 1.4, 'speedup/predicted_iid': 1.8})
  assert plots.predictions([_row(4), row]) == [(1.5, 1.4, 1.8)]


@pytest.mark.slow
@pytest.mark.parametrize('lengths', [(2, 4), (4,)], ids=['curves', 'bars'])
def test_a_plot_is_written_whole_with_predictions_and_without(
    tmp_path, lengths
):
  pytest.importorskip('matplotlib', reason='no plot was drawn')
  predicted = {'speedup/predicted': 1.4, 'speedup/predicted_iid': 1.8}
  for number, more in enumerate((predicted, {'speedup/low': None})):
    path = tmp_path / str(number) / 'plot.png'
    path.parent.mkdir()
    series = {'lm': [_row(K, **more) for K in lengths], 'x': [_row(3)]}
    plain = _PLAIN | {'decode/bandwidth_floor_ms': 20.0}
    plots.draw(path, plain, series, title='prompts, greedy')
    assert path.read_bytes().startswith(b'\x89PNG')
    assert [p.name for p in path.parent.iterdir()] == ['plot.png']


@pytest.mark.slow
def test_a_plot_for_which_there_is_no_room_leaves_nothing(
    tmp_path, monkeypatch
):
  pytest.importorskip('matplotlib', reason='no plot was drawn')
  from matplotlib import figure

  def fill_up(self, path, **kwargs):
    del self, kwargs
    path.write_bytes(b'half')
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(figure.Figure, 'savefig', fill_up)
  with pytest.raises(OSError, match='No space'):
    plots.draw(tmp_path / 'plot.png', _PLAIN, {'lm': [_row(4)]}, title='')
  assert list(tmp_path.iterdir()) == []
