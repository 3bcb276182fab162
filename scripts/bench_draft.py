"""Prints one Markdown table of what scripts/bench_draft.sh has measured.

python scripts/bench_draft.py DIR
"""

import json
import pathlib

from absl import app

_COLUMNS = (
    ('prompts', 'row/prompts', ''),
    ('sampler', 'row/sampler', ''),
    ('setting', 'row/name', ''),
    ('tokens/s', 'decode/tokens_per_s', '.1f'),
    ('tokens per round', 'decode/tokens_per_round', '.2f'),
    ('α', 'decode/acceptance_rate', '.2f'),
    ('c', 'decode/draft_cost', '.3f'),
    ('T(K+1)/T(1)', 'decode/verify_cost', '.2f'),
    ('speed-up', 'speedup/measured', '.2f'),
    ('without loops', 'speedup/measured_no_loops', '.2f'),
    ('predicted', 'speedup/predicted', '.2f'),
    ('i.i.d.', 'speedup/predicted_iid', '.2f'),
)


def table(rows: list[dict]) -> str:
  """Returns the table; what a row lacks is left empty."""

  def cell(row: dict, key: str, form: str) -> str:
    value = row.get(key)
    return '' if value is None else format(value, form)

  lines = [[name for name, _, _ in _COLUMNS], ['---'] * len(_COLUMNS)]
  lines += [[cell(row, key, form) for _, key, form in _COLUMNS] for row in rows]
  return ''.join(f'| {" | ".join(line)} |\n' for line in lines)


def main(argv: list[str]) -> None:
  """Reads the results of all runs in a directory."""
  if len(argv) != 2:
    raise app.UsageError('name the directory of the runs, and nothing else.')
  rows, kinds = [], []
  for path in sorted(pathlib.Path(argv[1]).glob('*/results.json')):
    found = json.loads(path.read_text())
    rows += found['rows']
    kinds.append((found['env/jax'], found['env/device_kind']))
  if not rows:
    raise app.UsageError(f'{argv[1]} holds no runs; name their directory.')
  print(table(rows))
  for jax, device in sorted(set(kinds)):
    print(f'jax {jax}, {device}')


if __name__ == '__main__':
  app.run(main)
