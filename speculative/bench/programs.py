"""Programs to test, made of what a model wrote."""

from collections.abc import Iterable
from collections.abc import Mapping
import re

from speculative.bench import task_sets

_FENCE = re.compile(r'```[\w+-]*[ \t]*\n(.*?)(?:```|\Z)', re.DOTALL)


def cut(text: str, stops: Iterable[str]) -> str:
  """Returns a text up to the first of the stops."""
  ends = [at for stop in stops if (at := text.find(stop)) >= 0]
  return text[: min(ends, default=len(text))]


def of(task_set: str, row: Mapping[str, object], text: str) -> tuple[str, ...]:
  """Returns the parts of the program that tests an answer, see `sandbox.run`.

  Args:
    task_set: 'humaneval' or 'mbpp'.
    row: as `task_sets.load` has it.
    text: the answer.
  """
  return {'humaneval': _humaneval, 'mbpp': _mbpp}[task_set](row, text)


def _humaneval(row: Mapping[str, object], text: str) -> tuple[str, ...]:
  name = row['entry_point']
  definition = re.compile(rf'^def {name}\b', re.MULTILINE)
  blocks = [b for b in _FENCE.findall(text) if definition.search(b)]
  if blocks:
    # The whole function, of a chat; what the prompt has before it still counts.
    start = definition.search(row['prompt'])
    code = row['prompt'][: start.start() if start else 0] + blocks[0]
  else:
    stops = (*task_sets.STOPS['humaneval'], '\n```')
    code = row['prompt'] + cut(text, stops)
  return code, row['test'], f'check({name})'


def _mbpp(row: Mapping[str, object], text: str) -> tuple[str, ...]:
  text = cut(text, task_sets.STOPS['mbpp'])
  blocks = _FENCE.findall(text)
  code = blocks[0] if blocks else text.split('[BEGIN]')[-1]
  return code, row['setup'], '\n'.join(row['tests'])
