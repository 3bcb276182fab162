"""Writes prompts to train a draft on, from the Python standard library.

  python scripts/draft_prompts.py --out=DIR [--num-turns=4000] \\
    [--problems=mbpp.jsonl] [--turns=outputs.jsonl]

DIR/code.jsonl holds the heads of documented functions of the running Python's
library, to go on from: imports, signature, docstring; those of 60 to 700
characters, all of them ASCII. DIR/turns.jsonl holds the beginning of a user's
turn in ChatML, again and again: sampled from an instruction model, each becomes
a question that this model finds likely (arXiv:2406.08464), without any data
set; --turns names what the task `generate` wrote of them, and DIR/chat.jsonl
holds the questions that came to their end. Problems in the layout of MBPP
(fields text, code, test_list; CC BY 4.0) go to code.jsonl as heads of their
own.
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
_TURNS = flags.DEFINE_integer('num-turns', 4_000, 'Lines of turns.jsonl.')
_PROBLEMS = flags.DEFINE_string('problems', '', 'JSONL file of problems.')
_SAMPLED = flags.DEFINE_string('turns', '', 'outputs.jsonl of turns.jsonl.')
_SYSTEM = flags.DEFINE_string(
    'system',
    'You are a helpful AI assistant named SmolLM, trained by Hugging Face',
    'System prompt of the chat template.',
)

# Of a head; shorter ones say too little, longer ones fill a prompt.
_LEAST_CHARS = 60
_MOST_CHARS = 700
# Of a question; a longer one is likely none.
_LEAST_QUESTION = 12
_MOST_QUESTION = 600
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


def _questions(path: pathlib.Path) -> Iterator[str]:
  seen = set()
  for line in path.read_text(encoding='utf-8').splitlines():
    row = json.loads(line)
    text = row['text'].strip()
    # One that was cut off asks for something else.
    if row['reason'] != 'stop' or text in seen:
      continue
    if _LEAST_QUESTION <= len(text) <= _MOST_QUESTION:
      seen.add(text)
      yield text


def _write(path: pathlib.Path, field: str, prompts: list[str]) -> None:
  beside = path.with_name(f'.{path.name}.partial')
  rows = [json.dumps({field: prompt}) + '\n' for prompt in prompts]
  beside.write_text(''.join(rows), encoding='utf-8')
  os.replace(beside, path)
  print(f'{path}: {len(prompts)} prompts')


def main(argv: list[str]) -> None:
  """Writes the files."""
  if len(argv) > 1 or not _OUT.value:
    raise app.UsageError('--out is missing; name a directory.')
  out = pathlib.Path(_OUT.value).expanduser()
  out.mkdir(parents=True, exist_ok=True)
  code = list(_library())
  if _PROBLEMS.value:
    code += _problems(pathlib.Path(_PROBLEMS.value).expanduser())
  _write(out / 'code.jsonl', 'prompt', code)
  turn = f'<|im_start|>system\n{_SYSTEM.value}<|im_end|>\n<|im_start|>user\n'
  _write(out / 'turns.jsonl', 'prompt', [turn] * _TURNS.value)
  if _SAMPLED.value:
    found = _questions(pathlib.Path(_SAMPLED.value).expanduser())
    _write(out / 'chat.jsonl', 'question', list(found))


if __name__ == '__main__':
  app.run(main)
