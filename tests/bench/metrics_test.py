import dataclasses

import numpy as np
import pytest

from speculative.bench import metrics
from speculative.decoding.generation import Generation


def _generation(
    token_ids, *, rounds, decode_s, prefill_s=0.0, drafted=None, hits=None
):
  """Makes a Generation; hits are (tested, accepted), rows of [B, J] lists."""
  tested, accepted = hits or ([[]] * len(token_ids), [[]] * len(token_ids))
  return Generation(
      token_ids=token_ids,
      reasons=['length'] * len(token_ids),
      log_probs=None,
      num_rounds=max(rounds),
      round_starts=[np.arange(num) for num in rounds],
      rounds=np.array(rounds),
      drafted=np.array(drafted or [0] * len(token_ids)),
      tested=np.array(tested, np.int32),
      accepted=np.array(accepted, np.int32),
      prefill_s=prefill_s,
      decode_s=decode_s,
  )


# Ten tokens in 1 s and two in 1 s: rates 10 and 2.
_FAST = _generation(
    [list(range(10))],
    rounds=[4],
    decode_s=1.0,
    prefill_s=0.5,
    drafted=[8],
    hits=([[4, 3]], [[3, 3]]),
)
_SLOW = _generation(
    [[7, 8]],
    rounds=[2],
    decode_s=1.0,
    prefill_s=0.1,
    drafted=[4],
    hits=([[1, 0]], [[0, 0]]),
)


def test_seconds_per_token_is_a_ratio_of_sums_not_a_mean_of_ratios():
  assert metrics.seconds_per_token([_FAST, _SLOW]) == pytest.approx(2 / 12)
  mean_of_ratios = (1 / 10 + 1 / 2) / 2
  assert metrics.seconds_per_token([_FAST, _SLOW]) != pytest.approx(
      mean_of_ratios
  )


def test_rates_are_medians_over_batches():
  third = _generation(
      [[1] * 3], rounds=[3], decode_s=1.0, hits=([[0, 0]], [[0, 0]])
  )
  found = metrics.decode_metrics([_FAST, _SLOW, third])
  assert found['decode/tokens_per_s'] == 3.0
  assert found['decode/ms_per_token'] == pytest.approx(1000 / 3)
  assert found['time/prefill_s'] == 0.1


def test_counts_are_sums_over_sums():
  found = metrics.decode_metrics([_FAST, _SLOW])
  assert found['decode/tokens'] == 12
  assert found['decode/tokens_per_round'] == pytest.approx(12 / 6)
  assert found['decode/acceptance_rate'] == pytest.approx(6 / 8)
  assert found['decode/draft_yield'] == pytest.approx(6 / 12)


def test_tokens_behind_the_cut_of_a_row_do_not_count():
  # Two rows; the second ended after one token though its batch ran 4 rounds.
  generation = _generation(
      [[1, 2, 3, 4], [9]],
      rounds=[4, 1],
      decode_s=2.0,
  )
  found = metrics.decode_metrics([generation])
  assert found['decode/tokens_per_s'] == 2.5
  assert found['decode/tokens_per_round'] == 1.0
  assert metrics.seconds_per_token([generation]) == pytest.approx(0.4)


def test_plain_decoding_has_no_acceptance():
  plain = _generation([[1, 2]], rounds=[2], decode_s=1.0)
  found = metrics.decode_metrics([plain])
  assert set(found) == {
      'decode/tokens_per_s',
      'decode/ms_per_token',
      'decode/tokens_per_round',
      'decode/tokens',
      'time/prefill_s',
  }


def test_a_drafter_that_drafted_nothing_accepted_nothing():
  idle = _generation([[1]], rounds=[1], decode_s=1.0, hits=([[0, 0]], [[0, 0]]))
  found = metrics.decode_metrics([idle])
  assert found['decode/acceptance_rate'] == 0
  assert found['decode/draft_yield'] == 0
  assert metrics.acceptance_by_position([idle]) == [0.0, 0.0]


def test_acceptance_by_position_sums_over_rows_and_batches():
  assert metrics.acceptance_by_position([_FAST, _SLOW]) == [
      pytest.approx(3 / 5),
      1.0,
  ]


def test_the_median_run_is_a_run_not_an_average():
  runs = [
      _generation([[1]], rounds=[1], decode_s=seconds)
      for seconds in (9.0, 1.0, 2.0)
  ]
  assert metrics.median_run(runs) is runs[2]
  assert metrics.median_run(runs[:1]) is runs[0]


def test_acceptance_counts_the_rounds_that_drafted_nothing():
  found = metrics.acceptance_of([_FAST, _SLOW])
  # Of 6 rounds 3 kept the first token, and all of these the second.
  assert found.by_position == pytest.approx([3 / 6, 3 / 3])
  assert found.rate == pytest.approx(6 / 8)
  assert found.tokens_per_round == pytest.approx(12 / 6)
  assert found.num_prompts == 2
  # Tokens 10 and 2 around 6, rounds 4 and 2 around 3.
  residuals = [10 / 6 - 4 / 3, 2 / 6 - 2 / 3]
  assert found.spread == pytest.approx(np.std(residuals, ddof=1))


def test_nothing_accepted_is_a_rate_of_zero_everywhere():
  idle = _generation([[1]], rounds=[1], decode_s=1.0, hits=([[0, 0]], [[0, 0]]))
  found = metrics.acceptance_of([idle])
  assert found.by_position == [0.0, 0.0]
  assert found.rate == 0
  assert found.spread is None


def test_matches_are_counted_over_all_rounds():
  found = metrics.matched(np.array([0, 3, 1, 3]), 4)
  assert found == {
      'retrieval/matched_len': 7 / 4,
      'retrieval/matched_len_histogram': [0.25, 0.25, 0.0, 0.5, 0.0],
  }


def test_prompts_that_loop_are_counted_and_left_out():
  loop = _generation([[5] * 40], rounds=[10], decode_s=1.0)
  plain_loop = _generation([[5] * 40], rounds=[40], decode_s=9.0)
  plain = _generation([list(range(10))], rounds=[10], decode_s=2.0)
  found = metrics.without_loops([plain, plain_loop], [_FAST, loop])
  assert found == {
      'bench/num_loops': 1,
      'speedup/measured_no_loops': pytest.approx(2.0),
      'decode/tokens_per_round_no_loops': pytest.approx(10 / 4),
  }


def test_where_every_batch_has_a_loop_nothing_is_left():
  both = _generation([[5] * 40, [1, 2]], rounds=[10, 2], decode_s=1.0)
  assert metrics.without_loops([both], [both]) == {
      'bench/num_loops': 1,
      'speedup/measured_no_loops': None,
      'decode/tokens_per_round_no_loops': None,
  }


def test_percentiles_are_over_all_runs_of_all_rows():
  short = _generation([[1], [2]], rounds=[1, 1], decode_s=1.0)
  runs = [dataclasses.replace(short, decode_s=float(s)) for s in range(1, 12)]
  found = metrics.sequence_times([runs[:5], runs[5:]])
  assert found['decode/sequence_p50_s'] == 6.0
  seconds = [s for s in range(1, 12) for _ in range(2)]
  assert found['decode/sequence_p90_s'] == np.percentile(seconds, 90)
  assert found['decode/sequence_p99_s'] == np.percentile(seconds, 99)


def test_128_tokens_are_timed_a_row_and_a_round_a_batch():
  # Ten tokens in 1 s and two in 1 s, and two rows of four in 1 s.
  both = _generation([[1] * 4, [2] * 4], rounds=[4, 2], decode_s=1.0)
  found = metrics.loop_times([_FAST, _SLOW, both])
  times = [12.8, 64.0, 32.0]
  assert found['decode/tokens_128_s'] == pytest.approx(np.mean(times))
  assert found['decode/tokens_128_deviation_s'] == pytest.approx(
      np.std(times, ddof=1)
  )
  assert found['decode/round_ms'] == pytest.approx(3000 / (4 + 2 + 4))
  assert metrics.loop_times([_FAST])['decode/tokens_128_deviation_s'] is None


def test_intervals_are_paired_and_hold_the_estimate():
  plain = [
      dataclasses.replace(g, decode_s=2 * g.decode_s) for g in (_FAST, _SLOW)
  ]
  found = metrics.intervals(plain, [_FAST, _SLOW])
  # Every prompt was decoded in half the time, however long it took.
  assert found['speedup/low'] == pytest.approx(2.0)
  assert found['speedup/high'] == pytest.approx(2.0)
  # Drawn twice, the one has 6 of 7 accepted and the other 0 of 1.
  assert found['decode/acceptance_low'] == 0.0
  assert found['decode/acceptance_high'] == pytest.approx(6 / 7)
  assert set(metrics.intervals([_FAST], [_FAST]).values()) == {None}


def test_rounds_past_the_end_are_those_that_brought_no_row_anything():
  # Of eight rounds until the host looked, five and three brought tokens.
  stopped = dataclasses.replace(
      _generation([[1] * 5, [2] * 3], rounds=[5, 3], decode_s=1.0), num_rounds=8
  )
  found = metrics.loop_times([stopped, _FAST])
  assert found['decode/rounds_past_end'] == 3
