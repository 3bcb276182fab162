import dataclasses

import pytest

from speculative.errors import UserError
from speculative.models.config import RopeConfig
from speculative.testing import tiny


@pytest.mark.parametrize(
    'changes, message',
    [
        ({'vocab_size': 0}, 'vocab_size needs to be > 0, got 0'),
        ({'num_layers': -1}, 'num_layers needs to be > 0, got -1'),
        ({'mlp_dim': 0}, 'mlp_dim needs to be > 0, got 0'),
        (
            {'num_heads': 4, 'num_kv_heads': 3},
            'num_heads=4 needs to be a multiple of num_kv_heads=3',
        ),
        ({'head_dim': 7}, 'head_dim needs to be even, got 7'),
        ({'norm': 'batch'}, "norm='batch' is not supported; known: rms, layer"),
        ({'activation': 'mish'}, "activation='mish'.*known: silu"),
        ({'mlp': 'moe'}, "mlp='moe'.*known: gated, plain"),
        ({'head': 'shared'}, "head='shared'.*known: tied, untied"),
        ({'qkv_bias': True}, 'qkv_bias=True.*known: yes, no'),
        ({'o_bias': 'maybe'}, "o_bias='maybe'"),
        ({'mlp_bias': 'maybe'}, "mlp_bias='maybe'"),
        ({'qk_norm': 'maybe'}, "qk_norm='maybe'"),
    ],
)
def test_transformer_config_names_the_field_and_its_need(changes, message):
  with pytest.raises(UserError, match=message):
    dataclasses.replace(tiny.TARGET, **changes)


@pytest.mark.parametrize(
    'settings, message',
    [
        ({'scaling': 'dynamic'}, "'dynamic' is not supported; known: none"),
        ({'scaling': 'llama3'}, 'original_max_position > 0, got 0'),
        (
            {
                'scaling': 'llama3',
                'original_max_position': 64,
                'low_freq_factor': 4.0,
                'high_freq_factor': 4.0,
            },
            'low_freq_factor < high_freq_factor, got 4.0 and 4.0',
        ),
        ({'scaling': 'yarn'}, 'original_max_position > 0, got 0'),
    ],
)
def test_rope_config_names_the_scaling_and_its_need(settings, message):
  with pytest.raises(UserError, match=message):
    RopeConfig(**settings)


def test_configs_are_hashable_and_equal_by_value():
  same = dataclasses.replace(tiny.TARGET)
  assert hash(same) == hash(tiny.TARGET)
  assert same == tiny.TARGET
