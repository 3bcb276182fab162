"""Small random checkpoints in every file format, written independently."""

from collections.abc import Callable
import json
import pathlib

import gguf
import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy

HF_CONFIG = {
    'model_type': 'llama',
    'vocab_size': 40,
    'hidden_size': 32,
    'intermediate_size': 48,
    'num_hidden_layers': 2,
    'num_attention_heads': 4,
    'num_key_value_heads': 2,
    'hidden_act': 'silu',
    'max_position_embeddings': 128,
    'rms_norm_eps': 1e-5,
    'rope_theta': 10000.0,
    'tie_word_embeddings': False,
}
# By name in an HF file; H = 8, q has 32 rows, k and v 16.
HF_SHAPES = {
    'model.embed_tokens.weight': (40, 32),
    'model.norm.weight': (32,),
    'lm_head.weight': (40, 32),
}
GGUF_SHAPES = {
    'token_embd.weight': (40, 32),
    'output_norm.weight': (32,),
    'output.weight': (40, 32),
}
for _i in range(2):
  for _hf, _gguf, _shape in (
      ('input_layernorm.weight', 'attn_norm.weight', (32,)),
      ('self_attn.q_proj.weight', 'attn_q.weight', (32, 32)),
      ('self_attn.k_proj.weight', 'attn_k.weight', (16, 32)),
      ('self_attn.v_proj.weight', 'attn_v.weight', (16, 32)),
      ('self_attn.o_proj.weight', 'attn_output.weight', (32, 32)),
      ('post_attention_layernorm.weight', 'ffn_norm.weight', (32,)),
      ('mlp.gate_proj.weight', 'ffn_gate.weight', (48, 32)),
      ('mlp.up_proj.weight', 'ffn_up.weight', (48, 32)),
      ('mlp.down_proj.weight', 'ffn_down.weight', (32, 48)),
  ):
    HF_SHAPES[f'model.layers.{_i}.{_hf}'] = _shape
    GGUF_SHAPES[f'blk.{_i}.{_gguf}'] = _shape

Tensors = dict[str, np.ndarray]


def _random(shapes: dict[str, tuple[int, ...]]) -> Tensors:
  rng = np.random.default_rng(0)
  return {n: rng.standard_normal(s, np.float32) for n, s in shapes.items()}


@pytest.fixture
def hf_config() -> dict:
  """A config.json of a tiny Llama; a copy, free to change."""
  return dict(HF_CONFIG)


@pytest.fixture
def hf_tensors() -> Tensors:
  """Random tensors that fit `hf_config`, by name in the file."""
  return _random(HF_SHAPES)


@pytest.fixture
def gguf_tensors() -> Tensors:
  """Random tensors of the same sizes, by name in a GGUF."""
  return _random(GGUF_SHAPES)


@pytest.fixture
def write_hf(tmp_path: pathlib.Path) -> Callable[..., pathlib.Path]:
  """Writes a directory with config.json and one or more safetensors."""

  def write(config: dict, tensors: Tensors, num_shards: int = 1):
    path = tmp_path / 'hf'
    path.mkdir(exist_ok=True)
    (path / 'config.json').write_text(json.dumps(config))
    if num_shards == 1:
      safetensors_numpy.save_file(tensors, path / 'model.safetensors')
      return path
    weight_map = {}
    for i in range(num_shards):
      name = f'model-{i + 1:05}-of-{num_shards:05}.safetensors'
      shard = {n: tensors[n] for n in list(tensors)[i::num_shards]}
      safetensors_numpy.save_file(shard, path / name)
      weight_map |= dict.fromkeys(shard, name)
    index = {'metadata': {}, 'weight_map': weight_map}
    (path / 'model.safetensors.index.json').write_text(json.dumps(index))
    return path

  return write


@pytest.fixture
def write_gguf(tmp_path: pathlib.Path) -> Callable[..., pathlib.Path]:
  """Writes a GGUF; fields override those that fit `gguf_tensors`."""

  def write(
      tensors: Tensors,
      *,
      arch: str = 'llama',
      types: dict[str, gguf.GGMLQuantizationType] | None = None,
      fields: dict | None = None,
  ):
    path = tmp_path / 'model.gguf'
    writer = gguf.GGUFWriter(path, arch)
    sizes = {
        f'{arch}.vocab_size': 40,
        f'{arch}.block_count': 2,
        f'{arch}.context_length': 128,
        f'{arch}.embedding_length': 32,
        f'{arch}.feed_forward_length': 48,
        f'{arch}.attention.head_count': 4,
        f'{arch}.attention.head_count_kv': 2,
        f'{arch}.attention.layer_norm_rms_epsilon': 1e-5,
        f'{arch}.rope.freq_base': 10000.0,
    }
    for name, value in (sizes | (fields or {})).items():
      if isinstance(value, str):
        writer.add_string(name, value)
      elif isinstance(value, list):
        writer.add_array(name, value)
      elif isinstance(value, float):
        writer.add_float32(name, value)
      else:
        writer.add_uint32(name, value)
    for name, tensor in tensors.items():
      # Raw blocks keep their bytes; the writer works out the shape.
      writer.add_tensor(name, tensor, raw_dtype=(types or {}).get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path

  return write
