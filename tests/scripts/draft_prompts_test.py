"""Prompts for a draft: heads of functions, problems, and questions."""

import importlib
import json
import pathlib

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
  assert list(script.questions(whole)) == found
  # One that breaks off in the last conversation.
  assert list(script.questions(whole[:-10])) == found[:1]
