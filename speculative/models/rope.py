"""Rotary position embeddings: plain, linear, Llama-3 and YaRN scaling.

Heads are rotated in the half-split layout: component i pairs with i + H/2.
Sources: RoFormer (arXiv:2104.09864), YaRN (arXiv:2309.00071), and the Llama 3.1
release for its own rule.
"""

import math

import jax
from jax import numpy as jnp
import numpy as np

from speculative.models.config import RopeConfig


def _llama3_frequencies(rope: RopeConfig, freqs: np.ndarray) -> np.ndarray:
  """Keeps short wavelengths, divides long ones, blends those between."""
  wavelengths = 2 * math.pi / freqs
  turns = rope.original_max_position / wavelengths
  low, high = rope.low_freq_factor, rope.high_freq_factor
  keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
  return keep * freqs + (1 - keep) * freqs / rope.factor


def _yarn_frequencies(rope: RopeConfig, freqs: np.ndarray) -> np.ndarray:
  """Interpolates slow frequencies, keeps fast ones (YaRN, section 3.2)."""
  num = len(freqs)

  def dimension_of(rotations: float) -> float:
    period = rope.original_max_position / (rotations * 2 * math.pi)
    return num * math.log(period) / math.log(rope.theta)

  low = max(math.floor(dimension_of(rope.beta_fast)), 0)
  high = min(math.ceil(dimension_of(rope.beta_slow)), 2 * num - 1)
  # The published rule widens an empty ramp rather than divide by zero.
  ramp = (np.arange(num) - low) / max(high - low, 0.001)
  keep = 1 - np.clip(ramp, 0.0, 1.0)
  return keep * freqs + (1 - keep) * freqs / rope.factor


def frequencies(rope: RopeConfig, head_dim: int) -> np.ndarray:
  """Returns the head_dim / 2 angular frequencies, radians a position."""
  exponents = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
  freqs = rope.theta**-exponents
  if rope.scaling == 'linear':
    freqs = freqs / rope.factor
  elif rope.scaling == 'llama3':
    freqs = _llama3_frequencies(rope, freqs)
  elif rope.scaling == 'yarn':
    freqs = _yarn_frequencies(rope, freqs)
  return freqs.astype(np.float32)


def amplitude(rope: RopeConfig) -> float:
  """Returns what cosines and sines are multiplied by (1 except for YaRN)."""
  if rope.scaling != 'yarn':
    return 1.0
  if rope.attention_factor:
    return rope.attention_factor
  return 0.1 * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0


def rotation(
    rope: RopeConfig, head_dim: int, positions_BT: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns float32 cosines and sines [B, T, 1, H/2] for the positions.

  Computed once a forward pass and shared by all layers.
  """
  freqs = jnp.asarray(frequencies(rope, head_dim))
  angles_BT1h = (
      positions_BT.astype(jnp.float32)[:, :, None, None]
      * freqs[None, None, None, :]
  )
  scale = amplitude(rope)
  return jnp.cos(angles_BT1h) * scale, jnp.sin(angles_BT1h) * scale


def rotate(
    x_BTNH: jax.Array, rotation_BT1h: tuple[jax.Array, jax.Array]
) -> jax.Array:
  """Rotates every head by its position's angles; computed in float32."""
  cos, sin = rotation_BT1h
  first, second = jnp.split(x_BTNH.astype(jnp.float32), 2, axis=-1)
  rotated = jnp.concatenate(
      [first * cos - second * sin, second * cos + first * sin], axis=-1
  )
  return rotated.astype(x_BTNH.dtype)
