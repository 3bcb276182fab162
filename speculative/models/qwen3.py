"""Qwen3: Llama with RMS-normalised q and k and a head width of its own."""

from collections.abc import Mapping
import dataclasses
from typing import Any

from speculative.models import foreign
from speculative.models.config import TransformerConfig

_DEFAULTS = foreign.HfDefaults(
    max_position_embeddings=32_768, num_key_value_heads=32, head_dim=128
)


def config_from_hf(d: Mapping[str, Any]) -> TransformerConfig:
  """Reads the config.json of a model_type 'qwen3'.

  Args:
    d: the parsed config.json.

  Returns:
    The config.

  Raises:
    UserError: If it needs something that is not supported.
  """
  config = foreign.config_from_hf(d, family='qwen3', defaults=_DEFAULTS)
  foreign.refuse_layer_windows(d)
  attention_bias = foreign.yes_no(d.get('attention_bias'))
  return dataclasses.replace(
      config, qk_norm='yes', qkv_bias=attention_bias, o_bias=attention_bias
  )


def config_from_gguf(fields: Mapping[str, Any]) -> TransformerConfig:
  """Reads the metadata of a GGUF of architecture 'qwen3'.

  Args:
    fields: the metadata, name to value.

  Returns:
    The config, with a tied head and no biases: only the tensors tell.

  Raises:
    UserError: If it needs something that is not supported.
  """
  config = foreign.config_from_gguf(fields, family='qwen3')
  return dataclasses.replace(config, qk_norm='yes')
