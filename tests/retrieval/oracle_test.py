import numpy as np

from speculative.retrieval import oracle
from speculative.retrieval.oracle import Found
from speculative.retrieval.oracle import Node
from speculative.retrieval.oracle import Shard

_END = 9


def _shard(*documents: list[int]) -> Shard:
  tokens = [t for document in documents for t in [*document, _END]]
  return Shard(tokens, oracle.sort_suffixes(tokens, separator=_END))


def test_suffixes_are_sorted_by_window_then_position():
  tokens = [1, 0, 1, _END, 1, 0, _END]
  got = oracle.sort_suffixes(tokens, separator=_END)
  # 0 1 .., 0 end, 1 0 1 .., 1 0 end, 1 end
  np.testing.assert_array_equal(got, [1, 5, 0, 4, 2])
  # Windows of one token: ties by position.
  got = oracle.sort_suffixes(tokens, separator=_END, depth=1)
  np.testing.assert_array_equal(got, [1, 5, 0, 2, 4])


def test_the_longest_end_of_any_shard_wins():
  shards = [_shard([3, 1, 2, 7]), _shard([5, 4, 1, 2, 8], [4, 1, 2])]
  found = oracle.find(shards, [6, 4, 1, 2], max_ngram=4)
  assert found == [Found(3, [(1, 1), (1, 6)])]
  rows = oracle.continuations(
      shards, found, num_rows=4, length=3, separator=_END
  )
  assert rows == [([8], 3), ([], 3)]
  found = oracle.find(shards, [6, 4, 1, 2], max_ngram=2)
  assert found == [Found(2, [(0, 1), (1, 2), (1, 7)])]
  assert oracle.find(shards, [1, 0], max_ngram=4) == []
  assert oracle.find([], [1, 2], max_ngram=4) == []


def test_with_backoff_shorter_ends_get_the_rows_that_are_left():
  shards = [_shard([3, 1, 2, 7]), _shard([5, 4, 1, 2, 8], [4, 1, 2])]
  found = oracle.find(shards, [6, 4, 1, 2], max_ngram=4, backoff=True)
  assert [f.length for f in found] == [3, 2, 1]
  rows = oracle.continuations(
      shards, found, num_rows=4, length=3, separator=_END
  )
  # Of the three places of 1 2 the first and the second.
  assert rows == [([8], 3), ([], 3), ([7], 2), ([8], 2)]


def test_of_many_occurrences_rows_are_evenly_spaced():
  shards = [_shard([1, 0], [1, 2], [1, 4], [1, 6], [1, 8])]
  found = oracle.find(shards, [1], max_ngram=4)
  rows = oracle.continuations(
      shards, found, num_rows=3, length=1, separator=_END
  )
  assert rows == [([0], 1), ([2], 1), ([6], 1)]


def test_context_reads_the_latest_matches_round_and_round():
  text = [1, 2, 3, 1, 2, 5, 1, 2]
  rows = oracle.context(text, max_ngram=4, num_rows=2, length=4)
  assert rows == [([5, 1, 2, 5], 2), ([3, 1, 2, 5], 2)]
  assert oracle.context([1, 2], max_ngram=4, num_rows=2, length=4) == []


def test_context_with_backoff_reads_every_earlier_match_once():
  text = [2, 2, 3, 1, 2, 5, 1, 2]
  rows = oracle.context(text, max_ngram=4, num_rows=3, length=2, backoff=True)
  assert rows == [([5, 1], 2), ([3, 1], 1), ([2, 3], 1)]


def test_select_by_weight_is_a_tree_in_breadth_first_order():
  rows = [[5, 6, 7], [5, 6], [5, 8], [4]]
  got = oracle.select(rows, [1, 1, 1, 2], num_nodes=4)
  assert got == [
      Node(5, -1, 1, 3),
      Node(4, -1, 1, 2),
      Node(6, 0, 2, 2),
      # Of weight one the less deep: 8, not 7.
      Node(8, 0, 2, 1),
  ]
  assert oracle.select([], [], num_nodes=4) == []
  assert oracle.select([[]], [3], num_nodes=4) == []


def test_select_of_a_chain_is_the_heaviest_path():
  rows = [[5, 6, 7], [5, 6], [5, 8], [4]]
  got = oracle.select(rows, [1, 1, 1, 2], num_nodes=4, how='chain')
  assert [n.token for n in got] == [5, 6, 7]
  assert [n.parent for n in got] == [-1, 0, 1]


def test_select_at_random_fills_the_budget_row_by_row():
  rows = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
  seen = set()
  for seed in range(20):
    got = oracle.select(rows, [1] * 3, num_nodes=4, how='random', seed=seed)
    depths = [n.depth for n in got]
    assert sorted(depths) == [1, 1, 2, 3]
    seen.add(tuple(n.token for n in got))
  assert len(seen) == 6
