import fractions
import itertools
import math

import hypothesis
from hypothesis import strategies as st
import pytest

from speculative import theory
from speculative.errors import UserError

_settings = hypothesis.settings(max_examples=50, deadline=None)
_alphas = st.floats(0, 1)
_counts = st.integers(0, 12)


def _enumerate_tokens(rates) -> float:
  """Sums tokens times probability over every outcome of the tests."""
  total = 0.0
  for outcome in itertools.product([0, 1], repeat=len(rates)):
    probability = math.prod(
        rate if kept else 1 - rate
        for rate, kept in zip(rates, outcome, strict=True)
    )
    accepted = len(list(itertools.takewhile(bool, outcome)))
    total += probability * (accepted + 1)
  return total


@pytest.mark.parametrize('alpha', [0.0, 0.3, 0.75, 0.999999])
@pytest.mark.parametrize('gamma', [0, 1, 4, 50])
def test_expected_tokens_are_equation_1(alpha, gamma):
  exact = fractions.Fraction(alpha)
  want = (1 - exact ** (gamma + 1)) / (1 - exact)
  assert theory.expected_tokens(alpha, gamma) == pytest.approx(
      float(want), rel=1e-13
  )


def test_all_tokens_and_one_more_are_emitted_at_acceptance_1():
  assert theory.expected_tokens(1.0, 7) == 8
  assert theory.expected_tokens(0.0, 7) == 1


def test_expected_tokens_of_positions_are_those_of_all_outcomes():
  rates = [0.9, 0.4, 0.7, 0.2]
  want = 1 + 0.9 + 0.9 * 0.4 + 0.9 * 0.4 * 0.7 + 0.9 * 0.4 * 0.7 * 0.2
  assert theory.expected_tokens(rates, 4) == pytest.approx(want, rel=1e-15)
  assert _enumerate_tokens(rates) == pytest.approx(want, rel=1e-14)


def test_a_shorter_chain_uses_the_first_positions():
  assert theory.expected_tokens([0.5, 0.25, 1.0], 2) == 1 + 0.5 + 0.125


@_settings
@hypothesis.given(_alphas, st.integers(0, 9))
def test_equal_rates_per_position_are_one_rate(alpha, gamma):
  assert theory.expected_tokens([alpha] * gamma, gamma) == (
      theory.expected_tokens(alpha, gamma)
  )


@_settings
@hypothesis.given(st.floats(0.01, 1), st.integers(1, 12))
def test_the_acceptance_rate_comes_back_from_the_tokens(alpha, gamma):
  tokens = theory.expected_tokens(alpha, gamma)
  assert theory.implied_acceptance_rate(tokens, gamma) == pytest.approx(
      alpha, abs=1e-12
  )


def test_the_inverse_by_hand():
  # 1 + a + a^2 = 7/4 at a = 1/2.
  assert theory.implied_acceptance_rate(1.75, 2) == pytest.approx(0.5, 1e-12)
  assert theory.implied_acceptance_rate(1.0, 3) == 0
  assert theory.implied_acceptance_rate(4.0, 3) == 1


@_settings
@hypothesis.given(_alphas, _alphas, _counts)
def test_more_acceptance_and_more_drafts_mean_more_tokens(one, other, gamma):
  low, high = sorted([one, other])
  tokens = theory.expected_tokens(low, gamma)
  assert theory.expected_tokens(high, gamma) >= tokens
  assert theory.expected_tokens(low, gamma + 1) >= tokens


def test_speedup_is_theorem_3_8():
  alpha, gamma, c = 0.8, 5, 0.05
  want = (1 - alpha ** (gamma + 1)) / ((1 - alpha) * (gamma * c + 1))
  assert theory.speedup(alpha, gamma, draft_cost=c) == pytest.approx(want)


def test_verification_and_overhead_lengthen_the_round():
  # E = 1.75 at gamma = 2; the round takes 2 * 0.1 + 1.2 + 0.35 = 1.75 steps.
  assert theory.speedup(
      0.5, 2, draft_cost=0.1, verify_cost=1.2, overhead_cost=0.35
  ) == pytest.approx(1.0)


def test_time_per_token_and_speedup_agree():
  ms = theory.ms_per_token(0.7, 4, draft_ms=1.8, verify_ms=15, overhead_ms=2)
  gain = theory.speedup(
      0.7,
      4,
      draft_cost=1.8 / 14,
      verify_cost=15 / 14,
      overhead_cost=2 / 14,
  )
  assert ms * gain == pytest.approx(14)
  # 1 + 0.7 + 0.49 + 0.343 + 0.2401 tokens in 4 * 1.8 + 15 + 2 ms.
  assert ms == pytest.approx(24.2 / 2.7731, rel=1e-12)


def test_plain_decoding_pays_for_no_draft_and_no_round():
  assert theory.speedup(0.9, 0, draft_cost=0.5, overhead_cost=3) == 1
  assert (
      theory.ms_per_token(0.9, 0, draft_ms=5, verify_ms=14, overhead_ms=3) == 14
  )


@_settings
@hypothesis.given(
    _alphas,
    st.floats(0, 1),
    st.lists(st.floats(1, 4), max_size=10),
    st.floats(0, 0.5),
)
def test_the_best_gamma_is_the_best_of_all(alpha, c, verify_costs, overhead):
  verify_costs = [1.0, *verify_costs]
  best = theory.best_num_draft_tokens(
      alpha, draft_cost=c, verify_costs=verify_costs, overhead_cost=overhead
  )
  times = [
      (gamma * c + t + overhead * (gamma > 0))
      / sum(alpha**j for j in range(gamma + 1))
      for gamma, t in enumerate(verify_costs)
  ]
  assert times[best] == pytest.approx(min(times), rel=1e-12)


@pytest.mark.parametrize(
    'alpha, c, best',
    [(0.0, 0.0, 0), (0.3, 0.3, 0), (0.3, 0.31, 0), (0.3, 0.29, 1)],
)
def test_drafting_pays_only_above_its_cost(alpha, c, best):
  assert (
      theory.best_num_draft_tokens(alpha, draft_cost=c, verify_costs=[1.0] * 9)
      == best
  )


def test_an_expensive_verification_stops_the_best_gamma_before_it():
  flat = theory.best_num_draft_tokens(
      0.9, draft_cost=0.01, verify_costs=[1.0] * 9
  )
  stepped = theory.best_num_draft_tokens(
      0.9, draft_cost=0.01, verify_costs=[1.0] * 4 + [2.0] * 5
  )
  assert (flat, stepped) == (8, 3)


def test_the_best_gamma_knows_the_positions():
  best = theory.best_num_draft_tokens(
      [0.9, 0.9, 0.0, 0.9], draft_cost=0.05, verify_costs=[1.0] * 5
  )
  assert best == 2


def test_the_guarantee_is_corollary_3_9_and_holds():
  assert theory.guaranteed_speedup(0.8, draft_cost=0.2) == pytest.approx(1.5)
  assert theory.guaranteed_speedup(0.1, draft_cost=0.2) == 1
  best = theory.best_num_draft_tokens(
      0.8, draft_cost=0.2, verify_costs=[1.0] * 20
  )
  assert theory.speedup(0.8, best, draft_cost=0.2) >= 1.5


def test_operations_are_theorem_3_11():
  alpha, gamma, c = 0.6, 3, 0.05
  want = (1 - alpha) * (gamma * c + gamma + 1) / (1 - alpha ** (gamma + 1))
  assert theory.operations_factor(
      alpha, gamma, draft_operations=c
  ) == pytest.approx(want)


@pytest.mark.parametrize(
    'call, message',
    [
        (lambda: theory.expected_tokens(1.2, 3), 'acceptance=1.2 is no prob'),
        (lambda: theory.expected_tokens([0.5, -0.1], 2), 'is no probability'),
        (lambda: theory.expected_tokens(float('nan'), 0), 'is no probability'),
        (lambda: theory.expected_tokens([0.5], 2), '1 positions for num_draft'),
        (lambda: theory.expected_tokens(0.5, -1), 'num_draft_tokens=-1 has to'),
        (lambda: theory.expected_tokens(0.5, 1.5), 'a whole number, 0 or more'),
        (lambda: theory.implied_acceptance_rate(5.1, 4), 'between 1 and 5'),
        (lambda: theory.implied_acceptance_rate(0.9, 4), 'between 1 and 5'),
        (lambda: theory.implied_acceptance_rate(1.0, 0), '1 or more'),
        (
            lambda: theory.speedup(0.5, 2, draft_cost=-1),
            'draft step costs -1',
        ),
        (
            lambda: theory.ms_per_token(0.5, 2, draft_ms=1, verify_ms=0),
            'verification costs 0',
        ),
        (
            lambda: theory.best_num_draft_tokens(
                0.5, draft_cost=0.1, verify_costs=[14.1, 14.2]
            ),
            'has to begin with 1',
        ),
    ],
)
def test_what_cannot_be_is_refused(call, message):
  with pytest.raises(UserError, match=message):
    call()
