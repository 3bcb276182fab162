"""A drafter of trees without a model: random shapes around a known text."""

import dataclasses
from typing import Any

import flax.struct
import jax
from jax import numpy as jnp

from speculative.decoding import drafter as drafter_lib
from speculative.decoding.drafter import Proposal
from speculative.decoding.state import DecodeState
from speculative.decoding.verify import Verdict


@flax.struct.dataclass
class Script:
  """What the trees of a batch are made from.

  Attributes:
    tokens_BP: int32, the text that the rows are expected to have.
    seed: uint32 scalar.
  """

  tokens_BP: jax.Array
  seed: jax.Array


@dataclasses.dataclass(frozen=True)
class RandomTree:
  """Drafts another tree in every row and round; its params are a Script.

  A node hangs below any earlier one that is not too deep, or below the last
  committed token, and has the expected token of its place or a random one. How
  many nodes are valid is random too.

  Attributes:
    num_draft_tokens: M.
    max_depth: A.
    vocab_size: V.
    right: the chance of a node to have the expected token.
    buckets: numbers of nodes that passes are compiled for, M last; M alone
      where it is empty.
  """

  num_draft_tokens: int
  max_depth: int
  vocab_size: int
  right: float = 0.6
  sizes: tuple[int, ...] = ()

  @property
  def buckets(self) -> tuple[int, ...]:
    """Numbers of nodes that passes are compiled for."""
    return self.sizes or (self.num_draft_tokens,)

  @property
  def features(self) -> tuple[int, ...]:
    """No layers' outputs are needed."""
    return ()

  def init(
      self,
      params: Script,
      state: DecodeState,
      features: dict[int, jax.Array],
      *,
      prompt_width: int,
  ) -> None:
    """Has no state."""
    del params, state, features, prompt_width

  def propose(
      self, params: Script, drafter_state: None, state: DecodeState
  ) -> tuple[Proposal, None]:
    """Grows a tree node by node."""
    B, P = params.tokens_BP.shape
    row_B = jnp.arange(B, dtype=jnp.int32)

    def key_of(row: jax.Array, length: jax.Array) -> jax.Array:
      key = jax.random.fold_in(jax.random.key(params.seed), row)
      return jax.random.fold_in(key, length)

    u_BNM = jax.vmap(
        lambda key: jax.random.uniform(key, (4, self.num_draft_tokens))
    )(jax.vmap(key_of)(row_B, state.seq_len_B))
    # Row 0 stands for the last committed token.
    depth_BT = jnp.zeros((B, 1), jnp.int32)
    parents, tokens = [], []
    for m in range(self.num_draft_tokens):
      row_B = (u_BNM[:, 0, m] * (m + 1)).astype(jnp.int32)
      above_B = jnp.take_along_axis(depth_BT, row_B[:, None], axis=1)[:, 0]
      row_B = jnp.where(above_B < self.max_depth, row_B, 0)
      depth_B = jnp.where(above_B < self.max_depth, above_B, 0) + 1
      at_B = jnp.minimum(state.seq_len_B + depth_B - 1, P - 1)
      expected_B = jnp.take_along_axis(params.tokens_BP, at_B[:, None], axis=1)[
          :, 0
      ]
      random_B = (u_BNM[:, 1, m] * self.vocab_size).astype(jnp.int32)
      parents.append(row_B - 1)
      tokens.append(
          jnp.where(u_BNM[:, 2, m] < self.right, expected_B, random_B)
      )
      depth_BT = jnp.concatenate([depth_BT, depth_B[:, None]], axis=1)
    depth_BM = depth_BT[:, 1:]
    num_B1 = u_BNM[:, 3, :1] * (self.num_draft_tokens + 1)
    node_M = jnp.arange(self.num_draft_tokens)
    # The first nodes are a tree, and so are those that are not too deep.
    valid_BM = node_M[None, :] < num_B1.astype(jnp.int32)
    proposal = Proposal(
        tokens_BM=jnp.stack(tokens, axis=1),
        parent_BM=jnp.stack(parents, axis=1),
        depth_BM=depth_BM,
        valid_BM=valid_BM & drafter_lib.within_depth(state, depth_BM),
        shape='tree',
    )
    return proposal, drafter_state

  def commit(
      self,
      params: Script,
      drafter_state: None,
      state: DecodeState,
      verdict: Verdict,
      features: dict[int, Any],
  ) -> None:
    """Has nothing to remember."""
    del params, drafter_state, state, verdict, features
