import gzip
import json

import pytest

from speculative.bench import prompts
from speculative.bench.prompts import Prompt
from speculative.errors import UserError


def _load(source, num_prompts=0, prompt_format='auto'):
  return prompts.load(
      str(source), num_prompts=num_prompts, prompt_format=prompt_format
  )


@pytest.fixture
def write(tmp_path):
  """Writes lines, or rows as JSON, to a file and returns its path."""

  def to_file(*rows, name='p.jsonl'):
    path = tmp_path / name
    lines = [
        row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)
        for row in rows
    ]
    opener = gzip.open if name.endswith('.gz') else open
    with opener(path, 'wt', encoding='utf-8') as file:
      file.write('\n'.join(lines))
    return path

  return to_file


@pytest.mark.parametrize(
    'row, expected',
    [
        ({'turns': ['first', 'second']}, Prompt('first', 'auto')),
        ({'turns': 'only'}, Prompt('only', 'auto')),
        ({'question': 'q', 'answer': 'a'}, Prompt('q', 'auto')),
        ({'task_id': 'x/0', 'prompt': 'def f():'}, Prompt('def f():', 'no')),
        ({'text': 't'}, Prompt('t', 'auto')),
        ({'instruction': 'i', 'input': ''}, Prompt('i', 'auto')),
        ({'turns': None, 'prompt': 'p'}, Prompt('p', 'no')),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else '',
)
def test_the_text_comes_from_the_first_known_field(write, row, expected):
  assert _load(write(row)) == [expected]


@pytest.mark.parametrize(
    'prompt_format, template', [('chat', 'auto'), ('completion', 'no')]
)
def test_a_format_overrules_what_the_field_says(write, prompt_format, template):
  path = write({'prompt': 'a'}, {'question': 'b'})
  found = _load(path, prompt_format=prompt_format)
  assert [p.chat_template for p in found] == [template, template]


def test_builtin_prompts_are_a_conversation_unless_told_otherwise():
  assert _load('builtin') == [Prompt(p, 'auto') for p in prompts.BUILTIN]
  few = _load('builtin', num_prompts=2, prompt_format='completion')
  assert few == [Prompt(p, 'no') for p in prompts.BUILTIN[:2]]


def test_compressed_files_are_read_alike(write):
  rows = [{'prompt': 'é'}, {'prompt': 'b'}]
  assert _load(write(*rows, name='p.jsonl.gz')) == _load(write(*rows))


def test_the_first_prompts_are_taken_and_empty_lines_passed_over(write):
  path = write({'text': 'a'}, '', '   ', {'text': 'b'}, {'text': 'c'})
  assert [p.text for p in _load(path, num_prompts=2)] == ['a', 'b']
  assert [p.text for p in _load(path)] == ['a', 'b', 'c']


def test_a_line_ends_at_a_line_feed_only(write):
  # Unescaped in JSON these are text, though str.splitlines breaks at them.
  text = 'a\u2028b\u0085c'
  assert [p.text for p in _load(write({'text': text}))] == [text]


@pytest.mark.parametrize(
    'rows, message',
    [
        ([{'prompt': 'a'}, '{"prompt": '], r'p\.jsonl:2 is not JSON'),
        ([{'prompt': ''}], r"p\.jsonl:1: prompt is ''; .*not empty"),
        ([{'turns': []}], r'turns is \[\]; it needs to be a text'),
        ([{'turns': [{'role': 'user'}]}], 'turns is .*needs to be a text'),
        ([{'question': 5}], 'question is 5; it needs to be a text'),
        ([{'code': 'x'}], 'none of the fields turns, question, prompt'),
        (['["prompt"]'], 'none of the fields'),
        (['', ' '], 'holds no prompts; name another'),
    ],
)
def test_a_wrong_line_names_itself_and_the_need(write, rows, message):
  with pytest.raises(UserError, match=message) as caught:
    _load(write(*rows))
  assert '\n' not in str(caught.value)


def test_an_absent_file_is_named_with_the_alternative(tmp_path):
  with pytest.raises(UserError, match="no.jsonl', which is no file.*'builtin'"):
    _load(tmp_path / 'no.jsonl')
  with pytest.raises(UserError, match='which is no file'):
    _load(tmp_path)


@pytest.mark.parametrize(
    'damage',
    [
        lambda data: data[:-6],
        # Behind the header of 10 bytes and the file's name: no such block.
        lambda data: data[:18] + b'\xff' + data[19:],
        lambda data: b'plain text',
    ],
    ids=['cut', 'altered', 'not compressed'],
)
def test_a_damaged_compressed_file_is_one_line(write, damage):
  path = write({'prompt': 'some text ' * 20}, name='p.jsonl.gz')
  path.write_bytes(damage(path.read_bytes()))
  with pytest.raises(UserError, match='cannot be read.*fetch it again'):
    _load(path)


def test_a_file_in_another_encoding_is_one_line(tmp_path):
  path = tmp_path / 'p.jsonl'
  path.write_bytes('{"prompt": "é"}'.encode('latin-1'))
  with pytest.raises(UserError, match='cannot be read.*utf-8'):
    _load(path)


def _some(num: int) -> list[Prompt]:
  return [Prompt(str(i), 'no') for i in range(num)]


@pytest.mark.parametrize(
    'num, num_prompts, aside, timed, calibration',
    [
        (8, 0, 3, '01234', '567'),
        (8, 2, 3, '01', '567'),
        (8, 6, 3, '01234', '567'),
        (8, 0, 8, '0123', '4567'),
        (8, 9, 9, '0123', '4567'),
        (3, 0, 8, '01', '2'),
        (2, 2, 1, '0', '1'),
        (8, 0, 0, '01234567', ''),
        (1, 0, 0, '0', ''),
    ],
)
def test_prompts_set_aside_are_never_timed(
    num, num_prompts, aside, timed, calibration
):
  found = prompts.split(
      _some(num), num_prompts=num_prompts, num_calibration=aside
  )
  assert ''.join(p.text for p in found.timed) == timed
  assert ''.join(p.text for p in found.calibration) == calibration


def test_a_stride_puts_those_between_behind():
  found = [prompts.Prompt(str(i), 'no') for i in range(7)]
  got = prompts.strided(found, 3)
  assert [p.text for p in got] == list('0361425')
  assert prompts.strided(found, 1) == found
  assert sorted(prompts.strided(found, 9), key=lambda p: p.text) == found


def test_a_text_that_is_timed_is_not_set_aside_as_well():
  again = [*_some(3), *_some(2)]
  found = prompts.split(again, num_prompts=1, num_calibration=2)
  assert [p.text for p in found.timed] == ['0']
  assert [p.text for p in found.calibration] == ['1']


@pytest.mark.parametrize('found', [_some(1), _some(1) * 6])
def test_too_few_prompts_to_predict_from_are_refused(found):
  with pytest.raises(UserError, match='too few.*bench.calibration_prompts'):
    prompts.split(found, num_prompts=0, num_calibration=4)


def test_what_was_said_before_goes_with_the_text():
  assert Prompt('a', 'no').said == 'a'
  assert Prompt('c', 'no', history=('a', 'b')).said == ('a', 'b', 'c')


def test_prompts_are_the_same_whatever_their_rows_say():
  assert Prompt('a', 'no', row={'x': 1}) == Prompt('a', 'no')
  assert Prompt('a', 'no', history=('b', 'c')) != Prompt('a', 'no')
