"""Reads the rotary embedding that a checkpoint's metadata describes.

Three descriptions end in one RopeConfig: `rope_scaling` (or the newer
`rope_parameters`) of a config.json, the `{arch}.rope.*` fields of a GGUF, and
the `rope_freqs` tensor in which a GGUF keeps the Llama-3 scaling: one divisor
per frequency instead of the four numbers it was computed from.
"""

from collections.abc import Mapping
import dataclasses
import math
from typing import Any

import numpy as np

from speculative.errors import UserError
from speculative.models import rope as rope_lib
from speculative.models.config import RopeConfig

# The tensor is float32 and the numbers behind it are round ones.
_FACTOR_RTOL = 1e-4


def shortest(value: float) -> float:
  """Returns the shortest decimal that rounds to the same float32.

  GGUF stores 1e-5 as float32; read as a Python float it would be
  9.999999747378752e-06 and compare unequal to the same model's config.json.
  """
  return float(str(np.float32(value)))


def number(
    d: Mapping[str, Any], name: str, default: float | None = None
) -> float:
  """Returns a positive number of a config.json.

  Args:
    d: the parsed config.json or an object in it.
    name: key of the number.
    default: its value where the key is absent; None if it is needed.

  Returns:
    The number.

  Raises:
    UserError: If it is absent, not a number, or not positive.
  """
  value = d.get(name, default)
  if (
      isinstance(value, bool)
      or not isinstance(value, (int, float))
      or not value > 0
  ):
    raise UserError(
        f'config.json needs a number > 0 for {name!r}, got {value!r}.'
    )
  return float(value)


def from_hf(
    d: Mapping[str, Any], *, max_position: int, default_theta: float
) -> RopeConfig:
  """Reads the rotary embedding of a config.json.

  Args:
    d: the parsed config.json.
    max_position: its context length.
    default_theta: the base where the file names none.

  Returns:
    The RopeConfig.

  Raises:
    UserError: If the kind of scaling is unknown, lacks a number, or rotates
      only a part of each head.
  """
  block = d.get('rope_parameters') or d.get('rope_scaling') or {}
  if not isinstance(block, Mapping) or any(
      isinstance(value, Mapping) for value in block.values()
  ):
    raise UserError(
        'rope parameters per layer type are not supported; needed is one flat '
        f'object in config.json, got {block!r}.'
    )
  theta = number(
      block if 'rope_theta' in block else d, 'rope_theta', default_theta
  )
  rotated = block.get('partial_rotary_factor', d.get('partial_rotary_factor'))
  if rotated not in (None, 1):
    raise UserError(
        f'partial_rotary_factor={rotated} is not supported; needed is 1.'
    )
  kind = block.get('rope_type', block.get('type')) or 'default'
  original = block.get(
      'original_max_position_embeddings',
      d.get('original_max_position_embeddings'),
  )
  if kind == 'default':
    return RopeConfig(theta=theta)
  if kind == 'linear':
    return RopeConfig(
        theta=theta, scaling='linear', factor=number(block, 'factor')
    )
  if kind == 'llama3':
    return RopeConfig(
        theta=theta,
        scaling='llama3',
        factor=number(block, 'factor'),
        original_max_position=int(original or 0),
        low_freq_factor=number(block, 'low_freq_factor'),
        high_freq_factor=number(block, 'high_freq_factor'),
    )
  if kind == 'yarn':
    return _yarn_from_hf(
        block, theta=theta, original=original, max_position=max_position
    )
  raise UserError(
      f'rope type {kind!r} is not supported; known: default, linear, llama3, '
      'yarn.'
  )


def _yarn_from_hf(
    block: Mapping[str, Any],
    *,
    theta: float,
    original: int | None,
    max_position: int,
) -> RopeConfig:
  if not block.get('truncate', True):
    raise UserError(
        'yarn with truncate=false is not supported; needed is true (the '
        'default).'
    )
  original = int(original or max_position)
  if block.get('factor') is None:
    factor = max_position / original
  else:
    factor = number(block, 'factor')
  attention_factor = block.get('attention_factor') or 0.0
  mscale, all_dim = block.get('mscale'), block.get('mscale_all_dim')
  if not attention_factor and mscale and all_dim:
    attention_factor = _yarn_scale(factor, mscale) / _yarn_scale(
        factor, all_dim
    )
  return RopeConfig(
      theta=theta,
      scaling='yarn',
      factor=factor,
      original_max_position=original,
      beta_fast=float(block.get('beta_fast') or 32.0),
      beta_slow=float(block.get('beta_slow') or 1.0),
      attention_factor=float(attention_factor),
  )


def _yarn_scale(factor: float, weight: float) -> float:
  return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def from_gguf(fields: Mapping[str, Any], *, max_position: int) -> RopeConfig:
  """Reads the rotary embedding of a GGUF's metadata.

  Args:
    fields: the metadata, name to value.
    max_position: its context length.

  Returns:
    The RopeConfig; Llama-3 scaling is not in the metadata, see
    `with_frequency_factors`.

  Raises:
    UserError: If the kind of scaling is unknown.
  """
  prefix = f'{fields["general.architecture"]}.rope.'

  def field(name: str, default: float) -> float:
    return shortest(fields.get(prefix + name, default))

  theta = field('freq_base', 10_000.0)
  factor = field('scaling.factor', fields.get(prefix + 'scale_linear', 0.0))
  kind = fields.get(prefix + 'scaling.type')
  if kind == 'none' or (kind in (None, 'linear') and factor in (0.0, 1.0)):
    return RopeConfig(theta=theta)
  if kind in (None, 'linear'):
    return RopeConfig(theta=theta, scaling='linear', factor=factor)
  if kind != 'yarn':
    raise UserError(
        f'{prefix}scaling.type={kind!r} is not supported; known: none, linear, '
        'yarn.'
    )
  if (
      field('scaling.yarn_ext_factor', 1.0) not in (1.0, -1.0)
      or field('scaling.yarn_log_multiplier', 0.0) != 0.0
  ):
    raise UserError(
        f'{prefix}scaling.yarn_ext_factor needs to be 1 and '
        'yarn_log_multiplier 0; other values are not supported.'
    )
  factor = factor or 1.0
  extra = field('scaling.attn_factor', 1.0) * field(
      'scaling.yarn_attn_factor', 1.0
  )
  original = fields.get(prefix + 'scaling.original_context_length', 0)
  return RopeConfig(
      theta=theta,
      scaling='yarn',
      factor=factor,
      original_max_position=int(original or max_position),
      beta_fast=field('scaling.yarn_beta_fast', 32.0),
      beta_slow=field('scaling.yarn_beta_slow', 1.0),
      attention_factor=0.0 if extra == 1 else extra * _yarn_scale(factor, 1.0),
  )


def _wavelengths(theta: float, head_dim: int) -> np.ndarray:
  return 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)


def with_frequency_factors(
    rope: RopeConfig, divisors: np.ndarray, *, head_dim: int
) -> RopeConfig:
  """Recovers the Llama-3 scaling from its per-frequency divisors.

  Between its two thresholds the scaling keeps a share `kept` of a frequency
  that is linear in 1 / wavelength, with slope `original / (high - low)` and
  intercept `-low / (high - low)`. Only the ratios of the three numbers matter,
  so `low` is set to 1. The result is accepted only if it gives the divisors
  back.

  Args:
    rope: what the metadata says, without scaling.
    divisors: the `rope_freqs` tensor, shape [H/2].
    head_dim: H.

  Returns:
    A RopeConfig that divides every frequency by its divisor.

  Raises:
    UserError: If no Llama-3 scaling gives these divisors.
  """
  divisors = np.asarray(divisors, np.float64)
  fits = divisors.shape == (head_dim // 2,)
  if fits and np.allclose(divisors, 1.0, rtol=_FACTOR_RTOL):
    return rope
  if fits and rope.scaling == 'none':
    candidate = _fit_llama3(rope, divisors, head_dim)
    plain = rope_lib.frequencies(rope, head_dim)
    scaled = rope_lib.frequencies(candidate, head_dim)
    if np.allclose(plain / scaled, divisors, rtol=_FACTOR_RTOL):
      return candidate
  raise UserError(
      'the tensor of rope frequency factors is not one that Llama-3 scaling '
      f'gives (shape {list(divisors.shape)}, {divisors.min():.4g} to '
      f'{divisors.max():.4g}, on top of scaling {rope.scaling!r}); other '
      'factors are not supported.'
  )


def _fit_llama3(
    rope: RopeConfig, divisors: np.ndarray, head_dim: int
) -> RopeConfig:
  # The longest wavelength, the last one, is divided by the whole factor.
  factor = shortest(divisors[-1])
  original, high = 8192, 4.0
  margin = 1 + _FACTOR_RTOL
  middle = (divisors > margin) & (divisors * margin < factor)
  # Two points fix the line; a short head may have fewer between the
  # thresholds, then the values of the published models are tried.
  if middle.sum() >= 2:
    kept = (1 / divisors[middle] - 1 / factor) / (1 - 1 / factor)
    per_wavelength = 1 / _wavelengths(rope.theta, head_dim)[middle]
    slope, intercept = np.polyfit(per_wavelength, kept, 1)
    if slope > 0 and intercept < 0:
      high = float(round(1 - 1 / intercept, 3))
      original = max(1, round(-slope / intercept))
  return dataclasses.replace(
      rope,
      scaling='llama3',
      factor=factor,
      original_max_position=original,
      low_freq_factor=1.0,
      high_freq_factor=high,
  )
