import hypothesis
from hypothesis import strategies as st
import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding import logits as logits_lib
from speculative.testing import oracles

# Float32 softmax against float64.
_ATOL = 1e-6

_warp_probs = jax.jit(logits_lib.warp_probs)
_OFF = dict(temperature=1.0, min_p=0.0, top_k=0, top_p=1.0)

# Laws of these are 0.4, 0.3, 0.2, 0.1 in a mixed order.
_TENTHS = np.log([0.2, 0.4, 0.1, 0.3])


def _one(make_warping, logits_V, **settings) -> np.ndarray:
  """Warps one row of logits; what is not set is off."""
  warping = make_warping(1, **(_OFF | settings))
  logits_BTV = jnp.asarray(logits_V, jnp.float32)[None, None]
  return np.asarray(_warp_probs(warping, logits_BTV))[0, 0]


@pytest.mark.parametrize(
    'settings, expected',
    [
        ({}, [0.2, 0.4, 0.1, 0.3]),
        ({'top_k': 1}, [0, 1, 0, 0]),
        ({'top_k': 2}, [0, 4 / 7, 0, 3 / 7]),
        ({'top_k': 4}, [0.2, 0.4, 0.1, 0.3]),
        ({'top_k': 9}, [0.2, 0.4, 0.1, 0.3]),
        ({'top_p': 0.3}, [0, 1, 0, 0]),
        ({'top_p': 0.5}, [0, 4 / 7, 0, 3 / 7]),
        ({'top_p': 0.75}, [2 / 9, 4 / 9, 0, 3 / 9]),
        ({'top_p': 0.95}, [0.2, 0.4, 0.1, 0.3]),
        ({'temperature': 0.5}, np.array([4, 16, 1, 9]) / 30),
        ({'temperature': 0}, [0, 1, 0, 0]),
        # Top-p counts what top-k left: 4/7 alone is already more than half.
        ({'top_k': 2, 'top_p': 0.55}, [0, 1, 0, 0]),
        # A token as likely as min_p times the likeliest is kept.
        ({'min_p': 0.2}, [0.2, 0.4, 0.1, 0.3]),
        ({'min_p': 0.26}, [2 / 9, 4 / 9, 0, 3 / 9]),
        ({'min_p': 0.6}, [0, 4 / 7, 0, 3 / 7]),
        ({'min_p': 1.0}, [0, 1, 0, 0]),
        # Temperature comes before min-p: 1/16 of the likeliest, not 1/4.
        ({'temperature': 0.5, 'min_p': 0.2}, np.array([4, 16, 0, 9]) / 29),
        # Min-p before top-p: 4/7 alone is already more than half.
        ({'min_p': 0.6, 'top_p': 0.55}, [0, 1, 0, 0]),
        ({'min_p': 0.6, 'top_k': 3}, [0, 4 / 7, 0, 3 / 7]),
        # Temperature comes first: at 0.5 the likeliest token has 16/30.
        ({'temperature': 0.5, 'top_p': 0.53}, [0, 1, 0, 0]),
    ],
    ids=str,
)
def test_warp_probs_of_four_tokens_by_hand(make_warping, settings, expected):
  got = _one(make_warping, _TENTHS, **settings)
  np.testing.assert_allclose(got, expected, atol=_ATOL)


@pytest.mark.parametrize(
    'logits, settings, kept',
    [
        ([3, 1, 2, 2, 0], {'top_k': 2}, [0, 2, 3]),
        ([2, 2, 2, 0], {'top_k': 1}, [0, 1, 2]),
        ([0.0, -0.0, -1, -2], {'top_k': 1}, [0, 1]),
        ([1, 1, 1, 1], {'top_p': 0.1}, [0, 1, 2, 3]),
        ([2, 0, 0, -9], {'top_p': 0.8}, [0, 1, 2]),
        ([1, 1, 0, 1], {'min_p': 1.0}, [0, 1, 3]),
    ],
    ids=str,
)
def test_tokens_that_tie_with_the_last_one_kept_are_kept(
    make_warping, logits, settings, kept
):
  law = _one(make_warping, logits, **settings)
  np.testing.assert_array_equal(np.flatnonzero(law), kept)


@pytest.mark.parametrize('value', [1.0, -3.0, 1e-3, 100.0])
def test_neighbouring_float32_values_are_told_apart(make_warping, value):
  below = np.nextafter(np.float32(value), np.float32(-np.inf))
  law = _one(make_warping, [below, value, below, -200], top_k=1)
  np.testing.assert_array_equal(law, [0, 1, 0, 0])


@pytest.mark.parametrize(
    'logits', [[1, 3, 3, 2], [-np.inf, 0, -np.inf, 0], [-5, -4, -4, -9]]
)
def test_greedy_rows_are_one_hot_at_the_first_of_the_likeliest(
    make_warping, logits
):
  # The other fields of a greedy row are not looked at.
  law = _one(make_warping, logits, temperature=0, min_p=1, top_k=3, top_p=0.5)
  np.testing.assert_array_equal(law, np.eye(4)[1])
  warped = logits_lib.warp_logits(
      make_warping(1), jnp.asarray(logits, jnp.float32)[None, None]
  )
  np.testing.assert_array_equal(warped[0, 0], [-np.inf, 0, -np.inf, -np.inf])


@pytest.mark.parametrize('largest', [5e4, -5e4])
def test_the_smallest_temperature_overflows_nothing(make_warping, largest):
  logits = np.float32(largest) - np.float32([3, 0, 7e4, np.inf])
  law = _one(make_warping, logits, temperature=1e-4, top_p=0.9)
  np.testing.assert_array_equal(law, [0, 1, 0, 0])


def test_excluded_tokens_have_exactly_no_probability(make_warping):
  logits_V = [1.0, -np.inf, 0.5, 0.0]
  for settings in (
      {},
      {'top_k': 3},
      {'top_k': 4},
      {'top_p': 0.99},
      {'min_p': 1e-30},
  ):
    law = _one(make_warping, logits_V, **settings)
    assert law[1] == 0
    assert np.isfinite(law).all()


_V = 7
# Quarters, so that a division by the temperature merges no two of them.
_logit = st.one_of(
    st.integers(-12, 12).map(lambda n: n / 4), st.sampled_from([-np.inf, -0.0])
)
_row = st.lists(_logit, min_size=_V, max_size=_V).filter(
    lambda row: max(row) > -np.inf
)
_settings = st.fixed_dictionaries(
    {
        'temperature': st.sampled_from([0.0, 0.3, 0.8, 1.0, 2.0]),
        # Between odds that quarters over these temperatures can have.
        'min_p': st.sampled_from([0.0, 0.0, 1e-3, 0.11, 0.4]),
        'top_k': st.sampled_from([0, 1, 2, 3, _V, 50]),
        'top_p': st.sampled_from([0.05, 0.37, 0.61, 0.9, 0.999, 1.0]),
    }
)


def _is_at_an_edge(logits_V, settings) -> bool:
  """Whether rounding decides which token is the last within top_p."""
  law = oracles.warp(logits_V, **(settings | {'top_p': 1.0}))
  sums = np.cumsum(sorted(law, reverse=True))
  return bool((np.abs(sums - settings['top_p']) < 1e-5).any())


@hypothesis.settings(max_examples=150, deadline=None, derandomize=True)
@hypothesis.given(
    st.lists(_row, min_size=6, max_size=6),
    st.lists(_settings, min_size=3, max_size=3),
)
def test_warp_probs_equals_sorting_in_batches_of_mixed_rows(
    make_warping, rows, settings
):
  logits_BTV = np.array(rows, np.float32).reshape(3, 2, _V)
  warping = make_warping(
      3, **{name: [s[name] for s in settings] for name in _OFF}
  )
  laws_BTV = np.asarray(_warp_probs(warping, logits_BTV))
  np.testing.assert_allclose(laws_BTV.sum(axis=-1), 1, atol=_ATOL)
  for b, t in np.ndindex(3, 2):
    row, how = logits_BTV[b, t].tolist(), settings[b]
    if 0 < how['temperature'] and how['top_p'] < 1 and _is_at_an_edge(row, how):
      continue
    np.testing.assert_allclose(
        laws_BTV[b, t], oracles.warp(row, **how), atol=_ATOL
    )


def test_warp_probs_of_a_large_vocabulary_equals_sorting(make_warping):
  rng = np.random.default_rng(0)
  logits = (rng.normal(size=(2, 1, 5000)) * 3).astype(np.float32)
  settings = dict(temperature=0.8, top_k=300, top_p=0.9)
  got = _warp_probs(make_warping(2, **settings), logits)
  for row in range(2):
    expected = oracles.warp(logits[row, 0], **settings)
    np.testing.assert_allclose(got[row, 0], expected, atol=_ATOL)
    np.testing.assert_array_equal(got[row, 0] > 0, expected > 0)


def test_a_row_does_not_depend_on_how_its_neighbours_are_drawn(make_warping):
  rng = np.random.default_rng(0)
  logits = rng.normal(size=(3, 1, 50)).astype(np.float32)
  alone = _warp_probs(make_warping(1, temperature=0.8), logits[:1])
  mixed = _warp_probs(
      make_warping(
          3,
          temperature=[0.8, 0.0, 1.3],
          min_p=[0.0, 0.5, 0.01],
          top_k=[0, 4, 5],
          top_p=[1.0, 0.2, 0.7],
      ),
      logits,
  )
  np.testing.assert_array_equal(mixed[0], alone[0])
