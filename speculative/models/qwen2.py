"""Qwen2 and Qwen2.5: Llama with biases on the q, k and v projections."""

from collections.abc import Mapping
import dataclasses
from typing import Any

from speculative.models import foreign
from speculative.models.config import RopeConfig
from speculative.models.config import TransformerConfig

QWEN2_5_CODER_0_5B = TransformerConfig(
    family='qwen2',
    vocab_size=151_936,
    num_layers=24,
    model_dim=896,
    num_heads=14,
    num_kv_heads=2,
    head_dim=64,
    mlp_dim=4864,
    max_position=32_768,
    norm_eps=1e-6,
    qkv_bias='yes',
    rope=RopeConfig(theta=1_000_000.0),
)

QWEN2_5_CODER_1_5B = dataclasses.replace(
    QWEN2_5_CODER_0_5B,
    num_layers=28,
    model_dim=1536,
    num_heads=12,
    head_dim=128,
    mlp_dim=8960,
)

_DEFAULTS = foreign.HfDefaults(
    max_position_embeddings=32_768, num_key_value_heads=32
)


def config_from_hf(d: Mapping[str, Any]) -> TransformerConfig:
  """Reads the config.json of a model_type 'qwen2'.

  Args:
    d: the parsed config.json.

  Returns:
    The config.

  Raises:
    UserError: If it needs something that is not supported.
  """
  config = foreign.config_from_hf(d, family='qwen2', defaults=_DEFAULTS)
  foreign.refuse_layer_windows(d)
  return dataclasses.replace(config, qkv_bias='yes')


def config_from_gguf(fields: Mapping[str, Any]) -> TransformerConfig:
  """Reads the metadata of a GGUF of architecture 'qwen2'.

  Args:
    fields: the metadata, name to value.

  Returns:
    The config, with a tied head: only the tensors tell.

  Raises:
    UserError: If it needs something that is not supported.
  """
  config = foreign.config_from_gguf(fields, family='qwen2')
  return dataclasses.replace(config, qkv_bias='yes')
