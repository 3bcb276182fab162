import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from speculative.retrieval import suffix_array


def _naive(tokens, separator, depth):
  padded = [*tokens, *[separator] * depth]
  places = [i for i, token in enumerate(tokens) if token != separator]
  return sorted(places, key=lambda i: (padded[i : i + depth], i))


@st.composite
def _texts(draw):
  """Texts of a few ids, small or large ones, which repeat themselves."""
  separator = draw(st.sampled_from([1, 3, 65_535, 65_536, 200_000]))
  ids = sorted({0, 1, separator // 2, separator - 1, separator})
  part = st.lists(st.sampled_from(ids), max_size=30)
  parts = draw(st.lists(part, min_size=1, max_size=3))
  tokens = sum((parts[i % len(parts)] for i in range(5)), [])
  return [*tokens, separator], separator


@hypothesis.given(_texts(), st.integers(1, 40))
@hypothesis.settings(deadline=None, max_examples=300)
def test_build_is_a_plain_sort_of_windows_and_positions(text, depth):
  tokens, separator = text
  for dtype in (np.int64, np.uint32):
    found = suffix_array.build(
        np.array(tokens, dtype), separator=separator, depth=depth
    )
    assert found.dtype == np.uint32
    assert found.tolist() == _naive(tokens, separator, depth)


@hypothesis.given(_texts(), st.integers(1, 40))
@hypothesis.settings(deadline=None, max_examples=100)
def test_occurrences_are_those_of_equal_windows(text, depth):
  tokens, separator = text
  padded = [*tokens, *[separator] * depth]
  windows = [tuple(padded[i : i + depth]) for i in range(len(tokens))]
  found = suffix_array.occurrences(
      np.array(tokens), separator=separator, depth=depth
  )
  for i, window in enumerate(windows):
    before = window in windows[:i]
    assert found[i] == (2 if before else int(window in windows[i + 1 :]))


@pytest.mark.parametrize('num_ids', [2, 300, 70_000])
@pytest.mark.parametrize('threads', [1, 3])
def test_segments_change_nothing(monkeypatch, num_ids, threads):
  monkeypatch.setattr(suffix_array, '_CHUNK', 64)
  rng = np.random.default_rng(0)
  # Every id, so that more than 16 bits are needed where there are many.
  phrase = rng.permutation(num_ids)[:100]
  tokens = np.concatenate(
      [np.tile(phrase, 5), rng.permutation(num_ids)[-200:], [num_ids]]
  )
  found = suffix_array.build(tokens, separator=num_ids, num_threads=threads)
  assert found.tolist() == _naive(tokens.tolist(), num_ids, 16)


def test_more_ids_than_16_bits_hold_are_sorted_as_they_are():
  rng = np.random.default_rng(0)
  ids = rng.permutation(70_000)
  tokens = np.concatenate([ids, ids[:500], [70_000]])
  assert suffix_array.dense(tokens, separator=70_000)[0].dtype == np.uint32
  found = suffix_array.build(tokens, separator=70_000)
  assert found.tolist() == _naive(tokens.tolist(), 70_000, 16)


def test_dense_ids_keep_their_order_in_16_bits():
  tokens = np.array([300_000, 7, 0, 7, 400_000])
  ids, num_ids = suffix_array.dense(tokens, separator=400_000)
  assert ids.dtype == np.uint16
  assert (ids.tolist(), num_ids) == ([2, 1, 0, 1, 3], 4)


def test_a_text_of_separators_has_no_places():
  assert suffix_array.build(np.array([4, 4]), separator=4).tolist() == []


@pytest.mark.parametrize('tokens', [[], [1, 2]])
def test_a_text_without_an_end_is_refused(tokens):
  with pytest.raises(ValueError, match='does not end with the separator'):
    suffix_array.build(np.array(tokens, int), separator=9)
