"""Does a row's output depend on its neighbours?

A prompt keeps its settings and its seed, whatever it is decoded with: alone, in
batches, and in batches of another order. Its tokens have to be the same each
time in float32. In batches the shapes of the products differ, so their sums are
rounded otherwise: the nearest of ties may go the other way, and so may a draw
that falls on the border between two tokens. The report gives the gap of their
logits.
"""

from collections.abc import Sequence
import dataclasses

import numpy as np

from speculative.bench import compare
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.errors import UserError

CHOICES = ('no', 'yes')


@dataclasses.dataclass(frozen=True)
class Difference:
  """The first token at which a row in a batch left the row alone.

  Attributes:
    prompt: index of the prompt among those given.
    position: index among the new tokens.
    order: of the prompts in batches, 'given' or 'shuffled'.
    place: of the prompt in that order.
    alone_token: what the prompt got alone, -1 where it had ended.
    batch_token: what it got in the batch, -1 where it had ended.
    logit_gap: the target's logit of alone_token minus that of batch_token, None
      where one had ended.
  """

  prompt: int
  position: int
  order: str
  place: int
  alone_token: int
  batch_token: int
  logit_gap: float | None


@dataclasses.dataclass(frozen=True)
class Batching:
  """What decoding alone and in batches has shown.

  Attributes:
    num_equal: rows whose tokens were the same each time.
    num_differ: rows whose tokens were not.
    differences: of these, one a row and order that differs.
  """

  num_equal: int
  num_differ: int
  differences: tuple[Difference, ...]


def check(choice: str, *, batch_size: int, num_prompts: int) -> None:
  """Refuses what would compare nothing.

  Args:
    choice: config.verify.batching.
    batch_size: rows decoded at once.
    num_prompts: of the run.

  Raises:
    UserError: If the choice is unknown, or there are no neighbours.
  """
  if choice not in CHOICES:
    raise UserError(
        f'config.verify.batching is {choice!r}; it needs to be one of '
        f'{", ".join(CHOICES)}.'
    )
  if choice == 'no':
    return
  for name, value in (
      ('config.decode.batch_size', batch_size),
      ('the number of prompts (config.data)', num_prompts),
  ):
    if value < 2:
      raise UserError(
          "config.verify.batching is 'yes', which compares rows with and "
          f'without neighbours; {name} needs to be >= 2, got {value}.'
      )


def shuffled(num_rows: int, seed: int) -> list[int]:
  """Returns the rows in another order than the given one.

  Args:
    num_rows: at least 2.
    seed: of the order.
  """
  order = np.random.default_rng(seed).permutation(num_rows).tolist()
  return order[::-1] if order == sorted(order) else order


def compare_batching(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    rows: Sequence[DecodeConfig],
    *,
    batch_size: int,
) -> Batching:
  """Decodes every prompt alone, in batches, and in batches of another order.

  The last batch holds what is left, so it may be smaller.

  Args:
    engine: with or without a drafter.
    prompts: token ids of every row.
    rows: as many settings, with the rows' own seeds.
    batch_size: rows at once.

  Returns:
    The Batching.
  """

  def decode(batch: Sequence[int]) -> list[list[int]]:
    return engine.generate(
        [prompts[i] for i in batch], [rows[i] for i in batch]
    ).token_ids

  alone = [decode([i])[0] for i in range(len(prompts))]
  orders = {
      'given': list(range(len(prompts))),
      'shuffled': shuffled(len(prompts), rows[0].seed),
  }
  differences = []
  for order, indices in orders.items():
    for start in range(0, len(prompts), batch_size):
      batch = indices[start : start + batch_size]
      for place, (i, found) in enumerate(
          zip(batch, decode(batch), strict=True)
      ):
        where = compare.divergence(
            engine.step.model,
            engine.weights.target,
            prompt=i,
            prompt_ids=prompts[i],
            plain=alone[i],
            other=found,
        )
        if where is not None:
          differences.append(_difference(where, order, start, place))
  num_differ = len({found.prompt for found in differences})
  return Batching(
      num_equal=len(prompts) - num_differ,
      num_differ=num_differ,
      differences=tuple(differences),
  )


def _difference(
    where: compare.Divergence, order: str, start: int, place: int
) -> Difference:
  return Difference(
      prompt=where.prompt,
      position=where.position,
      order=order,
      place=start + place,
      alone_token=where.plain_token,
      batch_token=where.other_token,
      logit_gap=where.logit_gap,
  )
