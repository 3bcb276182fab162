"""Our parameter names in the languages of the file formats.

The only place where tensor names of Hugging Face and of GGUF appear. Besides
the name, a table says whether the rows of a tensor are in another order there,
and which tensors of a file are left aside by design.
"""

from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
import re

import numpy as np

from speculative.models import params as params_lib
from speculative.models.config import TransformerConfig

GGUF_ROPE_FACTORS = 'rope_freqs.weight'

_HF = {
    'embed': 'model.embed_tokens.weight',
    'head': 'lm_head.weight',
    'final_norm': 'model.norm.weight',
    'final_norm_bias': 'model.norm.bias',
}
_HF_LAYER = {
    'attn_norm': 'input_layernorm.weight',
    'attn_norm_bias': 'input_layernorm.bias',
    'q_proj': 'self_attn.q_proj.weight',
    'k_proj': 'self_attn.k_proj.weight',
    'v_proj': 'self_attn.v_proj.weight',
    'o_proj': 'self_attn.o_proj.weight',
    'q_bias': 'self_attn.q_proj.bias',
    'k_bias': 'self_attn.k_proj.bias',
    'v_bias': 'self_attn.v_proj.bias',
    'o_bias': 'self_attn.o_proj.bias',
    'q_norm': 'self_attn.q_norm.weight',
    'k_norm': 'self_attn.k_norm.weight',
    'mlp_norm': 'post_attention_layernorm.weight',
    'mlp_norm_bias': 'post_attention_layernorm.bias',
    'gate_proj': 'mlp.gate_proj.weight',
    'up_proj': 'mlp.up_proj.weight',
    'down_proj': 'mlp.down_proj.weight',
    'gate_bias': 'mlp.gate_proj.bias',
    'up_bias': 'mlp.up_proj.bias',
    'down_bias': 'mlp.down_proj.bias',
}
_GGUF = {
    'embed': 'token_embd.weight',
    'head': 'output.weight',
    'final_norm': 'output_norm.weight',
    'final_norm_bias': 'output_norm.bias',
}
_GGUF_LAYER = {
    'attn_norm': 'attn_norm.weight',
    'attn_norm_bias': 'attn_norm.bias',
    'q_proj': 'attn_q.weight',
    'k_proj': 'attn_k.weight',
    'v_proj': 'attn_v.weight',
    'o_proj': 'attn_output.weight',
    'q_bias': 'attn_q.bias',
    'k_bias': 'attn_k.bias',
    'v_bias': 'attn_v.bias',
    'o_bias': 'attn_output.bias',
    'q_norm': 'attn_q_norm.weight',
    'k_norm': 'attn_k_norm.weight',
    'mlp_norm': 'ffn_norm.weight',
    'mlp_norm_bias': 'ffn_norm.bias',
    'gate_proj': 'ffn_gate.weight',
    'up_proj': 'ffn_up.weight',
    'down_proj': 'ffn_down.weight',
    'gate_bias': 'ffn_gate.bias',
    'up_bias': 'ffn_up.bias',
    'down_bias': 'ffn_down.bias',
}
_TABLES = {
    'hf': (_HF, 'model.layers.{i}.', _HF_LAYER),
    'gguf': (_GGUF, 'blk.{i}.', _GGUF_LAYER),
}
_LAYER_NAME = re.compile(r'layers\.(\d+)\.(\w+)')
# Buffers that old exporters wrote; they follow from the config.
_HF_BUFFER = re.compile(r'.*\brotary_emb\.inv_freq')
# Architectures whose GGUF converter reorders q and k rows for rotary
# embeddings that pair neighbours (2j, 2j + 1) instead of halves (j, j + H/2).
_INTERLEAVED = ('llama',)
_BIASES = {
    'qkv_bias': ('q_bias', 'k_bias', 'v_bias'),
    'o_bias': ('o_bias',),
    'mlp_bias': ('gate_bias', 'up_bias', 'down_bias'),
}


@dataclasses.dataclass(frozen=True)
class Source:
  """Where one parameter comes from.

  Attributes:
    name: of the tensor in the file.
    interleaved_heads: number of heads whose rows are stored in neighbouring
      pairs and have to be put into halves; 0 where the rows are in our order.
  """

  name: str
  interleaved_heads: int = 0

  def restore(self, array: np.ndarray) -> np.ndarray:
    """Returns the tensor with its rows in our order.

    Args:
      array: as the file has it, a matrix or a bias.

    Returns:
      The same values; row (head, half, j) was row (head, j, half).
    """
    if not self.interleaved_heads:
      return array
    pairs = array.reshape(self.interleaved_heads, -1, 2, *array.shape[1:])
    return pairs.swapaxes(1, 2).reshape(array.shape)


def sources(
    config: TransformerConfig, *, kind: str, architecture: str = ''
) -> dict[str, Source]:
  """Returns where every parameter of a model is in a checkpoint.

  Args:
    config: the model.
    kind: 'hf', 'gguf' or 'orbax' (which uses our own names).
    architecture: `general.architecture` of a GGUF.

  Returns:
    Our name to Source, in the order of the declaration.
  """
  names = [n for n, _ in params_lib.flatten(params_lib.declare(config))]
  if kind == 'orbax':
    return {name: Source(name) for name in names}
  heads = {}
  if kind == 'gguf' and architecture in _INTERLEAVED:
    heads = dict.fromkeys(('q_proj', 'q_bias'), config.num_heads)
    heads |= dict.fromkeys(('k_proj', 'k_bias'), config.num_kv_heads)
  top, prefix, per_layer = _TABLES[kind]
  found = {}
  for name in names:
    match = _LAYER_NAME.fullmatch(name)
    if match is None:
      found[name] = Source(top[name])
    else:
      leaf = match[2]
      file_name = prefix.format(i=match[1]) + per_layer[leaf]
      found[name] = Source(file_name, heads.get(leaf, 0))
  return found


def ignored(
    config: TransformerConfig, *, kind: str, names: Iterable[str]
) -> Mapping[str, str]:
  """Returns the tensors of a checkpoint that are left aside by design.

  Args:
    config: the model.
    kind: 'hf', 'gguf' or 'orbax'.
    names: of the tensors in the file.

  Returns:
    Name in the file to the reason, for the log.
  """
  reasons = {}
  for name in names:
    if kind == 'hf' and _HF_BUFFER.fullmatch(name):
      reasons[name] = 'it follows from the config'
    elif kind == 'hf' and name == _HF['head'] and config.head == 'tied':
      reasons[name] = 'the config ties the head to the embedding'
    elif kind == 'gguf' and name == GGUF_ROPE_FACTORS:
      reasons[name] = 'the rope scaling of the config was read from it'
  return reasons


def settings_from_tensors(
    config: TransformerConfig, names: Iterable[str]
) -> TransformerConfig:
  """Completes a config read from GGUF metadata by which tensors exist.

  GGUF has no field for biases or for a head of its own: the tensor is there or
  it is not. A tensor that only some layers have is reported by the loader.

  Args:
    config: read from the metadata.
    names: of the tensors in the file.

  Returns:
    The config with head and biases set.
  """
  names = set(names)
  leaves = {name.split('.', 2)[-1] for name in names if name.startswith('blk.')}
  changes = {'head': 'untied' if _GGUF['head'] in names else 'tied'}
  for setting, biases in _BIASES.items():
    if any(_GGUF_LAYER[bias] in leaves for bias in biases):
      changes[setting] = 'yes'
  return dataclasses.replace(config, **changes)
