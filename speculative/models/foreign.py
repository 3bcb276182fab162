"""What config.json and GGUF metadata say, in the terms of TransformerConfig.

The part every family shares; the family's own file adds what differs.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

from speculative.errors import UserError
from speculative.models import rope_scaling
from speculative.models.config import TransformerConfig

_ACTIVATIONS = {
    'silu': 'silu',
    'swish': 'silu',
    'gelu': 'gelu',
    'gelu_new': 'gelu_tanh',
    'gelu_fast': 'gelu_tanh',
    'gelu_pytorch_tanh': 'gelu_tanh',
    'relu': 'relu',
}


@dataclasses.dataclass(frozen=True)
class HfDefaults:
  """What a family means by a key that its config.json leaves out.

  Attributes:
    max_position_embeddings: context length.
    num_key_value_heads: None for as many as query heads.
    head_dim: None for the model width over the heads.
  """

  max_position_embeddings: int
  num_key_value_heads: int | None = None
  head_dim: int | None = None
  rms_norm_eps: float = 1e-6
  rope_theta: float = 10_000.0
  hidden_act: str = 'silu'


def yes_no(value: object) -> str:
  """Returns 'yes' for a true value and 'no' for a false or absent one."""
  return 'yes' if value else 'no'


def config_from_hf(
    d: Mapping[str, Any], *, family: str, defaults: HfDefaults
) -> TransformerConfig:
  """Reads a config.json, without biases and norms that only some families have.

  Args:
    d: the parsed config.json.
    family: name for messages.
    defaults: of the keys that may be absent.

  Returns:
    The config.

  Raises:
    UserError: If a size is missing or of the wrong type, or if the activation
      or the rope scaling is not supported.
  """
  num_heads = _size(d, 'num_attention_heads')
  model_dim = _size(d, 'hidden_size')
  max_position = _size(
      d, 'max_position_embeddings', defaults.max_position_embeddings
  )
  act = d.get('hidden_act', defaults.hidden_act)
  if act not in _ACTIVATIONS:
    raise UserError(
        f'hidden_act={act!r} is not supported; known: '
        f'{", ".join(_ACTIVATIONS)}.'
    )
  return TransformerConfig(
      family=family,
      vocab_size=_size(d, 'vocab_size'),
      num_layers=_size(d, 'num_hidden_layers'),
      model_dim=model_dim,
      num_heads=num_heads,
      num_kv_heads=_size_or_null(
          d, 'num_key_value_heads', defaults.num_key_value_heads
      )
      or num_heads,
      head_dim=_size_or_null(d, 'head_dim', defaults.head_dim)
      or model_dim // num_heads,
      mlp_dim=_size(d, 'intermediate_size'),
      max_position=max_position,
      norm_eps=rope_scaling.number(d, 'rms_norm_eps', defaults.rms_norm_eps),
      activation=_ACTIVATIONS[act],
      head='tied' if d.get('tie_word_embeddings', False) else 'untied',
      rope=rope_scaling.from_hf(
          d, max_position=max_position, default_theta=defaults.rope_theta
      ),
  )


def _size(d: Mapping[str, Any], name: str, default: int | None = None) -> int:
  value = d.get(name, default)
  if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
    raise UserError(
        f'config.json needs a whole number > 0 for {name!r}, got {value!r}.'
    )
  return value


def _size_or_null(
    d: Mapping[str, Any], name: str, default: int | None
) -> int | None:
  if d.get(name, default) is None:
    return None
  return _size(d, name, default)


def refuse_window(window: int | None, *, max_position: int) -> None:
  """Raises where attention looks back less far than the context is long.

  Args:
    window: positions a token may attend to; None or 0 for all.
    max_position: context length of the checkpoint.

  Raises:
    UserError: If the window is shorter than the context.
  """
  if window and window < max_position:
    raise UserError(
        f'sliding_window={window} is shorter than the context of '
        f'{max_position} tokens, and windowed attention is not supported; use '
        'a checkpoint with full attention ("sliding_window": null).'
    )


def refuse_layer_windows(d: Mapping[str, Any]) -> None:
  """Raises where a config.json of the Qwen kind turns its window on.

  Args:
    d: the parsed config.json.

  Raises:
    UserError: If some layer would attend through a window.
  """
  layer_types = d.get('layer_types')
  if layer_types is None:
    first = d.get('max_window_layers', 28)
    windowed = bool(d.get('use_sliding_window')) and (
        first < d['num_hidden_layers']
    )
  else:
    windowed = any(kind != 'full_attention' for kind in layer_types)
  if windowed:
    refuse_window(
        d.get('sliding_window', 4096),
        max_position=d.get('max_position_embeddings', 32_768),
    )


def config_from_gguf(
    fields: Mapping[str, Any], *, family: str
) -> TransformerConfig:
  """Reads a GGUF's metadata; biases and the head depend on its tensors.

  Args:
    fields: the metadata, name to value.
    family: name for messages.

  Returns:
    The config, with a tied head and no biases.

  Raises:
    UserError: If a size is missing, or the model has experts, a window, or
      heads that rotate only in part.
  """
  arch = fields['general.architecture']

  def need(name: str) -> int:
    value = fields.get(f'{arch}.{name}')
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
      raise UserError(
          f'the GGUF metadata needs a whole number > 0 for {arch}.{name}, got '
          f'{value!r}.'
      )
    return value

  def get(name: str, default: int) -> int:
    return need(name) if f'{arch}.{name}' in fields else default

  if fields.get(f'{arch}.expert_count'):
    raise UserError(
        f'{arch}.expert_count={fields[f"{arch}.expert_count"]}: mixtures of '
        'experts are not supported; use a dense model.'
    )
  num_heads, model_dim = need('attention.head_count'), need('embedding_length')
  head_dim = get('attention.key_length', model_dim // num_heads)
  for name in ('attention.value_length', 'rope.dimension_count'):
    if get(name, head_dim) != head_dim:
      raise UserError(
          f'{arch}.{name}={fields[f"{arch}.{name}"]} needs to equal the head '
          f'width {head_dim}; other values are not supported.'
      )
  max_position = need('context_length')
  refuse_window(
      fields.get(f'{arch}.attention.sliding_window'), max_position=max_position
  )
  return TransformerConfig(
      family=family,
      vocab_size=get(
          'vocab_size', len(fields.get('tokenizer.ggml.tokens', ()))
      ),
      num_layers=need('block_count'),
      model_dim=model_dim,
      num_heads=num_heads,
      num_kv_heads=get('attention.head_count_kv', num_heads),
      head_dim=head_dim,
      mlp_dim=need('feed_forward_length'),
      max_position=max_position,
      norm_eps=rope_scaling.shortest(
          fields.get(f'{arch}.attention.layer_norm_rms_epsilon', 1e-5)
      ),
      rope=rope_scaling.from_gguf(fields, max_position=max_position),
  )
