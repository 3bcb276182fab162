"""Prompts that text for training begins with, from files of several kinds.

A JSONL file brings a prompt a line (see `bench.prompts`, and the first input of
an instruction where it has one), a .txt file a question a line; with an answer
beside it, it is a document as it is. Plain text is cut at line ends into
pieces, of which the first tokens are a prompt.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import glob
import pathlib

import numpy as np

from speculative.bench import prompts
from speculative.bench.prompts import Prompt
from speculative.errors import UserError

# Characters a token has at least, about; a piece is cut to its tokens later.
_CHARS_PER_TOKEN = 5
_SHORTEST, _LONGEST = 32, 128
_CODE = ('.py', '.pyi', '.c', '.h', '.cc', '.js', '.ts', '.go', '.rs', '.java')


@dataclasses.dataclass(frozen=True)
class Start:
  """What a document begins with.

  Attributes:
    where: file and line, or file and piece.
    text: of the prompt as the file has it; of the piece.
    tokens: of the prompt, in the chat template where it belongs there.
    domain: what kind of text it is.
    kind: 'prompt', which the target goes on from, or 'plain', a document as it
      is.
    prompt_file: the file of prompts it is from; '' where it is cut from text.
    prompt_len: tokens of a plain document that ask for the others.
  """

  where: str
  text: str
  tokens: tuple[int, ...]
  domain: str
  kind: str = 'prompt'
  prompt_file: str = ''
  prompt_len: int = 0


def split_name(source: str) -> tuple[str, str]:
  """Splits 'domain=path' into both; the domain is '' where it has none."""
  domain, mark, path = source.partition('=')
  return (domain, path) if mark and domain.isidentifier() else ('', source)


def find_files(
    patterns: Sequence[str], *, field: str, group: str = 'collect'
) -> list[tuple[str, str]]:
  """Returns the domain, '' where none was given, and path of every file.

  Args:
    patterns: paths or globs, '**' for any depth, each after 'domain=' or not.
    field: of the config, for errors.
    group: of the config that the field is in.

  Raises:
    UserError: If a pattern names no file.
  """
  found = []
  for pattern in patterns:
    domain, path = split_name(pattern)
    expanded = str(pathlib.Path(path).expanduser())
    files = sorted(
        name
        for name in glob.glob(expanded, recursive=True)
        if pathlib.Path(name).is_file()
    )
    if not files:
      raise UserError(
          f'config.{group}.{field} names {path!r}, but there is no such file.'
      )
    found += [(domain, name) for name in files]
  return found


def _with_input(row: object) -> object:
  """Adds the first input to an instruction that has one."""
  instances = row.get('instances') if isinstance(row, dict) else None
  if not isinstance(instances, list) or not instances:
    return row
  first = instances[0]
  given = first.get('input') if isinstance(first, dict) else None
  if not isinstance(given, str) or not given.strip():
    return row
  # Without a text, what is missing is for the parser to say.
  said = row.get('instruction')
  if not isinstance(said, str) or not said:
    return row
  return row | {'instruction': f'{said}\n\n{given}'}


def _read_prompts(path: str) -> list[tuple[str, Prompt]]:
  if path.removesuffix('.gz').endswith('.txt'):
    lines = _read_text(path).splitlines()
    return [
        (f'{path}:{number}', Prompt(line, 'auto'))
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
  return [
      (where, prompts.parse(_with_input(row), where, 'auto'))
      for where, row in prompts.read_rows(path)
  ]


def from_prompts(
    sources: Sequence[str], encode: Callable[[str, str], Sequence[int]]
) -> list[Start]:
  """Reads files of prompts.

  Args:
    sources: see `find_files`.
    encode: of a text and 'auto' for the chat template or 'no'.

  Returns:
    A Start a prompt; domain 'chat' for what a user says and 'code' for what is
    to be completed, unless named.

  Raises:
    UserError: If a file cannot be read or has none.
  """
  starts = []
  for domain, path in find_files(sources, field='prompts'):
    found = _read_prompts(path)
    if not found:
      raise UserError(f'{path} holds no prompts; name another file.')
    for where, prompt in found:
      kind = 'code' if prompt.chat_template == 'no' else 'chat'
      tokens = tuple(encode(prompt.text, prompt.chat_template))
      starts.append(
          Start(
              where=where,
              text=prompt.text,
              tokens=tokens,
              domain=domain or kind,
              prompt_file=path,
          )
      )
  return starts


def from_answered(
    sources: Sequence[str],
    encode: Callable[[str, str], Sequence[int]],
    encode_answer: Callable[[str], Sequence[int]],
    *,
    num_tokens: int,
) -> tuple[list[Start], int]:
  """Reads JSONL files of prompts with their answers, whoever wrote them.

  Args:
    sources: see `find_files`.
    encode: see `from_prompts`.
    encode_answer: of an answer, which goes on where its prompt ends.
    num_tokens: most tokens of a document; a longer answer is cut.

  Returns:
    A Start a prompt, plain; domains are those of `from_prompts`. And how many
    were left out, as their prompts leave no token for an answer.

  Raises:
    UserError: If a file cannot be read or has no rows, or one has no answer.
  """
  starts, num_too_long = [], 0
  for domain, path in find_files(sources, field='answered'):
    rows = prompts.read_rows(path)
    if not rows:
      raise UserError(f'{path} holds no prompts; name another file.')
    for where, row in rows:
      prompt = prompts.parse(_with_input(row), where, 'auto')
      answer = row.get('answer')
      if not isinstance(answer, str) or not answer:
        raise UserError(
            f"{where} has no field 'answer' with a text; files without answers "
            'go to config.collect.prompts.'
        )
      asked = tuple(encode(prompt.text, prompt.chat_template))
      if len(asked) >= num_tokens:
        num_too_long += 1
        continue
      kind = 'code' if prompt.chat_template == 'no' else 'chat'
      starts.append(
          Start(
              where=where,
              text=f'{prompt.text}\n{answer}',
              tokens=(asked + tuple(encode_answer(answer)))[:num_tokens],
              domain=domain or kind,
              kind='plain',
              prompt_file=path,
              prompt_len=len(asked),
          )
      )
  return starts, num_too_long


def _read_text(path: str) -> str:
  try:
    return pathlib.Path(path).read_text(encoding='utf-8', errors='replace')
  except OSError as error:
    raise UserError(f'{path} cannot be read: {error.strerror}.') from error


def pieces(text: str, size: int) -> list[str]:
  """Cuts a text at line ends into pieces.

  Args:
    text: all of it.
    size: characters a piece has at least, but for the last; a longer line is
      a piece of its own, however long.
  """
  cut, lines, length = [], [], 0
  for line in text.splitlines(keepends=True):
    lines.append(line)
    length += len(line)
    if length >= size:
      cut.append(''.join(lines))
      lines, length = [], 0
  return [*cut, ''.join(lines)] if lines else cut


def from_texts(
    sources: Sequence[str],
    encode: Callable[[str, str], Sequence[int]],
    *,
    kind: str,
    num_tokens: int,
    seed: int,
) -> list[Start]:
  """Cuts files of plain text into documents.

  Args:
    sources: see `find_files`.
    encode: see `from_prompts`.
    kind: 'plain' keeps a piece as a document, 'prompt' has the target go on
      from its first tokens, 32 to 128 of them.
    num_tokens: most tokens of a plain document.
    seed: decides how long prompts are.

  Returns:
    A Start a piece that is not too short; domain 'code' for the usual suffixes
    and 'text' otherwise, unless named.

  Raises:
    UserError: If a file cannot be read, or all of them are too short.
  """
  starts = []
  for domain, path in find_files(sources, field='texts'):
    usual = 'code' if pathlib.Path(path).suffix in _CODE else 'text'
    size = _CHARS_PER_TOKEN * (num_tokens if kind == 'plain' else _LONGEST)
    for number, piece in enumerate(pieces(_read_text(path), size)):
      longest = num_tokens
      if kind == 'prompt':
        draw = np.random.default_rng((seed, len(starts)))
        longest = int(draw.integers(_SHORTEST, _LONGEST, endpoint=True))
      tokens = tuple(encode(piece[: 2 * size], 'no')[:longest])
      if len(tokens) >= min(_SHORTEST, longest):
        where = f'{path}#{number}'
        starts.append(Start(where, piece, tokens, domain or usual, kind))
  if sources and not starts:
    raise UserError(
        f'the files of config.collect.texts have no piece of {_SHORTEST} '
        'tokens; name longer ones.'
    )
  return starts
