"""Tables of the runs of task `benchmark` in a directory, and how they ran."""

from collections.abc import Sequence
import json
import pathlib

from speculative.bench import report

# Header of a column, key of a row, and how its value is formatted.
Column = tuple[str, str, str]

_ENV = ('date', 'jax', 'device_kind', 'cpu_count', 'dtype')


def read(path: pathlib.Path, steps: Sequence[str] = ()) -> dict[str, dict]:
  """Returns the results of steps, by their names.

  Args:
    path: of the directory.
    steps: names of its directories that count; all where there are none.
  """
  return {
      found.parent.name: json.loads(found.read_text())
      for found in sorted(path.glob('*/results.json'))
      if not steps or found.parent.name in steps
  }


def table(columns: Sequence[Column], rows: Sequence[dict]) -> str:
  """Returns a Markdown table; what a row lacks is left empty.

  Args:
    columns: in order.
    rows: flat objects.
  """
  cells = [
      [_cell(row.get(key), form) for _, key, form in columns] for row in rows
  ]
  return report.table([name for name, _, _ in columns], cells) + '\n'


def _cell(value: object, form: str) -> str:
  if isinstance(value, bool):
    return 'yes' if value else 'no'
  return '' if value is None else format(value, form)


def provenance(path: pathlib.Path, found: dict[str, dict]) -> str:
  """Returns lines on when, where and over how much the steps ran.

  Args:
    path: of the directory.
    found: results by step.
  """
  steps = {}
  for name, results in found.items():
    env = {key: results.get(f'env/{key}', '?') for key in _ENV}
    config = json.loads((path / name / 'config.json').read_text())
    num = config['data']['num_prompts'] or 'all'
    line = (
        f'{env["date"]}, jax {env["jax"]}, {env["device_kind"]}, '
        f'{env["cpu_count"]} cores, {env["dtype"]}; '
        f'{num} prompts of {pathlib.Path(config["data"]["prompts"]).name}, '
        f'{config["decode"]["max_new_tokens"]} tokens, '
        f'{config["bench"]["repeats"]} timed runs'
    )
    steps.setdefault(line, []).append(name)
  return ''.join(f'{", ".join(s)}: {line}\n' for line, s in steps.items())
