"""What drafting can gain, in closed form.

Guarantees formulas only: nothing here measures, draws or knows a model. The
letters are those of Leviathan et al. 2022 (arXiv:2211.17192), where:

* alpha, the acceptance rate: accepted over tested drafted tokens.
* gamma, the tokens drafted a round: `num_draft_tokens` here, K of Chen et al.
  2023 (arXiv:2302.01318).
* c, the cost of one draft step: `draft_cost`, in plain target steps.

To these comes t = T(gamma + 1) / T(1), `verify_cost`: what the pass that
verifies gamma tokens costs, in plain target steps. The paper takes t = 1,
which holds while reading the weights takes longer than the arithmetic.

Wherever an `acceptance` is asked for, a number means the paper's assumption
that all positions are accepted independently with probability alpha (i.i.d.);
a sequence gives each position of the chain its own rate, conditional on all
positions before it having been accepted, and has at least as many entries as
tokens are drafted.
"""

from collections.abc import Sequence
import math

import numpy as np
from scipy import optimize

from speculative.errors import UserError

# One acceptance rate for all positions, or one for each.
Acceptance = float | Sequence[float]


def expected_tokens(acceptance: Acceptance, num_draft_tokens: int) -> float:
  """Returns E, the mean number of tokens that one round emits.

  Equation (1), (1 - alpha^(gamma + 1)) / (1 - alpha), summed term by term: the
  sum of alpha^j for j = 0..gamma needs no special case at alpha = 1. With a
  rate per position, term j is the product of the first j rates, the
  probability that the round gets past position j.

  Args:
    acceptance: see the module; in [0, 1].
    num_draft_tokens: gamma, at least 0.

  Returns:
    A number in [1, gamma + 1]; the token after the last accepted one counts.
  """
  rates = _rates(acceptance, num_draft_tokens)
  survival, terms = 1.0, [1.0]
  for rate in rates:
    survival *= rate
    terms.append(survival)
  return math.fsum(terms)


def implied_acceptance_rate(
    tokens_per_round: float, num_draft_tokens: int
) -> float:
  """Returns the alpha for which `expected_tokens` is what was seen.

  Args:
    tokens_per_round: in [1, gamma + 1].
    num_draft_tokens: gamma, at least 1.

  Returns:
    The i.i.d. rate in [0, 1] that gives as many tokens a round.

  Raises:
    UserError: If no rate does.
  """
  _check_count(num_draft_tokens, least=1)
  low, high = 1.0, num_draft_tokens + 1.0
  if not low <= tokens_per_round <= high:
    raise UserError(
        f'tokens_per_round={tokens_per_round} is not possible with '
        f'num_draft_tokens={num_draft_tokens}: give a number between 1 and '
        f'{num_draft_tokens + 1}.'
    )
  return optimize.brentq(
      lambda alpha: expected_tokens(alpha, num_draft_tokens) - tokens_per_round,
      0.0,
      1.0,
      xtol=1e-15,
  )


def speedup(
    acceptance: Acceptance,
    num_draft_tokens: int,
    *,
    draft_cost: float,
    verify_cost: float = 1.0,
    overhead_cost: float = 0.0,
) -> float:
  """Returns the time of plain decoding over that of drafting.

  Theorem 3.8 with the verification's cost t and the rest of a round o added:
  E / (gamma c + t + o), which is the paper's at t = 1 and o = 0.

  Args:
    acceptance: see the module.
    num_draft_tokens: gamma; 0 is plain decoding, whose speed-up is 1.
    draft_cost: c, one draft step over one plain target step.
    verify_cost: t, the pass over gamma + 1 positions over one plain step.
    overhead_cost: o, what else a round costs, in plain steps.
  """
  round_cost = _round_time(
      num_draft_tokens,
      draft=draft_cost,
      verify=verify_cost if num_draft_tokens else 1.0,
      overhead=overhead_cost,
  )
  return expected_tokens(acceptance, num_draft_tokens) / round_cost


def ms_per_token(
    acceptance: Acceptance,
    num_draft_tokens: int,
    *,
    draft_ms: float,
    verify_ms: float,
    overhead_ms: float = 0.0,
) -> float:
  """Returns the mean time of one emitted token.

  Args:
    acceptance: see the module.
    num_draft_tokens: gamma; 0 is plain decoding, which pays neither for drafts
      nor for the overhead of a round.
    draft_ms: of one draft step.
    verify_ms: of the target's pass over gamma + 1 positions.
    overhead_ms: of a round, for all that is neither of the two.
  """
  round_ms = _round_time(
      num_draft_tokens, draft=draft_ms, verify=verify_ms, overhead=overhead_ms
  )
  return round_ms / expected_tokens(acceptance, num_draft_tokens)


def best_num_draft_tokens(
    acceptance: Acceptance,
    *,
    draft_cost: float,
    verify_costs: Sequence[float],
    overhead_cost: float = 0.0,
) -> int:
  """Returns the gamma of highest speed-up, 0 where drafting does not pay.

  Section 3.5 of the paper, by trying all: t need not grow smoothly with gamma.

  Args:
    acceptance: see the module.
    draft_cost: c, one draft step over one plain target step.
    verify_costs: t of each gamma to consider, in order from 0; its first entry
      is a plain step and must be 1.
    overhead_cost: o, what else a round costs, in plain steps.

  Returns:
    The least gamma among equals, so drafting has to gain something.

  Raises:
    UserError: If the first of `verify_costs` is not 1.
  """
  if not verify_costs or verify_costs[0] != 1:
    raise UserError(
        f'verify_costs={list(verify_costs)} has to begin with 1, a plain step: '
        'divide all by the cost of a pass over one position.'
    )
  gains = [
      speedup(
          acceptance,
          num_draft_tokens,
          draft_cost=draft_cost,
          verify_cost=verify_cost,
          overhead_cost=overhead_cost,
      )
      for num_draft_tokens, verify_cost in enumerate(verify_costs)
  ]
  return gains.index(max(gains))


def guaranteed_speedup(alpha: float, *, draft_cost: float) -> float:
  """Returns what the best gamma gains at least, with free verification.

  Corollary 3.9: (1 + alpha) / (1 + c), the speed-up of gamma = 1, wherever
  alpha > c; plain decoding's 1 elsewhere. Needs t = 1.

  Args:
    alpha: the i.i.d. acceptance rate.
    draft_cost: c, one draft step over one plain target step.
  """
  return max(1.0, speedup(alpha, 1, draft_cost=draft_cost))


def operations_factor(
    acceptance: Acceptance, num_draft_tokens: int, *, draft_operations: float
) -> float:
  """Returns the arithmetic per token over that of plain decoding.

  Theorem 3.11: (gamma c^ + gamma + 1) / E, at least 1 for a draft of any use:
  drafting buys latency with operations.

  Args:
    acceptance: see the module.
    num_draft_tokens: gamma.
    draft_operations: c^, operations of a draft step over those of the target's
      for one position.
  """
  _check_cost('draft', draft_operations)
  operations = num_draft_tokens * draft_operations + num_draft_tokens + 1
  return operations / expected_tokens(acceptance, num_draft_tokens)


def _rates(acceptance: Acceptance, num_draft_tokens: int) -> list[float]:
  """Returns a checked rate for each drafted position."""
  _check_count(num_draft_tokens, least=0)
  if np.ndim(acceptance):
    if len(acceptance) < num_draft_tokens:
      raise UserError(
          f'acceptance={list(acceptance)} has {len(acceptance)} positions for '
          f'num_draft_tokens={num_draft_tokens}: give one rate for each.'
      )
    rates = list(acceptance[:num_draft_tokens])
  else:
    rates = [acceptance] * max(num_draft_tokens, 1)
  for rate in rates:
    if not 0 <= rate <= 1:
      raise UserError(
          f'acceptance={acceptance} is no probability: give numbers from 0 to '
          '1, accepted over tested drafted tokens.'
      )
  return rates[:num_draft_tokens]


def _check_count(num_draft_tokens: int, *, least: int) -> None:
  if num_draft_tokens < least or num_draft_tokens != int(num_draft_tokens):
    raise UserError(
        f'num_draft_tokens={num_draft_tokens} has to be a whole number, '
        f'{least} or more.'
    )


def _round_time(
    num_draft_tokens: int, *, draft: float, verify: float, overhead: float
) -> float:
  """Returns what a round takes, in the unit of its parts."""
  _check_cost('draft step', draft)
  _check_cost('verification', verify)
  _check_cost('overhead', overhead)
  if not verify:
    raise UserError('The verification costs 0: give what a target pass takes.')
  if not num_draft_tokens:
    return verify
  return num_draft_tokens * draft + verify + overhead


def _check_cost(name: str, value: float) -> None:
  if not (value >= 0 and math.isfinite(value)):
    raise UserError(
        f'The {name} costs {value}: give a finite number, 0 or more.'
    )
