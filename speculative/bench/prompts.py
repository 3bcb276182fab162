"""Prompts to measure with, from a JSONL file or a few of our own."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import gzip
import json
import pathlib
import zlib

from speculative.errors import UserError

FORMATS = ('auto', 'chat', 'completion')

BUILTIN = (
    'Give me three tips for staying healthy.',
    'Explain to a child why the sky is blue.',
    'Write a Python function that returns the n-th Fibonacci number, then '
    'write it again with a cache.',
    'List the planets of the solar system, one a line, nearest first.',
    'Repeat this sentence word for word, then translate it into French: The '
    'small boat left the harbour before the storm came in.',
    'Write a short email that asks a colleague to move our meeting.',
    'What is the difference between a list and a tuple in Python?',
    'Summarise in one sentence: A library lends books to people who could not '
    'buy them all. It keeps old books that shops no longer sell. It is also a '
    'quiet place to read and to learn.',
)

# The field that holds the text, and whether it is a turn of a conversation.
_FIELDS = (
    ('turns', 'chat'),
    ('question', 'chat'),
    ('prompt', 'completion'),
    ('text', 'chat'),
    ('instruction', 'chat'),
)


@dataclasses.dataclass(frozen=True)
class Prompt:
  """One prompt.

  Attributes:
    text: what the user says, or the text to go on from.
    chat_template: 'auto' to put it into the checkpoint's template if there is
      one, 'no' to leave it as it is.
    group: of its task set that it belongs to; '' where there are none.
    history: what was said before, the user and the model in turn.
    next_turns: what the user says after the answer, see `task_sets.next_turn`.
    row: of its task set, to score an answer by; None without a task set.
  """

  text: str
  chat_template: str
  group: str = ''
  history: tuple[str, ...] = ()
  next_turns: tuple[str, ...] = ()
  row: Mapping[str, object] | None = dataclasses.field(
      default=None, compare=False, repr=False
  )

  @property
  def said(self) -> str | tuple[str, ...]:
    """What `LanguageModel.encode` takes: the text, after the history if any."""
    return (*self.history, self.text) if self.history else self.text


def parse(row: object, where: str, prompt_format: str) -> Prompt:
  """Returns the prompt of a row; see `load`.

  Args:
    row: as JSON gave it.
    where: file and line, for errors.
    prompt_format: see `load`.

  Raises:
    UserError: If the row has no prompt.
  """
  for field, kind in _FIELDS:
    if not isinstance(row, dict) or row.get(field) is None:
      continue
    text = row[field]
    if field == 'turns' and isinstance(text, list) and text:
      text = text[0]
    if not isinstance(text, str) or not text:
      raise UserError(
          f'{where}: {field} is {text!r:.60}; it needs to be a text that is '
          'not empty.'
      )
    is_chat = (kind if prompt_format == 'auto' else prompt_format) == 'chat'
    return Prompt(text, 'auto' if is_chat else 'no')
  known = ', '.join(field for field, _ in _FIELDS)
  raise UserError(f'{where} has none of the fields {known}; add one.')


def read_rows(source: str) -> list[tuple[str, object]]:
  """Reads what the lines of a JSONL file say.

  Args:
    source: a file, compressed if it ends in .gz.

  Returns:
    'file:line' and value of every line that is not empty.

  Raises:
    UserError: If it cannot be read, or a line is not JSON.
  """
  path = pathlib.Path(source).expanduser()
  try:
    opener = gzip.open if path.suffix == '.gz' else open
    with opener(path, 'rt', encoding='utf-8') as file:
      lines = list(file)
  except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
    raise UserError(
        f'{source} cannot be read: {error}; fetch it again.'
    ) from error
  rows = []
  for number, line in enumerate(lines, 1):
    where = f'{source}:{number}'
    try:
      if line.strip():
        rows.append((where, json.loads(line)))
    except json.JSONDecodeError as error:
      raise UserError(f'{where} is not JSON: {error}.') from error
  return rows


@dataclasses.dataclass(frozen=True)
class Split:
  """Prompts of one file in two parts that share no text.

  Attributes:
    timed: from the start of the file.
    calibration: from its end.
  """

  timed: list[Prompt]
  calibration: list[Prompt]


def split(
    found: Sequence[Prompt], *, num_prompts: int, num_calibration: int
) -> Split:
  """Sets prompts aside that predictions are made from.

    8 prompts, all to be timed, 3 to be set aside -> 0..4 and 5..7
    8 prompts, 2 to be timed, 3 to be set aside -> 0 1 and 5..7
    8 prompts, all to be timed, 8 to be set aside -> 0..3 and 4..7

  Args:
    found: all prompts of the file.
    num_prompts: how many to time, 0 for all that are left; fewer where the file
      does not hold both.
    num_calibration: how many to set aside, at most half of the file.

  Returns:
    The Split.

  Raises:
    UserError: If nothing can be set aside.
  """
  num_aside = min(num_calibration, len(found) // 2)
  num_timed = min(num_prompts or len(found), len(found) - num_aside)
  timed = list(found[:num_timed])
  aside = [p for p in found[len(found) - num_aside :] if p not in timed]
  if num_calibration and not aside:
    raise UserError(
        f'{len(found)} prompt(s) are too few to time some and to set others '
        'aside that the speed-up is predicted from; give at least 2 different '
        'ones, or set config.bench.calibration_prompts to 0, which predicts '
        'nothing.'
    )
  return Split(timed, aside)


def strided(found: Sequence[Prompt], stride: int) -> list[Prompt]:
  """Returns every so many prompts, then those that begin one later, and so on.

    5 prompts, stride 2 -> 0 2 4 1 3

  Args:
    found: prompts of a file.
    stride: at least 1, which leaves them as they are.
  """
  return [p for first in range(stride) for p in found[first::stride]]


def load(source: str, *, num_prompts: int, prompt_format: str) -> list[Prompt]:
  """Reads prompts.

  Args:
    source: a JSONL file, compressed if it ends in .gz, or 'builtin'. The text
      is the first of the fields turns (its first entry), question, prompt,
      text and instruction; 'prompt' is text to go on from (HumanEval), the
      others are what a user says.
    num_prompts: how many from the start; 0 for all.
    prompt_format: 'auto' as above, or 'chat' or 'completion' for all.

  Returns:
    The prompts.

  Raises:
    UserError: If the file is absent, is no JSONL or has no prompt.
  """
  if source == 'builtin':
    template = 'no' if prompt_format == 'completion' else 'auto'
    return [Prompt(text, template) for text in BUILTIN][: num_prompts or None]
  if not pathlib.Path(source).expanduser().is_file():
    raise UserError(
        f'config.data.prompts is {source!r}, which is no file; name a JSONL '
        "file or 'builtin'."
    )
  found = [
      parse(row, where, prompt_format) for where, row in read_rows(source)
  ][: num_prompts or None]
  if not found:
    raise UserError(f'{source} holds no prompts; name another file.')
  return found
