"""Which drafts to verify: nodes of the trie of what followed earlier.

A node is a path that some continuation begins with; its weight is the sum over
all continuations that do (REST, arXiv:2311.08252, section 3.2, where it is the
frequency of a prefix). As weights never grow along a path, and ties go to the
less deep, the heaviest nodes are a tree that is closed under parents.

Letters: R rows of C tokens, M nodes. No trie is built: rows are sorted, and a
path is a run of rows that begin alike.
"""

import functools

import flax.struct
import jax
from jax import numpy as jnp

from speculative.retrieval.search import Continuations

# How nodes are chosen, see `select`.
HOW = ('weight', 'chain', 'random')


@flax.struct.dataclass
class Nodes:
  """A draft tree for every row of the batch, breadth first.

  In one depth nodes are ordered by weight, then by the first continuation that
  has them; invalid ones come last. Any number of nodes from the first on are a
  tree too.

  Attributes:
    tokens_BM: int32, 0 where invalid.
    parent_BM: int32, node above; -1 is the last token of the text.
    depth_BM: int32, 1 for the first token after the text.
    valid_BM: bool.
    weight_BM: int32, 0 where invalid.
  """

  tokens_BM: jax.Array
  parent_BM: jax.Array
  depth_BM: jax.Array
  valid_BM: jax.Array
  weight_BM: jax.Array


@flax.struct.dataclass
class _Paths:
  """The paths of sorted rows; one is a run of rows, known by its first.

  Attributes:
    tokens_BRC: int32, last token of the path.
    end_BRC: int32, one after the last row of the run.
    weight_BRC: int32, of all rows of the run.
    source_BRC: int32, the first of the run's rows in the order they came in.
    is_path_BRC: bool, where a run begins, except of rows that have ended.
  """

  tokens_BRC: jax.Array
  end_BRC: jax.Array
  weight_BRC: jax.Array
  source_BRC: jax.Array
  is_path_BRC: jax.Array

  @property
  def most_weight(self) -> int:
    """See `most_weight`."""
    return most_weight(*self.weight_BRC.shape[1:])

  def flat(self) -> '_Paths':
    """Returns the same with [B, R C] for every array."""
    return jax.tree.map(lambda x: x.reshape(x.shape[0], -1), self)


def most_weight(num_rows: int, length: int) -> int:
  """Returns the largest weight that fits into int32 with its depth and row.

  Args:
    num_rows: R, of all sources.
    length: C.
  """
  return (2**31 - 1) // (num_rows * length) - 1


def _find_paths(rows: Continuations) -> _Paths:
  """Sorts rows by their tokens and finds the runs of every depth."""
  B, R, C = rows.tokens_BRC.shape
  shape = (B, R, C)
  step_BRC = jax.lax.broadcasted_iota(jnp.int32, shape, 2)
  row_BRC = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
  len_BR = jnp.where(rows.weight_BR > 0, rows.len_BR, 0)
  tokens_BRC = jnp.where(step_BRC < len_BR[..., None], rows.tokens_BRC, -1)
  *columns, source_BR, weight_BR = jax.lax.sort(
      [tokens_BRC[:, :, c] for c in range(C)]
      + [row_BRC[:, :, 0], rows.weight_BR],
      dimension=1,
      num_keys=C,
  )
  tokens_BRC = jnp.stack(columns, axis=-1)
  before_BRC = jnp.pad(tokens_BRC[:, :-1], ((0, 0), (1, 0), (0, 0)))
  is_other_BRC = (tokens_BRC != before_BRC) | (row_BRC == 0)
  shared_BR = jnp.min(jnp.where(is_other_BRC, step_BRC, C), axis=-1)
  is_start_BRC = shared_BR[..., None] <= step_BRC
  next_BRC = jnp.where(is_start_BRC, row_BRC, R)
  next_BRC = jnp.pad(
      next_BRC[:, 1:], ((0, 0), (0, 1), (0, 0)), constant_values=R
  )
  end_BRC = jax.lax.cummin(next_BRC, axis=1, reverse=True)
  # Sums and minima of runs: of 1, 2, 4, .. rows from each row on.
  weight_BRC = jnp.broadcast_to(weight_BR[..., None], shape)
  source_BRC = jnp.broadcast_to(source_BR[..., None], shape)
  size = 1
  while size < R:
    after = ((0, 0), (0, size), (0, 0))
    goes_on_BRC = row_BRC + size < end_BRC
    weight_BRC += jnp.where(
        goes_on_BRC, jnp.pad(weight_BRC[:, size:], after), 0
    )
    source_BRC = jnp.minimum(
        source_BRC,
        jnp.where(goes_on_BRC, jnp.pad(source_BRC[:, size:], after), R),
    )
    size *= 2
  paths = _Paths(
      tokens_BRC=tokens_BRC,
      end_BRC=end_BRC,
      weight_BRC=weight_BRC,
      source_BRC=source_BRC,
      is_path_BRC=is_start_BRC & (tokens_BRC >= 0),
  )
  return paths.replace(weight_BRC=jnp.minimum(weight_BRC, paths.most_weight))


def _shuffle(rows: Continuations, seed: jax.Array | int) -> Continuations:
  """Returns the rows in the order of a hash of seed and number."""

  def mix(x: jax.Array) -> jax.Array:
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)

  B, R = rows.len_BR.shape
  seed_B1 = jnp.broadcast_to(jnp.asarray(seed).astype(jnp.uint32), B)[:, None]
  number_1R = jnp.arange(R, dtype=jnp.uint32)[None, :]
  order_BR = jnp.argsort(mix(mix(seed_B1) ^ number_1R), axis=1)
  return jax.tree.map(
      lambda x: jnp.take_along_axis(
          x, order_BR.reshape(B, R, *(1,) * (x.ndim - 2)), axis=1
      ),
      rows,
  )


def _best(
    paths: _Paths, num_nodes: int, how: str
) -> tuple[jax.Array, jax.Array]:
  """Returns flat indices of paths, and which are valid, both [B, M]."""
  B, R, C = paths.weight_BRC.shape
  step_BRC = jax.lax.broadcasted_iota(jnp.int32, (B, R, C), 2)
  if how == 'weight':
    score_BRC = paths.weight_BRC * C + (C - 1 - step_BRC)
    score_BRC = score_BRC * R + (R - 1 - paths.source_BRC) + 1
  else:
    score_BRC = R * C - paths.source_BRC * C - step_BRC
  score_BRC = jnp.where(paths.is_path_BRC, score_BRC, 0)
  num = min(num_nodes, R * C)
  score_BM, index_BM = jax.lax.top_k(score_BRC.reshape(B, R * C), num)
  return index_BM, score_BM > 0


def _heaviest_chain(
    paths: _Paths, num_nodes: int
) -> tuple[jax.Array, jax.Array]:
  """Returns the same as `_best`, going down to the heaviest child each time."""
  B, R, C = paths.weight_BRC.shape
  row_BR = jax.lax.broadcasted_iota(jnp.int32, (B, R), 1)
  below_BR = jnp.ones((B, R), bool)
  index, valid = [], []
  for c in range(min(num_nodes, C)):
    score_BR = paths.weight_BRC[:, :, c] * R
    score_BR += R - 1 - paths.source_BRC[:, :, c] + 1
    score_BR = jnp.where(below_BR & paths.is_path_BRC[:, :, c], score_BR, 0)
    best_B1 = jnp.argmax(score_BR, axis=1, keepdims=True).astype(jnp.int32)
    end_B1 = jnp.take_along_axis(paths.end_BRC[:, :, c], best_B1, axis=1)
    valid.append(jnp.max(score_BR, axis=1) > 0)
    index.append(best_B1[:, 0] * C + c)
    below_BR = (best_B1 <= row_BR) & (row_BR < end_B1) & valid[-1][:, None]
  return jnp.stack(index, axis=1), jnp.stack(valid, axis=1)


def _breadth_first(
    paths: _Paths, index_BM: jax.Array, valid_BM: jax.Array
) -> Nodes:
  """Puts chosen paths in order and finds their parents."""
  _, R, C = paths.weight_BRC.shape
  flat = paths.flat()
  at = functools.partial(jnp.take_along_axis, axis=1)
  rank_BM = (C - 1 - index_BM % C) * (paths.most_weight + 1)
  rank_BM += at(flat.weight_BRC, index_BM)
  rank_BM = rank_BM * R + (R - 1 - at(flat.source_BRC, index_BM))
  order_BM = jnp.argsort(-jnp.where(valid_BM, rank_BM, -1), axis=1)
  index_BM, valid_BM = at(index_BM, order_BM), at(valid_BM, order_BM)
  depth_BM, row_BM = index_BM % C + 1, index_BM // C
  # The parent is the run, one less deep, that this one lies in.
  end_BM = at(flat.end_BRC, index_BM)
  is_above_BMM = depth_BM[:, :, None] == depth_BM[:, None, :] + 1
  is_above_BMM &= row_BM[:, None, :] <= row_BM[:, :, None]
  is_above_BMM &= row_BM[:, :, None] < end_BM[:, None, :]
  is_above_BMM &= valid_BM[:, None, :] & valid_BM[:, :, None]
  parent_BM = jnp.argmax(is_above_BMM, axis=2).astype(jnp.int32)
  return Nodes(
      tokens_BM=jnp.where(valid_BM, at(flat.tokens_BRC, index_BM), 0),
      parent_BM=jnp.where(is_above_BMM.any(axis=2), parent_BM, -1),
      depth_BM=jnp.where(valid_BM, depth_BM, 1),
      valid_BM=valid_BM,
      weight_BM=jnp.where(valid_BM, at(flat.weight_BRC, index_BM), 0),
  )


def select(
    rows: Continuations,
    *,
    num_nodes: int,
    how: str = 'weight',
    seed: jax.Array | int = 0,
) -> Nodes:
  """Chooses nodes of the trie of every row's continuations.

    5 6 7 | 5 6 | 5 8 | 4 4     the last counts 2, four nodes are wanted
    'weight'  5 (3)  4 (2)  5 6 (2)  5 8 (1)     then 4 4, as deep but later
    'chain'   5 (3)  5 6 (2)  5 6 7 (1)

  Args:
    rows: what followed, from any number of sources: they may be concatenated.
      A row of weight 0 or without tokens counts nothing.
    num_nodes: M.
    how: 'weight' takes the heaviest nodes, ties by depth and then by the first
      row that has them; 'chain' the one path that goes to the heaviest child
      each time; 'random' all of one row after another in random order, until
      there are M (the baseline of the paper's ablation).
    seed: of 'random', one or [B].

  Returns:
    The Nodes; fewer are valid where there are fewer. Parents of invalid ones
    are -1. For 'chain', node j is at depth j + 1.

  Raises:
    ValueError: For another `how`.
  """
  if how not in HOW:
    raise ValueError(f'{how=} needs to be one of {", ".join(HOW)}.')
  if how == 'random':
    rows = _shuffle(rows, seed)
  paths = _find_paths(rows)
  if how == 'chain':
    index_BM, valid_BM = _heaviest_chain(paths, num_nodes)
  else:
    index_BM, valid_BM = _best(paths, num_nodes, how)
  absent = ((0, 0), (0, num_nodes - index_BM.shape[1]))
  return _breadth_first(
      paths, jnp.pad(index_BM, absent), jnp.pad(valid_BM, absent)
  )
