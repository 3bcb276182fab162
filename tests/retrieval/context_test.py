import functools

import hypothesis
from hypothesis import strategies as st
import jax
import numpy as np
import pytest

from speculative.retrieval import context
from speculative.retrieval import oracle

_S = 24

_continuations = functools.partial(
    jax.jit,
    static_argnames=(
        'max_ngram',
        'min_ngram',
        'num_rows',
        'length',
        'weight',
        'backoff',
    ),
)(context.continuations)


def _pad(texts: list[list[int]], rubbish: int = 0):
  tokens_BS = np.full((len(texts), _S), rubbish, np.int32)
  for b, text in enumerate(texts):
    tokens_BS[b, : len(text)] = text
  return tokens_BS, np.array([len(t) for t in texts], np.int32)


def test_match_lengths_of_every_earlier_position():
  tokens_BS, seq_len_B = _pad([[1, 2, 3, 9, 2, 3, 1, 2, 3], [5, 5, 5, 5]])
  lengths = np.asarray(context.match_lengths(tokens_BS, seq_len_B, 3))
  np.testing.assert_array_equal(lengths[0, :9], [0, 0, 3, 0, 0, 2, 0, 0, 0])
  np.testing.assert_array_equal(lengths[1, :4], [1, 2, 3, 0])
  assert not lengths[:, 9:].any()


_text = st.integers(0, 2).flatmap(
    lambda most: st.lists(st.integers(0, most), min_size=1, max_size=_S)
)


@pytest.mark.parametrize(
    'max_ngram, min_ngram, num_rows, backoff',
    [
        (4, 1, 3, False),
        (3, 2, 40, False),
        (1, 1, 1, False),
        (4, 1, 3, True),
        (8, 2, 40, True),
    ],
)
@hypothesis.settings(max_examples=80, deadline=None, derandomize=True)
@hypothesis.given(
    texts=st.lists(_text, min_size=6, max_size=6), rubbish=st.integers(0, 2)
)
def test_continuations_equal_a_linear_scan(
    max_ngram, min_ngram, num_rows, backoff, texts, rubbish
):
  settings = dict(
      max_ngram=max_ngram,
      min_ngram=min_ngram,
      num_rows=num_rows,
      length=5,
      backoff=backoff,
  )
  got = _continuations(*_pad(texts, rubbish), weight=3, **settings)
  got = jax.tree.map(np.asarray, got)
  for b, text in enumerate(texts):
    rows = oracle.context(text, **settings)
    absent = num_rows - len(rows)
    assert got.len_BR[b].tolist() == [5] * len(rows) + [0] * absent
    weights = [3 * 2 ** min(n, 6) if backoff else 3 for _, n in rows]
    assert got.weight_BR[b].tolist() == weights + [0] * absent
    expected = np.array([row for row, _ in rows] + [[0] * 5] * absent)
    np.testing.assert_array_equal(got.tokens_BRC[b], expected)
