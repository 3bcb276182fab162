"""A second language model as drafter, with its own cache.

Before a round the draft's cache holds at least all but the last two tokens of
the text: after J drafted tokens it has seen all but the last of them. The first
pass of a round therefore always takes the last two committed tokens. Where the
first of the two was in the cache already its entry is written again, with the
same value; neither a full acceptance nor a rejection needs a case of its own.
"""

import dataclasses
from typing import Any

import flax.struct
import jax
from jax import numpy as jnp

from speculative.decoding import adjust
from speculative.decoding import drafter as drafter_lib
from speculative.decoding import logits as logits_lib
from speculative.decoding import sampling as sampling_lib
from speculative.decoding import state as state_lib
from speculative.decoding.drafter import Proposal
from speculative.decoding.loop import Model
from speculative.decoding.sampling import Sampling
from speculative.decoding.state import DecodeState
from speculative.errors import UserError
from speculative.models import kv_cache
from speculative.models.kv_cache import KVCache


@flax.struct.dataclass
class LmState:
  """The draft's cache; its lengths are set anew every round."""

  cache: KVCache


def draw_with_law(
    sampling: Sampling,
    logits_BV: jax.Array,
    *,
    start_B: jax.Array,
    position_B: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Draws a drafted token and returns the law it was drawn from.

  Args:
    sampling: the rows' own, so that the draft is warped as the target is.
    logits_BV: float32, adjusted logits of the draft.
    start_B: int32, index in the text of the round's first token.
    position_B: int32, index of the drafted token.

  Returns:
    Tokens int32 [B] and q float32 [B, V]; one-hot for greedy rows.
  """
  logits_B1V = logits_BV[:, None, :]
  V = logits_BV.shape[-1]

  def greedy() -> tuple[jax.Array, jax.Array]:
    token_B1 = jnp.argmax(logits_B1V, axis=-1).astype(jnp.int32)
    return token_B1, jax.nn.one_hot(token_B1, V, dtype=jnp.float32)

  def sampled() -> tuple[jax.Array, jax.Array]:
    law_B1V = logits_lib.warp_probs(sampling.warping, logits_B1V)
    keys_B1 = sampling_lib.trial_keys(
        sampling.seed_B, start_B, position_B[:, None], sampling_lib.DRAFT
    )
    token_B1 = sampling_lib.categorical(keys_B1, law_B1V)
    return token_B1, law_B1V

  token_B1, law_B1V = jax.lax.cond(jnp.all(sampling.greedy_B), greedy, sampled)
  return token_B1[:, 0], law_B1V[:, 0]


@dataclasses.dataclass(frozen=True)
class Lm:
  """Drafts J tokens one after another with a model of its own.

  Attributes:
    model: the draft; shares the target's tokenizer.
    num_draft_tokens: J.
    vocab_size: V of the target; the draft's logits are cut or padded to it
      (padding is never drawn), as heads over one tokenizer may differ in size.
  """

  model: Model
  num_draft_tokens: int
  vocab_size: int

  def __post_init__(self) -> None:
    if self.num_draft_tokens < 1:
      raise UserError(
          'an lm drafter needs num_draft_tokens >= 1, got '
          f'{self.num_draft_tokens}; set config.decode.num_draft_tokens, or '
          "config.drafter.kind to 'none'."
      )

  @property
  def features(self) -> tuple[int, ...]:
    """No layers' outputs are needed."""
    return ()

  def init(
      self,
      params: Any,
      state: DecodeState,
      features: dict[int, jax.Array],
      *,
      prompt_width: int,
  ) -> LmState:
    """Reads the prompts."""
    del features
    B, S = state.tokens_BS.shape
    cache = self.model.init_cache(B, S + self.model.slack)
    out = self.model.forward(params, state.tokens_BS[:, :prompt_width], cache)
    return LmState(cache=out.cache)

  def _logits(self, params: Any, hidden_B1D: jax.Array) -> jax.Array:
    """Returns the draft's logits [B, V] over the target's vocabulary."""
    logits_BV = self.model.logits(params, hidden_B1D)[:, 0]
    extra = self.vocab_size - logits_BV.shape[-1]
    if extra <= 0:
      return logits_BV[:, : self.vocab_size]
    return jnp.pad(logits_BV, ((0, 0), (0, extra)), constant_values=-jnp.inf)

  def _draw(
      self,
      params: Any,
      state: DecodeState,
      hidden_B1D: jax.Array,
      tokens_BJ: jax.Array,
      j: jax.Array | int,
  ) -> tuple[jax.Array, jax.Array]:
    """Draws drafted token j after tokens[:j], and returns its law."""
    before_1J = (jnp.arange(self.num_draft_tokens) < j)[None, :]
    logits_B1V = state_lib.adjusted(
        state,
        self._logits(params, hidden_B1D)[:, None, :],
        adjust.Drafts(tokens_BJ, before_1J),
    )
    return draw_with_law(
        state.sampling,
        logits_B1V[:, 0],
        start_B=state.seq_len_B,
        position_B=state.seq_len_B + j,
    )

  def step(
      self,
      params: Any,
      state: DecodeState,
      tokens_BJ: jax.Array,
      cache: KVCache,
      j: jax.Array,
  ) -> tuple[jax.Array, jax.Array, KVCache]:
    """Drafts token j >= 1 after tokens[:j].

    Args:
      params: the draft's.
      state: of the rows.
      tokens_BJ: int32, drafted so far.
      cache: the draft's, with all but the last of them.
      j: int32 scalar.

    Returns:
      The tokens with number j, its law [B, V], and the cache with one more.
    """
    last_B1 = jax.lax.dynamic_slice_in_dim(tokens_BJ, j - 1, 1, axis=1)
    out = self.model.forward(params, last_B1, cache)
    token_B, law_BV = self._draw(params, state, out.hidden_BTD, tokens_BJ, j)
    tokens_BJ = jax.lax.dynamic_update_slice_in_dim(
        tokens_BJ, token_B[:, None], j, axis=1
    )
    return tokens_BJ, law_BV, out.cache

  def propose(
      self, params: Any, drafter_state: LmState, state: DecodeState
  ) -> tuple[Proposal, LmState]:
    """Drafts J tokens for every row."""
    # A one-token prompt has no token before its last: it is fed first, and the
    # second one fed is rubbish that nobody attends to.
    start_B = jnp.maximum(state.seq_len_B - 2, 0)
    pair_B2 = jnp.take_along_axis(
        state.tokens_BS,
        start_B[:, None] + jnp.arange(2, dtype=jnp.int32)[None, :],
        axis=1,
    )
    out = self.model.forward(
        params, pair_B2, kv_cache.rollback(drafter_state.cache, start_B)
    )
    last_B11 = (state.seq_len_B - 1 - start_B)[:, None, None]
    hidden_B1D = jnp.take_along_axis(out.hidden_BTD, last_B11, axis=1)
    cache = kv_cache.rollback(out.cache, state.seq_len_B)
    J = self.num_draft_tokens
    tokens_BJ = jnp.zeros((state.seq_len_B.shape[0], J), jnp.int32)
    first_B, law_BV = self._draw(params, state, hidden_B1D, tokens_BJ, 0)
    tokens_BJ = tokens_BJ.at[:, 0].set(first_B)

    def step(carry, j):
      tokens_BJ, law_BV, cache = self.step(params, state, *carry, j)
      return (tokens_BJ, cache), law_BV

    (tokens_BJ, cache), laws_JBV = jax.lax.scan(
        step, (tokens_BJ, cache), jnp.arange(1, J, dtype=jnp.int32)
    )
    laws_BJV = jnp.concatenate([law_BV[None], laws_JBV]).swapaxes(0, 1)
    valid_BJ = drafter_lib.within_budget(state, self.num_draft_tokens)
    return drafter_lib.chain(tokens_BJ, valid_BJ, laws_BJV), LmState(
        cache=cache
    )

  def commit(self, params, drafter_state, state, verdict, features):
    """Has nothing to do: `propose` sets the lengths from the text's."""
    del params, state, verdict, features
    return drafter_state
