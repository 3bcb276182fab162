import functools
import itertools
import math

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding import sampling as sampling_lib
from speculative.testing import chi_square
from speculative.testing import oracles

_USES = (
    sampling_lib.TARGET,
    sampling_lib.DRAFT,
    sampling_lib.ACCEPT,
    sampling_lib.RESIDUAL,
)
_LARGEST_U = np.nextafter(np.float32(1), np.float32(0))

_inverse = jax.jit(sampling_lib.inverse)


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


def test_keys_of_a_trial_do_not_come_back_in_a_later_round():
  """Rounds that start at 5, 6 and 7 try position 8 with three numbers."""
  seeds = jnp.asarray([1, 1, 1], jnp.uint32)
  starts = jnp.asarray([5, 6, 7], jnp.int32)
  positions = jnp.asarray([[8], [8], [8]], jnp.int32)
  seen = [
      jax.random.key_data(
          sampling_lib.trial_keys(seeds, starts, positions, use)
      ).reshape(3, -1)
      for use in (sampling_lib.DRAFT, sampling_lib.ACCEPT)
  ]
  seen.append(
      jax.random.key_data(
          sampling_lib.keys(seeds[:1], positions[:1], sampling_lib.TARGET)
      ).reshape(1, -1)
  )
  assert len(np.unique(np.concatenate(seen), axis=0)) == 7


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


_LEVELS = 4
_PARTS = 8  # every branching of a test's law is in 8ths: sums are exact


def _tree(law_V: np.ndarray) -> np.ndarray:
  """Returns a law over the four levels of its vocabulary's tree."""
  num, width = sampling_lib._grid(len(law_V))
  rows = np.pad(law_V, (0, num * width - len(law_V))).reshape(num, width)
  a, b = math.isqrt(num), math.isqrt(width)
  rows = np.pad(rows, ((0, -num % a), (0, -width % b)))
  return rows.reshape(rows.shape[0] // a, a, rows.shape[1] // b, b)


def _law_in_parts(rng: np.random.Generator, vocab_size: int) -> np.ndarray:
  """Returns a law [V], many of its tokens without any probability."""
  token = _tree(np.arange(vocab_size) + 1) - 1
  law_V = np.zeros(vocab_size)

  def deal(branch: np.ndarray, share: float) -> None:
    if branch.ndim == 0:
      law_V[branch] = share
      return
    alive = [b for b in branch if (b >= 0).any()]
    parts = rng.multinomial(_PARTS, rng.dirichlet(np.full(len(alive), 0.3)))
    for child, part in zip(alive, parts, strict=True):
      if part:
        deal(child, share * part / _PARTS)

  deal(token.astype(int), 1.0)
  return law_V


@pytest.mark.parametrize('vocab_size', [1, 5, 64, 255, 256, 600, 1030])
def test_every_token_gets_its_exact_share_of_a_grid(vocab_size):
  law_V = _law_in_parts(np.random.default_rng(vocab_size), vocab_size)
  points = np.arange(_PARTS) / _PARTS
  grid = np.stack(np.meshgrid(*[points] * _LEVELS), -1).reshape(-1, _LEVELS)
  for u in (grid, grid + 0.5 / _PARTS):
    drawn = _inverse(
        jnp.asarray(u, jnp.float32)[None],
        jnp.broadcast_to(jnp.asarray(law_V), (1, len(u), vocab_size)),
    )
    got = np.bincount(np.asarray(drawn)[0], minlength=vocab_size)
    np.testing.assert_array_equal(got / len(u), law_V)


@pytest.mark.parametrize(
    ('vocab_size', 'num_blocks'),
    [
        (151_936, 128),
        (128_256, 256),
        (49_152, 256),
        (32_000, 256),
        (50_257, 256),
        (48, 16),
        (17, 17),
    ],
)
def test_blocks_divide_a_vocabulary_that_a_mesh_can_divide(
    vocab_size, num_blocks
):
  num, width = sampling_lib._grid(vocab_size)
  assert num == num_blocks
  assert num * width >= vocab_size
  if vocab_size not in (50_257, 17):
    assert num * width == vocab_size


def test_a_draw_moves_only_within_rounding_of_a_few_bounds():
  """Of draws from a flat law that is off by one part in 10^6, few change."""
  V, N = 32_000, 500
  rng = np.random.default_rng(0)
  off = np.stack([np.ones(V), 1 + np.linspace(-1e-6, 1e-6, V)]) / V
  laws = jnp.asarray(off, jnp.float32)[:, None].repeat(N, 1)
  moved = 0
  for _ in range(8):
    u = jnp.asarray(rng.random((1, N, _LEVELS)), jnp.float32).repeat(2, 0)
    first, second = np.asarray(_inverse(u, laws))
    moved += (first != second).sum()
  # One number for the whole vocabulary would move some 0.8 % of them.
  assert moved / (8 * N) < 5e-4


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
def test_probability_zero_is_never_drawn_at_the_ends(vocab_size, u):
  laws = _laws_with_holes(200, vocab_size)[None]
  drawn = np.asarray(_inverse(jnp.full((1, 200, _LEVELS), u), laws))[0]
  assert (laws[0, np.arange(200), drawn] > 0).all()
  if u == 0:
    np.testing.assert_array_equal(drawn, np.argmax(laws[0] > 0, axis=1))


def test_probability_zero_is_never_drawn_in_any_order_of_summation(monkeypatch):
  @functools.partial(jax.jit, static_argnames='axis')
  def by_halves(x, axis):
    return jax.lax.associative_scan(jnp.add, x, axis=axis % x.ndim)

  laws = _laws_with_holes(2000, 16)
  ends = np.asarray(by_halves(jnp.asarray(laws), 1))
  # Running sums by halves rise by rounding where a law has no probability.
  law, token = np.nonzero((laws[:, 1:] == 0) & (np.diff(ends) > 0))
  assert len(law) > 100
  monkeypatch.setattr(jnp, 'cumsum', by_halves)
  u = (ends[law, token] / ends[law, -1]).astype(np.float32)
  drawn = sampling_lib._choose(jnp.asarray(u)[None], laws[None, law])
  assert (laws[law, np.asarray(drawn)[0]] > 0).all()


def test_each_position_is_drawn_from_its_own_law():
  laws = _laws_with_holes(12, 300).reshape(3, 4, 300)
  u = np.random.default_rng(1).random((3, 4, _LEVELS)).astype(np.float32)
  together = np.asarray(_inverse(u, laws))
  for b, t in itertools.product(range(3), range(4)):
    alone = _inverse(u[b : b + 1, t : t + 1], laws[b : b + 1, t : t + 1])
    assert alone[0, 0] == together[b, t]
    num_blocks, _ = sampling_lib._grid(300)
    assert together[b, t] == oracles.inverse(
        u[b, t].astype(float), laws[b, t], num_blocks
    )


def test_a_draw_looks_at_the_ratios_of_probabilities_only():
  laws = _laws_with_holes(200, 300)[None]
  u = np.random.default_rng(1).random((1, 200, _LEVELS)).astype(np.float32)
  np.testing.assert_array_equal(_inverse(u, laws / 2), _inverse(u, laws))


@pytest.mark.statistical
def test_frequencies_of_draws_follow_the_law():
  V, N = 300, 200_000
  law_V = _laws_with_holes(1, V)[0]
  keys = sampling_lib.keys(
      jnp.zeros((1,), jnp.uint32), jnp.arange(N, dtype=jnp.int32)[None], 0
  )
  drawn = jax.jit(sampling_lib.categorical)(
      keys, jnp.broadcast_to(law_V, (1, N, V))
  )
  counts_V = np.bincount(np.asarray(drawn)[0], minlength=V)
  assert chi_square.p_value(counts_V, law_V / law_V.sum()) > 1e-4


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
