"""Writes prompts to train a draft on: heads of functions, and questions.

  python scripts/draft_prompts.py --out=DIR [--problems=mbpp.jsonl] \\
    [--conversations=ShareGPT_V3_unfiltered_cleaned_split.json]

DIR/code.jsonl holds heads of documented functions of the running Python's
library, to go on from: imports, signature, docstring; those of 60 to 700
characters, all of them ASCII. Problems in the layout of MBPP (fields text,
code, test_list; CC BY 4.0) go there as heads of their own.

DIR/chat.jsonl holds the questions that conversations begin with, those of 16 to
500 characters, all of them ASCII, and DIR/answered.jsonl the same with their
answers where these are ASCII, too. They are from a JSON list in the layout of
ShareGPT: objects with an id that ends with the part's number, and
conversations, a list of from and value. A list that breaks off is read as far
as it goes.
"""

import ast
from collections.abc import Iterator
import json
import os
import pathlib
import re
import sysconfig
import textwrap

from absl import app
from absl import flags

_OUT = flags.DEFINE_string('out', None, 'Directory to write to.')
_PROBLEMS = flags.DEFINE_string('problems', '', 'JSONL file of problems.')
_CONVERSATIONS = flags.DEFINE_string(
    'conversations', '', 'JSON file of conversations.'
)

# Of a head; shorter ones say too little, longer ones fill a prompt.
_LEAST_CHARS = 60
_MOST_CHARS = 700
# Of a question; a longer one leaves too little of a row for the answer.
_LEAST_QUESTION = 16
_MOST_QUESTION = 500
# Who asks.
_ASKS = ('human', 'user')
_SKIPPED = (
    'test',
    'tests',
    'idlelib',
    'lib2to3',
    'site-packages',
    'turtledemo',
)
# Heads of every so many functions begin with this, as programs do.
_IMPORTS = ('', 'from typing import List\n\n\n', 'import math\n\n\n', '')


def heads(source: str) -> Iterator[str]:
  """Yields signature and docstring of functions, not too short or long."""
  try:
    tree = ast.parse(source)
  except (SyntaxError, ValueError):
    return
  lines = source.splitlines()
  for node in ast.walk(tree):
    if not isinstance(node, ast.FunctionDef) or not ast.get_docstring(node):
      continue
    end = node.body[0].end_lineno
    head = textwrap.dedent('\n'.join(lines[node.lineno - 1 : end])) + '\n'
    if _LEAST_CHARS <= len(head) <= _MOST_CHARS and head.isascii():
      yield head


def _library() -> Iterator[str]:
  root = pathlib.Path(sysconfig.get_paths()['stdlib'])
  seen = set()
  for path in sorted(root.rglob('*.py')):
    if set(path.relative_to(root).parts) & set(_SKIPPED):
      continue
    source = path.read_text(encoding='utf-8', errors='replace')
    for head in heads(source):
      if head not in seen:
        seen.add(head)
        yield _IMPORTS[len(seen) % len(_IMPORTS)] + head


def _problems(path: pathlib.Path) -> Iterator[str]:
  for number, line in enumerate(path.read_text(encoding='utf-8').splitlines()):
    problem = json.loads(line)
    code = '\n'.join(problem['code'].splitlines())
    found = re.search(r'^def .+:[ \t]*$', code, re.MULTILINE)
    if found is None:
      continue
    imports = _IMPORTS[number % len(_IMPORTS)]
    tests = [
        test.removeprefix('assert ').replace(' == ', '\n', 1)
        for test in problem['test_list'][: number % 3]
    ]
    said = '\n'.join([problem['text'], *(f'>>> {test}' for test in tests)])
    doc = textwrap.indent(f'""" {said}\n"""', '    ')
    yield f'{imports}{found[0].rstrip()}\n{doc}\n'


def _objects(text: str) -> Iterator[dict]:
  decoder, separator = json.JSONDecoder(), re.compile(r'[\s,]*')
  at = text.find('[') + 1
  while True:
    at = separator.match(text, at).end()
    try:
      found, at = decoder.raw_decode(text, at)
    except json.JSONDecodeError:
      return
    yield found


def questions(text: str) -> Iterator[tuple[str, str]]:
  """Yields what conversations begin with, each once, and the answer or ''."""
  seen = set()
  for talk in _objects(text):
    turns = talk['conversations']
    # Parts after the first begin in the middle of a conversation.
    if not talk['id'].endswith('_0') or not turns:
      continue
    first = turns[0]['value'].strip()
    if turns[0]['from'] not in _ASKS or first in seen or not first.isascii():
      continue
    if _LEAST_QUESTION <= len(first) <= _MOST_QUESTION:
      seen.add(first)
      answer = turns[1]['value'].strip() if len(turns) > 1 else ''
      yield first, answer if answer.isascii() else ''


def _write(path: pathlib.Path, rows: list[dict[str, str]]) -> None:
  beside = path.with_name(f'.{path.name}.partial')
  lines = [json.dumps(row) + '\n' for row in rows]
  beside.write_text(''.join(lines), encoding='utf-8')
  os.replace(beside, path)
  print(f'{path}: {len(rows)} prompts')


def main(argv: list[str]) -> None:
  """Writes the files."""
  if len(argv) > 1 or not _OUT.value:
    raise app.UsageError('--out is missing; name a directory.')
  out = pathlib.Path(_OUT.value).expanduser()
  out.mkdir(parents=True, exist_ok=True)
  code = list(_library())
  if _PROBLEMS.value:
    code += _problems(pathlib.Path(_PROBLEMS.value).expanduser())
  _write(out / 'code.jsonl', [{'prompt': head} for head in code])
  if _CONVERSATIONS.value:
    path = pathlib.Path(_CONVERSATIONS.value).expanduser()
    found = list(questions(path.read_text(encoding='utf-8')))
    _write(out / 'chat.jsonl', [{'question': said} for said, _ in found])
    answered = [{'question': q, 'answer': a} for q, a in found if a]
    _write(out / 'answered.jsonl', answered)


if __name__ == '__main__':
  app.run(main)
