"""What a drafter is and what it hands to verification."""

from typing import Any
from typing import Protocol

import flax.struct
import jax
from jax import numpy as jnp

from speculative.decoding.state import DecodeState
from speculative.decoding.verify import Verdict
from speculative.sharding import Placement


@flax.struct.dataclass
class Proposal:
  """Drafted tokens of one round: M nodes of a tree, or of a chain.

  A chain of J tokens is the tree in which node j hangs below node j - 1:

    three drafted tokens, the last one beyond the row's budget
      tokens [7, 2, 9]  parent [-1, 0, 1]  depth [1, 2, 3]  valid [1, 1, 0]

  Attributes:
    tokens_BM: int32.
    parent_BM: int32, node this one hangs below; -1 is the last committed token.
      A parent comes before its children.
    depth_BM: int32, 1 for children of the last committed token.
    valid_BM: bool; a miss, a short budget or a smaller tree leave invalid
      nodes, never made-up tokens. Below an invalid node all are invalid.
    probs_BPV: float32 law q each node was drawn from, stored once a parent:
      row 0 for children of the last committed token, row r for those of node
      r - 1; P is J for a chain. None for a deterministic draft (q one-hot).
    shape: static, 'chain' or 'tree': how it is verified. A tree's siblings
      stand in the order in which they were drawn, and the nodes of a smaller
      bucket are a tree by themselves, as in breadth-first order.
    replacement: static, 'with' or 'without': how the siblings of a sampled tree
      were drawn.
  """

  tokens_BM: jax.Array
  parent_BM: jax.Array
  depth_BM: jax.Array
  valid_BM: jax.Array
  probs_BPV: jax.Array | None = None
  shape: str = flax.struct.field(pytree_node=False, default='chain')
  replacement: str = flax.struct.field(pytree_node=False, default='without')

  def first(self, num_nodes: int) -> 'Proposal':
    """Returns the first nodes alone; q, too, of no more parents than rows."""
    probs_BPV = self.probs_BPV
    return self.replace(
        tokens_BM=self.tokens_BM[:, :num_nodes],
        parent_BM=self.parent_BM[:, :num_nodes],
        depth_BM=self.depth_BM[:, :num_nodes],
        valid_BM=self.valid_BM[:, :num_nodes],
        probs_BPV=None if probs_BPV is None else probs_BPV[:, : num_nodes + 1],
    )

  def padded(self, num_nodes: int) -> 'Proposal':
    """Returns it with invalid nodes behind its own, of a deterministic draft.

    Args:
      num_nodes: at least as many as it has.

    Raises:
      ValueError: If the draft has laws.
    """
    if self.probs_BPV is not None:
      raise ValueError(
          'laws have no rows for invalid nodes; only a deterministic draft is '
          'padded.'
      )
    extra = ((0, 0), (0, num_nodes - self.tokens_BM.shape[1]))
    return self.replace(
        tokens_BM=jnp.pad(self.tokens_BM, extra),
        parent_BM=jnp.pad(self.parent_BM, extra, constant_values=-1),
        depth_BM=jnp.pad(self.depth_BM, extra, constant_values=1),
        valid_BM=jnp.pad(self.valid_BM, extra),
    )

  def replicated(self, placement: Placement) -> 'Proposal':
    """Says that every device holds the nodes; q stays where it is."""
    nodes = placement.replicate(self.replace(probs_BPV=None))
    return nodes.replace(probs_BPV=self.probs_BPV)


def chain(
    tokens_BJ: jax.Array,
    valid_BJ: jax.Array,
    probs_BJV: jax.Array | None = None,
) -> Proposal:
  """Returns the Proposal of one chain a row."""
  B, J = tokens_BJ.shape
  node_J = jnp.arange(J, dtype=jnp.int32)
  return Proposal(
      tokens_BM=tokens_BJ,
      parent_BM=jnp.broadcast_to(node_J - 1, (B, J)),
      depth_BM=jnp.broadcast_to(node_J + 1, (B, J)),
      valid_BM=valid_BJ,
      probs_BPV=probs_BJV,
  )


def within_budget(state: DecodeState, num_draft_tokens: int) -> jax.Array:
  """Marks [B, J] the drafted tokens that a row has room for.

  A round always adds one token of the target's own, so with r tokens to go at
  most r - 1 drafted ones are of use.
  """
  node_J = jnp.arange(num_draft_tokens, dtype=jnp.int32)
  return node_J[None, :] < _room(state)[:, None]


def within_depth(state: DecodeState, depth_BM: jax.Array) -> jax.Array:
  """Marks [B, M] the nodes of a tree that a row has room for."""
  return depth_BM <= _room(state)[:, None]


def _room(state: DecodeState) -> jax.Array:
  return jnp.where(state.done_B, 0, state.limit_B - state.seq_len_B - 1)


def rows_of(x_BWn: jax.Array, index_BV: jax.Array) -> jax.Array:
  """Takes rows [B, V, ...] of an array [B, W, ...].

  Args:
    x_BWn: of any further dimensions.
    index_BV: int32; those outside take the nearest row.
  """
  index_BV = jnp.clip(index_BV, 0, x_BWn.shape[1] - 1)
  index = index_BV.reshape(index_BV.shape + (1,) * (x_BWn.ndim - 2))
  return jnp.take_along_axis(x_BWn, index, axis=1)


class Drafter(Protocol):
  """Proposes tokens; a frozen dataclass of static settings, hashable.

  Its params are an argument everywhere (never a constant of the program, never
  donated); its state is whatever pytree it likes and is donated.

  One that drafts trees also has `max_depth`, most tokens of a path, and may
  have `buckets`, see those functions.
  """

  @property
  def num_draft_tokens(self) -> int:
    """M, nodes of a proposal; 0 makes a round plain decoding."""
    ...

  @property
  def features(self) -> tuple[int, ...]:
    """Layers of the target whose output `init` and `commit` want to see."""
    ...

  def init(
      self,
      params: Any,
      state: DecodeState,
      features: dict[int, jax.Array],
      *,
      prompt_width: int,
  ) -> Any:
    """Returns the drafter's state after prefill.

    Args:
      params: the drafter's own.
      state: rows hold their prompts.
      features: of the target over the prompt, one a layer asked for.
      prompt_width: static; no prompt is longer.
    """
    ...

  def propose(
      self, params: Any, drafter_state: Any, state: DecodeState
  ) -> tuple[Proposal, Any]:
    """Drafts after the last committed token of every row."""
    ...

  def commit(
      self,
      params: Any,
      drafter_state: Any,
      state: DecodeState,
      verdict: Verdict,
      features: dict[int, jax.Array],
  ) -> Any:
    """Takes note of what was kept; `state` is the one after the commit."""
    ...


def max_depth(drafter: Drafter) -> int:
  """Returns the most drafted tokens a round can keep: M for a chain."""
  return getattr(drafter, 'max_depth', drafter.num_draft_tokens)


def buckets(drafter: Drafter) -> tuple[int, ...]:
  """Returns the numbers of nodes that passes are compiled for.

  A round takes the smallest that holds the valid nodes of every row, so that a
  small tree does not pay for a large one. Ascending, at least 1; M is the last.
  """
  return getattr(drafter, 'buckets', (drafter.num_draft_tokens,))
