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

from speculative.decoding.drafter import Proposal
from speculative.decoding.loop import Model
from speculative.decoding.state import DecodeState
from speculative.drafting import catching_up
from speculative.drafting import drawing
from speculative.drafting.drawing import Head
from speculative.errors import UserError
from speculative.models import kv_cache
from speculative.models.kv_cache import KVCache


@flax.struct.dataclass
class LmState:
  """The draft's cache, and what it holds for certain.

  Attributes:
    cache: its lengths are set anew every round.
    known_B: int32, tokens of the text that it had read a round ago. It may hold
      some of those drafted since.
  """

  cache: KVCache
  known_B: jax.Array


def check_num_draft_tokens(num_draft_tokens: int) -> None:
  """Refuses to draft nothing with a model.

  Raises:
    UserError: If the number is below one.
  """
  if num_draft_tokens < 1:
    raise UserError(
        'an lm drafter needs num_draft_tokens >= 1, got '
        f'{num_draft_tokens}; set config.decode.num_draft_tokens, or '
        "config.drafter.kind to 'none'."
    )


@dataclasses.dataclass(frozen=True)
class Lm:
  """Drafts J tokens one after another with a model of its own.

  Attributes:
    model: the draft; shares the target's tokenizer.
    num_draft_tokens: J.
    vocab_size: V of the target, see `drawing.Head`.
    num_behind: as many tokens as the cache can lack at the start of a round;
      the first pass takes those, see `catching_up`.
  """

  model: Model
  num_draft_tokens: int
  vocab_size: int
  num_behind: int = 2

  def __post_init__(self) -> None:
    check_num_draft_tokens(self.num_draft_tokens)

  @property
  def features(self) -> tuple[int, ...]:
    """No layers' outputs are needed."""
    return ()

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
  ) -> LmState:
    """Reads the prompts.

    Args:
      params: the draft's.
      state: rows hold their prompts.
      features: none.
      prompt_width: static; no prompt is longer.
      num_spare: slots behind the longest text, to draft in.
    """
    del features
    B, S = state.tokens_BS.shape
    cache = self.model.init_cache(B, S + num_spare + self.model.slack)
    out = self.model.forward(params, state.tokens_BS[:, :prompt_width], cache)
    return LmState(cache=out.cache, known_B=state.seq_len_B)

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
      The tokens with number j, its law, and the cache with one more.
    """
    tokens_BJ, law_BW, out = drawing.step(
        self, params, state, tokens_BJ, None, cache, j
    )
    return tokens_BJ, law_BW, out.cache

  def forward(
      self,
      params: Any,
      tokens_B1: jax.Array,
      hidden_B1D: jax.Array | None,
      cache: KVCache,
      **where: Any,
  ) -> Any:
    """Reads drafted tokens."""
    del hidden_B1D
    return self.model.forward(params, tokens_B1, cache, **where)

  def catch_up(
      self, params: Any, drafter_state: LmState, state: DecodeState
  ) -> tuple[jax.Array, LmState]:
    """Reads the last committed tokens, some that it knows again."""
    num_new_B = state.seq_len_B - drafter_state.known_B

    def in_pass_of(width: int) -> tuple[jax.Array, KVCache]:
      # A text of fewer tokens is fed from its first; what is fed after its last
      # is rubbish that nobody attends to.
      start_B = jnp.maximum(state.seq_len_B - width, 0)
      step_T = jnp.arange(width, dtype=jnp.int32)
      tokens_BT = jnp.take_along_axis(
          state.tokens_BS, start_B[:, None] + step_T[None, :], axis=1
      )
      out = self.model.forward(
          params, tokens_BT, kv_cache.rollback(drafter_state.cache, start_B)
      )
      last_B11 = (state.seq_len_B - 1 - start_B)[:, None, None]
      hidden_B1D = jnp.take_along_axis(out.hidden_BTD, last_B11, axis=1)
      return hidden_B1D, kv_cache.rollback(out.cache, state.seq_len_B)

    hidden_B1D, cache = catching_up.read(num_new_B, self.num_behind, in_pass_of)
    return hidden_B1D, LmState(cache=cache, known_B=state.seq_len_B)

  def propose(
      self, params: Any, drafter_state: LmState, state: DecodeState
  ) -> tuple[Proposal, LmState]:
    """Drafts J tokens for every row."""
    return drawing.propose(self, params, drafter_state, state)

  def commit(self, params, drafter_state, state, verdict, features):
    """Has nothing to do: `propose` sets the lengths from the text's."""
    del params, state, verdict, features
    return drafter_state
