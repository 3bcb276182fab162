"""The accept rule in closed form: nothing is drawn."""

import itertools

import hypothesis
from hypothesis import strategies as st
import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding import verify
from speculative.testing import oracles

# Float32 quotients against float64.
_ATOL = 1e-6


def _weights(num: int):
  """Laws as whole weights: zeros and ties are common, all zero is not."""
  return st.lists(st.integers(0, 4), min_size=num, max_size=num).filter(any)


def _random_law(seed: int, vocab_size: int, zeros: float) -> oracles.Law:
  """Returns a law that depends on the whole text before, some tokens zero."""

  def law(text: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng([seed, len(text), *text])
    weights = rng.random(vocab_size) * (rng.random(vocab_size) >= zeros)
    weights[rng.integers(vocab_size)] += 0.1
    return weights / weights.sum()

  return law


@pytest.mark.parametrize('zeros', [0.0, 0.5])
@pytest.mark.parametrize(
    'vocab_size, num_draft_tokens', [(2, 1), (6, 1), (4, 2), (6, 2), (3, 3)]
)
def test_the_accept_rule_keeps_the_law_of_the_text_exactly(
    vocab_size, num_draft_tokens, zeros
):
  p = _random_law(1, vocab_size, zeros)
  q = _random_law(2, vocab_size, zeros)
  expected = oracles.text_law(p, vocab_size, num_draft_tokens + 1)
  got = oracles.speculative_text_law(p, q, vocab_size, num_draft_tokens)
  assert sum(got.values()) == pytest.approx(1, abs=1e-12)
  for text, probability in expected.items():
    assert abs(got[text] - probability) < 1e-12, text


def test_the_enumeration_notices_a_wrong_residual(monkeypatch):
  p, q = _random_law(1, 4, 0.0), _random_law(2, 4, 0.0)
  monkeypatch.setattr(oracles, 'residual', lambda p_V, q_V: p_V)
  got = oracles.speculative_text_law(p, q, 4, 1)
  expected = oracles.text_law(p, 4, 2)
  assert max(abs(got[text] - expected[text]) for text in expected) > 1e-3


@pytest.mark.parametrize(
    'u, p, q, kept',
    [
        (0.0, 0.0, 0.5, False),
        (0.0, 0.0, 0.0, False),
        (0.0, 1e-30, 1.0, True),
        (0.0, 0.5, 0.0, True),
        (0.999, 0.5, 0.5, True),
        (0.999, 0.6, 0.5, True),
        (0.49, 0.25, 0.5, True),
        (0.5, 0.25, 0.5, False),
        (0.999, 1.0, 0.0, True),
    ],
)
def test_acceptance_at_its_edges(u, p, q, kept):
  got = verify.acceptance(*(jnp.full((1, 1), x) for x in (u, p, q)))
  assert bool(got[0, 0]) == kept


_acceptance = jax.jit(verify.acceptance)
_residual = jax.jit(verify.residual)


@hypothesis.settings(max_examples=100, deadline=None, derandomize=True)
@hypothesis.given(_weights(6), _weights(6))
def test_acceptance_and_residual_equal_the_oracle(p_weights, q_weights):
  p_V = np.array(p_weights) / sum(p_weights)
  q_V = np.array(q_weights) / sum(q_weights)
  grid = (np.arange(1024) + 0.5) / 1024
  kept = _acceptance(
      np.broadcast_to(grid, (6, 1024)).astype(np.float32),
      np.repeat(p_V[:, None], 1024, axis=1).astype(np.float32),
      np.repeat(q_V[:, None], 1024, axis=1).astype(np.float32),
  )
  chances = []
  for share, p, q in zip(np.mean(kept, axis=1), p_V, q_V, strict=True):
    expected = oracles.acceptance_probability(p, q) if q > 0 else float(p > 0)
    # The grid resolves chances to half of its spacing.
    assert abs(share - expected) <= 0.5 / 1024 + 1e-6
    chances.append(oracles.acceptance_probability(p, q) if q > 0 else 0)
  rest_V = np.asarray(
      _residual(p_V[None].astype(np.float32), q_V[None].astype(np.float32))
  )[0]
  # Rounding must not make probabilities out of equal ones.
  np.testing.assert_array_equal(rest_V[(p_V <= q_V) & (p_V != q_V)], 0)
  if abs(p_V - q_V).max() > 0:
    np.testing.assert_allclose(rest_V, oracles.residual(p_V, q_V), atol=_ATOL)
    rejected = 1 - (q_V * chances).sum()
    np.testing.assert_allclose(
        q_V * chances + rejected * rest_V, p_V, atol=_ATOL
    )
  else:
    np.testing.assert_allclose(rest_V, p_V, atol=_ATOL)


def test_residual_of_equal_laws_is_the_law_itself_and_finite():
  p_BV = jnp.asarray([[0.25, 0.75, 0.0], [0.0, 0.0, 1.0]])
  np.testing.assert_array_equal(verify.residual(p_BV, p_BV), p_BV)


def test_residual_of_laws_that_share_no_token_is_the_target():
  p_BV = jnp.asarray([[0.25, 0.75, 0.0, 0.0]])
  q_BV = jnp.asarray([[0.0, 0.0, 0.5, 0.5]])
  np.testing.assert_array_equal(verify.residual(p_BV, q_BV), p_BV)


_T, _F = True, False


@pytest.mark.parametrize(
    'matches, valid, num_accepted, num_tested',
    [
        ([_T, _T, _T, _T], [_T, _T, _T, _T], 4, 4),
        ([_F, _F, _F, _F], [_T, _T, _T, _T], 0, 1),
        ([_F, _T, _T, _T], [_T, _T, _T, _T], 0, 1),
        # One accepted, not three: what follows a rejection does not count.
        ([_T, _F, _T, _T], [_T, _T, _T, _T], 1, 2),
        ([_T, _T, _T, _F], [_T, _T, _T, _T], 3, 4),
        # Invalid nodes are neither tested nor accepted, match or not.
        ([_T, _T, _T, _T], [_F, _F, _F, _F], 0, 0),
        ([_T, _T, _T, _T], [_T, _T, _F, _F], 2, 2),
        ([_T, _F, _T, _T], [_T, _T, _F, _F], 1, 2),
        ([_T, _T, _T, _T], [_F, _T, _T, _T], 0, 0),
        ([_T, _T, _T, _T], [_T, _F, _T, _T], 1, 1),
    ],
)
def test_match_draws_counts_up_to_the_first_mismatch(
    matches, valid, num_accepted, num_tested
):
  draws = np.array([[3, 0, 2, 1, 5]], np.int32)
  drafted = np.where(matches, draws[:, :4], 9).astype(np.int32)
  verdict = verify.match_draws(
      jnp.asarray(drafted), jnp.asarray([valid]), jnp.asarray(draws)
  )
  assert int(verdict.num_accepted_B[0]) == num_accepted
  assert int(verdict.num_tested_B[0]) == num_tested
  assert int(verdict.next_token_B[0]) == draws[0, num_accepted]


def test_match_draws_without_drafted_tokens_emits_the_draw():
  verdict = verify.match_draws(
      jnp.zeros((2, 0), jnp.int32),
      jnp.zeros((2, 0), bool),
      jnp.asarray([[4], [0]], jnp.int32),
  )
  np.testing.assert_array_equal(verdict.num_accepted_B, [0, 0])
  np.testing.assert_array_equal(verdict.num_tested_B, [0, 0])
  np.testing.assert_array_equal(verdict.next_token_B, [4, 0])


def test_match_draws_decides_every_row_by_itself():
  draws = np.array(list(itertools.product(range(2), repeat=3)), np.int32)
  drafted = np.zeros((8, 2), np.int32)
  verdict = verify.match_draws(
      jnp.asarray(drafted), jnp.ones((8, 2), bool), jnp.asarray(draws)
  )
  np.testing.assert_array_equal(
      verdict.num_accepted_B, [2, 2, 1, 1, 0, 0, 0, 0]
  )
  np.testing.assert_array_equal(verdict.next_token_B, [0, 1, 1, 1, 1, 1, 1, 1])
