import pytest

from speculative.bench import builtin_tasks
from speculative.bench import prompts
from speculative.bench import quality
from speculative.bench import sandbox
from speculative.bench import task_sets


def _load(task_set):
  return task_sets.load('builtin', task_set=task_set, prompt_format='auto')


def test_every_set_has_rows_to_time_and_others_to_predict_from():
  assert set(builtin_tasks.ROWS) == set(task_sets.TASK_SETS) - {'none'}
  for task_set in builtin_tasks.ROWS:
    found = _load(task_set)
    split = prompts.split(found, num_prompts=0, num_calibration=2)
    assert len(split.timed) >= 2
    assert len(split.calibration) == 2
    # Of a byte each, with an answer, for models of a context of 512.
    assert max(len(p.text.encode()) for p in found) < 400


@pytest.mark.parametrize(
    'task_set, field, key',
    [
        ('humaneval', 'canonical_solution', 'pass_at_1'),
        ('mbpp', 'code', 'pass_at_1'),
        ('gsm8k', 'answer', 'exact_match'),
    ],
)
def test_reference_answers_are_right(task_set, field, key):
  if sandbox.unavailable():
    pytest.skip(sandbox.unavailable())
  rows = [p.row for p in _load(task_set)]
  answers = [row[field] for row in builtin_tasks.ROWS[task_set]]
  found = quality.score(
      task_set,
      rows,
      answers,
      run_code='yes',
      limits=sandbox.Limits(wall_s=120.0, cpu_s=30),
  )
  assert found[f'quality/{key}'] == 1
