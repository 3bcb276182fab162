"""Generations into the numbers of the result keys."""

from collections.abc import Sequence
import statistics

import numpy as np

from speculative.bench import bootstrap
from speculative.bench import loops
from speculative.bench.predict import Acceptance
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


def acceptance_of(generations: Sequence[Generation]) -> Acceptance:
  """Returns what a prediction needs to know of a drafter.

  Args:
    generations: of the drafter, one a batch of prompts.
  """
  tested = sum(int(g.tested.sum()) for g in generations)
  rounds = sum(int(g.rounds.sum()) for g in generations)
  accepted_J = sum(g.accepted.sum(axis=0) for g in generations)
  # Rounds that got to a position are those that kept the one before it.
  reached_J = np.append(rounds, accepted_J[:-1])
  tokens_U = np.array([len(ids) for g in generations for ids in g.token_ids])
  rounds_U = np.concatenate([g.rounds for g in generations])
  spread = None
  if len(tokens_U) > 1:
    # Of a ratio of sums, to first order; see `paired`.
    residual_U = tokens_U / tokens_U.mean() - rounds_U / rounds_U.mean()
    spread = float(residual_U.std(ddof=1))
  return Acceptance(
      rate=int(accepted_J.sum()) / max(tested, 1),
      by_position=(accepted_J / np.maximum(reached_J, 1)).tolist(),
      tokens_per_round=int(tokens_U.sum()) / max(rounds, 1),
      num_prompts=len(tokens_U),
      spread=spread,
  )


# What Chen et al. 2023 give the time of.
_NUM_TIMED_TOKENS = 128


def sequence_times(repeats: Sequence[Sequence[Generation]]) -> dict[str, float]:
  """Returns percentiles of the seconds that decoding a text took.

  Args:
    repeats: all runs of a setting, a list a batch. Each row of a batch waited
      for all of it.
  """
  seconds = [g.decode_s for runs in repeats for g in runs for _ in g.token_ids]
  p50, p90, p99 = np.percentile(seconds, [50, 90, 99]).tolist()
  return {
      'decode/sequence_p50_s': p50,
      'decode/sequence_p90_s': p90,
      'decode/sequence_p99_s': p99,
  }


def loop_times(runs: Sequence[Generation]) -> dict[str, float | None]:
  """Returns what a round took, and 128 tokens, and rounds that brought nothing.

  Args:
    runs: of a setting, one a batch.

  Returns:
    The mean round; mean over batches and standard deviation from batch to batch
    of the time in which a row gets 128 tokens, None of fewer than two batches;
    rounds of batches whose rows had all ended: the host, which finds stop
    strings, looks but now and then.
  """
  rounds = sum(g.num_rounds for g in runs)
  seconds = [
      _NUM_TIMED_TOKENS * g.decode_s * len(g.token_ids) / max(g.num_tokens, 1)
      for g in runs
  ]
  spread = statistics.stdev(seconds) if len(seconds) > 1 else None
  return {
      'decode/round_ms': 1e3 * sum(g.decode_s for g in runs) / max(rounds, 1),
      'decode/tokens_128_s': statistics.fmean(seconds),
      'decode/tokens_128_deviation_s': spread,
      'decode/rounds_past_end': sum(
          g.num_rounds - int(g.rounds.max()) for g in runs
      ),
  }


def intervals(
    plain: Sequence[Generation], runs: Sequence[Generation]
) -> dict[str, float | None]:
  """Returns ends of the intervals of speed-up and alpha, at 95 %.

  Args:
    plain: runs of plain decoding, one a batch.
    runs: of the setting, over the same batches.

  Returns:
    The keys; None where nothing is known, as of one batch.
  """
  speedup = bootstrap.interval(
      lambda plain_s, plain_tokens, seconds, tokens: (
          plain_s / plain_tokens / (seconds / tokens)
      ),
      [
          np.array(numbers)
          for of_setting in (plain, runs)
          for numbers in (
              [g.decode_s for g in of_setting],
              [g.num_tokens for g in of_setting],
          )
      ],
  )
  alpha = bootstrap.interval(
      lambda accepted, tested: accepted / tested,
      [
          np.array([g.accepted.sum() for g in runs]),
          np.array([g.tested.sum() for g in runs]),
      ],
  )
  return {
      'speedup/low': speedup and speedup.low,
      'speedup/high': speedup and speedup.high,
      'decode/acceptance_low': alpha and alpha.low,
      'decode/acceptance_high': alpha and alpha.high,
  }


def matched(lengths_R: np.ndarray, max_ngram: int) -> dict[str, object]:
  """Returns the keys that say what retrieval finds.

  Args:
    lengths_R: the longest match at every round, in tokens; 0 is none.
    max_ngram: longest that is looked for.

  Returns:
    The mean over rounds, those without a match too, and the share of rounds of
    each length from 0 on.
  """
  counts = np.bincount(lengths_R, minlength=max_ngram + 1)
  shares = counts / max(len(lengths_R), 1)
  return {
      'retrieval/matched_len': float(lengths_R.mean()),
      'retrieval/matched_len_histogram': shares.round(4).tolist(),
  }


def without_loops(
    plain: Sequence[Generation], runs: Sequence[Generation]
) -> dict[str, float | None]:
  """Returns the keys that say what a setting gains on texts without loops.

  Args:
    plain: runs of plain decoding, one a batch.
    runs: of the setting, over the same batches.

  Returns:
    How many prompts end in a loop in either run, and the numbers of the batches
    in which none does: times are those of batches. None where no batch is left.
  """
  num_loops, kept = 0, []
  for pair in zip(plain, runs, strict=True):
    looping = [
        any(loops.ends_in_loop(ids) for ids in texts)
        for texts in zip(*(g.token_ids for g in pair), strict=True)
    ]
    num_loops += sum(looping)
    if not any(looping):
      kept.append(pair)
  speedup = tokens_per_round = None
  if kept:
    plain, runs = zip(*kept, strict=True)
    speedup = seconds_per_token(plain) / seconds_per_token(runs)
    tokens_per_round = decode_metrics(runs)['decode/tokens_per_round']
  return {
      'bench/num_loops': num_loops,
      'speedup/measured_no_loops': speedup,
      'decode/tokens_per_round_no_loops': tokens_per_round,
  }


def median_run(runs: Sequence[Generation]) -> Generation:
  """Returns the run of median decode time among repeats of one batch."""
  return sorted(runs, key=lambda g: g.decode_s)[len(runs) // 2]
