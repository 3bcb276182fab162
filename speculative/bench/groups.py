"""What a setting gains on every group of a task set's prompts."""

from collections.abc import Sequence

from speculative.bench import metrics
from speculative.decoding.generation import Generation

# group/NAME/prompts, group/NAME/speedup, group/NAME/tokens_per_round.
_PREFIX = 'group/'


def keys(
    plain: Sequence[Generation],
    runs: Sequence[Generation],
    groups: Sequence[Sequence[str]],
) -> dict[str, float | None]:
  """Returns the group/* keys of a setting.

  Args:
    plain: runs of plain decoding, one a batch.
    runs: of the setting, over the same batches.
    groups: of every row of every batch; '' is none.

  Returns:
    Of every group its prompts, its tokens a round, and the speed-up over those
    batches that hold no other: times are those of batches. None without one.
  """
  found = {}
  for name in dict.fromkeys(group for rows in groups for group in rows):
    if not name:
      continue
    rows = [
        (len(ids), int(rounds))
        for run, of_batch in zip(runs, groups, strict=True)
        for ids, rounds, group in zip(
            run.token_ids, run.rounds, of_batch, strict=True
        )
        if group == name
    ]
    alone = [i for i, of_batch in enumerate(groups) if set(of_batch) == {name}]
    speedup = None
    if alone:
      before, after = ([of[i] for i in alone] for of in (plain, runs))
      speedup = metrics.seconds_per_token(before) / metrics.seconds_per_token(
          after
      )
    tokens, rounds = map(sum, zip(*rows, strict=True))
    found |= {
        f'{_PREFIX}{name}/prompts': len(rows),
        f'{_PREFIX}{name}/speedup': speedup,
        f'{_PREFIX}{name}/tokens_per_round': tokens / max(rounds, 1),
    }
  return found


def table_cells(
    rows: Sequence[dict[str, object]],
) -> tuple[list[str], list[list[str]]]:
  """Returns header and cells of a table: a line a group, a column a setting.

  Args:
    rows: of the results; those without `keys` have no column.

  Returns:
    No cells where prompts are of one group, or of none.
  """
  rows = [r for r in rows if any(key.startswith(_PREFIX) for key in r)]
  if not rows:
    return [], []
  names = list(
      dict.fromkeys(k.split('/')[1] for k in rows[0] if k.startswith(_PREFIX))
  )
  header = ['group', 'prompts']
  header += [f'{row["row/name"]}: speed-up, tokens/round' for row in rows]
  cells = [
      [
          name,
          str(rows[0][f'{_PREFIX}{name}/prompts']),
          *(_cell(row, f'{_PREFIX}{name}') for row in rows),
      ]
      for name in names
  ]
  return header, cells if len(cells) > 1 else []


def _cell(row: dict[str, object], prefix: str) -> str:
  speedup, brought = row[f'{prefix}/speedup'], row[f'{prefix}/tokens_per_round']
  said = '-' if speedup is None else f'{speedup:.2f}'
  return f'{said}, {brought:.2f}'
