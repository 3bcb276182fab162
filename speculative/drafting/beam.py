"""A tree of the tokens that a draft model finds likeliest.

Grown level by level: the draft reads the likeliest nodes of a level in one pass
and offers the likeliest children of each; of all that were offered, those whose
paths are likeliest are drafted (the dynamic trees of EAGLE-2,
arXiv:2406.16858).

  levels 3, width 2, 4 nodes of 2 + 4 + 4 offered; numbers are the draft's
  probabilities of whole paths

          .6 a                .3 b
       .5 c   .05 d        .1 e  .1 f        a c g e are drafted, and the
    .4 g  .1 h                               draft has read a b, then c e

Nothing is drawn, so q is one-hot and sampled output is plain decoding's token
for token, whatever the draft: at a node all the children count, where a drafted
chain has one chance.
"""

import dataclasses
from typing import Any

import flax.struct
import jax
from jax import numpy as jnp

from speculative.decoding import drafter as drafter_lib
from speculative.decoding.drafter import Proposal
from speculative.decoding.state import DecodeState
from speculative.drafting.drawing import ChainDrafter
from speculative.models import kv_cache
from speculative.models.kv_cache import KVCache


@flax.struct.dataclass
class Level:
  """Nodes that the draft reads in one pass, W a row.

  Attributes:
    tokens_BW: int32.
    hidden_BWD: the draft's output at the token before each.
    index_BW: int32, their places among all nodes that were offered.
    score_BW: float32, log-probability of their paths.
    above_BWU: bool, which of the U slots that the draft has written since the
      end of the text are of nodes above them.
  """

  tokens_BW: jax.Array
  hidden_BWD: jax.Array
  index_BW: jax.Array
  score_BW: jax.Array
  above_BWU: jax.Array


@flax.struct.dataclass
class Offered:
  """Children that a level offers, N a row, likeliest first below each parent.

  Attributes:
    tokens_BN: int32.
    parent_BN: int32, places among all nodes that were offered; -1 is the last
      committed token.
    score_BN: float32, log-probability of their paths.
  """

  tokens_BN: jax.Array
  parent_BN: jax.Array
  score_BN: jax.Array


def choose(
    levels: list[Offered], state: DecodeState, num_nodes: int
) -> Proposal:
  """Drafts the likeliest nodes of all that were offered.

  A parent is never less likely than its child and stands before it, so what is
  chosen is a tree. What has no probability at all is not drafted.

  Args:
    levels: from the children of the last committed token on.
    state: of the rows.
    num_nodes: M; at most as many as were offered.

  Returns:
    The Proposal, breadth-first.
  """
  offered = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *levels)
  depth_N = jnp.concatenate(
      [
          jnp.full(level.tokens_BN.shape[1], depth, jnp.int32)
          for depth, level in enumerate(levels, 1)
      ]
  )
  # Equals in the order of their places.
  score_BM, chosen_BM = jax.lax.top_k(offered.score_BN, num_nodes)
  # What has no probability comes last, and the others are a tree without it.
  end = offered.score_BN.shape[1]
  chosen_BM = jnp.where(score_BM > -jnp.inf, chosen_BM, end)
  chosen_BM = jnp.sort(chosen_BM, axis=1)
  is_node_BM = chosen_BM < end
  parent_BM1 = drafter_lib.rows_of(offered.parent_BN, chosen_BM)[..., None]
  is_parent_BMM = parent_BM1 == chosen_BM[:, None, :]
  is_parent_BMM &= is_node_BM[..., None]
  node_M = jnp.arange(num_nodes, dtype=jnp.int32)
  parent_BM = jnp.max(
      jnp.where(is_parent_BMM, node_M[None, None, :], -1), axis=-1
  )
  tokens_BM = drafter_lib.rows_of(offered.tokens_BN, chosen_BM)
  depth_BM = jnp.where(is_node_BM, depth_N[jnp.minimum(chosen_BM, end - 1)], 1)
  return Proposal(
      tokens_BM=jnp.where(is_node_BM, tokens_BM, 0),
      parent_BM=parent_BM,
      depth_BM=depth_BM,
      valid_BM=is_node_BM & drafter_lib.within_depth(state, depth_BM),
      shape='tree',
  )


@dataclasses.dataclass(frozen=True)
class Beam:
  """Drafts a tree with a model.

  Attributes:
    draft: asks the model; its num_draft_tokens is A, most tokens of a path that
      it can catch up with after a round.
    num_draft_tokens: M, nodes.
    levels: depth of the tree, at most A.
    width: W, nodes of a level that the draft reads, and children that it
      offers of each.
  """

  draft: ChainDrafter
  num_draft_tokens: int
  levels: int
  width: int

  def __post_init__(self) -> None:
    W = self.width
    most = W + (self.levels - 1) * W * W
    if not 1 <= self.num_draft_tokens <= most:
      raise ValueError(
          f'{self.levels} levels of width {W} offer {most} nodes, not '
          f'{self.num_draft_tokens}.'
      )
    if self.levels > self.draft.num_draft_tokens:
      raise ValueError(
          f'{self.levels} levels are more than the '
          f'{self.draft.num_draft_tokens} tokens the draft can catch up with.'
      )
    if getattr(self.draft, 'num_behind', self.max_depth + 1) <= self.max_depth:
      raise ValueError(f'the draft needs num_behind > {self.max_depth}.')

  @property
  def max_depth(self) -> int:
    """A."""
    return self.draft.num_draft_tokens

  @property
  def features(self) -> tuple[int, ...]:
    """What the draft wants to see."""
    return self.draft.features

  def init(
      self,
      params: Any,
      state: DecodeState,
      features: dict[int, jax.Array],
      *,
      prompt_width: int,
  ) -> Any:
    """Lets the draft read the prompts."""
    return self.draft.init(
        params,
        state,
        features,
        prompt_width=prompt_width,
        num_spare=(self.levels - 1) * self.width,
    )

  def propose(
      self, params: Any, drafter_state: Any, state: DecodeState
  ) -> tuple[Proposal, Any]:
    """Grows a tree for every row."""
    hidden_B1D, drafter_state = self.draft.catch_up(
        params, drafter_state, state
    )
    proposal, cache = self.grow(params, state, hidden_B1D, drafter_state.cache)
    return proposal, drafter_state.replace(cache=cache)

  def grow(
      self,
      params: Any,
      state: DecodeState,
      hidden_B1D: jax.Array,
      cache: KVCache,
  ) -> tuple[Proposal, KVCache]:
    """Returns a tree, and the cache with what was read of it behind the text.

    Args:
      params: the draft's.
      state: of the rows.
      hidden_B1D: of the last committed token, as `catch_up` returned it.
      cache: the draft's, with the whole text.
    """
    B, W = state.seq_len_B.shape[0], self.width
    num_slots = (self.levels - 1) * W
    # The last committed token, as if it were a level.
    level = Level(
        tokens_BW=jnp.zeros((B, 1), jnp.int32),
        hidden_BWD=hidden_B1D,
        index_BW=jnp.full((B, 1), -1, jnp.int32),
        score_BW=jnp.zeros((B, 1), jnp.float32),
        above_BWU=jnp.zeros((B, 1, num_slots), bool),
    )
    out_BWD = hidden_B1D
    offered = [self._offer(params, level, out_BWD)]
    for depth in range(1, self.levels):
      level = self._next(level, out_BWD, offered, depth)
      out_BWD, cache = self._read(params, state, level, cache, depth)
      offered.append(self._offer(params, level, out_BWD))
    proposal = choose(offered, state, self.num_draft_tokens)
    return proposal, kv_cache.rollback(cache, state.seq_len_B)

  def _offer(self, params: Any, level: Level, out_BWD: jax.Array) -> Offered:
    """Returns the likeliest children of every node of a level."""
    # Neither penalties nor temperature: what is drafted need not be lawful.
    log_q_BWH = self.draft.head.log_probs(params, out_BWD)
    best_BWV, index_BWV = jax.lax.top_k(log_q_BWH, self.width)
    tokens_BWV = self.draft.head.token_ids(params, index_BWV)
    B = best_BWV.shape[0]
    parent_BWV = jnp.broadcast_to(level.index_BW[..., None], best_BWV.shape)
    score_BWV = level.score_BW[..., None] + best_BWV
    return Offered(
        tokens_BN=tokens_BWV.reshape(B, -1),
        parent_BN=parent_BWV.reshape(B, -1),
        score_BN=score_BWV.reshape(B, -1),
    )

  def _next(
      self,
      level: Level,
      out_BWD: jax.Array,
      offered: list[Offered],
      depth: int,
  ) -> Level:
    """Returns the likeliest nodes that a level offered, to be read."""
    W, latest = self.width, offered[-1]
    score_BW, at_BW = jax.lax.top_k(latest.score_BN, W)
    first = sum(x.tokens_BN.shape[1] for x in offered[:-1])
    # Children stand parent by parent.
    parent_BW = at_BW // W
    above_BWU = drafter_lib.rows_of(level.above_BWU, parent_BW)
    # A parent was read in the pass before; the last committed token is text.
    slot_U = jnp.arange(above_BWU.shape[-1], dtype=jnp.int32)
    parent_slot_BW1 = (parent_BW + (depth - 2) * W)[..., None]
    is_parent_BWU = (slot_U[None, None, :] == parent_slot_BW1) & (depth > 1)
    return Level(
        tokens_BW=drafter_lib.rows_of(latest.tokens_BN, at_BW),
        hidden_BWD=drafter_lib.rows_of(out_BWD, parent_BW),
        index_BW=at_BW + first,
        score_BW=score_BW,
        above_BWU=above_BWU | is_parent_BWU,
    )

  def _read(
      self,
      params: Any,
      state: DecodeState,
      level: Level,
      cache: KVCache,
      depth: int,
  ) -> tuple[jax.Array, KVCache]:
    """Reads the nodes of a level; returns the draft's outputs at them."""
    B, W, U = level.above_BWU.shape
    slot_S = jnp.arange(cache.max_seq_len, dtype=jnp.int32)
    offset_BS = slot_S[None, :] - state.seq_len_B[:, None]
    own_W = jnp.arange(W, dtype=jnp.int32) + (depth - 1) * W
    is_own_WU = own_W[:, None] == jnp.arange(U, dtype=jnp.int32)[None, :]
    sees_BWU = level.above_BWU | is_own_WU[None]
    drafted_BWS = jnp.take_along_axis(
        sees_BWU,
        jnp.broadcast_to(
            jnp.clip(offset_BS, 0, U - 1)[:, None, :], (B, W, len(slot_S))
        ),
        axis=2,
    )
    is_drafted_BS = (offset_BS >= 0) & (offset_BS < U)
    visible_BWS = (offset_BS < 0)[:, None, :] | (
        is_drafted_BS[:, None, :] & drafted_BWS
    )
    position_B1 = (state.seq_len_B + depth - 1)[:, None]
    out = self.draft.forward(
        params,
        level.tokens_BW,
        level.hidden_BWD,
        cache,
        positions_BT=jnp.broadcast_to(position_B1, (B, W)),
        visible_BTS=visible_BWS,
    )
    return out.hidden_BTD, out.cache

  def commit(self, params, drafter_state, state, verdict, features):
    """Tells the draft what the target knew along the accepted path."""
    return self.draft.commit(params, drafter_state, state, verdict, features)
