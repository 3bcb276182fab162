"""Drafted trees: which row sees which, and the way down to one of them.

A pass over a tree has T = 1 + M rows: row 0 is the last committed token, row
1 + m is node m. A is the most tokens of a path, the greatest depth of a tree.
"""

import flax.struct
import jax
from jax import numpy as jnp

from speculative.decoding.adjust import PathDrafts
from speculative.decoding.verify import Verdict


@flax.struct.dataclass
class TreeVerdict(Verdict):
  """What one pass over a tree decided for every row.

  A depth counts as tested if the node reached above it has valid children.

  Attributes:
    path_BA: int32, the accepted node of every depth; -1 beyond num_accepted.
  """

  path_BA: jax.Array


@flax.struct.dataclass
class Tree:
  """Nodes of a draft, and how they hang together.

    nodes 0, 1 below the last token, 2 below 1: A = 2
      parent [-1, -1, 1]   lineage of rows 0..3: [0 0] [1 0] [2 0] [3 2]

  Attributes:
    tokens_BM: int32.
    parent_BM: int32, -1 is the last committed token; a parent comes before its
      children.
    valid_BM: bool; below an invalid node all are invalid, and so is all that
      lies deeper than A.
    lineage_BTA: int32, rows from a row itself up to a child of row 0, then 0.
  """

  tokens_BM: jax.Array
  parent_BM: jax.Array
  valid_BM: jax.Array
  lineage_BTA: jax.Array

  @property
  def depth_BT(self) -> jax.Array:
    """How many tokens of the tree lie on the way to a row, its own included."""
    return (self.lineage_BTA > 0).sum(axis=-1).astype(jnp.int32)

  @property
  def ancestors_BTT(self) -> jax.Array:
    """Which rows a row sees: itself and all above it."""
    T = self.lineage_BTA.shape[1]
    row_T = jnp.arange(T, dtype=jnp.int32)
    above_BTT = jnp.any(
        self.lineage_BTA[..., None] == row_T[None, None, None, :], axis=2
    )
    return above_BTT | (row_T == 0)[None, None, :]

  def drafts(self) -> PathDrafts:
    """Returns the drafted tokens before what each row decides."""
    return PathDrafts(
        tokens_BTA=self._at(
            jnp.pad(self.tokens_BM, ((0, 0), (1, 0))), self.lineage_BTA
        ),
        before_BTA=self.lineage_BTA > 0,
    )

  def path(self, row_B: jax.Array) -> jax.Array:
    """Returns [B, A] the nodes on the way down to a row; -1 beyond it."""
    A = self.lineage_BTA.shape[2]
    lineage_BA = jnp.take_along_axis(
        self.lineage_BTA, row_B[:, None, None], axis=1
    )[:, 0]
    num_B1 = (lineage_BA > 0).sum(axis=-1, keepdims=True)
    back_BA = num_B1 - 1 - jnp.arange(A)[None, :]
    nodes_BA = jnp.take_along_axis(lineage_BA, jnp.maximum(back_BA, 0), axis=1)
    return jnp.where(back_BA >= 0, nodes_BA - 1, -1)

  def all_above(self, is_so_BT: jax.Array) -> jax.Array:
    """Tells of every row whether it and all above it but row 0 are so."""
    so_BTA = self._at(is_so_BT, self.lineage_BTA) | (self.lineage_BTA == 0)
    return so_BTA.all(axis=-1)

  def _at(self, x_BT: jax.Array, index_BTA: jax.Array) -> jax.Array:
    flat = jnp.take_along_axis(
        x_BT, index_BTA.reshape(index_BTA.shape[0], -1), axis=1
    )
    return flat.reshape(index_BTA.shape)


def make(
    tokens_BM: jax.Array,
    parent_BM: jax.Array,
    valid_BM: jax.Array,
    *,
    max_depth: int,
) -> Tree:
  """Follows the parents up.

  Args:
    tokens_BM: int32.
    parent_BM: int32.
    valid_BM: bool.
    max_depth: A.

  Returns:
    The Tree.
  """
  B, M = parent_BM.shape
  row_BT = jnp.broadcast_to(jnp.arange(M + 1, dtype=jnp.int32), (B, M + 1))
  above_BT = jnp.pad(parent_BM + 1, ((0, 0), (1, 0)))
  lineage = [row_BT]
  for _ in range(max_depth - 1):
    lineage.append(jnp.take_along_axis(above_BT, lineage[-1], axis=1))
  return Tree(
      tokens_BM=tokens_BM,
      parent_BM=parent_BM,
      valid_BM=valid_BM,
      lineage_BTA=jnp.stack(lineage, axis=-1),
  )


def rows_of_path(tree: Tree, verdict: TreeVerdict) -> jax.Array:
  """Returns [B, 1 + A] the rows of the pass in the order of the text.

  Row 0, then those of the accepted nodes; beyond them any others.

  Args:
    tree: the draft.
    verdict: of it.
  """
  M, A = tree.tokens_BM.shape[1], verdict.path_BA.shape[1]
  others_A = jnp.minimum(jnp.arange(A, dtype=jnp.int32), M - 1)
  node_BA = jnp.where(verdict.path_BA >= 0, verdict.path_BA, others_A[None, :])
  return jnp.pad(node_BA + 1, ((0, 0), (1, 0)))


def verdict_of(
    tree: Tree, row_B: jax.Array, next_token_B: jax.Array
) -> TreeVerdict:
  """Returns the TreeVerdict that accepts the path down to a row."""
  path_BA = tree.path(row_B)
  num_accepted_B = (path_BA >= 0).sum(axis=-1).astype(jnp.int32)
  tried_B = jnp.any(
      tree.valid_BM & (tree.parent_BM + 1 == row_B[:, None]), axis=-1
  )
  return TreeVerdict(
      num_accepted_B=num_accepted_B,
      num_tested_B=num_accepted_B + tried_B,
      next_token_B=next_token_B,
      path_BA=path_BA,
  )


def deepest(tree: Tree, kept_BM: jax.Array) -> jax.Array:
  """Returns [B] the deepest row that is kept with all above it, the first."""
  kept_BT = jnp.pad(kept_BM, ((0, 0), (1, 0)), constant_values=True)
  depth_BT = jnp.where(tree.all_above(kept_BT), tree.depth_BT, 0)
  return jnp.argmax(depth_BT, axis=-1).astype(jnp.int32)
