"""What decoding a batch brought, fetched from the device."""

from collections.abc import Mapping
import dataclasses

import jax
import numpy as np

from speculative.decoding import counts as counts_lib
from speculative.decoding import log_probs as log_probs_lib
from speculative.decoding import state as state_lib
from speculative.decoding.loop import Carry


@dataclasses.dataclass(frozen=True)
class Generation:
  """What a batch of prompts was answered with.

  Attributes:
    token_ids: new tokens of every row, cut where the row ended; a stop id is
      included.
    reasons: 'stop' or 'length', a row.
    log_probs: of the new tokens, a row; None when not recorded.
    num_rounds: target passes of the batch.
    round_starts: index among the new tokens of the first of every target pass,
      a row.
    rounds: target passes that brought the tokens of every row.
    drafted: drafted tokens of those passes, a row.
    tested: how often the drafted token of each place in a round was tested,
      [B, J].
    accepted: how often it was kept, [B, J].
    prefill_s: seconds to read the prompts.
    decode_s: seconds from there to the last token.
    top_log_probs: (token id, log-probability) of the target's likeliest tokens
      at every new token, a row, likeliest first; None when not recorded.
  """

  token_ids: list[list[int]]
  reasons: list[str]
  log_probs: list[list[float]] | None
  num_rounds: int
  round_starts: list[np.ndarray]
  rounds: np.ndarray
  drafted: np.ndarray
  tested: np.ndarray
  accepted: np.ndarray
  prefill_s: float
  decode_s: float
  top_log_probs: list[list[list[tuple[int, float]]]] | None = None

  @property
  def num_tokens(self) -> int:
    """New tokens of all rows."""
    return sum(len(ids) for ids in self.token_ids)

  @property
  def tokens_per_round(self) -> float:
    """Emitted tokens per target pass of a row; at least 1 before the cut."""
    return self.num_tokens / max(int(self.rounds.sum()), 1)

  @property
  def acceptance_rate(self) -> float:
    """Accepted over tested drafted tokens: estimates Leviathan's alpha."""
    return float(self.accepted.sum()) / max(int(self.tested.sum()), 1)

  @property
  def draft_yield(self) -> float:
    """Accepted over drafted tokens."""
    return float(self.accepted.sum()) / max(int(self.drafted.sum()), 1)


def collect(
    carry: Carry,
    *,
    num_rows: int,
    kept: Mapping[int, int],
    num_draft_tokens: int,
    num_top: int,
    prefill_s: float,
    decode_s: float,
) -> Generation:
  """Fetches what a finished batch produced, cut where the host ended rows.

  Args:
    carry: of the last round.
    num_rows: B; rows behind them only fill the mesh.
    kept: new tokens that count, of every row that the host has ended.
    num_draft_tokens: J.
    num_top: likeliest tokens to hand over.
    prefill_s: seconds to read the prompts.
    decode_s: seconds from there on.

  Returns:
    The Generation.
  """
  state = jax.device_get(carry.state.replace(cache=None))
  num_rounds = int(state.num_rounds)
  state = jax.tree.map(lambda x: x[:num_rows] if x.ndim else x, state)
  spans = [
      (start, start + kept.get(row, end - start))
      for row, (start, end) in enumerate(
          zip(state.prompt_len_B, state.seq_len_B, strict=True)
      )
  ]
  counts = counts_lib.count(
      state.origins, spans, num_draft_tokens=num_draft_tokens
  )
  return Generation(
      token_ids=[
          state.tokens_BS[row, start:end].tolist()
          for row, (start, end) in enumerate(spans)
      ],
      reasons=[
          state_lib.REASONS[state_lib.STOP_ID if row in kept else reason]
          for row, reason in enumerate(state.reason_B)
      ],
      log_probs=log_probs_lib.chosen_lists(state.log_probs, spans),
      top_log_probs=log_probs_lib.top_lists(
          state.log_probs, spans, num_top=num_top
      ),
      num_rounds=num_rounds,
      round_starts=counts.starts,
      rounds=counts.rounds,
      drafted=counts.drafted,
      tested=counts.tested,
      accepted=counts.accepted,
      prefill_s=prefill_s,
      decode_s=decode_s,
  )
