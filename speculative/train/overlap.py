"""Does text for training hold what is evaluated?

Two measures find it: runs of the same tokens, which code shows, and runs of the
same words whatever their case and punctuation, which prose shows. A text for
training with fewer words than a run, and no run of tokens, is compared whole:
it is found where an evaluated text has the same words and no others. An
evaluated text that is shorter than both runs is found in this way alone, not
inside a longer text.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import hashlib
import json
import re

import numpy as np

from speculative.bench import prompts
from speculative.errors import UserError

_WORD = re.compile(r'\w+')


@dataclasses.dataclass(frozen=True)
class Held:
  """One evaluated example: a prompt with its solution.

  Attributes:
    where: file and line.
    texts: every text in it.
  """

  where: str
  texts: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Found:
  """How a text overlaps with evaluated ones.

  Attributes:
    where: the example it shares most with.
    num_tokens: runs of tokens that any example has too.
    num_words: runs of words that any example has too.
    words: one of them, '' where there are none.
  """

  where: str
  num_tokens: int
  num_words: int
  words: str

  @property
  def size(self) -> int:
    """How bad it is."""
    return self.num_tokens + self.num_words


def texts_in(value: object) -> Iterator[str]:
  """Yields every text inside a JSON value.

  Args:
    value: as read.
  """
  if isinstance(value, str):
    yield value
  elif isinstance(value, dict):
    for inner in value.values():
      yield from texts_in(inner)
  elif isinstance(value, list):
    for inner in value:
      yield from texts_in(inner)


def read(sources: Sequence[str]) -> list[Held]:
  """Reads evaluated prompt files, their solutions, tests and answers too.

  Args:
    sources: JSONL files, compressed if they end in .gz.

  Returns:
    An example a line.

  Raises:
    UserError: If a file cannot be read or holds no text.
  """
  held = []
  for source in sources:
    rows = [
        Held(where, tuple(texts_in(row)))
        for where, row in prompts.read_rows(source)
    ]
    if not any(row.texts for row in rows):
      raise UserError(f'{source} holds no texts; name a file of prompts.')
    held += rows
  return held


def words(text: str) -> list[str]:
  """Returns the words of a text in lower case.

  Args:
    text: anything.
  """
  return _WORD.findall(text.lower())


def _token_runs(tokens: Sequence[int], size: int) -> list[bytes]:
  data = np.asarray(tokens, np.dtype('<u4')).tobytes()
  return [data[4 * i : 4 * (i + size)] for i in range(len(tokens) - size + 1)]


def _word_runs(found: Sequence[str], size: int) -> list[str]:
  return [' '.join(found[i : i + size]) for i in range(len(found) - size + 1)]


class Overlap:
  """The runs of all evaluated examples.

  Attributes:
    digest: SHA-256 of their texts, hexadecimal.
  """

  def __init__(
      self,
      held: Sequence[Held],
      encode: Callable[[str], Sequence[int]],
      *,
      num_tokens: int = 13,
      num_words: int = 8,
  ) -> None:
    """Collects the runs.

    Args:
      held: evaluated examples.
      encode: turns text into token ids, without a BOS.
      num_tokens: length of a run of tokens.
      num_words: length of a run of words.

    Raises:
      UserError: If a run is empty.
    """
    if min(num_tokens, num_words) < 1:
      raise UserError(
          f'runs of {num_tokens} tokens and {num_words} words cannot be '
          'compared; both need to be >= 1.'
      )
    self._num_tokens, self._num_words = num_tokens, num_words
    texts = json.dumps([example.texts for example in held])
    self.digest = hashlib.sha256(texts.encode()).hexdigest()
    self._names = [example.where for example in held]
    self._tokens: dict[bytes, int] = {}
    self._words: dict[str, int] = {}
    self._whole: dict[str, int] = {}
    for i, example in enumerate(held):
      for text in example.texts:
        for run in _token_runs(encode(text), num_tokens):
          self._tokens.setdefault(run, i)
        of_text = words(text)
        for run in _word_runs(of_text, num_words):
          self._words.setdefault(run, i)
        self._whole.setdefault(' '.join(of_text), i)

  def find(self, tokens: Sequence[int], text: str) -> Found | None:
    """Looks a text up.

    Args:
      tokens: of the text.
      text: the text.

    Returns:
      What it shares with evaluated examples, None where that is nothing.
    """
    of_tokens = [
        self._tokens[run]
        for run in _token_runs(tokens, self._num_tokens)
        if run in self._tokens
    ]
    of_text = words(text)
    runs = [
        run
        for run in _word_runs(of_text, self._num_words)
        if run in self._words
    ]
    examples = of_tokens + [self._words[run] for run in runs]
    if not examples and len(of_text) >= self._num_words:
      return None
    if not examples:
      # Too short for a run of words.
      same = self._whole.get(' '.join(of_text)) if of_text else None
      if same is None:
        return None
      return Found(self._names[same], 0, 1, ' '.join(of_text))
    most = max(set(examples), key=lambda i: (examples.count(i), -i))
    return Found(
        where=self._names[most],
        num_tokens=len(of_tokens),
        num_words=len(runs),
        words=runs[0] if runs else '',
    )
