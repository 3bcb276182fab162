"""Which family reads which checkpoint: one table a format, exact names."""

from collections.abc import Mapping
from typing import Any

from speculative.errors import UserError
from speculative.models import llama
from speculative.models import qwen2
from speculative.models import qwen3
from speculative.models.config import TransformerConfig

_BY_MODEL_TYPE = {
    'llama': llama.config_from_hf,
    'mistral': llama.mistral_from_hf,
    'qwen2': qwen2.config_from_hf,
    'qwen3': qwen3.config_from_hf,
}

_BY_ARCHITECTURE = {
    'llama': llama.config_from_gguf,
    'qwen2': qwen2.config_from_gguf,
    'qwen3': qwen3.config_from_gguf,
}


def by_hf(d: Mapping[str, Any]) -> TransformerConfig:
  """Returns the config that a config.json describes.

  Args:
    d: the parsed config.json.

  Returns:
    The config, read by the family that `model_type` names.

  Raises:
    UserError: If the family is unknown, or the family refuses the file.
  """
  return _find(_BY_MODEL_TYPE, 'model_type', d.get('model_type'))(d)


def by_gguf(fields: Mapping[str, Any]) -> TransformerConfig:
  """Returns the config that a GGUF's metadata describes.

  Args:
    fields: the metadata, name to value.

  Returns:
    The config, read by the family that `general.architecture` names; what
    only the tensors tell (biases, a head of its own) is still at its default.

  Raises:
    UserError: If the family is unknown, or the family refuses the file.
  """
  name = 'general.architecture'
  return _find(_BY_ARCHITECTURE, name, fields.get(name))(fields)


def _find(readers: Mapping[str, Any], key: str, value: object) -> Any:
  if not isinstance(value, str) or value not in readers:
    raise UserError(
        f'{key} {value!r} is not supported; known: {", ".join(readers)}.'
    )
  return readers[value]
