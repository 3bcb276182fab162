"""A tree of a draft model: several tokens after each node, level by level.

The children of a node are drawn one after another without replacement from the
draft's law there, and that law is reported, so that a sampled row keeps the
target's law (`decoding.verify_tree`). A greedy row gets the likeliest tokens.

    widths (2, 1): two tokens after the text, one after each of them
      parent [-1, -1, 0, 1]; two passes of the draft, over the text and 2 nodes

The draft reads all nodes but the leaves, in slots behind the text, and what was
accepted is moved together afterwards as in the target's cache. What it lacks
then is at most the last two tokens, as for a chain (`drafting.lm`).
"""

import dataclasses
import math
from typing import Any

import flax.struct
import jax
from jax import numpy as jnp

from speculative.decoding import drafter as drafter_lib
from speculative.decoding import logits as logits_lib
from speculative.decoding import sampling as sampling_lib
from speculative.decoding import state as state_lib
from speculative.decoding import tree as tree_lib
from speculative.decoding.adjust import PathDrafts
from speculative.decoding.drafter import Proposal
from speculative.decoding.loop import Model
from speculative.decoding.sampling import Sampling
from speculative.decoding.state import DecodeState
from speculative.decoding.tree import Tree
from speculative.decoding.tree import TreeVerdict
from speculative.drafting.lm import Lm
from speculative.drafting.lm import LmState
from speculative.errors import UserError
from speculative.models import kv_cache
from speculative.models.kv_cache import KVCache


@flax.struct.dataclass
class TreeLmState:
  """The draft's cache, and where its last tree is in it.

  Attributes:
    cache: the draft's.
    start_B: int32, slot of the last tree's first node.
  """

  cache: KVCache
  start_B: jax.Array


def shape_of(widths: tuple[int, ...]) -> tuple[list[int], list[int]]:
  """Returns the parents of a tree's nodes, level by level, and level sizes.

    widths (2, 1): parents [-1, -1, 0, 1], sizes [2, 2]

  Args:
    widths: children of every node of a level, from the last committed token on.
  """
  parents, level, sizes = [], [-1], []
  for width in widths:
    first = len(parents)
    parents += [node for node in level for _ in range(width)]
    level = list(range(first, len(parents)))
    sizes.append(len(level))
  return parents, sizes


def draw_without_replacement(
    sampling: Sampling,
    logits_BTV: jax.Array,
    keys_BT: jax.Array,
    *,
    width: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Draws several different tokens at every row.

  Each from what the ones before it leave of the law. (Noise on the logits and
  one top-k have the same law; this needs far fewer random numbers.)

  Args:
    sampling: how.
    logits_BTV: float32, adjusted logits of the draft.
    keys_BT: used for nothing else.
    width: how many.

  Returns:
    Tokens [B, T, width], in the order drawn; for greedy rows the likeliest,
    likeliest first. Which of them there are: a law may have fewer tokens. And
    the law [B, T, V] of the first.
  """
  greedy_B11 = sampling.greedy_B[:, None, None]

  def best() -> tuple[jax.Array, jax.Array]:
    top_BTW, tokens_BTW = jax.lax.top_k(logits_BTV, width)
    return tokens_BTW.astype(jnp.int32), top_BTW > -jnp.inf

  def greedy() -> tuple[jax.Array, jax.Array, jax.Array]:
    return *best(), jnp.zeros_like(logits_BTV)

  def sampled() -> tuple[jax.Array, jax.Array, jax.Array]:
    law_BTV = logits_lib.warp_probs(sampling.warping, logits_BTV)
    index_V = jnp.arange(law_BTV.shape[-1])
    rest_BTV, tokens, there = law_BTV, [], []
    for i in range(width):
      each_BT = jax.vmap(jax.vmap(lambda key, i=i: jax.random.fold_in(key, i)))
      token_BT = sampling_lib.categorical(each_BT(keys_BT), rest_BTV)
      is_it_BTV = index_V[None, None, :] == token_BT[..., None]
      there.append(jnp.any(rest_BTV > 0, axis=-1))
      tokens.append(token_BT)
      rest_BTV = jnp.where(is_it_BTV, 0, rest_BTV)
    tokens_BTW, there_BTW = best()
    return (
        jnp.where(greedy_B11, tokens_BTW, jnp.stack(tokens, axis=-1)),
        jnp.where(greedy_B11, there_BTW, jnp.stack(there, axis=-1)),
        law_BTV,
    )

  return jax.lax.cond(jnp.all(sampling.greedy_B), greedy, sampled)


@dataclasses.dataclass(frozen=True)
class TreeLm:
  """Drafts a tree of one shape with a model of its own.

  Attributes:
    model: the draft; shares the target's tokenizer, with a whole head.
    widths: children of every node of a level.
    vocab_size: V of the target.
  """

  model: Model
  widths: tuple[int, ...]
  vocab_size: int

  def __post_init__(self) -> None:
    if not self.widths or min(self.widths) < 1:
      raise UserError(
          f'a draft tree needs widths >= 1, one a level, got {self.widths}.'
      )
    if max(self.widths) > self.vocab_size:
      raise UserError(
          f'a draft tree of widths {self.widths} needs as many tokens, but the '
          f'vocabulary has {self.vocab_size}; use smaller widths.'
      )

  @property
  def num_draft_tokens(self) -> int:
    """M."""
    return len(shape_of(self.widths)[0])

  @property
  def max_depth(self) -> int:
    """A."""
    return len(self.widths)

  @property
  def features(self) -> tuple[int, ...]:
    """No layers' outputs are needed."""
    return ()

  @property
  def _lm(self) -> Lm:
    """Reads texts as a chain's draft does."""
    return Lm(self.model, self.max_depth, self.vocab_size)

  def init(
      self,
      params: Any,
      state: DecodeState,
      features: dict[int, jax.Array],
      *,
      prompt_width: int,
  ) -> TreeLmState:
    """Reads the prompts."""
    read = self._lm.init(params, state, features, prompt_width=prompt_width)
    return TreeLmState(
        cache=read.cache, start_B=jnp.zeros_like(state.seq_len_B)
    )

  def propose(
      self, params: Any, drafter_state: TreeLmState, state: DecodeState
  ) -> tuple[Proposal, TreeLmState]:
    """Drafts level by level."""
    parents, sizes = shape_of(self.widths)
    B, S = state.seq_len_B.shape[0], drafter_state.cache.max_seq_len
    known = LmState(cache=drafter_state.cache, known_B=drafter_state.start_B)
    hidden_BTD, caught_up = self._lm.catch_up(params, known, state)
    cache = caught_up.cache
    parent_BM = jnp.broadcast_to(
        jnp.asarray(parents, jnp.int32), (B, len(parents))
    )
    tokens_BM = jnp.zeros(parent_BM.shape, jnp.int32)
    valid, laws = [], []
    # Rows are numbered as in the target's pass: row 0 is the last token.
    first, above_valid_BT = 0, jnp.ones((B, 1), bool)
    for level, (width, size) in enumerate(zip(self.widths, sizes, strict=True)):
      tree = tree_lib.make(
          tokens_BM,
          parent_BM,
          jnp.ones(parent_BM.shape, bool),
          max_depth=self.max_depth,
      )
      rows = slice(first, first + size // width)
      if level:
        hidden_BTD, cache = self._read(params, state, tree, rows, cache, S)
      tokens_BTW, there_BTW, law_BTV = draw_without_replacement(
          state.sampling,
          self._logits(params, state, hidden_BTD, tree, rows),
          self._keys(state, level, rows),
          width=width,
      )
      tokens_BM = jax.lax.dynamic_update_slice_in_dim(
          tokens_BM, tokens_BTW.reshape(B, size), rows.stop - 1, axis=1
      )
      there_BTW &= above_valid_BT[..., None]
      above_valid_BT = there_BTW.reshape(B, size)
      valid.append(above_valid_BT)
      laws.append(law_BTV)
      first = rows.stop
    depth_BM = jnp.broadcast_to(
        jnp.repeat(
            jnp.arange(1, self.max_depth + 1, dtype=jnp.int32),
            jnp.asarray(sizes),
            total_repeat_length=len(parents),
        ),
        parent_BM.shape,
    )
    valid_BM = jnp.concatenate(valid, axis=1)
    proposal = Proposal(
        tokens_BM=tokens_BM,
        parent_BM=parent_BM,
        depth_BM=depth_BM,
        valid_BM=valid_BM & drafter_lib.within_depth(state, depth_BM),
        probs_BPV=jnp.concatenate(laws, axis=1),
        shape='tree',
        replacement='without',
    )
    return proposal, TreeLmState(cache=cache, start_B=state.seq_len_B)

  def _read(
      self,
      params: Any,
      state: DecodeState,
      tree: Tree,
      rows: slice,
      cache: KVCache,
      num_slots: int,
  ) -> tuple[jax.Array, KVCache]:
    """Runs the nodes of a level through the draft.

    Args:
      params: the draft's.
      state: of the rows.
      tree: with the tokens of this level.
      rows: of the level, in the target's pass.
      cache: with the text and the levels above.
      num_slots: S of it.

    Returns:
      Hidden states [B, T, D] of the level, and the cache with it.
    """
    slot_S = jnp.arange(num_slots, dtype=jnp.int32)
    # Row r of the tree is in slot seq_len - 1 + r; row 0 is of the text.
    row_BS = slot_S[None, :] - (state.seq_len_B - 1)[:, None]
    ancestors_BTT = tree.ancestors_BTT[:, rows]
    T = ancestors_BTT.shape[2]
    above_BTS = jnp.take_along_axis(
        ancestors_BTT, jnp.clip(row_BS, 0, T - 1)[:, None, :], axis=2
    )
    in_tree_BS = (row_BS > 0) & (row_BS < T)
    visible_BTS = (row_BS <= 0)[:, None, :] | (
        in_tree_BS[:, None, :] & above_BTS
    )
    out = self.model.forward(
        params,
        tree.tokens_BM[:, rows.start - 1 : rows.stop - 1],
        cache,
        positions_BT=state.seq_len_B[:, None] - 1 + tree.depth_BT[:, rows],
        visible_BTS=visible_BTS,
    )
    return out.hidden_BTD, out.cache

  def _logits(
      self,
      params: Any,
      state: DecodeState,
      hidden_BTD: jax.Array,
      tree: Tree,
      rows: slice,
  ) -> jax.Array:
    """Returns adjusted logits over the target's vocabulary."""
    drafts = tree.drafts()
    return state_lib.adjusted(
        state,
        self._lm.head.raw_logits(params, hidden_BTD),
        PathDrafts(drafts.tokens_BTA[:, rows], drafts.before_BTA[:, rows]),
    )

  def _keys(self, state: DecodeState, level: int, rows: slice) -> jax.Array:
    """Returns a key for the children of every row of a level."""
    num = rows.stop - rows.start
    position_B1 = state.seq_len_B[:, None] + level
    keys_BT = sampling_lib.trial_keys(
        state.sampling.seed_B,
        state.seq_len_B,
        jnp.broadcast_to(position_B1, (position_B1.shape[0], num)),
        sampling_lib.DRAFT,
    )
    return sampling_lib.of_nodes(keys_BT)

  def commit(
      self,
      params: Any,
      drafter_state: TreeLmState,
      state: DecodeState,
      verdict: TreeVerdict,
      features: dict[int, jax.Array],
  ) -> TreeLmState:
    """Moves what the draft read of the accepted path together."""
    del params, state, features
    # Leaves were not read.
    num_read = self.num_draft_tokens - math.prod(self.widths)
    path_BA = verdict.path_BA[:, : self.max_depth - 1]
    if not num_read:
      return drafter_state
    return drafter_state.replace(
        cache=kv_cache.compact(
            drafter_state.cache, drafter_state.start_B, path_BA
        )
    )
