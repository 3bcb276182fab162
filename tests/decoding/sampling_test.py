import functools
import itertools

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding import sampling as sampling_lib

_USES = (
    sampling_lib.TARGET,
    sampling_lib.DRAFT,
    sampling_lib.ACCEPT,
    sampling_lib.RESIDUAL,
)
_LARGEST_U = np.nextafter(np.float32(1), np.float32(0))

_categorical = jax.jit(sampling_lib.categorical)


def test_keys_never_repeat_over_seeds_positions_and_uses():
  seeds = jnp.asarray([0, 1, 2, 3, 64, 2**31, 2**32 - 1], jnp.uint32)
  positions = jnp.broadcast_to(jnp.arange(70, dtype=jnp.int32), (7, 70))
  data = np.concatenate(
      [
          jax.random.key_data(sampling_lib.keys(seeds, positions, use)).reshape(
              7 * 70, -1
          )
          for use in _USES
      ]
  )
  assert len(np.unique(data, axis=0)) == len(_USES) * 7 * 70


def test_keys_depend_on_seed_position_and_use_alone():
  seeds = jnp.asarray([5, 9], jnp.uint32)
  positions = jnp.asarray([[3, 4, 5], [7, 8, 9]], jnp.int32)
  both = jax.random.key_data(sampling_lib.keys(seeds, positions, 2))
  alone = jax.random.key_data(
      sampling_lib.keys(seeds[1:], positions[1:, 1:2], 2)
  )
  np.testing.assert_array_equal(both[1, 1], alone[0, 0])


def test_uniform_numbers_of_different_uses_are_unrelated():
  seeds = jnp.arange(50, dtype=jnp.uint32)
  positions = jnp.broadcast_to(jnp.arange(100, dtype=jnp.int32), (50, 100))
  draws = np.stack(
      [
          sampling_lib.uniform(sampling_lib.keys(seeds, positions, use)).ravel()
          for use in _USES
      ]
  )
  assert draws.min() >= 0
  assert draws.max() < 1
  # The mean of 5000 uniform numbers has standard deviation 0.0041, their
  # correlation 0.014; the limits are five of these.
  assert np.abs(draws.mean(axis=1) - 0.5).max() < 0.021
  correlation = np.corrcoef(draws) - np.eye(len(_USES))
  assert np.abs(correlation).max() < 0.071


@pytest.mark.parametrize('vocab_size', [1, 5, 255, 256, 257, 600, 1030])
def test_categorical_gives_every_token_its_exact_share_of_a_grid(vocab_size):
  rng = np.random.default_rng(vocab_size)
  N = 4096
  # Shares in 4096ths, many of them zero: sums are exact in float32.
  counts = rng.multinomial(N, rng.dirichlet(np.full(vocab_size, 0.2)))
  law = jnp.asarray(counts / N, jnp.float32)
  grid = jnp.arange(N, dtype=jnp.float32)[None, :] / N
  for u in (grid, grid + 0.5 / N):
    drawn = _categorical(u, jnp.broadcast_to(law, (1, N, vocab_size)))
    got = np.bincount(np.asarray(drawn)[0], minlength=vocab_size)
    np.testing.assert_array_equal(got, counts)
    # The inverse of a cumulative distribution rises with u.
    assert (np.diff(np.asarray(drawn)[0]) >= 0).all()


def _laws_with_holes(num: int, vocab_size: int) -> np.ndarray:
  rng = np.random.default_rng(0)
  laws = rng.random((num, vocab_size)) ** 6
  laws *= rng.random((num, vocab_size)) < 0.3
  laws[:, vocab_size // 2] += 1e-3
  laws[:, [0, -1]] = 0
  laws /= laws.sum(axis=1, keepdims=True)
  # Laws sum to one only up to rounding.
  laws *= 1 + 1e-6 * rng.normal(size=(num, 1))
  return laws.astype(np.float32)


@pytest.mark.parametrize('vocab_size', [8, 256, 700])
@pytest.mark.parametrize('u', [0.0, 1e-30, _LARGEST_U], ids=str)
def test_categorical_never_draws_probability_zero_at_the_ends(vocab_size, u):
  laws = _laws_with_holes(200, vocab_size)[None]
  drawn = np.asarray(_categorical(jnp.full((1, 200), u), laws))[0]
  assert (laws[0, np.arange(200), drawn] > 0).all()
  last = vocab_size - 1 - np.argmax(laws[0, :, ::-1] > 0, axis=1)
  first = np.argmax(laws[0] > 0, axis=1)
  if u == 0:
    np.testing.assert_array_equal(drawn, first)
  if u == _LARGEST_U:
    # A last token lighter than the rounding of one may be skipped.
    heavy = laws[0, np.arange(200), last] > 1e-6
    np.testing.assert_array_equal(drawn[heavy], last[heavy])


def test_categorical_never_draws_probability_zero_in_any_order_of_summation(
    monkeypatch,
):
  @functools.partial(jax.jit, static_argnames='axis')
  def by_halves(x, axis):
    return jax.lax.associative_scan(jnp.add, x, axis=axis % x.ndim)

  laws = _laws_with_holes(200, 256)
  ends = np.asarray(by_halves(jnp.asarray(laws), 1))
  # Running sums by halves rise by rounding where a law has no probability.
  law, token = np.nonzero((laws[:, 1:] == 0) & (np.diff(ends) > 0))
  assert len(law) > 100
  monkeypatch.setattr(jnp, 'cumsum', by_halves)
  u = (ends[law, token] / ends[law, -1]).astype(np.float32)
  drawn = sampling_lib.categorical(jnp.asarray(u)[None], laws[None, law])
  assert (laws[law, np.asarray(drawn)[0]] > 0).all()


def test_categorical_draws_each_position_from_its_own_law():
  laws = _laws_with_holes(12, 300).reshape(3, 4, 300)
  u = np.random.default_rng(1).random((3, 4)).astype(np.float32)
  together = np.asarray(_categorical(u, laws))
  for b, t in itertools.product(range(3), range(4)):
    alone = _categorical(u[b : b + 1, t : t + 1], laws[b : b + 1, t : t + 1])
    assert alone[0, 0] == together[b, t]
    sums = np.cumsum(laws[b, t], dtype=np.float64)
    expected = np.argmax(sums > u[b, t] * sums[-1])
    assert together[b, t] == expected


def test_categorical_looks_at_the_ratios_of_probabilities_only():
  laws = _laws_with_holes(200, 300)[None]
  u = np.random.default_rng(1).random((1, 200)).astype(np.float32)
  np.testing.assert_array_equal(
      _categorical(u, laws / 2), _categorical(u, laws)
  )


_draw = jax.jit(sampling_lib.draw, static_argnames='use')


def _logits(*shape: int) -> np.ndarray:
  return np.random.default_rng(2).normal(size=shape).astype(np.float32)


def test_draw_takes_the_first_of_the_likeliest_in_greedy_rows(make_sampling):
  logits = jnp.asarray([[[1, 5, 5, 0]], [[7, 7, 0, 0]]], jnp.float32)
  positions = jnp.asarray([[3], [9]], jnp.int32)
  for temperature in (0.0, [0.0, 0.8]):
    drawn = _draw(
        make_sampling(2, temperature=temperature), logits, positions, use=0
    )
    assert drawn[0, 0] == 1
  assert _draw(make_sampling(2), logits, positions, use=0)[1, 0] == 0


def test_draw_of_a_row_does_not_depend_on_the_batch_around_it(make_sampling):
  logits = _logits(4, 3, 20)
  positions = np.arange(12, dtype=np.int32).reshape(4, 3)
  batch = make_sampling(
      4,
      temperature=[0.0, 0.8, 0.8, 1.5],
      top_p=[1.0, 0.9, 1.0, 0.5],
      top_k=[0, 0, 3, 0],
      seed=[4, 4, 8, 1],
  )
  together = _draw(batch, logits, positions, use=0)
  for row in range(4):
    alone = jax.tree.map(lambda x, row=row: x[row : row + 1], batch)
    for t in range(3):
      one = _draw(
          alone,
          logits[row : row + 1, t : t + 1],
          positions[row : row + 1, t : t + 1],
          use=0,
      )
      assert one[0, 0] == together[row, t]


def test_draw_changes_with_seed_position_and_use(make_sampling):
  logits = np.zeros((1, 40, 1000), np.float32)
  positions = np.arange(40, dtype=np.int32)[None]

  def drawn(seed=0, shift=0, use=0):
    sampling = make_sampling(1, temperature=1.0, seed=seed)
    return np.asarray(_draw(sampling, logits, positions + shift, use=use))[0]

  first = drawn()
  np.testing.assert_array_equal(first, drawn())
  np.testing.assert_array_equal(first[1:], drawn(shift=1)[:-1])
  for other in (drawn(seed=1), drawn(shift=40), drawn(use=1)):
    # 40 of 1000 equally likely tokens agree by chance in 0.04 places.
    assert (first == other).sum() < 4
