"""Transformers of every kind, small, and a compiled forward pass."""

from collections.abc import Callable
import dataclasses
import functools

import jax
import numpy as np
import pytest

from speculative.models.config import RopeConfig
from speculative.models.config import TransformerConfig
from speculative.models.transformer import Output
from speculative.models.transformer import Transformer
from speculative.testing import tiny

_LLAMA3 = RopeConfig(
    theta=500.0, scaling='llama3', factor=4.0, original_max_position=64
)
_YARN = RopeConfig(
    theta=500.0,
    scaling='yarn',
    factor=4.0,
    original_max_position=64,
    beta_fast=8.0,
)


def _variant(**changes: object) -> TransformerConfig:
  return dataclasses.replace(tiny.TARGET, **changes)


VARIANTS = {
    'llama, grouped heads': _variant(),
    'tied head, one head a group': _variant(head='tied', num_kv_heads=4),
    'one kv head, relu': _variant(num_kv_heads=1, activation='relu'),
    'qwen2: biases on q, k, v': _variant(qkv_bias='yes', norm_eps=1e-6),
    'qwen3: q and k normalised': _variant(qk_norm='yes', head_dim=6),
    'layer norm, plain mlp, every bias': _variant(
        norm='layer',
        mlp='plain',
        activation='gelu',
        qkv_bias='yes',
        o_bias='yes',
        mlp_bias='yes',
    ),
    'gated mlp with biases, tanh gelu': _variant(
        mlp_bias='yes', activation='gelu_tanh'
    ),
    'linear rope': _variant(rope=RopeConfig(scaling='linear', factor=4.0)),
    'llama 3 rope': _variant(rope=_LLAMA3),
    'yarn rope': _variant(rope=_YARN),
}


@functools.partial(jax.jit, static_argnames=('model', 'features'))
def _forward(
    model: Transformer,
    params: dict,
    tokens_BT: jax.Array,
    cache: object,
    positions_BT: jax.Array | None = None,
    ancestors_BTT: jax.Array | None = None,
    features: tuple[int, ...] = (),
) -> tuple[jax.Array, Output]:
  out = model.forward(
      params,
      tokens_BT,
      cache,
      positions_BT=positions_BT,
      ancestors_BTT=ancestors_BTT,
      features=features,
  )
  return model.logits(params, out.hidden_BTD), out


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def variant(request: pytest.FixtureRequest) -> TransformerConfig:
  """Every kind of transformer in turn."""
  return request.param


@pytest.fixture
def forward() -> Callable[..., tuple[jax.Array, Output]]:
  """Returns logits and the Output of a pass; compiled once a shape."""
  return _forward


@pytest.fixture(scope='session')
def tiny_params() -> dict:
  """Params of tiny.TARGET."""
  return tiny.init(jax.random.key(7), tiny.TARGET)


@pytest.fixture
def text() -> np.ndarray:
  """Twelve tokens of the tiny vocabulary."""
  rng = np.random.default_rng(3)
  return rng.integers(0, tiny.TARGET.vocab_size, 12).astype(np.int32)
