"""The documents of a store, each a function of a seed and its number.

Every prompt is taken once in a pass over all of them, in an order of that
pass, at one of the temperatures in turn: after as many passes as there are
temperatures every prompt has been answered at each. Later passes leave greedy
decoding out, which would say the same again, and all but the first leave out
texts that are documents as they are.
"""

import collections
from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import functools
import hashlib
import json

import numpy as np

from speculative.decoding.config import DecodeConfig
from speculative.errors import UserError
from speculative.train.overlap import Found
from speculative.train.overlap import Overlap
from speculative.train.prompt_text import Start
from speculative.train.rolling import Request
from speculative.train.rolling import Roller
from speculative.train.store import Document

# Spreads seeds over 32 bits, so that those of two runs do not meet.
_SPREAD = 0x9E3779B1
# Share of a file that is evaluated beyond which nobody meant to name it.
_MOST_EVALUATED = 0.5


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
  """Which documents there are.

  Attributes:
    starts: what they begin with.
    temperatures: at which the target goes on.
    decode: how it does so otherwise.
    num_documents: how many.
    seed: of the run.
  """

  starts: Sequence[Start]
  temperatures: Sequence[float]
  decode: DecodeConfig
  num_documents: int
  seed: int

  def draw(self, index: int) -> tuple[Start, DecodeConfig]:
    """Returns what a document begins with, and how the target goes on.

    Args:
      index: of the document.
    """
    turn, place, among = 0, index, range(len(self.starts))
    if index >= len(self.starts):
      among = [i for i, s in enumerate(self.starts) if s.kind == 'prompt']
      turn, place = divmod(index - len(self.starts), len(among))
      turn += 1
    chosen = among[_order(self.seed, turn, len(among))[place]]
    temperatures = self.temperatures
    if turn >= len(temperatures):
      temperatures = [t for t in temperatures if t > 0]
    return self.starts[chosen], dataclasses.replace(
        self.decode,
        temperature=temperatures[(chosen + turn) % len(temperatures)],
        seed=(self.seed * _SPREAD + index) % 2**32,
    )


@functools.lru_cache(maxsize=4)
def _order(seed: int, turn: int, size: int) -> list[int]:
  return np.random.default_rng((seed, turn)).permutation(size).tolist()


def make_plan(
    starts: Sequence[Start],
    decode: DecodeConfig,
    *,
    temperatures: Sequence[float],
    num_documents: int,
    seed: int,
) -> Plan:
  """Returns the plan.

  Args:
    starts: at least one.
    decode: how the target goes on, but for temperature and seed.
    temperatures: 0 is greedy.
    num_documents: how many documents; 0 for each prompt at each temperature,
      or, where nothing is decoded, for each text.
    seed: of the run.

  Raises:
    UserError: If there are not so many different documents.
  """
  if not starts:
    raise UserError(
        'there is nothing to begin with; name files with prompts short enough '
        'in config.collect.prompts, config.collect.answered or config.collect.'
        'texts.'
    )
  temperatures = tuple(temperatures)
  if not temperatures:
    raise UserError('config.collect.temperatures is empty; name one at least.')
  for temperature in temperatures:
    dataclasses.replace(decode, temperature=temperature)
  num_prompts = sum(start.kind == 'prompt' for start in starts)
  most = len(starts) + (len(temperatures) - 1) * num_prompts
  if num_documents > most and not (num_prompts and any(temperatures)):
    raise UserError(
        f'config.collect.num_documents is {num_documents}, but there are only '
        f'{most} different ones; add prompts, or a temperature above 0.'
    )
  return Plan(starts, temperatures, decode, num_documents or most, seed)


def digest(starts: Sequence[Start]) -> str:
  """Returns what tells one list of starts from another.

  Args:
    starts: of a plan.
  """
  kinds = [(s.tokens, s.prompt_len, s.domain, s.kind) for s in starts]
  return hashlib.sha256(json.dumps(kinds).encode()).hexdigest()


def drop_evaluated(
    starts: Sequence[Start], overlap: Overlap
) -> tuple[list[Start], list[tuple[Start, Found]]]:
  """Takes out what is evaluated.

  Args:
    starts: of all documents.
    overlap: with what is evaluated.

  Returns:
    Those that may stay, and the others with what they share.

  Raises:
    UserError: If most of a file of prompts is evaluated.
  """
  clean, dropped = [], []
  for start in starts:
    found = overlap.find(start.tokens, start.text)
    if found is None:
      clean.append(start)
    else:
      dropped.append((start, found))
  total = collections.Counter(start.prompt_file for start in starts)
  evaluated = collections.Counter(start.prompt_file for start, _ in dropped)
  for start, found in dropped:
    file = start.prompt_file
    if file and evaluated[file] > _MOST_EVALUATED * total[file]:
      raise UserError(
          f'{file} is evaluated: {evaluated[file]} of its {total[file]} '
          f'prompts are held out, {start.where} in {found.where}; leave the '
          'file out, a draft must not be trained on it.'
      )
  return clean, dropped


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
  """Documents of one shard.

  Attributes:
    documents: that may be trained on.
    dropped: numbers of the others, what they began with and what they share.
    num_new: tokens that the target wrote.
  """

  documents: list[Document]
  dropped: list[tuple[int, Start, Found]]
  num_new: int


def collect(
    plan: Plan,
    span: range,
    roller: Roller | None,
    *,
    overlap: Overlap | None,
    decode_text: Callable[[Sequence[int]], str],
    on_look: Callable[[int], None] | None = None,
) -> Batch:
  """Makes some documents.

  Args:
    plan: of all.
    span: their numbers.
    roller: decodes; None where nothing is.
    overlap: with what is evaluated; None compares nothing.
    decode_text: text of token ids.
    on_look: see `Roller.generate`.

  Returns:
    The Batch.
  """
  drawn = [plan.draw(i) for i in span]
  requests = [
      Request(start.tokens, config)
      for start, config in drawn
      if start.kind == 'prompt'
  ]
  answers = iter(roller.generate(requests, on_look=on_look) if requests else ())
  documents, dropped, num_new = [], [], 0
  for i, (start, _) in zip(span, drawn, strict=True):
    document = Document(
        np.array(start.tokens),
        prompt_len=start.prompt_len,
        domain=start.domain,
    )
    if start.kind == 'prompt':
      answer = next(answers)
      num_new += len(answer.tokens)
      document = Document(
          tokens=np.concatenate([document.tokens, answer.tokens]),
          prompt_len=len(document.tokens),
          domain=start.domain,
          hidden=answer.hidden,
          log_norm=answer.log_norm,
      )
    text = decode_text(document.tokens.tolist())
    found = overlap and overlap.find(document.tokens, text)
    if found:
      dropped.append((i, start, found))
    else:
      documents.append(document)
  return Batch(documents, dropped, num_new)
