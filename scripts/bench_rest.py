"""Prints and draws what scripts/bench_rest.sh has measured.

python scripts/bench_rest.py pick FILE NUM OUT.jsonl   prompts of middle length
python scripts/bench_rest.py show DIR [STEP ...]       tables, and DIR/rest.png
"""

from collections.abc import Sequence
import json
import os
import pathlib
import re
from typing import Any

from absl import app
import bench_rows

from speculative.bench import prompts
from speculative.bench import report
from speculative.train import plot

_COLUMNS = (
    ('step', 'row/step', ''),
    ('prompts', 'row/prompts', ''),
    ('sampler', 'row/sampler', ''),
    ('setting', 'row/name', ''),
    ('tokens/s', 'decode/tokens_per_s', '.1f'),
    ('tokens per round', 'decode/tokens_per_round', '.2f'),
    ('α', 'decode/acceptance_rate', '.2f'),
    ('accepted of drafted', 'decode/draft_yield', '.2f'),
    ('match, tokens', 'retrieval/matched_len', '.1f'),
    ('query, ms', 'retrieval/query_ms', '.2f'),
    ('of a round', 'retrieval/share_of_round', '.1%'),
    ('speed-up', 'speedup/measured', '.2f'),
    ('without loops', 'speedup/measured_no_loops', '.2f'),
    ('same tokens', 'lossless/greedy_equal', ''),
)
_MEASURED = _COLUMNS[5:8] + _COLUMNS[11:12]
# Settings of the step `study`, which looks for matches of up to so many tokens
# where nothing else is said, in trees of so many nodes.
_LONGEST = 16
_NODES = 24
_STUDIED = re.compile(r'(nodes|shorter|random|longest) (\d+)')
# What is drawn of the rows, each on an axis of its own.
_LEFT = ('decode/tokens_per_round', 'tokens per round')
_RIGHT = ('speedup/measured', 'speed-up over plain decoding (×)')


def main_rows(found: dict[str, dict]) -> list[dict]:
  """Returns the rows of the table, each with its step.

  A step has its own plain decoding, which its speed-ups are over.

  Args:
    found: results by step.
  """
  return [
      row | {'row/step': name}
      for name, results in found.items()
      if name.startswith(('code.', 'chat.'))
      for row in results['rows']
  ]


def studies(found: dict[str, dict]) -> dict[str, list[tuple[float, dict]]]:
  """Returns what each study has found, as what was varied with its row.

  Args:
    found: results by step.

  Returns:
    By 'nodes', 'shorter' (nodes, with back-off), 'random' (nodes), 'longest'
    and 'size' (in millions of tokens), each in ascending order.
  """
  points = {
      name: [] for name in ('nodes', 'shorter', 'random', 'longest', 'size')
  }
  for row in found.get('study', {'rows': ()})['rows']:
    if match := _STUDIED.fullmatch(row['row/name']):
      points[match[1]].append((int(match[2]), row))
  usual = [row for nodes, row in points['nodes'] if nodes == _NODES]
  points['longest'] += [(_LONGEST, row) for row in usual]
  for name, results in found.items():
    if name.startswith('size.'):
      usual.append(results['rows'][1])
  points['size'] = [(row['datastore/tokens'] / 1e6, row) for row in usual]
  return {
      name: sorted(some, key=lambda point: point[0])
      for name, some in points.items()
  }


def histograms(found: dict[str, dict]) -> dict[str, list[float]]:
  """Returns the shares of the lengths of matches, by setting of code.greedy."""
  rows = found.get('code.greedy', {'rows': ()})['rows']
  return {
      row['row/name']: row['retrieval/matched_len_histogram']
      for row in rows
      if re.fullmatch(r'(datastore|text|both) 7', row['row/name'])
  }


def tables(found: dict[str, dict]) -> str:
  """Returns all tables, a heading each; what a row lacks is left empty."""
  said = bench_rows.table(_COLUMNS, main_rows(found))
  headings = {
      'nodes': 'nodes of the tree',
      'shorter': 'nodes, shorter ends too',
      'random': 'nodes chosen at random',
      'longest': 'longest match looked for',
      'size': 'datastore, million tokens',
  }
  for name, points in studies(found).items():
    if points:
      columns = ((headings[name], 'x', '.4g'), *_MEASURED)
      rows = [row | {'x': x} for x, row in points]
      said += '\n' + bench_rows.table(columns, rows)
  shares = histograms(found)
  if shares:
    most = max(map(len, shares.values()))
    said += '\n' + report.table(
        ['longest match, tokens', *map(str, range(most))],
        [
            [name, *(f'{share:.1%}' for share in of_setting)]
            + [''] * (most - len(of_setting))
            for name, of_setting in shares.items()
        ],
    )
    said += '\n'
  return said


def _lines(axes: Any, points: Sequence[tuple[float, dict]]) -> None:
  """Draws tokens per round, and the speed-up on an axis of its own."""
  right = axes.twinx()
  for side, (key, label), color, marker in (
      (axes, _LEFT, 'C0', 'o-'),
      (right, _RIGHT, 'C1', 's--'),
  ):
    side.plot(
        [x for x, _ in points],
        [row[key] for _, row in points],
        marker,
        color=color,
    )
    side.set_ylabel(label, color=color)
    side.tick_params(axis='y', labelcolor=color)
    side.margins(y=0.15)
  axes.grid(alpha=0.3)


def _log_axis(axes: Any, label: str, points: Sequence[tuple]) -> None:
  axes.set_xscale('log', base=2)
  axes.set_xticks([x for x, _ in points], [f'{x:.3g}' for x, _ in points])
  axes.minorticks_off()
  axes.set_xlabel(label)


def _choice(axes: Any, found: dict[str, list[tuple[float, dict]]]) -> None:
  """Draws trees of the heaviest nodes beside trees of random ones."""
  weighted, key = dict(found['nodes']), _LEFT[0]
  places = range(len(found['random']))
  bars = (
      ('the heaviest', [weighted[n][key] for n, _ in found['random']]),
      ('at random', [row[key] for _, row in found['random']]),
  )
  for shift, (label, heights) in zip((-0.2, 0.2), bars, strict=True):
    drawn = axes.bar([p + shift for p in places], heights, 0.4, label=label)
    axes.bar_label(drawn, fmt='%.2f', fontsize='small')
  axes.set_xticks(list(places), [str(n) for n, _ in found['random']])
  # A round brings one token without any draft.
  axes.set(xlabel='nodes of the tree', ylabel=_LEFT[1])
  axes.set_ylim(1, 1 + 1.25 * (max(h for _, hs in bars for h in hs) - 1))
  axes.legend(title='nodes chosen', fontsize='small')


def _shares(axes: Any, shares: dict[str, list[float]]) -> None:
  """Draws how long matches are."""
  width = 0.8 / len(shares)
  for number, (name, of_setting) in enumerate(shares.items()):
    axes.bar(
        [x - 0.4 + (number + 0.5) * width for x in range(len(of_setting))],
        [100 * share for share in of_setting],
        width,
        label=name.removesuffix(' 7'),
    )
  axes.set_xticks(range(0, max(map(len, shares.values())), 2))
  axes.set(xlabel='longest match (tokens)', ylabel='rounds (%)')
  axes.legend(title='searched', fontsize='small')


def draw(path: pathlib.Path, found: dict[str, dict]) -> None:
  """Writes a PNG of five panels, whole or not at all; some may be empty.

  Args:
    path: of the file.
    found: results by step.
  """
  # It is large, and needed here alone.
  from matplotlib import figure  # noqa: PLC0415

  drawing = figure.Figure(figsize=(13, 7), layout='constrained')
  top, bottom = drawing.subplots(2, 3)
  points, shares = studies(found), histograms(found)
  for axes, name, title, label in (
      (top[0], 'nodes', 'size of the tree', 'nodes of the tree'),
      (top[2], 'longest', 'longest match', 'longest match looked for (tokens)'),
      (bottom[0], 'size', 'size of the datastore', 'million tokens'),
  ):
    axes.set_title(title)
    if points[name]:
      _lines(axes, points[name])
      _log_axis(axes, label, points[name])
  top[1].set_title('choice of nodes')
  if points['random']:
    _choice(top[1], points)
  bottom[1].set_title('what matches')
  if shares:
    _shares(bottom[1], shares)
  bottom[2].axis('off')
  beside = path.with_name(f'.{path.name}')
  drawing.savefig(beside, format='png', dpi=120)
  os.replace(beside, path)


def pick(source: str, num: int, path: pathlib.Path) -> None:
  """Writes the prompts of middle length, in their order.

  Args:
    source: a file of prompts.
    num: how many.
    path: of the JSONL file to write.
  """
  rows = prompts.read_rows(source)
  lengths = [len(prompts.parse(row, where, 'auto').text) for where, row in rows]
  order = sorted(range(len(rows)), key=lambda i: lengths[i])
  first = max(0, (len(rows) - num) // 2)
  chosen = sorted(order[first : first + num])
  lines = [json.dumps(rows[i][1]) + '\n' for i in chosen]
  beside = path.with_name(f'.{path.name}')
  beside.write_text(''.join(lines), encoding='utf-8')
  os.replace(beside, path)


def show(path: pathlib.Path, steps: Sequence[str]) -> None:
  """Prints the tables and draws the picture.

  Args:
    path: of the directory.
    steps: that are shown, all where there are none.
  """
  found = bench_rows.read(path, steps)
  if not found:
    raise app.UsageError(f'{path} holds no runs; name their directory.')
  print(tables(found))
  print(bench_rows.provenance(path, found), end='')
  if plot.is_available():
    draw(path / 'rest.png', found)
    print(f'{path / "rest.png"} shows the studies.')
  else:
    print('rest.png is not drawn: matplotlib is not installed.')


def main(argv: list[str]) -> None:
  """Does what the command line names."""
  match argv[1:]:
    case ['pick', source, num, path]:
      pick(source, int(num), pathlib.Path(path))
    case ['show', path, *steps]:
      show(pathlib.Path(path), steps)
    case _:
      raise app.UsageError(f'{argv[1:]} is neither of:\n{__doc__}')


if __name__ == '__main__':
  app.run(main)
