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
import sys
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


class Mistake(Exception):
  """Of the user; one line that names file and field."""


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


def _read(path: pathlib.Path, flag: str) -> str:
  try:
    return path.read_text(encoding='utf-8')
  except (OSError, UnicodeDecodeError) as error:
    why = getattr(error, 'strerror', None) or 'it is not UTF-8'
    raise Mistake(f'--{flag}={path} cannot be read: {why}.') from error


def _text(row: object, field: str, where: str) -> str:
  found = row.get(field) if isinstance(row, dict) else None
  if not isinstance(found, str):
    raise Mistake(f'{where}: field {field!r} needs to be a text.')
  return found


def _problems(path: pathlib.Path) -> Iterator[str]:
  for number, line in enumerate(_read(path, 'problems').splitlines()):
    where = f'{path}:{number + 1}'
    if not line.strip():
      continue
    try:
      problem = json.loads(line)
    except json.JSONDecodeError as error:
      raise Mistake(f'{where} is not JSON: {error}.') from error
    code = '\n'.join(_text(problem, 'code', where).splitlines())
    asked = _text(problem, 'text', where)
    listed = problem.get('test_list')
    if not isinstance(listed, list) or not all(
        isinstance(test, str) for test in listed
    ):
      raise Mistake(f"{where}: field 'test_list' needs to be a list of texts.")
    found = re.search(r'^def .+:[ \t]*$', code, re.MULTILINE)
    if found is None:
      continue
    imports = _IMPORTS[number % len(_IMPORTS)]
    tests = [
        test.removeprefix('assert ').replace(' == ', '\n', 1)
        for test in listed[: number % 3]
    ]
    said = '\n'.join([asked, *(f'>>> {test}' for test in tests)])
    doc = textwrap.indent(f'""" {said}\n"""', '    ')
    yield f'{imports}{found[0].rstrip()}\n{doc}\n'


def _objects(text: str) -> Iterator[object]:
  decoder, separator = json.JSONDecoder(), re.compile(r'[\s,]*')
  at = text.find('[') + 1
  while True:
    at = separator.match(text, at).end()
    try:
      found, at = decoder.raw_decode(text, at)
    except json.JSONDecodeError:
      return
    yield found


def _turns(talk: dict, where: str) -> list[tuple[str, str]]:
  """Returns who says what in the first two turns."""
  turns = talk.get('conversations')
  if not isinstance(turns, list):
    raise Mistake(f"{where}: field 'conversations' needs to be a list.")
  where = f'{where}, conversations'
  return [
      (_text(turn, 'from', where), _text(turn, 'value', where).strip())
      for turn in turns[:2]
  ]


def questions(text: str, where: str) -> Iterator[tuple[str, str]]:
  """Yields what conversations begin with, each once, and the answer or ''.

  Args:
    text: a JSON list, see above.
    where: it is from, for mistakes.
  """
  if not text.lstrip('\ufeff').lstrip().startswith('['):
    raise Mistake(f'{where} is no JSON list of conversations.')
  seen = set()
  for number, talk in enumerate(_objects(text)):
    part = f'{where}[{number}]'
    # Parts after the first begin in the middle of a conversation.
    if not _text(talk, 'id', part).endswith('_0'):
      continue
    turns = _turns(talk, part)
    if not turns:
      continue
    who, first = turns[0]
    if who not in _ASKS or first in seen or not first.isascii():
      continue
    if _LEAST_QUESTION <= len(first) <= _MOST_QUESTION:
      seen.add(first)
      answer = turns[1][1] if len(turns) > 1 else ''
      yield first, answer if answer.isascii() else ''


def _inputs() -> dict[str, list[dict[str, str]]]:
  """Reads everything; returns the rows of the files to be written, by name."""
  code = []
  if _PROBLEMS.value:
    path = pathlib.Path(_PROBLEMS.value).expanduser()
    code = list(_problems(path))
    if not code:
      raise Mistake(f"{path}: no field 'code' has a function to begin.")
  found = {}
  if _CONVERSATIONS.value:
    path = pathlib.Path(_CONVERSATIONS.value).expanduser()
    talks = list(questions(_read(path, 'conversations'), str(path)))
    answered = [{'question': q, 'answer': a} for q, a in talks if a]
    if not answered:
      raise Mistake(
          f"{path}: no conversation whose field 'id' ends with '_0' begins "
          'with a question that is used and an answer.'
      )
    found['chat.jsonl'] = [{'question': said} for said, _ in talks]
    found['answered.jsonl'] = answered
  heads_of = [*_library(), *code]
  return {'code.jsonl': [{'prompt': head} for head in heads_of]} | found


def _write(path: pathlib.Path, rows: list[dict[str, str]]) -> None:
  beside = path.with_name(f'.{path.name}.partial')
  lines = [json.dumps(row) + '\n' for row in rows]
  beside.write_text(''.join(lines), encoding='utf-8')
  os.replace(beside, path)
  print(f'{path}: {len(rows)} prompts')


def _make(out: pathlib.Path) -> None:
  files = _inputs()
  try:
    out.mkdir(parents=True, exist_ok=True)
    for name, rows in files.items():
      _write(out / name, rows)
  except OSError as error:
    raise Mistake(
        f'--out={out} cannot be written: {error.strerror}.'
    ) from error


def main(argv: list[str]) -> int:
  """Writes the files, or says in one line why none is written."""
  if len(argv) > 1 or not _OUT.value:
    raise app.UsageError('--out is missing; name a directory.')
  try:
    _make(pathlib.Path(_OUT.value).expanduser())
  except Mistake as mistake:
    print(f'error: {mistake}', file=sys.stderr)
    return 1
  return 0


if __name__ == '__main__':
  app.run(main)
