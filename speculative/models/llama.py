"""The Llama family: Llama 2 and 3, TinyLlama, SmolLM2, Mistral unwindowed."""

from collections.abc import Mapping
import dataclasses
from typing import Any

from speculative.models import foreign
from speculative.models.config import RopeConfig
from speculative.models.config import TransformerConfig

LLAMA3_8B = TransformerConfig(
    vocab_size=128_256,
    num_layers=32,
    model_dim=4096,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    mlp_dim=14_336,
    max_position=8192,
    head='untied',
    rope=RopeConfig(theta=500_000.0),
)

LLAMA3_70B = dataclasses.replace(
    LLAMA3_8B, num_layers=80, model_dim=8192, num_heads=64, mlp_dim=28_672
)

SMOLLM2_135M = TransformerConfig(
    vocab_size=49_152,
    num_layers=30,
    model_dim=576,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    mlp_dim=1536,
    max_position=8192,
    rope=RopeConfig(theta=100_000.0),
)

_LLAMA = foreign.HfDefaults(max_position_embeddings=2048)
_MISTRAL = foreign.HfDefaults(
    max_position_embeddings=131_072, num_key_value_heads=8
)
_MISTRAL_WINDOW = 4096


def config_from_hf(d: Mapping[str, Any]) -> TransformerConfig:
  """Reads the config.json of a model_type 'llama'.

  Args:
    d: the parsed config.json.

  Returns:
    The config.

  Raises:
    UserError: If it needs something that is not supported.
  """
  config = foreign.config_from_hf(d, family='llama', defaults=_LLAMA)
  attention_bias = foreign.yes_no(d.get('attention_bias'))
  return dataclasses.replace(
      config,
      qkv_bias=attention_bias,
      o_bias=attention_bias,
      mlp_bias=foreign.yes_no(d.get('mlp_bias')),
  )


def mistral_from_hf(d: Mapping[str, Any]) -> TransformerConfig:
  """Reads the config.json of a model_type 'mistral'.

  Args:
    d: the parsed config.json.

  Returns:
    The config.

  Raises:
    UserError: If its sliding window is shorter than its context; a file that
      says nothing of the window means 4096.
  """
  config = foreign.config_from_hf(d, family='mistral', defaults=_MISTRAL)
  foreign.refuse_window(
      d.get('sliding_window', _MISTRAL_WINDOW), max_position=config.max_position
  )
  return config


def config_from_gguf(fields: Mapping[str, Any]) -> TransformerConfig:
  """Reads the metadata of a GGUF of architecture 'llama'.

  Args:
    fields: the metadata, name to value.

  Returns:
    The config, with a tied head and no biases: only the tensors tell.

  Raises:
    UserError: If it needs something that is not supported.
  """
  return foreign.config_from_gguf(fields, family='llama')
