"""A draft model that reads the target's hidden states beside the tokens.

Slot t of the draft's cache holds the pair (token x_t, hidden state h_{t-1} of
the token before it), h_{-1} = 0; its output predicts x_{t+1}. A round with
J = 2 over the text a b c d, of which the target has seen all but d:

  slot        0    1    2    3      4      5
  token       a    b    c    d    first  (second)
  hidden      0   h_a  h_b  h_c    g_d
              `----.----'   |      |
                in the      |      the draft's own output stands for what
                cache       |      the target has not seen
                            new in the last round, with the target's states

The target's pass of a round returns the states of its last committed token and
of the J drafted after it: just those that the next round's new tokens need.
"""

import dataclasses
from typing import Any

import flax.struct
import jax
from jax import numpy as jnp

from speculative.decoding.drafter import Proposal
from speculative.decoding.state import DecodeState
from speculative.drafting import catching_up
from speculative.drafting import drawing
from speculative.drafting import lm
from speculative.drafting.drawing import Head
from speculative.models import kv_cache
from speculative.models import transformer
from speculative.models.draft import DraftModel
from speculative.models.kv_cache import KVCache


@flax.struct.dataclass
class HiddenLmState:
  """The draft's cache, and what it has still to read.

  Attributes:
    cache: all slots before start are right.
    start_B: int32, first token that was not read with the target's state; at
      most J + 1 tokens before the end of the text.
    hidden_BTD: T = J + 1; row i is the target's state that goes with token
      start + i, so of the token before it. Rows beyond the text are rubbish.
  """

  cache: KVCache
  start_B: jax.Array
  hidden_BTD: jax.Array


@dataclasses.dataclass(frozen=True)
class HiddenLm:
  """Drafts J tokens one after another, with what the target knew.

  Attributes:
    model: the draft, with inputs 'hidden'.
    num_draft_tokens: J.
    vocab_size: V of the target.
  """

  model: DraftModel
  num_draft_tokens: int
  vocab_size: int

  def __post_init__(self) -> None:
    lm.check_num_draft_tokens(self.num_draft_tokens)

  @property
  def features(self) -> tuple[int, ...]:
    """The target's hidden state after its final norm."""
    return (transformer.FINAL,)

  @property
  def head(self) -> Head:
    """What is drawn from."""
    return Head(self.model, self.vocab_size)

  def init(
      self,
      params: Any,
      state: DecodeState,
      features: dict[int, jax.Array],
      *,
      prompt_width: int,
      num_spare: int = 0,
  ) -> HiddenLmState:
    """Reads the prompts, with the target's states.

    Args:
      params: the draft's.
      state: rows hold their prompts.
      features: of the target over the prompt.
      prompt_width: static; no prompt is longer.
      num_spare: slots behind the longest text, to draft in.
    """
    B, S = state.tokens_BS.shape
    hidden_BTD = features[transformer.FINAL]
    shifted_BTD = jnp.pad(hidden_BTD[:, :-1], ((0, 0), (1, 0), (0, 0)))
    out = self.model.forward(
        params,
        state.tokens_BS[:, :prompt_width],
        self.model.init_cache(B, S + num_spare + self.model.slack),
        hidden_BTD=shifted_BTD,
    )
    # The first round reads the last token of the prompt once more.
    start_B = state.seq_len_B - 1
    hidden_B1D = jnp.take_along_axis(
        shifted_BTD, start_B[:, None, None], axis=1
    )
    J = self.num_draft_tokens
    return HiddenLmState(
        cache=out.cache,
        start_B=start_B,
        hidden_BTD=self._placed(jnp.pad(hidden_B1D, ((0, 0), (0, J), (0, 0)))),
    )

  def _placed(self, hidden_BTD: jax.Array) -> jax.Array:
    return self.model.placement.constrain(hidden_BTD, ('batch', None, None))

  def forward(
      self,
      params: Any,
      tokens_B1: jax.Array,
      hidden_B1D: jax.Array,
      cache: KVCache,
      **where: Any,
  ) -> Any:
    """Reads drafted tokens; hidden_B1D is the draft's own output."""
    return self.model.forward(
        params, tokens_B1, cache, hidden_BTD=hidden_B1D, **where
    )

  def catch_up(
      self, params: Any, drafter_state: HiddenLmState, state: DecodeState
  ) -> tuple[jax.Array, HiddenLmState]:
    """Reads the tokens of the last round with the target's states."""
    start_B = drafter_state.start_B
    # A row that is done has nothing new, and drafts nothing that counts.
    last_B = jnp.maximum(state.seq_len_B - 1 - start_B, 0)

    def in_pass_of(width: int) -> tuple[jax.Array, KVCache]:
      step_T = jnp.arange(width, dtype=jnp.int32)
      tokens_BT = jnp.take_along_axis(
          state.tokens_BS, start_B[:, None] + step_T[None, :], axis=1
      )
      out = self.model.forward(
          params,
          tokens_BT,
          kv_cache.rollback(drafter_state.cache, start_B),
          hidden_BTD=self._placed(drafter_state.hidden_BTD[:, :width]),
      )
      hidden_B1D = jnp.take_along_axis(
          out.hidden_BTD, last_B[:, None, None], axis=1
      )
      return hidden_B1D, kv_cache.rollback(out.cache, state.seq_len_B)

    hidden_B1D, cache = catching_up.read(
        last_B + 1, self.num_draft_tokens + 1, in_pass_of
    )
    return hidden_B1D, drafter_state.replace(
        cache=cache, start_B=state.seq_len_B
    )

  def propose(
      self, params: Any, drafter_state: HiddenLmState, state: DecodeState
  ) -> tuple[Proposal, HiddenLmState]:
    """Drafts J tokens for every row."""
    return drawing.propose(self, params, drafter_state, state)

  def commit(self, params, drafter_state, state, verdict, features):
    """Keeps the target's states of the round; start is where it began."""
    del params, state, verdict
    hidden_BTD = self._placed(features[transformer.FINAL])
    return drafter_state.replace(
        hidden_BTD=hidden_BTD.astype(drafter_state.hidden_BTD.dtype)
    )
