"""Prompts for a draft: heads of functions, problems, and questions."""

import importlib
import json
import pathlib
import types

import pytest

_SCRIPTS = pathlib.Path(__file__).parents[2] / 'scripts'


@pytest.fixture
def script(monkeypatch):
  """The script as a module."""
  monkeypatch.syspath_prepend(str(_SCRIPTS))
  return importlib.import_module('draft_prompts')


def test_a_head_is_signature_and_docstring_without_indent(script):
  source = '''
class A:
  def add(self, left: int, right: int) -> int:
    """Adds two numbers, and has been doing so for a long time."""
    return left + right

def quiet(x):
  return x
'''
  assert list(script.heads(source)) == [
      'def add(self, left: int, right: int) -> int:\n'
      '  """Adds two numbers, and has been doing so for a long time."""\n'
  ]
  assert not list(script.heads('def broken(:'))


def test_a_problem_becomes_a_head_with_its_tests(script, tmp_path):
  problems = [
      {'text': f'Add {i}.', 'code': code, 'test_list': ['assert f(1) == 2']}
      for i, code in enumerate(('x = 1', 'import a\r\ndef f(x):\r\n\treturn x'))
  ]
  path = tmp_path / 'problems.jsonl'
  path.write_text('\n'.join(json.dumps(p) for p in problems))
  (head,) = script._problems(path)
  assert head.endswith(
      'def f(x):\n    """ Add 1.\n    >>> f(1)\n    2\n    """\n'
  )


def _talk(name, who, first, answer='Not sure.'):
  turns = [{'from': who, 'value': first}, {'from': 'gpt', 'value': answer}]
  return {'id': name, 'conversations': turns}


def test_questions_begin_a_conversation_and_are_told_once(script):
  asked = 'What is a tree in a forest?'
  talks = [
      _talk('a_0', 'human', f' {asked}\n'),
      _talk('b_0', 'human', asked),
      _talk('a_1', 'human', 'And what is a branch of it?'),
      _talk('c_0', 'gpt', 'A tree is made of branches.'),
      _talk('d_0', 'human', 'No.'),
      _talk('e_0', 'human', 'x' * 501),
      _talk('f_0', 'human', 'Qu\u00e9 es un bosque, en general?'),
      {'id': 'g_0', 'conversations': []},
      _talk('h_0', 'user', 'What is a forest without trees?', '\u00a1No!'),
  ]
  whole = json.dumps(talks)
  found = [(asked, 'Not sure.'), ('What is a forest without trees?', '')]
  assert list(script.questions(whole, 'x.json')) == found
  # One that breaks off in the last conversation.
  assert list(script.questions(whole[:-10], 'x.json')) == found[:1]


@pytest.fixture
def call(script, monkeypatch, tmp_path, capsys):
  """Calls main with files of these texts; returns status, errors and OUT."""
  monkeypatch.setattr(script, '_library', lambda: iter(['def f(): pass']))

  def call(out='out', **texts):
    flags = {'out': str(tmp_path / out), 'problems': '', 'conversations': ''}
    for name, text in texts.items():
      path = tmp_path / name
      if text is not None:
        path.write_text(text)
      flags[name] = str(path)
    for name, value in flags.items():
      flag = types.SimpleNamespace(value=value)
      monkeypatch.setattr(script, f'_{name.upper()}', flag)
    status = script.main(['draft_prompts'])
    return status, capsys.readouterr().err, tmp_path / out

  return call


_PROBLEM = {'text': 'Add.', 'code': 'def f(x):\n  pass', 'test_list': []}
_TALK = _talk('a_0', 'human', 'What is a tree in a forest?')


def test_all_files_are_written_together(call):
  status, err, out = call(
      problems=json.dumps(_PROBLEM) + '\n\n', conversations=json.dumps([_TALK])
  )
  assert (status, err) == (0, '')
  assert {p.name: len(p.read_text().splitlines()) for p in out.iterdir()} == {
      'code.jsonl': 2,
      'chat.jsonl': 1,
      'answered.jsonl': 1,
  }


def _json(row, **changed):
  return json.dumps(row | changed)


@pytest.mark.parametrize(
    'name, text, said',
    [
        ('problems', None, 'problems cannot be read: No such file'),
        ('problems', '{', 'problems:1 is not JSON'),
        ('problems', '[1]', "problems:1: field 'code' needs to be a text"),
        ('problems', _json(_PROBLEM, text=3), "problems:1: field 'text'"),
        ('problems', _json(_PROBLEM, test_list='x'), "field 'test_list'"),
        ('problems', _json(_PROBLEM, code='x = 1'), 'has a function'),
        ('problems', '', 'has a function'),
        ('conversations', None, 'conversations cannot be read: No such file'),
        ('conversations', '{"a": [1]}', 'conversations is no JSON list'),
        ('conversations', '', 'conversations is no JSON list'),
        ('conversations', '[]', 'no conversation whose'),
        ('conversations', '["x"]', "conversations[0]: field 'id'"),
        (
            'conversations',
            f'[{_json(_TALK, conversations=None)}]',
            "[0]: field 'conversations' needs to be a list",
        ),
        ('conversations', f'[{_json(_TALK, id=3)}]', "[0]: field 'id'"),
        (
            'conversations',
            f'[{_json(_TALK, conversations=[{"from": "human"}])}]',
            "[0], conversations: field 'value' needs to be a text",
        ),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(call, name, text, said):
  status, err, out = call(**{name: text})
  assert status == 1
  assert err.startswith('error: ') and err.count('\n') == 1
  assert said in err
  assert not out.exists()


def test_a_file_where_the_directory_should_be_is_one_line(call, tmp_path):
  (tmp_path / 'out').write_text('mine')
  status, err, _ = call()
  assert status == 1
  assert 'cannot be written: File exists' in err and err.count('\n') == 1
