"""Shapes of small trees, written as the parents of their nodes."""

from collections.abc import Sequence

from jax import numpy as jnp
import numpy as np

from speculative.decoding import tree as tree_lib
from speculative.decoding.tree import Tree

# Up to eight nodes, parents before children; -1 is the last committed token.
PARENTS = {
    'one node': (-1,),
    'chain': (-1, 0, 1, 2),
    'siblings': (-1, -1, -1),
    'binary': (-1, -1, 0, 0, 1, 1),
    'deep and wide': (-1, -1, 0, 0, 1, 2, 2, 5),
    'not breadth-first': (-1, 0, 1, -1, 3, 0),
}


def path_to(parents: Sequence[int], row: int) -> list[int]:
  """Returns the nodes down to a row of the pass, [] for row 0."""
  node, path = row - 1, []
  while node >= 0:
    path.append(node)
    node = parents[node]
  return path[::-1]


def depths(parents: Sequence[int]) -> list[int]:
  """Returns the depth of every node."""
  return [len(path_to(parents, m + 1)) for m in range(len(parents))]


def make(
    parents: Sequence[int],
    tokens_BM: np.ndarray,
    valid_BM: np.ndarray | None = None,
) -> Tree:
  """Returns trees of one shape.

  Args:
    parents: of the nodes.
    tokens_BM: int32.
    valid_BM: bool; all are when absent.
  """
  tokens_BM = jnp.asarray(tokens_BM, jnp.int32)
  if valid_BM is None:
    valid_BM = np.ones(tokens_BM.shape, bool)
  return tree_lib.make(
      tokens_BM,
      jnp.broadcast_to(jnp.asarray(parents, jnp.int32), tokens_BM.shape),
      jnp.asarray(valid_BM),
      max_depth=max(depths(parents)),
  )
