import math

import numpy as np
import pytest

from speculative.errors import UserError
from speculative.models import rope_scaling
from speculative.models.config import RopeConfig

_LLAMA3_SCALING = {
    'rope_type': 'llama3',
    'factor': 8.0,
    'low_freq_factor': 1.0,
    'high_freq_factor': 4.0,
    'original_max_position_embeddings': 8192,
}
_LLAMA3 = RopeConfig(
    theta=10_000.0,
    scaling='llama3',
    factor=8.0,
    original_max_position=8192,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
)


def _from_hf(d: dict) -> RopeConfig:
  return rope_scaling.from_hf(d, max_position=4096, default_theta=10_000.0)


def _from_gguf(**fields) -> RopeConfig:
  fields = {f'llama.rope.{n}': value for n, value in fields.items()}
  fields['general.architecture'] = 'llama'
  return rope_scaling.from_gguf(fields, max_position=4096)


@pytest.mark.parametrize(
    'block, expected',
    [
        (None, RopeConfig()),
        ({'rope_type': 'default'}, RopeConfig()),
        (
            {'type': 'linear', 'factor': 2},
            RopeConfig(scaling='linear', factor=2.0),
        ),
        (_LLAMA3_SCALING, _LLAMA3),
        (
            {'type': 'yarn', 'factor': 4.0},
            RopeConfig(scaling='yarn', factor=4.0, original_max_position=4096),
        ),
        (
            {
                'rope_type': 'yarn',
                'original_max_position_embeddings': 1024,
                'beta_fast': 16,
                'beta_slow': 2,
                'attention_factor': 1.25,
            },
            RopeConfig(
                scaling='yarn',
                factor=4.0,
                original_max_position=1024,
                beta_fast=16.0,
                beta_slow=2.0,
                attention_factor=1.25,
            ),
        ),
    ],
    ids=['absent', 'default', 'linear', 'llama3', 'yarn', 'yarn_in_full'],
)
def test_from_hf_reads_both_keys_alike(block, expected):
  assert _from_hf({'rope_scaling': block}) == expected
  assert _from_hf({'rope_parameters': block}) == expected


def test_from_hf_finds_theta_in_either_place():
  assert _from_hf({'rope_theta': 5e5}).theta == 5e5
  block = {'rope_type': 'default', 'rope_theta': 1e6}
  assert _from_hf({'rope_parameters': block}).theta == 1e6


def test_from_hf_combines_the_two_scales_of_yarn():
  block = {'type': 'yarn', 'factor': 40.0, 'mscale': 1.0, 'mscale_all_dim': 0.5}
  got = _from_hf({'rope_scaling': block}).attention_factor
  log = math.log(40)
  assert got == pytest.approx((0.1 * log + 1) / (0.05 * log + 1))


@pytest.mark.parametrize(
    'd, message',
    [
        ({'rope_scaling': {'type': 'dynamic', 'factor': 2}}, "'dynamic'.*yarn"),
        ({'rope_scaling': {'type': 'linear'}}, "'factor', got None"),
        (
            {'rope_scaling': _LLAMA3_SCALING | {'low_freq_factor': 'low'}},
            "'low_freq_factor', got 'low'",
        ),
        (
            {
                'rope_scaling': {
                    n: x
                    for n, x in _LLAMA3_SCALING.items()
                    if n != 'original_max_position_embeddings'
                }
            },
            'original_max_position > 0',
        ),
        ({'rope_scaling': {'type': 'yarn', 'truncate': False}}, 'truncate'),
        ({'rope_parameters': {'full_attention': {}}}, 'per layer type'),
        ({'partial_rotary_factor': 0.5}, 'partial_rotary_factor=0.5'),
        ({'rope_theta': 0}, "'rope_theta', got 0"),
    ],
)
def test_from_hf_refuses_what_it_does_not_know(d, message):
  with pytest.raises(UserError, match=message):
    _from_hf(d)


@pytest.mark.parametrize(
    'fields, expected',
    [
        ({}, RopeConfig()),
        ({'freq_base': 1e6}, RopeConfig(theta=1e6)),
        ({'scaling.type': 'none', 'scaling.factor': 4.0}, RopeConfig()),
        (
            {'scaling.type': 'linear', 'scaling.factor': 4.0},
            RopeConfig(scaling='linear', factor=4.0),
        ),
        ({'scale_linear': 2.0}, RopeConfig(scaling='linear', factor=2.0)),
        (
            {
                'scaling.type': 'yarn',
                'scaling.factor': 4.0,
                'scaling.original_context_length': 1024,
            },
            RopeConfig(scaling='yarn', factor=4.0, original_max_position=1024),
        ),
        (
            {
                'scaling.type': 'yarn',
                'scaling.factor': 4.0,
                'scaling.attn_factor': 0.5,
            },
            RopeConfig(
                scaling='yarn',
                factor=4.0,
                original_max_position=4096,
                attention_factor=0.5 * (0.1 * math.log(4) + 1),
            ),
        ),
    ],
)
def test_from_gguf_reads_the_metadata(fields, expected):
  assert _from_gguf(**fields) == expected


def test_from_gguf_refuses_partial_extrapolation():
  with pytest.raises(UserError, match='yarn_ext_factor'):
    _from_gguf(**{'scaling.type': 'yarn', 'scaling.yarn_ext_factor': 0.5})


def _divisors(
    theta: float, head_dim: int, factor: float, high: float, original: int
) -> np.ndarray:
  """Llama-3 scaling, one frequency after another, as divisors."""
  divisors = []
  for i in range(0, head_dim, 2):
    wavelength = 2 * math.pi * theta ** (i / head_dim)
    if wavelength < original / high:
      divisors.append(1.0)
    elif wavelength > original:
      divisors.append(factor)
    else:
      smooth = (original / wavelength - 1) / (high - 1)
      divisors.append(1 / ((1 - smooth) / factor + smooth))
  return np.array(divisors, np.float32)


@pytest.mark.parametrize(
    'theta, head_dim, factor, high, original',
    [
        (5e5, 128, 8.0, 4.0, 8192),
        (5e5, 64, 32.0, 4.0, 8192),
        (1e4, 64, 4.0, 3.0, 2048),
        # Too few frequencies between the thresholds to fit a line.
        (5e5, 16, 8.0, 4.0, 8192),
    ],
)
def test_llama3_scaling_is_recovered_from_its_divisors(
    theta, head_dim, factor, high, original
):
  got = rope_scaling.with_frequency_factors(
      RopeConfig(theta=theta),
      _divisors(theta, head_dim, factor, high, original),
      head_dim=head_dim,
  )
  assert got == RopeConfig(
      theta=theta,
      scaling='llama3',
      factor=factor,
      original_max_position=original,
      low_freq_factor=1.0,
      high_freq_factor=high,
  )


def test_divisors_of_one_mean_no_scaling():
  rope = RopeConfig(theta=5e5)
  got = rope_scaling.with_frequency_factors(rope, np.ones(32), head_dim=64)
  assert got == rope


@pytest.mark.parametrize(
    'rope, divisors',
    [
        (RopeConfig(), np.linspace(1, 8, 32)),
        (RopeConfig(), _divisors(1e4, 64, 8.0, 4.0, 2048)[:16]),
        (
            RopeConfig(scaling='linear', factor=2.0),
            _divisors(1e4, 64, 8.0, 4.0, 2048),
        ),
    ],
    ids=['another_rule', 'another_length', 'on_top_of_linear'],
)
def test_other_divisors_are_refused(rope, divisors):
  with pytest.raises(UserError, match='not one that Llama-3 scaling gives'):
    rope_scaling.with_frequency_factors(rope, divisors, head_dim=64)
