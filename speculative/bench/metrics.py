"""Generations into the numbers of the result keys."""

from collections.abc import Sequence
import statistics

import numpy as np

from speculative.decoding.generation import Generation


def seconds_per_token(generations: Sequence[Generation]) -> float:
  """Returns the sum of decode times over the sum of tokens."""
  tokens = sum(g.num_tokens for g in generations)
  return sum(g.decode_s for g in generations) / max(tokens, 1)


def decode_metrics(generations: Sequence[Generation]) -> dict[str, float]:
  """Returns the decode/* keys of one setting over its prompts.

  Args:
    generations: one a batch of prompts.

  Returns:
    Rates as medians over batches; counts as sums over sums.
  """
  rates = [g.num_tokens / g.decode_s for g in generations]
  tokens = sum(g.num_tokens for g in generations)
  rounds = sum(int(g.rounds.sum()) for g in generations)
  drafted = sum(int(g.drafted.sum()) for g in generations)
  tested = sum(int(g.tested.sum()) for g in generations)
  accepted = sum(int(g.accepted.sum()) for g in generations)
  metrics = {
      'decode/tokens_per_s': statistics.median(rates),
      'decode/ms_per_token': 1e3 / statistics.median(rates),
      'decode/tokens_per_round': tokens / max(rounds, 1),
      'decode/tokens': tokens,
      'time/prefill_s': statistics.median(g.prefill_s for g in generations),
  }
  if generations[0].accepted.shape[1]:
    metrics['decode/acceptance_rate'] = accepted / max(tested, 1)
    metrics['decode/draft_yield'] = accepted / max(drafted, 1)
  return metrics


def acceptance_by_position(generations: Sequence[Generation]) -> list[float]:
  """Returns accepted / tested of each place in a drafted chain."""
  tested_J = sum(g.tested.sum(axis=0) for g in generations)
  accepted_J = sum(g.accepted.sum(axis=0) for g in generations)
  return (accepted_J / np.maximum(tested_J, 1)).round(4).tolist()


def median_run(runs: Sequence[Generation]) -> Generation:
  """Returns the run of median decode time among repeats of one batch."""
  return sorted(runs, key=lambda g: g.decode_s)[len(runs) // 2]
