"""Shapes and settings of a decoder-only transformer, for every family."""

import dataclasses

from speculative.errors import UserError

_ACTIVATIONS = ('silu', 'gelu', 'gelu_tanh', 'relu')
_NORMS = ('rms', 'layer')
_MLPS = ('gated', 'plain')
_ROPE_SCALINGS = ('none', 'linear', 'llama3', 'yarn')


@dataclasses.dataclass(frozen=True)
class RopeConfig:
  """Rotary position embedding, in the half-split layout.

  Attributes:
    theta: base of the geometric series of wavelengths.
    scaling: 'none', 'linear', 'llama3' or 'yarn'.
    factor: how many times longer the context became; 1 for 'none'.
    original_max_position: context length before scaling (llama3, yarn).
    low_freq_factor: llama3, wavelengths above original / low are divided by
      the whole factor.
    high_freq_factor: llama3, wavelengths below original / high are kept.
    beta_fast: yarn, rotations above which a frequency is kept.
    beta_slow: yarn, rotations below which a frequency is fully interpolated.
    attention_factor: yarn, what cosines and sines are multiplied by; 0 means
      the default 0.1 ln(factor) + 1.
  """

  theta: float = 10_000.0
  scaling: str = 'none'
  factor: float = 1.0
  original_max_position: int = 0
  low_freq_factor: float = 1.0
  high_freq_factor: float = 4.0
  beta_fast: float = 32.0
  beta_slow: float = 1.0
  attention_factor: float = 0.0

  def __post_init__(self) -> None:
    if self.scaling not in _ROPE_SCALINGS:
      raise UserError(
          f'rope scaling {self.scaling!r} is not supported; known: '
          f'{", ".join(_ROPE_SCALINGS)}.'
      )
    if self.scaling == 'llama3' and not (
        0 < self.low_freq_factor < self.high_freq_factor
    ):
      raise UserError(
          'llama3 rope scaling needs 0 < low_freq_factor < high_freq_factor, '
          f'got {self.low_freq_factor} and {self.high_freq_factor}.'
      )
    if self.scaling in ('llama3', 'yarn') and self.original_max_position <= 0:
      raise UserError(
          f'rope scaling {self.scaling!r} needs original_max_position > 0, got '
          f'{self.original_max_position}.'
      )


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
  """One decoder-only transformer; letters as in the README's glossary.

  Attributes:
    family: name of the family it was read as, for messages.
    vocab_size: V, rows of the embedding and of the head.
    num_layers: L.
    model_dim: D.
    num_heads: N, query heads.
    num_kv_heads: K, a divisor of N.
    head_dim: H.
    mlp_dim: F.
    max_position: longest context the checkpoint was made for, in tokens.
    norm: 'rms' or 'layer' (with a bias).
    norm_eps: added to the variance.
    activation: of the MLP.
    mlp: 'gated' (act(gate) * up) or 'plain' (act(up)).
    qkv_bias: 'yes' where q, k and v projections carry a bias.
    o_bias: 'yes' where the attention's output projection carries one.
    mlp_bias: 'yes' where the MLP's projections carry one.
    qk_norm: 'yes' where q and k are RMS-normalised per head before RoPE.
    head: 'tied' to the embedding, or 'untied'.
    rope: rotary embedding.
  """

  vocab_size: int
  num_layers: int
  model_dim: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  mlp_dim: int
  family: str = 'llama'
  max_position: int = 2048
  norm: str = 'rms'
  norm_eps: float = 1e-5
  activation: str = 'silu'
  mlp: str = 'gated'
  qkv_bias: str = 'no'
  o_bias: str = 'no'
  mlp_bias: str = 'no'
  qk_norm: str = 'no'
  head: str = 'tied'
  rope: RopeConfig = RopeConfig()

  @property
  def axis_sizes(self) -> dict[str, int]:
    """Sizes of the logical axes a mesh can split."""
    return {
        'vocab': self.vocab_size,
        'heads': self.num_heads,
        'kv_heads': self.num_kv_heads,
        'mlp': self.mlp_dim,
    }

  def __post_init__(self) -> None:
    for name in (
        'vocab_size',
        'num_layers',
        'model_dim',
        'num_heads',
        'num_kv_heads',
        'head_dim',
        'mlp_dim',
    ):
      if getattr(self, name) <= 0:
        raise UserError(f'{name} needs to be > 0, got {getattr(self, name)}.')
    if self.num_heads % self.num_kv_heads:
      raise UserError(
          f'num_heads={self.num_heads} needs to be a multiple of '
          f'num_kv_heads={self.num_kv_heads}.'
      )
    if self.head_dim % 2:
      raise UserError(f'head_dim needs to be even, got {self.head_dim}.')
    for name, known in (
        ('norm', _NORMS),
        ('activation', _ACTIVATIONS),
        ('mlp', _MLPS),
        ('head', ('tied', 'untied')),
        ('qkv_bias', ('yes', 'no')),
        ('o_bias', ('yes', 'no')),
        ('mlp_bias', ('yes', 'no')),
        ('qk_norm', ('yes', 'no')),
    ):
      if getattr(self, name) not in known:
        raise UserError(
            f'{name}={getattr(self, name)!r} is not supported; known: '
            f'{", ".join(known)}.'
        )
