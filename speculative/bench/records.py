"""Raw results: a flat object a prompt, setting and repeat, as JSONL holds it.

What a batch brought becomes a record a row and comes back whole, but for
log-probabilities, so every number that is reported follows from such lines.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import hashlib
import itertools
from typing import Any

import numpy as np

from speculative.bench import metrics
from speculative.decoding.generation import Generation

# As JSON gives it back.
Record = Mapping[str, Any]


def hash_of(ids: Sequence[int]) -> str:
  """Returns 16 hexadecimal digits that tell texts of token ids apart."""
  return hashlib.sha256(np.array(ids, '<i8').tobytes()).hexdigest()[:16]


def of_generation(
    generation: Generation,
    *,
    setting: str,
    repeat: int,
    batch: int,
    first_prompt: int,
    first_seed: int,
    prompt_lens: Sequence[int],
    groups: Sequence[str],
    texts: Sequence[str],
) -> list[dict[str, Any]]:
  """Returns a record a row of a batch.

  Args:
    generation: of the batch.
    setting: name of it.
    repeat: number of the run among those of this batch and setting.
    batch: its number.
    first_prompt: number, among those timed, of the prompt of its first row.
    first_seed: of that row; others go on from there.
    prompt_lens: tokens of the prompts.
    groups: of their task set that the prompts belong to, '' for none.
    texts: what the new tokens say.
  """
  return [
      {
          'prompt': first_prompt + row,
          'group': groups[row],
          'setting': setting,
          'repeat': repeat,
          'seed': first_seed + row,
          'batch': batch,
          'prompt_tokens': prompt_lens[row],
          'new_tokens': len(ids),
          # Of the whole batch, as are the rounds that follow.
          'prefill_s': generation.prefill_s,
          'decode_s': generation.decode_s,
          'batch_rounds': int(generation.num_rounds),
          'rounds': int(generation.rounds[row]),
          # Of every round; what is accepted is one less, before the cut.
          'round_tokens': np.diff(
              [*generation.round_starts[row], len(ids)]
          ).tolist(),
          'drafted': int(generation.drafted[row]),
          'tested': generation.tested[row].tolist(),
          'accepted': generation.accepted[row].tolist(),
          'reason': generation.reasons[row],
          'token_hash': hash_of(ids),
          'token_ids': list(ids),
          'text': texts[row],
      }
      for row, ids in enumerate(generation.token_ids)
  ]


def generation_of(found: Sequence[Record]) -> Generation:
  """Returns what a batch brought.

  Args:
    found: records of all its rows in order, of one setting and repeat.
  """
  first = found[0]
  num_places = len(first['tested'])

  def by_place(name: str) -> np.ndarray:
    return np.array([r[name] for r in found]).reshape(len(found), num_places)

  return Generation(
      token_ids=[list(r['token_ids']) for r in found],
      reasons=[r['reason'] for r in found],
      log_probs=None,
      num_rounds=first['batch_rounds'],
      round_starts=[
          np.cumsum([0, *r['round_tokens'][:-1]])[: len(r['round_tokens'])]
          for r in found
      ],
      rounds=np.array([r['rounds'] for r in found]),
      drafted=np.array([r['drafted'] for r in found]),
      tested=by_place('tested').astype(np.int32),
      accepted=by_place('accepted').astype(np.int32),
      prefill_s=first['prefill_s'],
      decode_s=first['decode_s'],
  )


def repeats_of(found: Iterable[Record], setting: str) -> list[list[Generation]]:
  """Returns for every batch its runs with one setting, in order.

  Args:
    found: records of any settings.
    setting: name of one.
  """

  def key(record: Record) -> tuple[int, int]:
    return record['batch'], record['repeat']

  # Rows of a batch keep their order.
  of_setting = sorted((r for r in found if r['setting'] == setting), key=key)
  batches: dict[int, list[Generation]] = {}
  for (batch, _), rows in itertools.groupby(of_setting, key):
    batches.setdefault(batch, []).append(generation_of(list(rows)))
  return list(batches.values())


def medians_of(found: Iterable[Record], setting: str) -> list[Generation]:
  """Returns the run of median decode time of every batch.

  Args:
    found: records of any settings.
    setting: name of one.
  """
  return [metrics.median_run(runs) for runs in repeats_of(found, setting)]


def groups_of(found: Iterable[Record]) -> list[list[str]]:
  """Returns the groups of the prompts of every batch, a row each.

  Args:
    found: records of any settings.
  """
  batches: dict[int, dict[int, str]] = {}
  for record in found:
    of_batch = batches.setdefault(record['batch'], {})
    of_batch[record['prompt']] = record['group']
  return [
      [of_batch[prompt] for prompt in sorted(of_batch)]
      for _, of_batch in sorted(batches.items())
  ]


def answers(found: Iterable[Record], setting: str) -> dict[int, str]:
  """Returns what was said to every prompt, for whoever judges it.

  Repeats have one seed, so the first one speaks for all.

  Args:
    found: records of any settings.
    setting: name of one.

  Returns:
    Text by number of the prompt among those timed, cut where the row ended.
  """
  return {
      r['prompt']: r['text']
      for r in found
      if r['setting'] == setting and r['repeat'] == 0
  }
