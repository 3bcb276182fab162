"""What the turns of bench_vs_transformers.py come to, as rows and as a table.

A rate is tokens after the prompt was read over the time they took, all prompts
and repeats together; beside it all tokens over the whole time, the prompt's
reading included. Ratios are of these rates. The median, least and greatest are
those of single turns.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import os
import pathlib
import platform
import statistics
from typing import Any

import peer_contestants
from peer_contestants import Contestant
from peer_turns import Turn

from speculative.bench import compare
from speculative.bench import report

_RATE, _WHOLE = 'decode/tokens_per_s_all', 'decode/tokens_per_s_with_prefill'
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Entry:
  """A contestant and what it did.

  Attributes:
    contestant: who.
    ready: number format and versions, as its process said.
    turns: by repeat and prompt; at least one.
  """

  contestant: Contestant
  ready: Mapping[str, str]
  turns: Sequence[Turn]

  @property
  def dtype(self) -> str:
    """The number format, of weights where they are quantised."""
    return self.ready['dtype']

  @property
  def is_plain(self) -> bool:
    """Whether nothing is drafted."""
    return self.contestant.setting == peer_contestants.PLAIN

  def token_ids(self, num_tokens: int) -> list[list[int]]:
    """Returns the new tokens of every prompt, cut to one number.

    Args:
      num_tokens: how many were asked for.
    """
    first = [t for t in self.turns if t.repeat == self.turns[0].repeat]
    return [turn.token_ids[:num_tokens] for turn in first]


def rates(entry: Entry) -> Row:
  """Returns how fast a contestant was.

  Args:
    entry: of the contestant.
  """
  turns = entry.turns
  single = [turn.num_counted / turn.decode_s for turn in turns]
  decode_s = sum(turn.decode_s for turn in turns)
  prefill_s = sum(turn.prefill_s for turn in turns)
  counted = sum(turn.num_counted for turn in turns)
  row = {
      'row/side': entry.contestant.side,
      'row/name': entry.contestant.setting,
      'row/dtype': entry.dtype,
      'decode/tokens_per_s': statistics.median(single),
      'decode/tokens_per_s_min': min(single),
      'decode/tokens_per_s_max': max(single),
      _RATE: counted / decode_s,
      _WHOLE: sum(len(t.token_ids) for t in turns) / (prefill_s + decode_s),
      'time/prefill_s': statistics.median(t.prefill_s for t in turns),
      'time/idle_share_max': max(t.idle_share for t in turns),
      'time/foreign_share': statistics.median(t.foreign_share for t in turns),
  }
  passes = [t.num_passes for t in turns]
  if None not in passes and sum(passes):
    row['decode/tokens_per_round'] = counted / sum(passes)
  versions = {k: v for k, v in entry.ready.items() if k != 'dtype'}
  return row | {f'env/{name}': v for name, v in versions.items()}


def agreement(
    reference: Sequence[Sequence[int]], other: Sequence[Sequence[int]]
) -> Row:
  """Returns how far the outputs of two contestants are the same.

  Args:
    reference: token ids of every prompt.
    other: as many.
  """
  places = [
      compare.first_difference(a, b)
      for a, b in zip(reference, other, strict=True)
  ]
  differ = [place for place in places if place is not None]
  same = sum(
      len(a) if place is None else place
      for a, place in zip(reference, places, strict=True)
  )
  return {
      'tokens/prompts': len(places),
      'tokens/equal_prompts': len(places) - len(differ),
      'tokens/first_difference': min(differ, default=None),
      'tokens/first_differences': places,
      'tokens/agreement': same / sum(map(len, reference)),
  }


def reference_of(entry: Entry, entries: Sequence[Entry]) -> Entry | None:
  """Returns whose output a contestant's is compared with.

  It is our plain decoding in the same number format; where that takes no part,
  our plain decoding in another; None where neither does.

  Args:
    entry: of the contestant.
    entries: all.
  """
  plain = [
      e
      for e in entries
      if e.is_plain and e.contestant.side == peer_contestants.OURS
  ]
  same = [e for e in plain if e.dtype == entry.dtype]
  return next(iter(same + plain), None)


def _own_plain(entry: Entry, entries: Sequence[Entry]) -> Entry | None:
  return next(
      (
          e
          for e in entries
          if e.is_plain and e.contestant.group == entry.contestant.group
      ),
      None,
  )


def rows_of(entries: Sequence[Entry], num_tokens: int) -> list[Row]:
  """Returns a flat object a contestant.

  Args:
    entries: all, in order.
    num_tokens: how many were asked for.
  """
  rows = [rates(entry) for entry in entries]
  by_contestant = {
      entry.contestant: row for entry, row in zip(entries, rows, strict=True)
  }
  best = {
      key: best_of(rows, peer_contestants.TRANSFORMERS, key)
      for key in (_RATE, _WHOLE)
  }
  for entry, row in zip(entries, rows, strict=True):
    ids = entry.token_ids(num_tokens)
    if reference := reference_of(entry, entries):
      row['tokens/reference'] = f'plain {reference.dtype}'
      row |= agreement(reference.token_ids(num_tokens), ids)
    if plain := _own_plain(entry, entries):
      own = by_contestant[plain.contestant]
      row['speedup/vs_own_plain'] = row[_RATE] / own[_RATE]
      row['speedup/vs_own_plain_with_prefill'] = row[_WHOLE] / own[_WHOLE]
      of_plain = agreement(plain.token_ids(num_tokens), ids)
      row['tokens/equal_own_plain'] = of_plain['tokens/equal_prompts']
    if best[_RATE]:
      row['speedup/vs_transformers'] = row[_RATE] / best[_RATE][_RATE]
      row['speedup/vs_transformers_with_prefill'] = (
          row[_WHOLE] / best[_WHOLE][_WHOLE]
      )
  return rows


def best_of(rows: Sequence[Row], side: str, key: str) -> Row | None:
  """Returns a side's fastest row, None where it takes no part.

  Args:
    rows: all.
    side: whose.
    key: of the rate.
  """
  of_side = [row for row in rows if row['row/side'] == side]
  return max(of_side, key=lambda row: row[key], default=None)


def ratios(rows: Sequence[Row]) -> dict[str, float]:
  """Returns our best rates over those of every other side.

  Args:
    rows: all.
  """
  found = {}
  for side in peer_contestants.SIDES[1:]:
    for key, suffix in ((_RATE, ''), (_WHOLE, '_with_prefill')):
      ours = best_of(rows, peer_contestants.OURS, key)
      theirs = best_of(rows, side, key)
      if ours and theirs:
        found[f'speedup/best_vs_{side}{suffix}'] = ours[key] / theirs[key]
  return found


def hardware() -> str:
  """Returns the CPU's name and how many of its cores this process may use."""
  name = platform.processor() or platform.machine()
  with contextlib.suppress(OSError):
    for line in pathlib.Path('/proc/cpuinfo').read_text().splitlines():
      if line.startswith('model name'):
        name = line.partition(':')[2].strip()
        break
  return f'{name}, {len(os.sched_getaffinity(0))} cores'


def _cells(row: Row) -> list[str]:
  def number(key: str, form: str = '.2f') -> str:
    return format(row[key], form) if key in row else ''

  equal = first = ''
  if 'tokens/reference' in row:
    equal = f'{row["tokens/equal_prompts"]} of {row["tokens/prompts"]}'
    if row['tokens/reference'] != f'plain {row["row/dtype"]}':
      equal += f' ({row["tokens/reference"]})'
    if row['tokens/first_difference'] is not None:
      first = str(row['tokens/first_difference'])
  return [
      f'{row["row/side"]} {row["row/name"]}',
      row['row/dtype'],
      number(_RATE, '.1f'),
      f'{number("decode/tokens_per_s", ".1f")} '
      f'({number("decode/tokens_per_s_min", ".1f")} – '
      f'{number("decode/tokens_per_s_max", ".1f")})',
      number(_WHOLE, '.1f'),
      number('decode/tokens_per_round'),
      number('speedup/vs_own_plain'),
      number('speedup/vs_transformers'),
      equal,
      first,
  ]


def markdown(rows: Sequence[Row], found: Mapping[str, Any]) -> str:
  """Returns the table, ending with our best over theirs, and how it was made.

  Args:
    rows: as `rows_of` returned them.
    found: what holds for all of them.
  """
  header = [
      'greedy',
      'dtype',
      'tokens/s',
      'median (min – max)',
      'with prompt',
      'tokens a pass',
      '× own plain',
      "× transformers' best",
      'prompts equal to ours',
      'first difference',
  ]
  cells = [_cells(row) for row in rows]
  quotients = ratios(rows)
  for side in reversed(peer_contestants.SIDES[1:]):
    key = f'speedup/best_vs_{side}'
    if key in quotients:
      line = [''] * len(header)
      line[0] = f'**our best ÷ best of {side}**'
      line[2] = f'**{quotients[key]:.2f}**'
      line[4] = f'**{quotients[f"{key}_with_prefill"]:.2f}**'
      cells.append(line)
  return f'{report.table(header, cells)}\n\n{_provenance(rows, found)}'


def _provenance(rows: Sequence[Row], found: Mapping[str, Any]) -> str:
  versions = {
      key.removeprefix('env/'): value
      for row in rows
      for key, value in row.items()
      if key.startswith('env/')
  }
  said = ', '.join(f'{name} {v}' for name, v in sorted(versions.items()))
  draft = f', draft {found["draft"]}' if found['draft'] else ''
  idle = max(row['time/idle_share_max'] for row in rows)
  foreign = max(row['time/foreign_share'] for row in rows)
  return (
      f'{found["model"]}{draft}, batch 1, greedy, {found["num_prompts"]} '
      f'prompts × {found["max_new_tokens"]} tokens × {found["repeats"]} '
      'repeats, turns interleaved; rates from the prompt on, of all prompts '
      f'together; {found["env/hardware"]}, '
      f'{found["env/threads"]} threads; {said}, Python '
      f'{platform.python_version()}; {found["env/date"]}. Share of a core used '
      f'by waiting contestants: at most {idle:.1%}; by the rest of the '
      f'machine: {foreign:.0%}.'
  )
