import math

from jax import numpy as jnp
import numpy as np
import pytest

from speculative.models import rope as rope_lib
from speculative.models.config import RopeConfig
from speculative.testing import oracles

# Float32 cosines of angles up to 1000 radians: the angle itself is rounded.
_ANGLE_ATOL = 1e-4

_ROPES = {
    'plain': RopeConfig(theta=10_000.0),
    'linear': RopeConfig(scaling='linear', factor=4.0),
    'llama 3.1': RopeConfig(
        theta=500_000.0,
        scaling='llama3',
        factor=8.0,
        original_max_position=8192,
    ),
    'llama 3.2, factor 32': RopeConfig(
        theta=500_000.0,
        scaling='llama3',
        factor=32.0,
        original_max_position=8192,
        low_freq_factor=2.0,
        high_freq_factor=5.0,
    ),
    'yarn, qwen2.5': RopeConfig(
        theta=1_000_000.0,
        scaling='yarn',
        factor=4.0,
        original_max_position=32_768,
    ),
    'yarn, narrow ramp': RopeConfig(
        scaling='yarn',
        factor=16.0,
        original_max_position=2048,
        beta_fast=2.0,
        beta_slow=1.5,
    ),
    'yarn, beyond both ends': RopeConfig(
        theta=50.0, scaling='yarn', factor=2.0, original_max_position=64
    ),
}


@pytest.mark.parametrize('head_dim', [8, 64, 128])
@pytest.mark.parametrize('rope', _ROPES.values(), ids=_ROPES.keys())
def test_frequencies_equal_the_formula_of_each_scaling(rope, head_dim):
  expected = [
      oracles.rope_frequency(rope, head_dim, i) for i in range(head_dim // 2)
  ]
  got = rope_lib.frequencies(rope, head_dim)
  np.testing.assert_allclose(got, expected, rtol=1e-6)
  assert got.dtype == np.float32


@pytest.mark.parametrize('name', ['llama 3.1', 'yarn, qwen2.5'])
def test_scaling_keeps_fast_pairs_divides_slow_ones_and_blends_between(name):
  rope = _ROPES[name]
  plain = rope_lib.frequencies(RopeConfig(theta=rope.theta), 128)
  share = rope_lib.frequencies(rope, 128) / plain
  np.testing.assert_allclose(share[0], 1, rtol=1e-6)
  np.testing.assert_allclose(share[-1], 1 / rope.factor, rtol=1e-6)
  assert (np.diff(share) <= 1e-6).all()
  assert ((share > 1 / rope.factor + 0.01) & (share < 0.99)).any()


@pytest.mark.parametrize(
    'rope, expected',
    [
        (_ROPES['plain'], 1.0),
        (_ROPES['llama 3.1'], 1.0),
        (_ROPES['yarn, qwen2.5'], 0.1 * math.log(4) + 1),
        (
            RopeConfig(
                scaling='yarn',
                factor=4.0,
                original_max_position=64,
                attention_factor=1.5,
            ),
            1.5,
        ),
        (
            RopeConfig(scaling='yarn', factor=1.0, original_max_position=64),
            1.0,
        ),
    ],
    ids=['plain', 'llama3', 'yarn', 'yarn set by hand', 'yarn of factor 1'],
)
def test_only_yarn_scales_the_amplitude(rope, expected):
  assert rope_lib.amplitude(rope) == pytest.approx(expected)
  cos, sin = rope_lib.rotation(rope, 8, jnp.asarray([[0, 5]]))
  np.testing.assert_allclose(cos[0, 0, 0], expected, rtol=1e-6)
  np.testing.assert_allclose(cos**2 + sin**2, expected**2, rtol=1e-5)


def test_rotation_turns_by_position_times_frequency():
  rope, positions = _ROPES['plain'], [[0, 3], [7, 1000]]
  cos, sin = rope_lib.rotation(rope, 8, jnp.asarray(positions))
  assert cos.shape == (2, 2, 1, 4)
  for (b, t), position in np.ndenumerate(positions):
    for i in range(4):
      angle = position * oracles.rope_frequency(rope, 8, i)
      assert cos[b, t, 0, i] == pytest.approx(math.cos(angle), abs=_ANGLE_ATOL)
      assert sin[b, t, 0, i] == pytest.approx(math.sin(angle), abs=_ANGLE_ATOL)


def test_rotate_pairs_component_i_with_i_plus_half():
  quarter_turn = (jnp.zeros((1, 1, 1, 2)), jnp.ones((1, 1, 1, 2)))
  x_BTNH = jnp.asarray([1.0, 2.0, 3.0, 4.0])[None, None, None]
  rotated = rope_lib.rotate(x_BTNH, quarter_turn)
  np.testing.assert_array_equal(rotated[0, 0, 0], [-3, -4, 1, 2])


def test_products_of_rotated_heads_depend_on_the_distance_only():
  rng = np.random.default_rng(0)
  q, k = rng.normal(size=(2, 1, 1, 1, 16)).astype(np.float32)

  def product(at_q: int, at_k: int) -> float:
    turned = [
        rope_lib.rotate(
            x, rope_lib.rotation(RopeConfig(), 16, jnp.asarray([[at]]))
        )
        for x, at in ((q, at_q), (k, at_k))
    ]
    return float((turned[0] * turned[1]).sum())

  assert product(9, 4) == pytest.approx(product(105, 100), abs=_ANGLE_ATOL)
  assert abs(product(9, 4) - product(9, 5)) > 0.01


def test_rotate_computes_in_float32_and_returns_the_dtype_given():
  rotation = rope_lib.rotation(RopeConfig(), 8, jnp.asarray([[3]]))
  x = jnp.linspace(-1, 1, 8)[None, None, None].astype(jnp.bfloat16)
  got = rope_lib.rotate(x, rotation)
  wide = rope_lib.rotate(x.astype(jnp.float32), rotation)
  assert got.dtype == jnp.bfloat16
  np.testing.assert_array_equal(got, wide.astype(jnp.bfloat16))
