import dataclasses

import pytest

from speculative.errors import UserError
from speculative.models import families
from speculative.models import llama
from speculative.models import qwen2
from speculative.models.config import RopeConfig

# What the published config.json of each model says.
_SMOLLM2 = {
    'model_type': 'llama',
    'attention_bias': False,
    'hidden_act': 'silu',
    'hidden_size': 576,
    'intermediate_size': 1536,
    'max_position_embeddings': 8192,
    'num_attention_heads': 9,
    'num_hidden_layers': 30,
    'num_key_value_heads': 3,
    'rms_norm_eps': 1e-05,
    'rope_scaling': None,
    'rope_theta': 100000,
    'tie_word_embeddings': True,
    'vocab_size': 49152,
}
_LLAMA3 = {
    'model_type': 'llama',
    'hidden_act': 'silu',
    'hidden_size': 8192,
    'intermediate_size': 28672,
    'max_position_embeddings': 8192,
    'num_attention_heads': 64,
    'num_hidden_layers': 80,
    'num_key_value_heads': 8,
    'rms_norm_eps': 1e-05,
    'rope_theta': 500000.0,
    'tie_word_embeddings': False,
    'vocab_size': 128256,
}
_QWEN = {
    'model_type': 'qwen2',
    'hidden_act': 'silu',
    'hidden_size': 896,
    'intermediate_size': 4864,
    'max_position_embeddings': 32768,
    'max_window_layers': 24,
    'num_attention_heads': 14,
    'num_hidden_layers': 24,
    'num_key_value_heads': 2,
    'rms_norm_eps': 1e-06,
    'rope_theta': 1000000.0,
    'sliding_window': 32768,
    'tie_word_embeddings': True,
    'use_sliding_window': False,
    'vocab_size': 151936,
}
_MISTRAL = _LLAMA3 | {
    'model_type': 'mistral',
    'max_position_embeddings': 32768,
    'sliding_window': None,
}
_QWEN3 = _QWEN | {'model_type': 'qwen3', 'head_dim': 128}
_GGUF = {
    'general.architecture': 'llama',
    'llama.block_count': 30,
    'llama.context_length': 8192,
    'llama.embedding_length': 576,
    'llama.feed_forward_length': 1536,
    'llama.attention.head_count': 9,
    'llama.attention.head_count_kv': 3,
    'llama.rope.freq_base': 100000.0,
    'llama.attention.layer_norm_rms_epsilon': 9.999999747378752e-06,
    'llama.vocab_size': 49152,
    'llama.rope.dimension_count': 64,
}


@pytest.mark.parametrize(
    'd, preset',
    [
        (_SMOLLM2, llama.SMOLLM2_135M),
        (_LLAMA3, llama.LLAMA3_70B),
        (_QWEN, qwen2.QWEN2_5_CODER_0_5B),
    ],
    ids=['smollm2', 'llama3', 'qwen2.5'],
)
def test_by_hf_reads_published_configs_as_the_presets(d, preset):
  assert families.by_hf(d) == preset


def test_by_gguf_reads_the_same_config_as_by_hf():
  assert families.by_gguf(_GGUF) == families.by_hf(_SMOLLM2)


def test_by_gguf_takes_the_vocabulary_from_the_tokens():
  fields = _GGUF | {'tokenizer.ggml.tokens': ['a', 'b', 'c']}
  del fields['llama.vocab_size']
  assert families.by_gguf(fields).vocab_size == 3


@pytest.mark.parametrize(
    'd, expected',
    [
        (_SMOLLM2, ('no', 'no', 'no', 'no')),
        (_SMOLLM2 | {'attention_bias': True}, ('yes', 'yes', 'no', 'no')),
        (_SMOLLM2 | {'mlp_bias': True}, ('no', 'no', 'yes', 'no')),
        (_QWEN, ('yes', 'no', 'no', 'no')),
        (_QWEN3, ('no', 'no', 'no', 'yes')),
        (_QWEN3 | {'attention_bias': True}, ('yes', 'yes', 'no', 'yes')),
    ],
)
def test_biases_and_norms_are_those_of_the_family(d, expected):
  config = families.by_hf(d)
  assert expected == (
      config.qkv_bias,
      config.o_bias,
      config.mlp_bias,
      config.qk_norm,
  )


def test_absent_keys_mean_what_the_family_means():
  d = {
      name: _LLAMA3[name]
      for name in (
          'model_type',
          'vocab_size',
          'hidden_size',
          'intermediate_size',
          'num_hidden_layers',
          'num_attention_heads',
      )
  }
  config = families.by_hf(d)
  assert config.num_kv_heads == 64
  assert (config.norm_eps, config.rope.theta) == (1e-6, 10_000.0)
  assert (config.head, config.max_position) == ('untied', 2048)
  assert families.by_hf(d | {'model_type': 'qwen3'}).head_dim == 128


def test_head_width_may_differ_from_width_over_heads():
  assert families.by_hf(_QWEN3).head_dim == 128
  assert families.by_hf(_SMOLLM2 | {'head_dim': 32}).head_dim == 32
  fields = _GGUF | {
      'llama.attention.key_length': 128,
      'llama.rope.dimension_count': 128,
  }
  assert families.by_gguf(fields).head_dim == 128


@pytest.mark.parametrize(
    'd, message',
    [
        ({'model_type': 'gpt_neox'}, "model_type 'gpt_neox'.*known: llama"),
        ({}, 'model_type None'),
        (_SMOLLM2 | {'hidden_act': 'mish'}, "'mish'.*known: silu"),
        (_SMOLLM2 | {'hidden_size': '576'}, "'hidden_size', got '576'"),
        (_SMOLLM2 | {'vocab_size': None}, "'vocab_size', got None"),
        (_SMOLLM2 | {'rms_norm_eps': 'x'}, "'rms_norm_eps', got 'x'"),
        (_MISTRAL | {'sliding_window': 4096}, 'sliding_window=4096.*32768'),
        (
            {k: v for k, v in _MISTRAL.items() if k != 'sliding_window'},
            'sliding_window=4096',
        ),
        (
            _QWEN
            | {
                'use_sliding_window': True,
                'sliding_window': 4096,
                'max_window_layers': 12,
            },
            'sliding_window=4096',
        ),
        (
            _QWEN
            | {'layer_types': ['sliding_attention'] * 24, 'sliding_window': 64},
            'sliding_window=64',
        ),
    ],
)
def test_by_hf_refuses_what_it_would_compute_wrongly(d, message):
  with pytest.raises(UserError, match=message):
    families.by_hf(d)


@pytest.mark.parametrize(
    'd',
    [
        _MISTRAL,
        _MISTRAL | {'sliding_window': 32768},
        # Windowed only from a layer on that the model does not have.
        _QWEN | {'use_sliding_window': True, 'sliding_window': 4096},
        _QWEN | {'layer_types': ['full_attention'] * 24},
    ],
)
def test_windows_that_never_bite_are_accepted(d):
  assert families.by_hf(d).num_layers in (24, 80)


@pytest.mark.parametrize(
    'changes, message',
    [
        ({'general.architecture': 'gemma3'}, "'gemma3'.*known: llama"),
        ({'llama.block_count': None}, 'llama.block_count, got None'),
        ({'llama.expert_count': 8}, 'mixtures of experts'),
        ({'llama.rope.dimension_count': 32}, 'dimension_count=32'),
        ({'llama.attention.sliding_window': 512}, 'sliding_window=512'),
        ({'llama.rope.scaling.type': 'longrope'}, "'longrope'.*known"),
    ],
)
def test_by_gguf_refuses_what_it_would_compute_wrongly(changes, message):
  with pytest.raises(UserError, match=message):
    families.by_gguf(_GGUF | changes)


def test_mistral_is_a_llama_without_biases():
  config = families.by_hf(_MISTRAL)
  expected = dataclasses.replace(
      llama.LLAMA3_70B, family='mistral', max_position=32768
  )
  assert config == expected
  assert config.rope == RopeConfig(theta=500_000.0)
