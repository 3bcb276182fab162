"""Draws a benchmark: the three panels of Chen et al. 2023, Figure 1, and why.

What is drawn is taken from rows of results.json by functions of their own, so
that it can be looked at without a picture.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import os
import pathlib
from typing import Any

# Told apart by people who see few colours (Okabe and Ito).
_COLORS = (
    '#0072b2',
    '#d55e00',
    '#009e73',
    '#cc79a7',
    '#e69f00',
    '#56b4e9',
    '#7f7f7f',
)
_MARKERS = 'osD^vPX'
_PLAIN = '#444444'
# A prediction within this of the measurement is close.
_CLOSE = 0.1

Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Panel:
  """What is drawn over K.

  Attributes:
    title: of the panel.
    label: of its axis.
    key: of the rows.
    per_node: whether the value is divided by K + 1.
    low: key of the lower end of an interval, '' for none.
    high: of the upper end.
    deviation: key of what lies on both sides instead, '' for nothing.
    plain: value of plain decoding where its row has none.
    floor: the panel's value where plain decoding takes one millisecond a step;
      0 where bandwidth sets no floor.
  """

  title: str
  label: str
  key: str
  per_node: str = 'no'
  low: str = ''
  high: str = ''
  deviation: str = ''
  plain: float | None = None
  floor: float = 0.0


@dataclasses.dataclass(frozen=True)
class Point:
  """A value and how far it may be off.

  Attributes:
    num_draft_tokens: K.
    value: of the setting.
    below: to the lower end of the bar.
    above: to its upper end.
    name: of the setting.
  """

  num_draft_tokens: int
  value: float
  below: float
  above: float
  name: str


PANELS = (
    Panel(
        'speed-up, 95 % interval',
        'speed-up over plain decoding (×)',
        'speedup/measured',
        low='speedup/low',
        high='speedup/high',
        plain=1.0,
    ),
    Panel(
        'time of 128 tokens, ± deviation over prompts',
        'seconds for 128 tokens',
        'decode/tokens_128_s',
        deviation='decode/tokens_128_deviation_s',
        floor=0.128,
    ),
    Panel(
        'tokens a round ÷ (K + 1)',
        'share of the longest possible round',
        'decode/tokens_per_round',
        per_node='yes',
    ),
    Panel(
        'time of a round',
        'milliseconds a round',
        'decode/round_ms',
        floor=1.0,
    ),
)


def point(panel: Panel, row: Row) -> Point | None:
  """Returns what a panel shows of a setting, None where it has no such key."""
  K = row['row/num_draft_tokens']
  value = row.get(panel.key, None if K else panel.plain)
  if value is None:
    return None
  by = 1 / (K + 1 if panel.per_node == 'yes' else 1)
  low, high = row.get(panel.low), row.get(panel.high)
  below = above = row.get(panel.deviation) or 0.0
  if low is not None and high is not None:
    # Of few prompts an interval may miss the estimate.
    below, above = max(value - low, 0.0), max(high - value, 0.0)
  return Point(K, value * by, below * by, above * by, row['row/name'])


def curve(panel: Panel, plain: Row, rows: Sequence[Row]) -> list[Point]:
  """Returns a drafter's points, plain decoding first, in order of K.

  Args:
    panel: which value.
    plain: row of plain decoding, K = 0.
    rows: of one drafter, one a length.
  """
  ordered = sorted(rows, key=lambda row: row['row/num_draft_tokens'])
  points = [point(panel, row) for row in (plain, *ordered)]
  return [p for p in points if p is not None]


def floor_of(panel: Panel, plain: Row) -> float | None:
  """Returns what bandwidth allows plain decoding, in a panel's unit."""
  floor_ms = plain.get('decode/bandwidth_floor_ms')
  return floor_ms * panel.floor if floor_ms and panel.floor else None


def predictions(rows: Sequence[Row]) -> list[tuple[float, float, float]]:
  """Returns measured, predicted and i.i.d. prediction of what was predicted."""
  return [
      (
          row['speedup/measured'],
          row['speedup/predicted'],
          row['speedup/predicted_iid'],
      )
      for row in rows
      if 'speedup/predicted' in row
  ]


def draw(
    path: pathlib.Path,
    plain: Row,
    series: Mapping[str, Sequence[Row]],
    *,
    title: str,
) -> None:
  """Writes a PNG of six panels, whole or not at all.

  Args:
    path: of the file.
    plain: row of plain decoding.
    series: rows of settings by the drafter they are lengths of.
    title: over all of them.
  """
  # It is large, and needed here alone.
  from matplotlib import figure  # noqa: PLC0415

  drawing = figure.Figure(figsize=(14, 8), layout='constrained')
  drawing.get_layout_engine().set(w_pad=0.12, h_pad=0.12)
  axes = drawing.subplots(2, 3).flatten()
  several = any(len(rows) > 1 for rows in series.values())
  for panel, where in zip(PANELS, axes, strict=False):
    if several:
      _draw_curves(where, panel, plain, series)
    else:
      _draw_bars(where, panel, plain, series)
    _draw_floor(where, panel, plain, 'axhline' if several else 'axvline')
    where.set_title(panel.title, fontsize='medium')
    where.grid(alpha=0.25, axis='both' if several else 'x')
  _draw_positions(axes[4], series)
  _draw_predictions(axes[5], series)
  for where in axes:
    where.spines[['top', 'right']].set_visible(False)
  if several:
    handles, labels = axes[0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc='outside lower center', ncols=4)
  drawing.suptitle(title)
  beside = path.with_name(f'.{path.name}')
  try:
    drawing.savefig(beside, format='png', dpi=120)
    os.replace(beside, path)
  finally:
    beside.unlink(missing_ok=True)


def _draw_floor(axes: Any, panel: Panel, plain: Row, draw_line: str) -> None:
  value = floor_of(panel, plain)
  if value is None:
    return
  getattr(axes, draw_line)(
      value,
      color=_PLAIN,
      linestyle='--',
      linewidth=1,
      label='bandwidth floor of plain decoding',
  )
  if panel is PANELS[-1]:
    place = 'lower right' if draw_line == 'axhline' else 'upper right'
    axes.legend(handles=axes.lines[-1:], fontsize='small', loc=place)


def _look(number: int) -> dict[str, str]:
  return {
      'color': _COLORS[number % len(_COLORS)],
      'marker': _MARKERS[number % len(_MARKERS)],
  }


def _draw_curves(
    axes: Any, panel: Panel, plain: Row, series: Mapping[str, Sequence[Row]]
) -> None:
  """Draws a value over K, a line a drafter."""
  lengths = {0}
  for number, (name, rows) in enumerate(series.items()):
    points = curve(panel, plain, rows)
    lengths |= {p.num_draft_tokens for p in points}
    # Bars at one K lie side by side.
    shift = 0.06 * (number - (len(series) - 1) / 2)
    axes.errorbar(
        [p.num_draft_tokens + shift for p in points],
        [p.value for p in points],
        yerr=[[p.below for p in points], [p.above for p in points]],
        capsize=3,
        linewidth=1.5,
        elinewidth=1,
        markersize=5,
        label=name,
        **_look(number),
    )
  if panel.plain is not None:
    axes.axhline(panel.plain, color=_PLAIN, linestyle=':', linewidth=1)
  axes.set_xticks(sorted(lengths))
  axes.set(xlabel='K, tokens drafted a round (0: plain)', ylabel=panel.label)
  axes.set_ylim(bottom=0)


def _draw_bars(
    axes: Any, panel: Panel, plain: Row, series: Mapping[str, Sequence[Row]]
) -> None:
  """Draws a value a setting, where drafters have one length each."""
  rows = [plain, *(row for of_one in series.values() for row in of_one)]
  points = [p for p in (point(panel, row) for row in rows) if p is not None]
  errors = [[p.below for p in points], [p.above for p in points]]
  drawn = axes.barh(
      range(len(points)),
      [p.value for p in points],
      xerr=errors if any(map(any, errors)) else None,
      color=[
          _COLORS[(i - 1) % len(_COLORS)] if i else _PLAIN
          for i in range(len(points))
      ],
      alpha=0.85,
      height=0.6,
      capsize=3,
  )
  axes.bar_label(
      drawn, [f'{p.value:.3g}' for p in points], padding=4, fontsize='small'
  )
  axes.set_yticks(range(len(points)), [_short(p.name) for p in points])
  axes.invert_yaxis()
  axes.margins(x=0.15)
  axes.set_xlabel(panel.label)


def _short(name: str) -> str:
  return name if len(name) <= 24 else f'{name[:23]}…'


def _draw_positions(axes: Any, series: Mapping[str, Sequence[Row]]) -> None:
  """Draws what share of the tested tokens of every place was kept."""
  several = any(len(rows) > 1 for rows in series.values())
  longest = 1
  for number, rows in enumerate(series.values()):
    for row in rows:
      shares = row['decode/acceptance_by_position']
      longest = max(longest, len(shares))
      axes.plot(
          range(1, len(shares) + 1),
          shares,
          markersize=4,
          linewidth=1.2,
          alpha=0.8,
          label=_short(row['row/name']),
          **_look(number),
      )
      if several:
        _number(axes, row, (len(shares), shares[-1]), _look(number))
  note = ', K at the end' if several else ''
  axes.set_title(f'acceptance by place in the draft{note}', fontsize='medium')
  axes.set_xticks(range(1, longest + 1, max(1, longest // 8)))
  axes.set(xlabel='place in the draft', ylabel='kept ÷ tested')
  axes.set_ylim(0, 1.05)
  if not several:
    axes.legend(fontsize='small')
  axes.grid(alpha=0.25)


def _number(
    axes: Any, row: Row, place: tuple[float, float], look: Mapping[str, str]
) -> None:
  """Writes K beside a point."""
  axes.annotate(
      str(row['row/num_draft_tokens']),
      place,
      xytext=(6, -7),
      textcoords='offset points',
      color=look['color'],
      fontsize='small',
  )


def _draw_predictions(axes: Any, series: Mapping[str, Sequence[Row]]) -> None:
  """Draws predictions over measurements."""
  axes.set_title('predicted against measured', fontsize='medium')
  found = [
      (number, row, *numbers)
      for number, rows in enumerate(series.values())
      for row in rows
      for numbers in predictions([row])
  ]
  if not found:
    axes.text(0.5, 0.5, 'nothing was predicted', ha='center', color=_PLAIN)
    axes.set_axis_off()
    return
  ends = [x for _, _, *numbers in found for x in numbers]
  low, high = 0.9 * min(*ends, 1.0), 1.08 * max(*ends, 1.0)
  line = [low, high]
  axes.fill_between(
      line,
      [(1 - _CLOSE) * x for x in line],
      [(1 + _CLOSE) * x for x in line],
      color=_PLAIN,
      alpha=0.12,
      linewidth=0,
      label='within 10 %',
  )
  axes.plot(line, line, color=_PLAIN, linewidth=1)
  for label, style in (
      ('from every place', 'full'),
      ('from α alone (i.i.d.)', 'none'),
  ):
    mark = dict(marker='o', linestyle='', fillstyle=style, color=_PLAIN)
    axes.plot([], [], label=label, **mark)
  for number, row, measured, by_position, iid in found:
    look = _look(number)
    axes.plot(
        [measured] * 2, [by_position, iid], color=look['color'], alpha=0.3
    )
    axes.plot(measured, by_position, linestyle='', **look)
    axes.plot(measured, iid, linestyle='', fillstyle='none', **look)
    _number(axes, row, (measured, by_position), look)
  axes.set(xlim=line, ylim=line, xlabel='measured speed-up', ylabel='predicted')
  axes.legend(fontsize='small', loc='upper left')
  axes.grid(alpha=0.25)
