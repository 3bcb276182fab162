"""Counts of pairs, beside those of plain Python."""

import collections
import itertools
from unittest import mock

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from speculative.retrieval import bigram_counts
from speculative.retrieval.bigram_counts import Counted
from speculative.retrieval.bigram_counts import Counter

# Ids of more than 16 bits, next to each other and at both ends.
_V = 70_000
_IDS = (0, 1, 2, 65_535, 65_536, 65_537, _V - 1)


def _count(
    directory, documents, *, vocab_size=_V, at_once=4, num=2, **settings
) -> Counted:
  counter = Counter(
      vocab_size, pairs_at_once=at_once, directory=directory, **settings
  )
  for tokens in documents:
    counter.add(np.array(tokens, np.uint32))
  return counter.counted(num)


def _likeliest(counts: collections.Counter, num: int) -> list[tuple[int, int]]:
  return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:num]


def _pad(values: list[int], num: int, absent: int) -> list[int]:
  return values + [absent] * (num - len(values))


def _check(got: Counted, documents, num: int) -> None:
  """Holds counts to those of a naive counter."""
  following = collections.defaultdict(collections.Counter)
  anywhere = collections.Counter()
  for tokens in documents:
    anywhere.update(tokens)
    for first, second in itertools.pairwise(tokens):
      following[first][second] += 1
  assert got.num_tokens == sum(map(len, documents))
  assert got.num_distinct == sum(map(len, following.values()))
  assert got.num_pairs == sum(c.total() for c in following.values())
  assert np.flatnonzero(got.totals_V).tolist() == sorted(following)
  absent = np.delete(np.arange(len(got.totals_V)), sorted(following))
  assert (got.successors_VW[absent] == -1).all()
  assert not got.counts_VW[absent].any()
  for first, counts in following.items():
    best = _likeliest(counts, num)
    assert got.totals_V[first] == counts.total()
    found = got.successors_VW[first].tolist(), got.counts_VW[first].tolist()
    assert found[0] == _pad([token for token, _ in best], num, -1)
    assert found[1] == _pad([count for _, count in best], num, 0)
  best = _likeliest(anywhere, num)
  assert got.frequent_W.tolist() == _pad([t for t, _ in best], num, -1)
  assert got.frequent_counts_W.tolist() == _pad([c for _, c in best], num, 0)


@hypothesis.settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(
    documents=st.lists(
        st.lists(st.sampled_from(_IDS), max_size=12), max_size=6
    ),
    at_once=st.sampled_from([1, 3, 1000]),
    merged_at_once=st.sampled_from([1, 4, 1000]),
    num=st.integers(1, 3),
)
def test_counts_are_those_of_a_naive_counter(
    tmp_path, documents, at_once, merged_at_once, num
):
  with mock.patch.object(bigram_counts, '_MERGED_AT_ONCE', merged_at_once):
    got = _count(tmp_path, documents, at_once=at_once, num=num)
  _check(got, documents, num)
  assert not list(tmp_path.iterdir())


def test_many_tokens_in_many_files_too(tmp_path):
  rng = np.random.default_rng(0)
  documents = [
      (rng.zipf(1.3, size) % 500).tolist()
      for size in rng.integers(0, 400, size=60)
  ]
  _check(
      _count(tmp_path, documents, vocab_size=500, at_once=997, num=4),
      documents,
      num=4,
  )


def test_of_tokens_that_follow_as_often_the_smaller_id_comes_first(tmp_path):
  # 9 and 3 follow 5 twice, 4 once; nothing follows 9 but 5.
  documents = [[5, 9, 5, 3], [5, 9], [5, 3], [5, 4]]
  got = _count(tmp_path, documents, vocab_size=10, num=3)
  assert got.successors_VW[5].tolist() == [3, 9, 4]
  assert got.counts_VW[5].tolist() == [2, 2, 1]
  assert got.successors_VW[9].tolist() == [5, -1, -1]
  # 3 and 9 stand twice each, as the ends of documents, too.
  assert got.frequent_W.tolist() == [5, 3, 9]
  assert got.frequent_counts_W.tolist() == [5, 2, 2]


def test_no_pair_goes_across_the_bounds_of_documents(tmp_path):
  apart = _count(tmp_path, [[1, 2], [3], [], [4, 1]], vocab_size=5)
  assert apart.num_pairs == 2
  assert apart.successors_VW[:, 0].tolist() == [-1, 2, -1, -1, 1]
  together = _count(tmp_path, [[1, 2, 3, 4, 1]], vocab_size=5)
  assert together.successors_VW[:, 0].tolist() == [-1, 2, 3, 4, 1]


def test_nothing_is_counted_of_nothing(tmp_path):
  got = _count(tmp_path, [[], []], vocab_size=3)
  assert (got.num_tokens, got.num_pairs, got.num_distinct) == (0, 0, 0)
  assert (got.successors_VW == -1).all()
  assert got.frequent_W.tolist() == [-1, -1]


def test_what_is_sorted_is_told(tmp_path):
  told = []
  _count(
      tmp_path,
      [[1, 2, 3, 1, 2], [4]],
      vocab_size=5,
      at_once=3,
      on_sorted=lambda num_pairs, seconds: told.append((num_pairs, seconds)),
  )
  assert [num for num, _ in told] == [3, 1]
  assert all(seconds >= 0 for _, seconds in told)


@pytest.mark.parametrize('token', [-1, 5])
def test_ids_outside_the_vocabulary_are_refused(tmp_path, token):
  counter = Counter(5, pairs_at_once=4, directory=tmp_path)
  with pytest.raises(ValueError, match='outside the vocabulary'):
    counter.add(np.array([1, token]))
