"""Prompt look-up: the text so far is its own draft model.

Finds the place earlier in prompt and output where the last tokens occurred
before, and drafts what followed there (LLMA, arXiv:2304.04487; prompt look-up
decoding). Deterministic, so q is one-hot and sampled output is plain decoding's
token for token.
"""

import dataclasses

import jax
from jax import numpy as jnp

from speculative.decoding import drafter as drafter_lib
from speculative.decoding.drafter import Proposal
from speculative.decoding.state import DecodeState
from speculative.retrieval import context


@dataclasses.dataclass(frozen=True)
class Lookup:
  """Drafts the continuation of the longest, then latest, earlier match.

  Where the match runs into the end of the text the continuation goes round: a
  text that repeats with period d is drafted on with period d.

  Attributes:
    num_draft_tokens: J.
    max_ngram: longest match looked for, in tokens.
    min_ngram: shortest match that drafts anything.
  """

  num_draft_tokens: int = 4
  max_ngram: int = 4
  min_ngram: int = 1

  @property
  def features(self) -> tuple[int, ...]:
    """No layers' outputs are needed."""
    return ()

  def with_least_match(self) -> 'Lookup':
    """Returns one that drafts whatever the text is."""
    # No match is shorter than 0 tokens.
    return dataclasses.replace(self, min_ngram=0)

  def init(self, params, state, features, *, prompt_width):
    """Has no state: the text is in the DecodeState."""
    del params, state, features, prompt_width
    return None

  def draft(
      self, params: None, text_BS: jax.Array, seq_len_B: jax.Array
  ) -> Proposal:
    """Drafts after texts, whatever room there is.

    Args:
      params: none.
      text_BS: int32.
      seq_len_B: int32, tokens that count.
    """
    del params
    length_BS = context.match_lengths(text_BS, seq_len_B, self.max_ngram)
    S = length_BS.shape[1]
    # One number that orders by length first and by position second.
    index_S = jnp.arange(S, dtype=jnp.int32)
    best_B = jnp.argmax(length_BS * S + index_S[None, :], axis=1)
    best_B = best_B.astype(jnp.int32)
    found_B = (
        jnp.take_along_axis(length_BS, best_B[:, None], axis=1)[:, 0]
        >= self.min_ngram
    )
    period_B1 = jnp.maximum(seq_len_B - 1 - best_B, 1)[:, None]
    step_J = jnp.arange(self.num_draft_tokens, dtype=jnp.int32)
    source_BJ = best_B[:, None] + 1 + step_J[None, :] % period_B1
    tokens_BJ = jnp.take_along_axis(
        text_BS, jnp.minimum(source_BJ, S - 1), axis=1
    )
    valid_BJ = jnp.broadcast_to(found_B[:, None], tokens_BJ.shape)
    return drafter_lib.chain(tokens_BJ, valid_BJ)

  def propose(
      self, params: None, drafter_state: None, state: DecodeState
  ) -> tuple[Proposal, None]:
    """Drafts for every row; rows without a match draft nothing."""
    found = self.draft(params, state.tokens_BS, state.seq_len_B)
    room_BJ = drafter_lib.within_budget(state, self.num_draft_tokens)
    return found.replace(valid_BM=found.valid_BM & room_BJ), drafter_state

  def commit(self, params, drafter_state, state, verdict, features):
    """Has nothing to remember."""
    del params, state, verdict, features
    return drafter_state
