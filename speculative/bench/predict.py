"""From times of parts and counts of other prompts to a prediction.

Nothing here measures. With P the time of a plain step, a round that drafts K
tokens is taken to cost, in plain steps,

  K c + t(K) + o,  t(K) = T(K + 1) / T(1)

* c, what one drafted token takes, over P.
* T(n), a plain step whose target pass is over n positions: P and what the pass
  over n takes longer than the pass over one.
* o, what else a round takes beyond what else a plain step does.

These are the costs of `theory`. Passes over more positions are never taken to
be cheaper, and o never to be negative: otherwise noise would let a draft gain
that is never accepted. A round over a tree costs what it was measured to, as it
may take a pass over fewer positions than the tree could have: o is what is left
then, of either sign. K counts the nodes of a tree, and E goes by depth.
"""

from collections.abc import Sequence
import dataclasses
import itertools
import math

from scipy import stats

from speculative import theory

# Predictions further off than this are explained.
_CLOSE = 0.1


@dataclasses.dataclass(frozen=True)
class Times:
  """Milliseconds of the parts of one setting.

  Attributes:
    num_draft_tokens: J, or the nodes of a tree.
    plain_ms: one step of plain decoding, the whole of it.
    pass_ms: the target's pass alone over 1, 2, ... J + 1 positions or more.
    propose_ms: drafting J tokens, alone.
    round_ms: one round, the whole of it.
    shape: of what is drafted, 'chain' or 'tree'.
    check_ms: the target's pass alone over what is drafted; where rounds take
      passes of several sizes, the mean. That over J + 1 positions when absent.
  """

  num_draft_tokens: int
  plain_ms: float
  pass_ms: Sequence[float]
  propose_ms: float
  round_ms: float
  shape: str = 'chain'
  check_ms: float | None = None

  @property
  def target_ms(self) -> float:
    """The target's pass of a round."""
    if self.check_ms is not None:
      return self.check_ms
    return self.pass_ms[self.num_draft_tokens]


@dataclasses.dataclass(frozen=True)
class Costs:
  """Costs in plain steps; see the module.

  Attributes:
    draft: c.
    verify: t(K) for K = 0, 1, ...; the first is 1.
    check: of the pass of a round, t(J) where all are of one size.
    overhead: o.
    shape: of what is drafted, 'chain' or 'tree'.
  """

  draft: float
  verify: tuple[float, ...]
  check: float
  overhead: float
  shape: str = 'chain'


@dataclasses.dataclass(frozen=True)
class Acceptance:
  """What prompts set aside say of a drafter.

  Attributes:
    rate: alpha, accepted over tested drafted tokens.
    by_position: of the rounds that kept all drafted tokens before a position,
      the share that kept this one too. Rounds without a draft there count as
      not having kept it, as they cost as much as the others.
    tokens_per_round: as counted.
    num_prompts: counted.
    spread: standard deviation of tokens_per_round from prompt to prompt, over
      itself; None of fewer than two prompts.
  """

  rate: float
  by_position: Sequence[float]
  tokens_per_round: float
  num_prompts: int
  spread: float | None


@dataclasses.dataclass(frozen=True)
class Prediction:
  """What a setting should gain.

  Attributes:
    speedup: from the acceptance of every position.
    speedup_iid: from alpha alone.
    tokens_per_round: from the acceptance of every position.
    round_cost: of a round, in plain steps.
  """

  speedup: float
  speedup_iid: float
  tokens_per_round: float
  round_cost: float


@dataclasses.dataclass(frozen=True)
class Best:
  """The draft length to take.

  Attributes:
    num_draft_tokens: K; 0 is plain decoding.
    speedup: predicted for it.
    most: largest K there are numbers for.
  """

  num_draft_tokens: int
  speedup: float
  most: int


def costs_of(times: Times) -> Costs:
  """Returns what the parts cost in plain steps."""
  plain, first = times.plain_ms, times.pass_ms[0]
  verify = [1 + (ms - first) / plain for ms in times.pass_ms]
  verify = tuple(itertools.accumulate(verify, max))
  check = verify[times.num_draft_tokens]
  if times.check_ms is not None:
    check = max(1 + (times.check_ms - first) / plain, 1.0)
  rest = times.round_ms - times.propose_ms - plain * check
  least = 0.0 if times.shape == 'chain' else -math.inf
  return Costs(
      draft=times.propose_ms / times.num_draft_tokens / plain,
      verify=verify,
      check=check,
      overhead=max(rest / plain, least),
      shape=times.shape,
  )


def blend(asked: Times, found: Times, share: float) -> Times:
  """Returns the mean times of rounds that are of two kinds.

  Args:
    asked: times where the draft model drafts.
    found: of the same setting where it does not, which may draft more.
    share: of the rounds in which it does.
  """

  def mean(one: float, other: float) -> float:
    return share * one + (1 - share) * other

  return dataclasses.replace(
      asked,
      propose_ms=mean(asked.propose_ms, found.propose_ms),
      round_ms=mean(asked.round_ms, found.round_ms),
      check_ms=mean(asked.target_ms, found.target_ms),
  )


def fractions(times: Times) -> dict[str, float]:
  """Returns the time/*_frac keys; they sum to 1.

  What is other than draft and target is the rest, which noise may make a little
  less than nothing.
  """
  draft = times.propose_ms / times.round_ms
  target = times.target_ms / times.round_ms
  return {
      'time/draft_frac': draft,
      'time/target_frac': target,
      'time/other_frac': 1 - draft - target,
  }


def predict(
    costs: Costs,
    acceptance: Acceptance,
    num_draft_tokens: int,
    *,
    check: float | None = None,
) -> Prediction:
  """Returns what drafting J tokens should gain.

  Args:
    costs: of the setting.
    acceptance: of the same setting on prompts that are not timed.
    num_draft_tokens: J, or the nodes of a tree.
    check: of the pass over them in plain steps, that of the setting's own; for
      another J than its own t(J), when absent.
  """
  verify = costs.verify[num_draft_tokens] if check is None else check
  # What a pass over fewer positions saves is no overhead.
  verify += min(costs.overhead, 0.0)
  overhead = max(costs.overhead, 0.0)
  # A tree is not as deep as it has nodes, and what is drafted from text in its
  # place may be deeper.
  depth = len(acceptance.by_position)
  if costs.shape == 'chain':
    depth = min(num_draft_tokens, depth)
  draft = num_draft_tokens * costs.draft

  def speedup(rates: theory.Acceptance) -> float:
    return theory.speedup(
        rates,
        depth,
        draft_cost=draft / depth,
        verify_cost=verify,
        overhead_cost=overhead,
    )

  return Prediction(
      speedup=speedup(acceptance.by_position),
      speedup_iid=speedup(acceptance.rate),
      tokens_per_round=theory.expected_tokens(acceptance.by_position, depth),
      round_cost=draft + verify + overhead,
  )


def best(times: Sequence[Times], acceptance: Sequence[Acceptance]) -> Best:
  """Returns the draft length of highest predicted speed-up, perhaps 0.

  Lengths between those of the settings are judged by the setting that drafts
  most, which knows the most positions; a setting's own by its own numbers. Of
  trees nothing is known but of those that were tried.

  Args:
    times: of every setting.
    acceptance: of every setting.

  Returns:
    The least length among equals, so drafting has to gain something.
  """
  pairs = [
      (t.num_draft_tokens, costs_of(t), a)
      for t, a in zip(times, acceptance, strict=True)
  ]
  most, costs, rates = max(pairs, key=lambda pair: pair[0])
  num = 0
  if all(t.shape == 'chain' for t in times):
    num = theory.best_num_draft_tokens(
        rates.by_position,
        draft_cost=costs.draft,
        verify_costs=costs.verify[: most + 1],
        overhead_cost=costs.overhead,
    )
  gains = {num: predict(costs, rates, num).speedup if num else 1.0}
  gains |= {J: predict(c, a, J, check=c.check).speedup for J, c, a in pairs}
  best_num = max(gains, key=lambda K: (gains[K], -K))
  return Best(num_draft_tokens=best_num, speedup=gains[best_num], most=most)


def noise(acceptance: Acceptance, num_timed: int) -> float | None:
  """Returns how far off a prediction may be because texts differ.

  Args:
    acceptance: of the prompts set aside.
    num_timed: other prompts like these.

  Returns:
    The relative difference of tokens per round that 95 in 100 such pairs of
    prompts set aside and prompts timed stay below; None if nothing is known.
  """
  if acceptance.spread is None:
    return None
  num = acceptance.num_prompts
  t = float(stats.t.ppf(0.975, num - 1))
  return t * acceptance.spread * math.sqrt(1 / num + 1 / num_timed)


def keys(
    times: Times,
    acceptance: Acceptance,
    longest: Best,
    *,
    measured: float,
    num_timed: int,
) -> dict[str, object]:
  """Returns the result keys of one setting.

  Args:
    times: of its parts.
    acceptance: on prompts that were not timed.
    longest: what is best, all settings considered.
    measured: speed-up over the timed prompts.
    num_timed: of these.
  """
  costs = costs_of(times)
  J = times.num_draft_tokens
  found = predict(costs, acceptance, J, check=costs.check)
  return fractions(times) | {
      'time/round_ms': times.round_ms,
      'time/plain_step_ms': times.plain_ms,
      'decode/draft_cost': costs.draft,
      'decode/verify_cost': costs.check,
      'decode/verify_costs': [round(t, 4) for t in costs.verify[: J + 1]],
      'decode/overhead_cost': costs.overhead,
      'decode/best_num_draft_tokens': longest.num_draft_tokens,
      'calibration/prompts': acceptance.num_prompts,
      'calibration/acceptance_rate': acceptance.rate,
      'calibration/tokens_per_round': acceptance.tokens_per_round,
      'speedup/predicted': found.speedup,
      'speedup/predicted_error': found.speedup / measured - 1,
      'speedup/predicted_noise': noise(acceptance, num_timed),
      'speedup/predicted_iid': found.speedup_iid,
      'speedup/predicted_iid_error': found.speedup_iid / measured - 1,
      'speedup/best_predicted': longest.speedup,
  }


def verdict(row: dict, *, most: int) -> str:
  """Returns in one line what was predicted, what came, and what to do.

  Args:
    row: of a setting, with `keys` and those of `tasks.measure.row_of`.
    most: largest draft length there are numbers for.
  """
  J, num = row['row/num_draft_tokens'], row['decode/best_num_draft_tokens']
  said = (
      f'{row["row/name"]}, J = {J}: predicted '
      f'{row["speedup/predicted"]:.2f}x, measured '
      f'{row["speedup/measured"]:.2f}x{_why_off(row)}; '
  )
  if num:
    is_chain = row['row/shape'] == 'chain'
    longer = ', the longest tried' if num == most and is_chain else ''
    unit = '' if is_chain else ' nodes'
    return (
        f'{said}best K = {num}{unit}{longer} '
        f'({row["speedup/best_predicted"]:.2f}x predicted).'
    )
  return (
      f'{said}best K = 0: this draft would slow you down: alpha '
      f'{row["calibration/acceptance_rate"]:.2f} does not pay for c = '
      f'{row["decode/draft_cost"]:.2f}, T({J + 1})/T(1) = '
      f'{row["decode/verify_cost"]:.2f} and {row["decode/overhead_cost"]:.2f} '
      'of overhead; use plain decoding.'
  )


def _why_off(row: dict) -> str:
  """Returns why a prediction is off, or ''.

  Prediction over measurement is the quotient of the tokens a round brings times
  that of what it costs; the larger of the two is named.
  """
  error = row['speedup/predicted_error']
  if abs(error) <= _CLOSE:
    return ''
  tokens = row['decode/tokens_per_round']
  foreseen = row['calibration/tokens_per_round']
  cost = tokens / row['speedup/measured']
  cost_foreseen = foreseen / row['speedup/predicted']
  said = f' ({100 * abs(error):.0f} % off, mostly because '
  if abs(foreseen / tokens - 1) >= abs(cost / cost_foreseen - 1):
    few = row['speedup/predicted_noise']
    chance = ', as so few prompts may' if few and abs(error) <= few else ''
    return (
        f'{said}the prompts set aside get {foreseen:.2f} tokens a round and '
        f'the timed ones {tokens:.2f}{chance})'
    )
  return (
      f'{said}a round was foreseen to cost {cost_foreseen:.2f} plain steps and '
      f'cost {cost:.2f})'
  )
