"""Rejection and resampling as a whole: in closed form, then in frequencies."""

import itertools

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding import sampling as sampling_lib
from speculative.decoding import verify
from speculative.testing import chi_square
from speculative.testing import oracles

# Float32 laws against float64.
_ATOL = 1e-6
# A right implementation fails once in a million seeds; these are fixed.
_FALSE_ALARM = 1e-6

_verify_chain = jax.jit(verify.verify_chain)
_reject_and_resample = jax.jit(verify.reject_and_resample)
_draw = jax.jit(sampling_lib.draw, static_argnames='use')


def _positions(batch: int, num: int) -> jax.Array:
  return jnp.broadcast_to(jnp.arange(5, 5 + num, dtype=jnp.int32), (batch, num))


def _table(seed: int, vocab_size: int, unit: list[float]) -> dict:
  """Laws of the first two tokens, each token's probability from `unit`."""
  rng = np.random.default_rng(seed)
  prefixes = [(), *((token,) for token in range(vocab_size))]
  return {prefix: rng.permutation(unit) for prefix in prefixes}


# Powers of two in q and 16ths in p: p / q is a 16th or more, so that a grid of
# 16 numbers u resolves every acceptance exactly.
_Q = _table(1, 4, [0.5, 0.25, 0.25, 0.0])
_P = _table(2, 4, [7 / 16, 5 / 16, 4 / 16, 0.0])
_GRID = (np.arange(16) + 0.5) / 16


def test_a_round_of_two_drafted_tokens_keeps_the_law_in_closed_form(
    monkeypatch, make_sampling
):
  """Goes through every draft and every u; takes the redraw's law as it is."""
  cases = list(
      itertools.product(range(4), range(4), range(len(_GRID)), range(16))
  )
  B = len(cases)
  drafted_BJ = np.array([case[:2] for case in cases], np.int32)
  u_BJ = _GRID[np.array([case[2:] for case in cases])]
  p_BTV = np.stack(
      [np.stack([_P[()], _P[x,], _third(x, y)]) for x, y in drafted_BJ.tolist()]
  )
  q_BJV = np.stack([np.stack([_Q[()], _Q[x,]]) for x, _ in drafted_BJ.tolist()])
  taken = {}

  def uniform(keys_BT):
    return jnp.asarray(u_BJ, jnp.float32) if keys_BT.shape[1] == 2 else keys_BT

  def categorical(keys_B1, law_B1V):
    taken['law_BV'] = np.asarray(law_B1V[:, 0], np.float64)
    return jnp.zeros(keys_B1.shape[:2], jnp.int32)

  monkeypatch.setattr(sampling_lib, 'uniform', uniform)
  monkeypatch.setattr(sampling_lib, 'categorical', categorical)
  verdict = verify.reject_and_resample(
      make_sampling(B, temperature=1.0),
      _positions(B, 3),
      draft_tokens_BJ=jnp.asarray(drafted_BJ),
      valid_BJ=jnp.ones((B, 2), bool),
      draft_probs_BJV=jnp.asarray(q_BJV, jnp.float32),
      target_probs_BTV=jnp.asarray(p_BTV, jnp.float32),
  )
  first_V, both_VV = np.zeros(4), np.zeros((4, 4))
  accepted_B = np.asarray(verdict.num_accepted_B)
  for b, (x, y) in enumerate(drafted_BJ.tolist()):
    weight = _Q[()][x] * _Q[x,][y] / 256
    law_V = taken['law_BV'][b]
    if accepted_B[b] == 0:
      first_V += weight * law_V
      # Plain decoding goes on from there.
      for token in range(4):
        both_VV[token] += weight * law_V[token] * _P[token,]
    else:
      first_V[x] += weight
      both_VV[x] += weight * (law_V if accepted_B[b] == 1 else np.eye(4)[y])
  np.testing.assert_allclose(first_V, _P[()], atol=_ATOL)
  expected_VV = np.stack([_P[()][x] * _P[x,] for x in range(4)])
  np.testing.assert_allclose(both_VV, expected_VV, atol=_ATOL)
  bonus_B = accepted_B == 2
  np.testing.assert_allclose(
      taken['law_BV'][bonus_B], p_BTV[bonus_B, 2], atol=_ATOL
  )
  assert set(accepted_B) == {0, 1, 2}


def _third(x: int, y: int) -> np.ndarray:
  """A law for the token after x y."""
  return np.roll([0.5, 0.5, 0.0, 0.0], x + 2 * y)


def _verdict(make_sampling, *, drafted, valid, q, p, seed=0):
  """Verifies one row; the row is repeated when several seeds are given."""
  seeds = np.atleast_1d(seed)
  B = len(seeds)

  def rows(x, dtype):
    x = np.asarray(x, dtype)
    return jnp.asarray(np.broadcast_to(x, (B, *x.shape)))

  return _reject_and_resample(
      make_sampling(B, temperature=1.0, seed=seeds),
      _positions(B, len(p)),
      draft_tokens_BJ=rows(drafted, np.int32),
      valid_BJ=rows(valid, bool),
      draft_probs_BJV=rows(q, np.float32),
      target_probs_BTV=rows(p, np.float32),
  )


_EYE = np.eye(4)


def test_equal_one_hot_laws_accept_everything_and_add_the_bonus_token(
    make_sampling,
):
  verdict = _verdict(
      make_sampling,
      drafted=[2, 0],
      valid=[True, True],
      q=[_EYE[2], _EYE[0]],
      p=[_EYE[2], _EYE[0], _EYE[3]],
      seed=range(50),
  )
  np.testing.assert_array_equal(verdict.num_accepted_B, [2] * 50)
  np.testing.assert_array_equal(verdict.num_tested_B, [2] * 50)
  np.testing.assert_array_equal(verdict.next_token_B, [3] * 50)


def test_a_token_the_target_excludes_is_rejected_and_replaced(make_sampling):
  verdict = _verdict(
      make_sampling,
      drafted=[2, 1],
      valid=[True, True],
      q=[_EYE[2], _EYE[1]],
      p=[_EYE[0], _EYE[1], _EYE[1]],
      seed=range(50),
  )
  np.testing.assert_array_equal(verdict.num_accepted_B, [0] * 50)
  np.testing.assert_array_equal(verdict.num_tested_B, [1] * 50)
  np.testing.assert_array_equal(verdict.next_token_B, [0] * 50)


def test_an_invalid_token_is_never_accepted_and_its_law_never_subtracted(
    make_sampling,
):
  half = [0.5, 0.5, 0, 0]
  verdict = _verdict(
      make_sampling,
      # Token 0 stands where nothing was drafted, with a law that would leave
      # token 1 only.
      drafted=[3, 0],
      valid=[True, False],
      q=[_EYE[3], _EYE[0]],
      p=[_EYE[3], half, _EYE[2]],
      seed=range(50),
  )
  np.testing.assert_array_equal(verdict.num_accepted_B, [1] * 50)
  np.testing.assert_array_equal(verdict.num_tested_B, [1] * 50)
  assert set(np.asarray(verdict.next_token_B)) == {0, 1}


def _logits() -> np.ndarray:
  """Raw logits of 50 rows, three positions and nine tokens."""
  return np.random.default_rng(0).normal(size=(50, 3, 9)).astype(np.float32)


def test_where_nothing_was_drafted_the_token_is_that_of_plain_decoding(
    make_sampling,
):
  sampling = make_sampling(50, temperature=1.0)
  plain = _draw(sampling, _logits(), _positions(50, 3), use=sampling_lib.TARGET)
  verdict = _verify_chain(
      sampling,
      _logits(),
      _positions(50, 3),
      draft_tokens_BJ=jnp.zeros((50, 2), jnp.int32),
      valid_BJ=jnp.zeros((50, 2), bool),
      draft_probs_BJV=jnp.full((50, 2, 9), 1 / 9),
  )
  np.testing.assert_array_equal(verdict.num_accepted_B, [0] * 50)
  np.testing.assert_array_equal(verdict.next_token_B, plain[:, 0])


def test_reject_and_resample_refuses_laws_of_another_length(make_sampling):
  with pytest.raises(ValueError, match='needs 3 rows to verify 2 .* got 2'):
    _verdict(
        make_sampling,
        drafted=[0, 1],
        valid=[True, True],
        q=[_EYE[0], _EYE[1]],
        p=[_EYE[0], _EYE[1]],
    )


@pytest.mark.parametrize('greedy', ['all rows', 'every other row'])
def test_greedy_rows_match_the_argmax_in_any_batch(make_sampling, greedy):
  best = _logits().argmax(-1)
  drafted = best[:, :2].astype(np.int32)
  # In half of the rows of either kind the second drafted token is wrong.
  wrong = np.arange(50) % 4 >= 2
  drafted[wrong, 1] = (drafted[wrong, 1] + 1) % 9
  is_greedy = (np.arange(50) % 2 == 0) | (greedy == 'all rows')
  verdict = _verify_chain(
      make_sampling(50, temperature=np.where(is_greedy, 0.0, 1.0).tolist()),
      _logits(),
      _positions(50, 3),
      draft_tokens_BJ=drafted,
      valid_BJ=jnp.ones((50, 2), bool),
      draft_probs_BJV=jax.nn.one_hot(drafted, 9),
  )
  expected = np.where(wrong, 1, 2)
  next_token = np.where(wrong, best[:, 1], best[:, 2])
  np.testing.assert_array_equal(
      np.asarray(verdict.num_accepted_B)[is_greedy], expected[is_greedy]
  )
  np.testing.assert_array_equal(
      np.asarray(verdict.next_token_B)[is_greedy], next_token[is_greedy]
  )


def test_one_hot_drafts_emit_the_draws_of_plain_decoding(make_sampling):
  sampling = make_sampling(50, temperature=0.3, top_p=0.95)
  draws = np.asarray(
      _draw(sampling, _logits(), _positions(50, 3), use=sampling_lib.TARGET)
  )
  drafted = _logits()[:, :2].argmax(-1).astype(np.int32)
  verdict = _verify_chain(
      sampling,
      _logits(),
      _positions(50, 3),
      draft_tokens_BJ=drafted,
      valid_BJ=jnp.ones((50, 2), bool),
      draft_probs_BJV=None,
  )
  accepted = np.asarray(verdict.num_accepted_B)
  for row, n in enumerate(accepted):
    np.testing.assert_array_equal(drafted[row, :n], draws[row, :n])
    assert verdict.next_token_B[row] == draws[row, n]
    assert n == 2 or drafted[row, n] != draws[row, n]
  assert set(accepted) == {0, 1, 2}


@pytest.mark.slow
@pytest.mark.statistical
def test_frequencies_of_emitted_tokens_follow_the_target(make_sampling):
  V, num_seeds, chunk = 6, 200_000, 20_000
  rng = np.random.default_rng(0)
  p_first_V, q_first_V = rng.dirichlet(np.ones(V), 2)
  p_VV, q_VV = rng.dirichlet(np.ones(V), (2, V))
  q_first_V, q_VV = np.float32(q_first_V), np.float32(q_VV)

  @jax.jit
  def emitted(seed_B):
    sampling = make_sampling(chunk, temperature=1.0, seed=np.zeros(chunk))
    sampling = sampling.replace(seed_B=seed_B)
    positions = _positions(chunk, 3)

    def draw(law_BV, position, use):
      at = positions[:, position, None]
      keys = sampling_lib.keys(seed_B, at, use)
      if use == sampling_lib.DRAFT:
        keys = sampling_lib.trial_keys(seed_B, positions[:, 0], at, use)
      return sampling_lib.categorical(keys, law_BV[:, None])[:, 0]

    q0_BV = jnp.broadcast_to(q_first_V, (chunk, V))
    x_B = draw(q0_BV, 0, sampling_lib.DRAFT)
    q1_BV = jnp.asarray(q_VV)[x_B]
    y_B = draw(q1_BV, 1, sampling_lib.DRAFT)
    p0_BV = jnp.broadcast_to(jnp.asarray(p_first_V, jnp.float32), (chunk, V))
    p_after = jnp.asarray(p_VV, jnp.float32)
    verdict = verify.reject_and_resample(
        sampling,
        positions,
        draft_tokens_BJ=jnp.stack([x_B, y_B], axis=1),
        valid_BJ=jnp.ones((chunk, 2), bool),
        draft_probs_BJV=jnp.stack([q0_BV, q1_BV], axis=1),
        target_probs_BTV=jnp.stack([p0_BV, p_after[x_B], p_after[y_B]], axis=1),
    )
    n_B, next_B = verdict.num_accepted_B, verdict.next_token_B
    first_B = jnp.where(n_B == 0, next_B, x_B)
    # After a rejection at once, plain decoding draws the second token.
    plain_B = draw(p_after[first_B], 1, sampling_lib.TARGET)
    second_B = jnp.where(n_B == 0, plain_B, jnp.where(n_B == 1, next_B, y_B))
    return first_B, second_B

  counts_VV = np.zeros((V, V))
  for start in range(0, num_seeds, chunk):
    seeds = jnp.arange(start, start + chunk, dtype=jnp.uint32)
    np.add.at(counts_VV, tuple(np.asarray(x) for x in emitted(seeds)), 1)
  law_VV = p_first_V[:, None] * p_VV
  assert chi_square.p_value(counts_VV.sum(1), p_first_V) > _FALSE_ALARM
  assert chi_square.p_value(counts_VV, law_VV) > _FALSE_ALARM
  # The draft's own law is far enough away to be told apart.
  wrong_VV = q_first_V[:, None].astype(float) * q_VV
  wrong_VV /= wrong_VV.sum()
  assert chi_square.p_value(counts_VV, wrong_VV) < _FALSE_ALARM


def test_the_oracles_of_laws_agree_with_the_tables():
  expected = oracles.text_law(lambda text: _P[text], 4, 2)
  got = oracles.speculative_text_law(
      lambda text: _P[text], lambda text: _Q[text], 4, 1
  )
  assert got == pytest.approx(expected, abs=1e-12)
