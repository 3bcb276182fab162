"""Tables for people."""

from collections.abc import Sequence


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


def progress(done: int, total: int, elapsed_s: float, unit: str) -> str:
  """Returns 'batch 3/20 [15%]  1.2 s/batch  ETA 0:20'."""
  each_s = elapsed_s / max(done, 1)
  left = int(each_s * (total - done))
  return (
      f'{unit} {done}/{total} [{100 * done // total}%]  {each_s:.1f} s/{unit}'
      f'  ETA {left // 60}:{left % 60:02d}'
  )
