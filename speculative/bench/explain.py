"""Why a setting is fast or slow, and what would be better, from its numbers.

Nothing here measures. Costs are those of `predict`, in plain steps.
"""

from collections.abc import Sequence
from typing import Any

from speculative.bench.predict import Costs

# Parts of a round that cost less than this together are not what limits it.
_LITTLE = 0.25


def cheapest(costs: Sequence[float]) -> list[float]:
  """Returns the least cost of 0, 1, 2, ... tokens that are all foreseen.

    costs 1, 1.1, 2.5 -> 0, 1, 1.1, 2.1: three tokens are had for less in a
    round of two and one of one than in one of three

  Args:
    costs: of a round that drafts 0, 1, ... tokens, all of which are kept.

  Returns:
    As many numbers as there are costs, and one.
  """
  least = [0.0]
  for tokens in range(1, len(costs) + 1):
    # The last round drafts K and emits one more.
    least.append(min(costs[K] + least[tokens - K - 1] for K in range(tokens)))
  return least


def oracle_gain(
    costs: Costs, num_draft_tokens: int, round_tokens: Sequence[int]
) -> float:
  """Returns what knowing the number of accepted tokens would have gained.

  An oracle that is told how many tokens of the next draft will be kept drafts
  no more, and fewer where several short rounds are cheaper than one. It drafts
  no longer than was drafted, as nobody knows what would have been kept beyond.

  Args:
    costs: of the setting, a chain.
    num_draft_tokens: J, drafted in every round.
    round_tokens: emitted by every round, at least 1 each.

  Returns:
    Cost of the rounds as they were over their cost with the oracle, at least 1.
  """
  J = num_draft_tokens
  actual = J * costs.draft + costs.check + costs.overhead
  least = cheapest(
      [1.0]
      + [
          K * costs.draft + costs.verify[K] + costs.overhead
          for K in range(1, J + 1)
      ]
  )
  with_oracle = sum(
      min(least[tokens], actual) if tokens < len(least) else actual
      for tokens in round_tokens
  )
  return len(round_tokens) * actual / with_oracle if round_tokens else 1.0


def floor_keys(row: dict[str, Any], *, floor_ms: float) -> dict[str, Any]:
  """Returns whether a setting beat what bandwidth allows plain decoding.

  Args:
    row: of the setting.
    floor_ms: milliseconds a plain step needs to read its bytes.
  """
  # Of a row: what a round of the batch takes, over what it brings a row.
  token_ms = row['decode/round_ms'] / row['decode/tokens_per_round']
  times = token_ms / floor_ms
  return {'decode/times_floor': times, 'decode/beats_floor': times < 1}


def floor_sentence(row: dict[str, Any]) -> str:
  """Returns in one sentence how a setting stands to the floor.

  Args:
    row: with `floor_keys`.
  """
  times = row['decode/times_floor']
  side = 'below' if times < 1 else 'above'
  return (
      f'{row["row/name"]}: a token takes {times:.2f} times what reading '
      f'weights and cache once does, {side} the bandwidth floor of plain '
      'decoding.'
  )


def reason(
    row: dict[str, Any], *, most: int, dtype: str, fastest_dtype: str
) -> str:
  """Returns in one sentence what a setting's speed hangs on, and what to do.

  Args:
    row: of a setting that was predicted.
    most: largest draft length there are numbers for.
    dtype: number format of the target.
    fastest_dtype: its fastest one on this device.
  """
  J, best = row['row/num_draft_tokens'], row['decode/best_num_draft_tokens']
  rows = f'{J + 1} rows'
  if row['row/shape'] != 'chain':
    rows = f'up to {rows}'
  verify, draft = row['decode/verify_cost'], J * row['decode/draft_cost']
  extra = {
      'verify': verify - 1,
      'draft': draft,
      'overhead': row['decode/overhead_cost'],
  }
  largest = max(extra, key=extra.get)
  advice = [_length(row, best, most)]
  if sum(extra.values()) < _LITTLE:
    kept = 100 * row['decode/draft_yield']
    said = (
        f'a round costs no more than {1 + sum(extra.values()):.2f} plain '
        f'passes, and {kept:.0f} % of what is drafted is kept'
    )
  elif largest == 'verify':
    said = f'a verify pass of {rows} costs {verify:.2f} plain passes here'
    if fastest_dtype != dtype:
      advice.append(fastest_dtype)
  elif largest == 'draft':
    said = f'drafting {J} tokens costs {draft:.2f} plain passes here'
    advice.append('a cheaper draft')
  else:
    said = (
        f'a round takes {extra["overhead"]:.2f} plain passes beside draft and '
        'verify pass here'
    )
  return f'{row["row/name"]}: {said}: {" or ".join(advice)}.'


def _length(row: dict[str, Any], best: int, most: int) -> str:
  J = row['row/num_draft_tokens']
  if not best:
    return 'use plain decoding'
  if row['row/shape'] != 'chain':
    return f'of the sizes tried use {best} nodes'
  if best < J:
    return f'use K <= {best}'
  if best == most:
    return f'use K = {best}, the longest tried, or more'
  return f'keep K = {best}' if best == J else f'use K = {best}'


def oracle_sentence(row: dict[str, Any]) -> str:
  """Returns in one sentence what a perfect choice of K would have brought.

  Args:
    row: with `speedup/oracle`.
  """
  gain = row['speedup/oracle'] / row['speedup/measured'] - 1
  return (
      f'{row["row/name"]}: a perfect choice of K <= '
      f'{row["row/num_draft_tokens"]} in every round would have brought '
      f'{row["speedup/oracle"]:.2f}x, {100 * gain:.0f} % more.'
  )
