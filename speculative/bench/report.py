"""Tables for people."""

from collections.abc import Mapping
from collections.abc import Sequence
import csv as csv_lib
import io
import json
from typing import Any


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
  """Returns a Markdown table with columns padded to one width.

  Args:
    header: column names.
    rows: cells; floats are shown with two digits.
  """
  cells = [
      [f'{cell:.2f}' if isinstance(cell, float) else str(cell) for cell in row]
      for row in [header, *rows]
  ]
  widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
  lines = [
      '| '
      + ' | '.join(c.ljust(w) for c, w in zip(row, widths, strict=True))
      + ' |'
      for row in cells
  ]
  rule = '|' + '|'.join('-' * (width + 2) for width in widths) + '|'
  return '\n'.join([lines[0], rule, *lines[1:]])


def csv(rows: Sequence[Mapping[str, Any]]) -> str:
  """Returns a table for other programs: a line a row, a column a key.

  Args:
    rows: flat objects; where one lacks a key its cell is empty, and what is no
      text and no number is JSON.
  """
  names = list(dict.fromkeys(name for row in rows for name in row))
  text = io.StringIO()
  writer = csv_lib.writer(text, lineterminator='\n')
  writer.writerow(names)
  for row in rows:
    writer.writerow([_cell(row.get(name)) for name in names])
  return text.getvalue()


def _cell(value: Any) -> str:
  if value is None:
    return ''
  return value if isinstance(value, str) else json.dumps(value)


def progress(
    done: int, total: int, elapsed_s: float, unit: str, *, before: int = 0
) -> str:
  """Returns 'batch 3/20 [15%]  1.2 s/batch  ETA 0:20'.

  Args:
    done: of the total.
    total: of all runs.
    elapsed_s: seconds of this run.
    unit: what is counted.
    before: done by earlier runs, which says nothing of the pace.
  """
  each_s = elapsed_s / max(done - before, 1)
  left = int(each_s * (total - done))
  clock = f'{left // 60}:{left % 60:02d}'
  if left >= 3600:
    clock = f'{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}'
  return (
      f'{unit} {done}/{total} [{100 * done // total}%]  {each_s:.1f} s/{unit}'
      f'  ETA {clock}'
  )
