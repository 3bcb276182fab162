import dataclasses

import numpy as np
import pytest

from speculative.checkpoints import names
from speculative.models import params
from speculative.models.config import TransformerConfig

_CONFIG = TransformerConfig(
    vocab_size=8,
    num_layers=2,
    model_dim=16,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    mlp_dim=24,
)
_EVERYTHING = dataclasses.replace(
    _CONFIG,
    norm='layer',
    qkv_bias='yes',
    o_bias='yes',
    mlp_bias='yes',
    qk_norm='yes',
    head='untied',
)


@pytest.mark.parametrize('kind', ['hf', 'gguf', 'orbax'])
def test_sources_names_every_parameter_and_none_twice(kind):
  found = names.sources(_EVERYTHING, kind=kind)
  declared = [n for n, _ in params.flatten(params.declare(_EVERYTHING))]
  assert list(found) == declared
  assert len({source.name for source in found.values()}) == len(declared)


def test_restore_puts_neighbouring_pairs_into_halves():
  num_heads, half = 3, 4
  ours = np.arange(num_heads * 2 * half)
  stored = np.empty_like(ours)
  for head in range(num_heads):
    for j in range(half):
      for side in range(2):
        row = head * 2 * half
        stored[row + 2 * j + side] = ours[row + side * half + j]
  source = names.Source('x', interleaved_heads=num_heads)
  np.testing.assert_array_equal(source.restore(stored), ours)
  columns = np.array([[1, 10]])
  np.testing.assert_array_equal(
      source.restore(stored[:, None] * columns), ours[:, None] * columns
  )


@pytest.mark.parametrize(
    'kind, architecture, expected',
    [
        ('gguf', 'llama', {'q_proj': 2, 'q_bias': 2, 'k_proj': 1, 'k_bias': 1}),
        ('gguf', 'qwen2', {}),
        ('hf', '', {}),
    ],
)
def test_only_q_and_k_of_llama_ggufs_are_interleaved(
    kind, architecture, expected
):
  found = names.sources(_EVERYTHING, kind=kind, architecture=architecture)
  interleaved = {
      name.removeprefix('layers.1.'): source.interleaved_heads
      for name, source in found.items()
      if source.interleaved_heads and not name.startswith('layers.0.')
  }
  assert interleaved == expected


def test_a_tied_head_in_an_hf_file_is_left_aside_and_an_untied_one_not():
  tied = names.ignored(_CONFIG, kind='hf', names=['lm_head.weight'])
  untied = names.ignored(_EVERYTHING, kind='hf', names=['lm_head.weight'])
  assert list(tied) == ['lm_head.weight']
  assert not untied


def test_only_known_buffers_are_left_aside():
  buffer = 'model.layers.0.self_attn.rotary_emb.inv_freq'
  found = names.ignored(_CONFIG, kind='hf', names=[buffer, 'rotary.weight'])
  assert list(found) == [buffer]
  found = names.ignored(_CONFIG, kind='gguf', names=['rope_freqs.weight'])
  assert list(found) == ['rope_freqs.weight']
  assert not names.ignored(_CONFIG, kind='gguf', names=[buffer])


@pytest.mark.parametrize(
    'tensor, changes',
    [
        ('output.weight', {'head': 'untied'}),
        ('blk.1.attn_k.bias', {'qkv_bias': 'yes'}),
        ('blk.0.attn_output.bias', {'o_bias': 'yes'}),
        ('blk.0.ffn_up.bias', {'mlp_bias': 'yes'}),
        ('blk.0.ffn_up.weight', {}),
    ],
)
def test_settings_follow_from_which_tensors_exist(tensor, changes):
  got = names.settings_from_tensors(_CONFIG, ['token_embd.weight', tensor])
  assert got == dataclasses.replace(_CONFIG, **changes)
