"""Prints one Markdown table of what scripts/bench_draft.sh has measured.

python scripts/bench_draft.py DIR
"""

import pathlib

from absl import app
import bench_rows

# Other directories may be of an earlier script's steps.
_STEPS = ('chat.greedy', 'chat.sampled', 'code.greedy', 'code.sampled')
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


def main(argv: list[str]) -> None:
  """Reads the results of all runs in a directory."""
  if len(argv) != 2:
    raise app.UsageError('name the directory of the runs, and nothing else.')
  path = pathlib.Path(argv[1])
  found = bench_rows.read(path, _STEPS)
  if not found:
    raise app.UsageError(f'{path} holds no runs; name their directory.')
  rows = [row for results in found.values() for row in results['rows']]
  print(bench_rows.table(_COLUMNS, rows))
  print(bench_rows.provenance(path, found), end='')


if __name__ == '__main__':
  app.run(main)
