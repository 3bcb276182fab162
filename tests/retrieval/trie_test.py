import functools

import hypothesis
from hypothesis import strategies as st
import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.retrieval import oracle
from speculative.retrieval import trie
from speculative.retrieval.oracle import Node
from speculative.retrieval.search import Continuations

_R, _C = 6, 4

_select = functools.partial(jax.jit, static_argnames=('num_nodes', 'how'))(
    trie.select
)


def _continuations(batch, weights, rubbish=0) -> Continuations:
  """Returns rows of lists; `rubbish` fills what does not count."""
  B = len(batch)
  tokens_BRC = np.full((B, _R, _C), rubbish, np.int32)
  len_BR = np.zeros((B, _R), np.int32)
  weight_BR = np.zeros((B, _R), np.int32)
  for b, rows in enumerate(batch):
    for r, row in enumerate(rows):
      tokens_BRC[b, r, : len(row)] = row
      len_BR[b, r] = len(row)
      weight_BR[b, r] = weights[b][r]
  return Continuations(tokens_BRC, len_BR, weight_BR)


def _nodes(nodes: trie.Nodes, b: int) -> list[Node]:
  """Returns the valid nodes of a row; checks that the others come last."""
  nodes = jax.tree.map(lambda x: np.asarray(x)[b], nodes)
  num = int(nodes.valid_BM.sum())
  assert nodes.valid_BM[:num].all()
  assert not nodes.tokens_BM[num:].any() and not nodes.weight_BM[num:].any()
  assert (nodes.parent_BM[num:] == -1).all()
  fields = nodes.tokens_BM, nodes.parent_BM, nodes.depth_BM, nodes.weight_BM
  return [Node(*map(int, node)) for node in zip(*fields, strict=True)][:num]


_rows = st.lists(
    st.lists(st.integers(0, 2), max_size=_C), min_size=0, max_size=_R
)


@pytest.mark.parametrize('how', trie.HOW)
@pytest.mark.parametrize('num_nodes', [1, 5, 40])
@hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
@hypothesis.given(
    batch=st.lists(_rows, min_size=5, max_size=5),
    seed=st.integers(0, 2**32 - 1),
    rubbish=st.integers(0, 2),
)
def test_select_equals_the_oracle(how, num_nodes, batch, seed, rubbish):
  rng = np.random.default_rng(seed)
  weights = rng.integers(1, 4, size=(len(batch), _R)).tolist()
  got = _select(
      _continuations(batch, weights, rubbish),
      num_nodes=num_nodes,
      how=how,
      seed=np.full(len(batch), seed, np.uint32),
  )
  for b, rows in enumerate(batch):
    # Rows that are not there are shuffled as well.
    padded = rows + [[]] * (_R - len(rows))
    expected = oracle.select(
        padded, weights[b], num_nodes=num_nodes, how=how, seed=seed
    )
    assert _nodes(got, b) == expected


def test_every_prefix_of_the_nodes_is_a_tree():
  rng = np.random.default_rng(0)
  tokens_BRC = rng.integers(0, 3, size=(20, 50, 8)).astype(np.int32)
  rows = Continuations(
      tokens_BRC,
      rng.integers(0, 9, size=(20, 50)).astype(np.int32),
      np.ones((20, 50), np.int32),
  )
  nodes = jax.tree.map(np.asarray, _select(rows, num_nodes=64))
  assert (nodes.parent_BM < np.arange(64)).all()
  assert (np.diff(np.where(nodes.valid_BM, nodes.depth_BM, 99)) >= 0).all()
  above = np.take_along_axis(
      nodes.depth_BM, np.maximum(nodes.parent_BM, 0), axis=1
  )
  above = np.where(nodes.parent_BM < 0, 0, above)
  valid = nodes.valid_BM
  assert (nodes.depth_BM == above + 1)[valid].all()
  assert valid.sum() > 500


def test_weights_that_int32_cannot_rank_are_cut_and_stay_a_tree():
  most = 2**31 // (_R * _C) - 1
  rows = _continuations([[[1, 2], [3], [1, 2]]], [[most, 2 * most, most // 2]])
  got = _nodes(_select(rows, num_nodes=4), 0)
  assert [(n.token, n.parent) for n in got] == [(1, -1), (3, -1), (2, 0)]


def test_rows_of_weight_zero_count_nothing():
  rows = _continuations([[[1], [2], [1]]], [[0, 1, 1]])
  got = _nodes(_select(rows, num_nodes=4), 0)
  assert [(n.token, n.weight) for n in got] == [(2, 1), (1, 1)]


def test_an_unknown_choice_is_refused():
  with pytest.raises(ValueError, match='weight, chain, random'):
    trie.select(_continuations([[]], [[]]), num_nodes=2, how='best')


def test_sources_are_combined_by_putting_their_rows_together():
  store = _continuations([[[1, 2], [1, 3], [1, 3]]], [[1, 1, 1]])
  context = _continuations([[[1, 2]]], [[2]])
  both = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), context, store)
  got = _nodes(trie.select(both, num_nodes=2, how='chain'), 0)
  assert [(n.token, n.weight) for n in got] == [(1, 5), (2, 3)]
