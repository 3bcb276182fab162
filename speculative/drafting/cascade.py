"""Text drafts for the draft model, which drafts for the target.

The draft model is itself decoded speculatively: it reads a guess from text of
several tokens in one pass, draws at every position with the key and the law
that it would draw with alone, and keeps what it drew up to and including the
first token that is not the guessed one. So it drafts what `lm.Lm` drafts with
the same seed, and reports the same laws, in fewer passes where text is right.
It does so in float32: in bfloat16 passes of other widths round otherwise, and
where two tokens are nearly as likely another one may be drafted. The law that
is reported is the one that was drawn from all the same, so that the output
keeps the target's.

  five tokens after the text .. b; three are guessed at once
    pass   reads       draws after each   keeps
     1     b, x y z    x y q .            x y q
     2     q, r x y    r s . .            r s
"""

import dataclasses
import functools
from typing import Any

import flax.struct
import jax
from jax import numpy as jnp

from speculative.decoding import drafter as drafter_lib
from speculative.decoding.adjust import PathDrafts
from speculative.decoding.drafter import Proposal
from speculative.decoding.state import DecodeState
from speculative.drafting import text as text_lib
from speculative.drafting.drawing import Head
from speculative.drafting.lm import Lm
from speculative.drafting.text import TextDrafter
from speculative.models import kv_cache
from speculative.models.kv_cache import KVCache


@flax.struct.dataclass
class CascadeState:
  """The draft's cache, and how often it was used.

  Attributes:
    cache: as that of `lm.LmState`.
    num_passes: int32, passes of the draft since the prompts were read.
  """

  cache: KVCache
  num_passes: jax.Array


@flax.struct.dataclass
class _Drafted:
  """What there is of a round's draft.

  Attributes:
    tokens_BJ: int32.
    laws_BJW: float32, what each was drawn from.
    num_B: int32, how many of them count.
    state: of the draft.
  """

  tokens_BJ: jax.Array
  laws_BJW: jax.Array
  num_B: jax.Array
  state: CascadeState


@dataclasses.dataclass(frozen=True)
class Cascade:
  """Drafts J tokens with a model that is handed guesses from text.

  Its params are the model's, or where text is searched in a store a
  `StoreAndModel`.

  Attributes:
    text: of chains of G tokens, which are guessed at once.
    draft: of J tokens.
  """

  text: TextDrafter
  draft: Lm

  @property
  def num_draft_tokens(self) -> int:
    """J."""
    return self.draft.num_draft_tokens

  @property
  def features(self) -> tuple[int, ...]:
    """What the draft wants to see."""
    return self.draft.features

  @property
  def head(self) -> Head:
    """What is drawn from."""
    return self.draft.head

  def init(
      self,
      params: Any,
      state: DecodeState,
      features: dict[int, jax.Array],
      *,
      prompt_width: int,
  ) -> CascadeState:
    """Lets the draft read the prompts."""
    read = self.draft.init(
        text_lib.model_of(params),
        state,
        features,
        prompt_width=prompt_width,
        # A guess longer than the draft reaches beyond a round's own slots.
        num_spare=max(self.text.num_draft_tokens - self.num_draft_tokens, 0),
    )
    return CascadeState(cache=read.cache, num_passes=jnp.zeros((), jnp.int32))

  def propose(
      self, params: Any, drafter_state: CascadeState, state: DecodeState
  ) -> tuple[Proposal, CascadeState]:
    """Drafts as many tokens as a row has room for, at most J."""
    B, J, head = state.seq_len_B.shape[0], self.num_draft_tokens, self.head
    valid_BJ = drafter_lib.within_budget(state, J)
    wanted_B = valid_BJ.sum(axis=1)
    nothing = _Drafted(
        tokens_BJ=jnp.zeros((B, J), jnp.int32),
        laws_BJW=jnp.zeros((B, J, head.size), jnp.float32),
        num_B=jnp.zeros(B, jnp.int32),
        state=drafter_state,
    )
    go_on = functools.partial(self._go_on, params, state)
    drafted = jax.lax.while_loop(
        lambda drafted: jnp.any(drafted.num_B < wanted_B),
        functools.partial(go_on, num_behind=1),
        # The draft lacks what `Lm` lacks.
        go_on(nothing, num_behind=self.draft.num_behind),
    )
    proposal = drafter_lib.chain(
        drafted.tokens_BJ,
        valid_BJ,
        head.laws(
            text_lib.model_of(params),
            state,
            drafted.tokens_BJ,
            drafted.laws_BJW,
        ),
    )
    return proposal, drafted.state

  def _go_on(
      self,
      params: Any,
      state: DecodeState,
      drafted: _Drafted,
      *,
      num_behind: int,
  ) -> _Drafted:
    """Drafts 1 to G + 1 tokens more, in one pass of the draft.

    Args:
      params: of both.
      state: of the rows.
      drafted: so far; rows that have J tokens keep them.
      num_behind: last tokens of the text and the draft so far that the pass
        reads before the guess.
    """
    G, num_B = self.text.num_draft_tokens, drafted.num_B
    end_B = state.seq_len_B + num_B
    text_BS = self._text_so_far(state, drafted)
    found = self.text.draft(text_lib.store_of(params), text_BS, end_B)
    # Where nothing was found the tokens are as good a guess as any.
    guess_BG = found.tokens_BM
    model = text_lib.model_of(params)
    start_B = jnp.maximum(end_B - num_behind, 0)
    step_T = jnp.arange(num_behind + G, dtype=jnp.int32)
    ahead_BT = (start_B - end_B)[:, None] + step_T[None, :]
    out = self.draft.forward(
        model,
        jnp.where(
            ahead_BT < 0,
            drafter_lib.rows_of(text_BS, end_B[:, None] + ahead_BT),
            drafter_lib.rows_of(guess_BG, ahead_BT),
        ),
        None,
        kv_cache.rollback(drafted.state.cache, start_B),
    )
    # Row r of these follows r guessed tokens.
    row_R = jnp.arange(G + 1, dtype=jnp.int32)
    hidden_BRD = drafter_lib.rows_of(
        out.hidden_BTD, (end_B - 1 - start_B)[:, None] + row_R[None, :]
    )
    drawn_BR, law_BRW = self.head.draw_many(
        model,
        state,
        hidden_BRD,
        self._before(drafted, guess_BG),
        end_B[:, None] + row_R[None, :],
    )
    is_right_BG = drawn_BR[:, :G] == guess_BG
    num_right_B = jnp.cumprod(is_right_BG.astype(jnp.int32), axis=1).sum(axis=1)
    passes = drafted.state.num_passes + 1
    return self._append(drafted, drawn_BR, law_BRW, num_right_B + 1).replace(
        state=CascadeState(cache=out.cache, num_passes=passes)
    )

  def _text_so_far(self, state: DecodeState, drafted: _Drafted) -> jax.Array:
    """Returns [B, S] the texts with what was drafted behind them."""
    index_S = jnp.arange(state.tokens_BS.shape[1], dtype=jnp.int32)
    place_BS = index_S[None, :] - state.seq_len_B[:, None]
    return jnp.where(
        place_BS < 0,
        state.tokens_BS,
        drafter_lib.rows_of(drafted.tokens_BJ, place_BS),
    )

  def _before(self, drafted: _Drafted, guess_BG: jax.Array) -> PathDrafts:
    """Returns what comes before each of the G + 1 tokens of a pass."""
    B, J = drafted.tokens_BJ.shape
    row_R = jnp.arange(guess_BG.shape[1] + 1, dtype=jnp.int32)
    index_J = jnp.arange(J, dtype=jnp.int32)
    ahead_BJ = index_J[None, :] - drafted.num_B[:, None]
    tokens_BJ = jnp.where(
        ahead_BJ < 0, drafted.tokens_BJ, drafter_lib.rows_of(guess_BG, ahead_BJ)
    )
    return PathDrafts(
        jnp.broadcast_to(tokens_BJ[:, None, :], (B, len(row_R), J)),
        ahead_BJ[:, None, :] < row_R[None, :, None],
    )

  def _append(
      self,
      drafted: _Drafted,
      drawn_BR: jax.Array,
      law_BRW: jax.Array,
      num_new_B: jax.Array,
  ) -> _Drafted:
    """Keeps the first tokens of a pass, and their laws."""
    J = self.num_draft_tokens
    index_J = jnp.arange(J, dtype=jnp.int32)
    row_BJ = index_J[None, :] - drafted.num_B[:, None]
    is_new_BJ = (row_BJ >= 0) & (row_BJ < num_new_B[:, None])
    return drafted.replace(
        tokens_BJ=jnp.where(
            is_new_BJ, drafter_lib.rows_of(drawn_BR, row_BJ), drafted.tokens_BJ
        ),
        laws_BJW=jnp.where(
            is_new_BJ[..., None],
            drafter_lib.rows_of(law_BRW, row_BJ),
            drafted.laws_BJW,
        ),
        num_B=jnp.minimum(drafted.num_B + num_new_B, J),
    )

  def commit(self, params, drafter_state, state, verdict, features):
    """Has nothing to do: `propose` sets the lengths from the text's."""
    del params, state, verdict, features
    return drafter_state
