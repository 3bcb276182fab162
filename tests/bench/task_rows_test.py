import json

import pytest

from speculative.bench import builtin_tasks
from speculative.bench import task_rows
from speculative.bench import task_sets
from speculative.errors import UserError


def _load(path, task_set):
  return task_sets.load(str(path), task_set=task_set, prompt_format='auto')


def _good(task_set, index=0):
  return dict(builtin_tasks.ROWS[task_set][index])


@pytest.fixture
def write(tmp_path):
  """Writes rows to a file and returns its path."""

  def to_file(*rows):
    path = tmp_path / 'p.jsonl'
    path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
    return path

  return to_file


@pytest.mark.parametrize(
    'task_set, change, message',
    [
        ('humaneval', {'test': None}, 'p.jsonl:2 has no field test; add it'),
        ('humaneval', {'prompt': ''}, "p.jsonl:2: prompt is ''; .*not empty"),
        ('humaneval', {'entry_point': 'a.b'}, 'the name of a function'),
        ('humaneval', {'entry_point': 3}, 'entry_point is 3; it needs to be a'),
        ('mbpp', {'task_id': '3'}, "task_id is '3'; it needs to be a whole"),
        ('mbpp', {'test_list': []}, r'test_list is \[\]; .* a list of texts'),
        ('mbpp', {'test_list': 'assert x'}, 'test_list .* a list of texts'),
        ('mbpp', {'test_list': ['a', 1]}, 'a list of texts that are not empty'),
        ('mbpp', {'test_list': None}, 'has no field test_list'),
        ('mbpp', {'text': None}, 'has no field text or prompt'),
        ('mbpp', {'code': 5}, 'code is 5'),
        ('mt_bench', {'turns': None}, 'has no field turns'),
        ('mt_bench', {'turns': [{'role': 'user'}]}, 'a list of texts'),
        ('mt_bench', {'category': None}, 'has no field category'),
        ('gsm8k', {'answer': 'none'}, "answer is 'none'.*text with a number"),
        ('gsm8k', {'answer': 'x\u00b2'}, "answer is 'x.'.*text with a number"),
        ('gsm8k', {'question': None}, 'has no field question'),
        ('gsm8k', {'turns': ['q']}, 'reference is None.*text with a number'),
        (
            'spec_bench',
            {'category': 'poems'},
            "category is 'poems'.*qa, math",
        ),
        (
            'spec_bench',
            {'category': 'math_reasoning', 'reference': ['two']},
            r"reference is \['two'\].*a text with a number",
        ),
        ('summarise', {'article': None}, 'no field article or document'),
        ('summarise', {'summary': ['x']}, 'summary is .*a text'),
        ('translate', {'target': None}, 'has no field target'),
        ('translate', {'source': 7}, 'source is 7'),
    ],
)
def test_an_odd_row_is_named_with_its_line(write, task_set, change, message):
  path = write(_good(task_set), _good(task_set, 1) | change)
  with pytest.raises(UserError, match=message) as caught:
    _load(path, task_set)
  assert 'p.jsonl:2' in str(caught.value)
  assert '\n' not in str(caught.value)


@pytest.mark.parametrize('task_set', sorted(builtin_tasks.ROWS))
@pytest.mark.parametrize('row', ['text', 5, None, ['prompt']])
def test_a_row_that_is_no_object_is_one_line(write, task_set, row):
  with pytest.raises(UserError, match=r'p\.jsonl:1 is .*a JSON object'):
    _load(write(row), task_set)


def test_spec_bench_groups_categories_of_mt_bench():
  assert task_rows.spec_bench_group({'category': 'stem'}) == 'mt_bench'
  assert task_rows.spec_bench_group({'category': 'qa'}) == 'qa'


@pytest.mark.parametrize(
    'text, expected',
    [
        ('It is 18.', '18'),
        ('#### 65,960', '65960'),
        ('$18.50 each', '18.5'),
        ('so -3.0', '-3'),
        ('3-5', '5'),
        ('x = -0.0', '0'),
        ('007', '7'),
        ('1,2,3', '3'),
        ('12,3456', '3456'),
        ('0.25', '0.25'),
        ('It is .5', '0.5'),
        ('$-.50', '-0.5'),
        ('2 of 3.5', '3.5'),
        # Nor is a full stop without a space behind it a fraction.
        ('Done.5', '5'),
        ('1.2.3', '3'),
        ('10 %, not 20 %', '20'),
        ('none', ''),
        ('', ''),
    ],
)
def test_the_last_number_of_a_text(text, expected):
  assert task_rows.last_number(text) == expected
