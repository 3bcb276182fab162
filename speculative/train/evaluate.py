"""Acceptance on documents that are never trained on, by step and domain."""

from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses

import jax
import numpy as np

from speculative.train.data import Batch
from speculative.train.start import Frozen
from speculative.train.step import Program


@dataclasses.dataclass(frozen=True)
class Measured:
  """What a draft does on held-out text.

  All are means over the positions that count; K is the draft's steps.

  Attributes:
    alpha_K: sum min(p, q) of a token drafted k-th.
    agreement_K: how often p and q have the same likeliest token; a lower bound
      if the draft's head is partial, see `losses.Terms`.
    tokens_per_round: emitted tokens if K are drafted and verified, sampling at
      temperature 1: one, plus the chance that each is reached and kept.
    greedy_tokens_per_round: likewise, greedy; along the text, which is not
      what the target would have written, and a lower bound as agreement_K is.
    loss: of step 1.
    in_head: mass of p on the tokens of the head.
    num_tokens: positions that counted.
  """

  alpha_K: tuple[float, ...]
  agreement_K: tuple[float, ...]
  tokens_per_round: float
  greedy_tokens_per_round: float
  loss: float
  in_head: float
  num_tokens: int

  def metrics(self, prefix: str) -> dict[str, float]:
    """Returns flat numbers, alpha by step among them.

    Args:
      prefix: of the names.
    """
    rows = {
        'alpha_heldout': self.alpha_K[0],
        'agreement_heldout': self.agreement_K[0],
        'tokens_per_round_heldout': self.tokens_per_round,
        'greedy_tokens_per_round_heldout': self.greedy_tokens_per_round,
        'loss_heldout': self.loss,
        'in_head_heldout': self.in_head,
        'heldout_tokens': self.num_tokens,
    }
    for k, (alpha, agreement) in enumerate(
        zip(self.alpha_K, self.agreement_K, strict=True), 1
    ):
      rows[f'alpha_heldout_{k}'] = alpha
      rows[f'agreement_heldout_{k}'] = agreement
    return {f'{prefix}{name}': value for name, value in rows.items()}


def measure(
    program: Program,
    params,
    frozen: Frozen,
    batches: Iterable[Batch],
    domains: Sequence[str],
) -> dict[str, Measured]:
  """Measures a draft.

  Args:
    program: of the run.
    params: the draft's own.
    frozen: of the target.
    batches: held out.
    domains: of the store.

  Returns:
    A Measured a domain that occurs, and one of all under ''.
  """
  total: dict[str, np.ndarray] = {}
  for batch in batches:
    found = jax.device_get(program.measure(params, frozen, batch))
    for name, x in found.items():
      total[name] = total.get(name, 0) + x.astype(np.float64)
  if not total:
    return {}
  rows = {'': {name: x.sum(1) for name, x in total.items()}}
  for i, domain in enumerate(domains):
    rows[domain] = {name: x[:, i] for name, x in total.items()}
  return {
      name: _measured(row) for name, row in rows.items() if row['weight'][0] > 0
  }


def _measured(row: dict[str, np.ndarray]) -> Measured:
  weight_K = np.maximum(row['weight'], 1e-9)
  mean = {name: x / weight_K for name, x in row.items()}
  return Measured(
      alpha_K=tuple(map(float, mean['acceptance'])),
      agreement_K=tuple(map(float, mean['agrees'])),
      tokens_per_round=1 + float(mean['chain'].sum()),
      greedy_tokens_per_round=1 + float(mean['greedy_chain'].sum()),
      loss=float(mean['loss'][0]),
      in_head=float(mean['in_head'][0]),
      num_tokens=int(row['weight'][0]),
  )
