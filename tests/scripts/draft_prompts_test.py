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


def test_questions_are_whole_and_told_once(script, tmp_path):
  texts = ['What is a tree in a forest?', 'No.', 'x' * 601] * 2
  rows = [{'text': text, 'reason': 'stop'} for text in texts]
  rows.append({'text': 'What is a forest without', 'reason': 'length'})
  path = tmp_path / 'outputs.jsonl'
  path.write_text('\n'.join(json.dumps(row) for row in rows))
  assert list(script._questions(path)) == texts[:1]
