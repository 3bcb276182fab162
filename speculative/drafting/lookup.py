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


def match_lengths(
    tokens_BS: jax.Array, seq_len_B: jax.Array, max_ngram: int
) -> jax.Array:
  """Measures for every earlier position how much of the text's end it repeats.

    text 1 2 3 9 1 2 3, max_ngram 3: at index 2 (1 2 3) the length is 3

  Args:
    tokens_BS: int32.
    seq_len_B: int32, tokens that count.
    max_ngram: longest length looked at.

  Returns:
    int32 [B, S]: at index i the number of tokens, up to max_ngram, for which
    text[..i] ends like the whole text does; 0 from the last token on.
  """
  S = tokens_BS.shape[1]
  index_S = jnp.arange(S, dtype=jnp.int32)
  length_BS = jnp.zeros(tokens_BS.shape, jnp.int32)
  equal_BS = index_S[None, :] < seq_len_B[:, None] - 1
  for back in range(max_ngram):
    end_B1 = (seq_len_B - 1 - back)[:, None]
    wanted_B1 = jnp.take_along_axis(tokens_BS, jnp.maximum(end_B1, 0), axis=1)
    shifted_BS = jnp.roll(tokens_BS, back, axis=1)
    equal_BS &= (shifted_BS == wanted_B1) & (index_S[None, :] >= back)
    equal_BS &= end_B1 >= 0
    length_BS += equal_BS
  return length_BS


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

  def init(self, params, state, features, *, prompt_width):
    """Has no state: the text is in the DecodeState."""
    del params, state, features, prompt_width
    return None

  def propose(
      self, params: None, drafter_state: None, state: DecodeState
  ) -> tuple[Proposal, None]:
    """Drafts for every row; rows without a match draft nothing."""
    del params
    length_BS = match_lengths(state.tokens_BS, state.seq_len_B, self.max_ngram)
    S = length_BS.shape[1]
    # One number that orders by length first and by position second.
    index_S = jnp.arange(S, dtype=jnp.int32)
    best_B = jnp.argmax(length_BS * S + index_S[None, :], axis=1)
    best_B = best_B.astype(jnp.int32)
    found_B = (
        jnp.take_along_axis(length_BS, best_B[:, None], axis=1)[:, 0]
        >= self.min_ngram
    )
    period_B1 = jnp.maximum(state.seq_len_B - 1 - best_B, 1)[:, None]
    step_J = jnp.arange(self.num_draft_tokens, dtype=jnp.int32)
    source_BJ = best_B[:, None] + 1 + step_J[None, :] % period_B1
    tokens_BJ = jnp.take_along_axis(
        state.tokens_BS, jnp.minimum(source_BJ, S - 1), axis=1
    )
    valid_BJ = found_B[:, None] & drafter_lib.within_budget(
        state, self.num_draft_tokens
    )
    return drafter_lib.chain(tokens_BJ, valid_BJ), drafter_state

  def commit(self, params, drafter_state, state, verdict, features):
    """Has nothing to remember."""
    del params, state, verdict, features
    return drafter_state
