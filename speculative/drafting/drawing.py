"""Drafting a chain with a model: one token after another, each with its law.

What is drawn from is what is reported. A head that holds only some of the
tokens (`models.draft`) is warped and drawn from in its own small space; its
laws are put into the vocabulary once a round, and only if a row samples.
"""

import dataclasses
from typing import Any
from typing import Protocol

import flax.struct
import jax
from jax import numpy as jnp

from speculative.decoding import adjust
from speculative.decoding import drafter as drafter_lib
from speculative.decoding import logits as logits_lib
from speculative.decoding import sampling as sampling_lib
from speculative.decoding import state as state_lib
from speculative.decoding.adjust import Drafts
from speculative.decoding.adjust import PathDrafts
from speculative.decoding.drafter import Proposal
from speculative.decoding.loop import Model
from speculative.decoding.sampling import Sampling
from speculative.decoding.state import DecodeState
from speculative.decoding.verify import Verdict
from speculative.models import draft as draft_lib
from speculative.models.draft import DraftModel
from speculative.models.kv_cache import KVCache


def draw_with_law(
    sampling: Sampling,
    logits_BTW: jax.Array,
    *,
    start_B: jax.Array,
    position_BT: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Draws one of W tokens at T positions and returns the laws they came from.

  Args:
    sampling: the rows' own, so that the draft is warped as the target is.
    logits_BTW: float32, adjusted logits of the draft.
    start_B: int32, index in the text of the round's first token.
    position_BT: int32, index of each drafted token.

  Returns:
    Indices into W, int32 [B, T], and q float32 [B, T, W]; one-hot for greedy
    rows.
  """
  W = logits_BTW.shape[-1]

  def greedy() -> tuple[jax.Array, jax.Array]:
    index_BT = jnp.argmax(logits_BTW, axis=-1).astype(jnp.int32)
    return index_BT, jax.nn.one_hot(index_BT, W, dtype=jnp.float32)

  def sampled() -> tuple[jax.Array, jax.Array]:
    law_BTW = logits_lib.warp_probs(sampling.warping, logits_BTW)
    keys_BT = sampling_lib.trial_keys(
        sampling.seed_B, start_B, position_BT, sampling_lib.DRAFT
    )
    return sampling_lib.categorical(keys_BT, law_BTW), law_BTW

  return jax.lax.cond(jnp.all(sampling.greedy_B), greedy, sampled)


@dataclasses.dataclass(frozen=True)
class Head:
  """The tokens a draft model draws from, W of them.

  Attributes:
    model: the draft.
    vocab_size: V of the target. The logits of a model without a partial head
      are cut or padded to it (padding is never drawn), as heads over one
      tokenizer may differ in size; W is V then.
  """

  model: Model
  vocab_size: int

  @property
  def is_partial(self) -> bool:
    """Whether W is less than V, and indices are not token ids."""
    return (
        isinstance(self.model, DraftModel)
        and self.model.config.head_size < self.vocab_size
    )

  @property
  def size(self) -> int:
    """W."""
    return self.model.config.head_size if self.is_partial else self.vocab_size

  def draw(
      self,
      params: Any,
      state: DecodeState,
      hidden_B1D: jax.Array,
      tokens_BJ: jax.Array,
      j: jax.Array | int,
  ) -> tuple[jax.Array, jax.Array]:
    """Draws drafted token j after tokens[:j].

    Args:
      params: the draft's.
      state: of the rows.
      hidden_B1D: of the token before it.
      tokens_BJ: int32, drafted so far.
      j: int32.

    Returns:
      The token ids [B], and the law [B, W] each was drawn from.
    """
    before_1J = (jnp.arange(tokens_BJ.shape[1]) < j)[None, :]
    tokens_B1, law_B1W = self.draw_many(
        params,
        state,
        hidden_B1D,
        Drafts(tokens_BJ, before_1J),
        (state.seq_len_B + j)[:, None],
    )
    return tokens_B1[:, 0], law_B1W[:, 0]

  def draw_many(
      self,
      params: Any,
      state: DecodeState,
      hidden_BTD: jax.Array,
      drafts: Drafts | PathDrafts,
      position_BT: jax.Array,
  ) -> tuple[jax.Array, jax.Array]:
    """Draws drafted tokens at T positions.

    Args:
      params: the draft's.
      state: of the rows.
      hidden_BTD: of the token before each.
      drafts: which come before each.
      position_BT: int32, index in the text of each.

    Returns:
      The token ids [B, T], and the law [B, T, W] each was drawn from.
    """
    index_BT, law_BTW = draw_with_law(
        state.sampling,
        self._logits(params, state, hidden_BTD, drafts),
        start_B=state.seq_len_B,
        position_BT=position_BT,
    )
    return self.token_ids(params, index_BT), law_BTW

  def log_probs(self, params: Any, hidden_BTD: jax.Array) -> jax.Array:
    """Returns [B, T, W], neither adjusted nor warped."""
    return jax.nn.log_softmax(self.raw_logits(params, hidden_BTD), axis=-1)

  def token_ids(self, params: Any, index: jax.Array) -> jax.Array:
    """Returns the token ids of indices into W."""
    return params[draft_lib.HEAD_IDS][index] if self.is_partial else index

  def raw_logits(self, params: Any, hidden_BTD: jax.Array) -> jax.Array:
    """Returns float32 logits [B, T, W] as the model has them."""
    if self.is_partial:
      return self.model.head_logits(params, hidden_BTD)
    logits_BTV = self.model.logits(params, hidden_BTD)
    extra = self.vocab_size - logits_BTV.shape[-1]
    logits_BTV = logits_BTV[:, :, : self.vocab_size]
    if extra > 0:
      logits_BTV = jnp.pad(
          logits_BTV, ((0, 0), (0, 0), (0, extra)), constant_values=-jnp.inf
      )
    return logits_BTV

  def _logits(
      self,
      params: Any,
      state: DecodeState,
      hidden_BTD: jax.Array,
      drafts: Drafts | PathDrafts,
  ) -> jax.Array:
    """Returns adjusted logits [B, T, W]."""
    logits_BTW = self.raw_logits(params, hidden_BTD)
    if not self.is_partial:
      return state_lib.adjusted(state, logits_BTW, drafts)

    def over_vocabulary() -> jax.Array:
      whole_BTV = self.model.spread(params, logits_BTW, -jnp.inf)
      whole_BTV = state_lib.adjusted(state, whole_BTV, drafts)
      return whole_BTV[:, :, params[draft_lib.HEAD_IDS]]

    # What is done to one token's logit has nothing to do with other tokens.
    return jax.lax.cond(
        adjust.is_active(state.sampling.adjustment),
        over_vocabulary,
        lambda: logits_BTW,
    )

  def laws(
      self,
      params: Any,
      state: DecodeState,
      tokens_BJ: jax.Array,
      laws_BJW: jax.Array,
      certain_B: jax.Array | None = None,
  ) -> jax.Array:
    """Returns q [B, J, V] of the round's tokens.

    Args:
      params: the draft's.
      state: of the rows.
      tokens_BJ: int32, as drafted.
      laws_BJW: the laws that `draw` returned with them.
      certain_B: bool, rows whose tokens were not drawn: their q is one-hot.
    """
    if certain_B is None and not self.is_partial:
      return laws_BJW

    def one_hot() -> jax.Array:
      return jax.nn.one_hot(tokens_BJ, self.vocab_size, dtype=jnp.float32)

    def drawn() -> jax.Array:
      q_BJV = laws_BJW
      if self.is_partial:
        q_BJV = self.model.spread(params, q_BJV, 0.0)
      if certain_B is None:
        return q_BJV
      return jnp.where(certain_B[:, None, None], one_hot(), q_BJV)

    return jax.lax.cond(jnp.all(state.sampling.greedy_B), one_hot, drawn)


class ChainDrafter(Protocol):
  """A drafter that asks a model for one token after another.

  One that may lack several tokens of a text has `num_behind`, as many as
  `catch_up` reads.
  """

  @property
  def num_draft_tokens(self) -> int:
    """J."""
    ...

  @property
  def features(self) -> tuple[int, ...]:
    """Layers of the target whose outputs it wants."""
    ...

  @property
  def head(self) -> Head:
    """What it draws from."""
    ...

  def init(
      self,
      params: Any,
      state: DecodeState,
      features: dict[int, jax.Array],
      *,
      prompt_width: int,
      num_spare: int = 0,
  ) -> Any:
    """Reads the prompts.

    Args:
      params: the draft's.
      state: rows hold their prompts.
      features: of the target over the prompt.
      prompt_width: static; no prompt is longer.
      num_spare: slots of the cache behind the longest text, to draft in.
    """
    ...

  def catch_up(
      self, params: Any, drafter_state: Any, state: DecodeState
  ) -> tuple[jax.Array, Any]:
    """Reads what was committed since the last round.

    Returns:
      The hidden state [B, 1, D] of the last committed token, and a state whose
      cache holds the whole text.
    """
    ...

  def forward(
      self,
      params: Any,
      tokens_B1: jax.Array,
      hidden_B1D: jax.Array,
      cache: KVCache,
      **where: Any,
  ) -> Any:
    """Reads drafted tokens, one a row unless `where` says where they stand.

    Args:
      params: the draft's.
      tokens_B1: int32.
      hidden_B1D: of the token before each.
      cache: the draft's.
      **where: positions_BT and visible_BTS of `Transformer.forward`.
    """
    ...

  def commit(
      self,
      params: Any,
      drafter_state: Any,
      state: DecodeState,
      verdict: Verdict,
      features: dict[int, jax.Array],
  ) -> Any:
    """Returns its state after a round, see `decoding.drafter.Drafter`."""
    ...


@flax.struct.dataclass
class Chain:
  """J tokens drafted one after another.

  Attributes:
    tokens_BJ: int32.
    laws_BJW: float32, what each was drawn from.
    cache: the draft's, with all of them but the last.
  """

  tokens_BJ: jax.Array
  laws_BJW: jax.Array
  cache: KVCache


def step(
    drafter: ChainDrafter,
    params: Any,
    state: DecodeState,
    tokens_BJ: jax.Array,
    hidden_B1D: jax.Array,
    cache: KVCache,
    j: jax.Array,
) -> tuple[jax.Array, jax.Array, Any]:
  """Drafts token j >= 1 after tokens[:j].

  Args:
    drafter: asks its model.
    params: the draft's.
    state: of the rows.
    tokens_BJ: int32, drafted so far.
    hidden_B1D: of the token before token j - 1.
    cache: the draft's, with all but the last of them.
    j: int32 scalar.

  Returns:
    The tokens with number j, its law [B, W], and what the model returned.
  """
  last_B1 = jax.lax.dynamic_slice_in_dim(tokens_BJ, j - 1, 1, axis=1)
  out = drafter.forward(params, last_B1, hidden_B1D, cache)
  token_B, law_BW = drafter.head.draw(
      params, state, out.hidden_BTD, tokens_BJ, j
  )
  tokens_BJ = jax.lax.dynamic_update_slice_in_dim(
      tokens_BJ, token_B[:, None], j, axis=1
  )
  return tokens_BJ, law_BW, out


def draw_chain(
    drafter: ChainDrafter,
    params: Any,
    state: DecodeState,
    hidden_B1D: jax.Array,
    cache: KVCache,
) -> Chain:
  """Drafts J tokens for every row.

  Args:
    drafter: asks its model.
    params: the draft's.
    state: of the rows.
    hidden_B1D: of the last committed token, as `catch_up` returned it.
    cache: the draft's, with the whole text.
  """
  J = drafter.num_draft_tokens
  tokens_BJ = jnp.zeros((state.seq_len_B.shape[0], J), jnp.int32)
  first_B, law_BW = drafter.head.draw(params, state, hidden_B1D, tokens_BJ, 0)
  tokens_BJ = tokens_BJ.at[:, 0].set(first_B)

  def one(carry, j):
    tokens_BJ, law_BW, out = step(drafter, params, state, *carry, j)
    return (tokens_BJ, out.hidden_BTD, out.cache), law_BW

  (tokens_BJ, _, cache), laws_JBW = jax.lax.scan(
      one,
      (tokens_BJ, hidden_B1D, cache),
      jnp.arange(1, J, dtype=jnp.int32),
  )
  laws_BJW = jnp.concatenate([law_BW[None], laws_JBW]).swapaxes(0, 1)
  return Chain(tokens_BJ=tokens_BJ, laws_BJW=laws_BJW, cache=cache)


def propose(
    drafter: ChainDrafter, params: Any, drafter_state: Any, state: DecodeState
) -> tuple[Proposal, Any]:
  """Drafts J tokens for every row; `Drafter.propose` of a chain drafter."""
  hidden_B1D, drafter_state = drafter.catch_up(params, drafter_state, state)
  chain = draw_chain(drafter, params, state, hidden_B1D, drafter_state.cache)
  proposal = drafter_lib.chain(
      chain.tokens_BJ,
      drafter_lib.within_budget(state, drafter.num_draft_tokens),
      drafter.head.laws(params, state, chain.tokens_BJ, chain.laws_BJW),
  )
  return proposal, drafter_state.replace(cache=chain.cache)
