import dataclasses
import math

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.models import llama
from speculative.models import params as params_lib
from speculative.models import qwen2
from speculative.testing import tiny

_LOGICAL_AXES = {'embed', 'heads', 'kv_heads', 'mlp', 'vocab', None}

# Of tiny.TARGET: V 13, D 16, N 4, K 2, H 8, F 24.
_LLAMA_LAYER = {
    'attn_norm': (16,),
    'q_proj': (32, 16),
    'k_proj': (16, 16),
    'v_proj': (16, 16),
    'o_proj': (16, 32),
    'mlp_norm': (16,),
    'gate_proj': (24, 16),
    'up_proj': (24, 16),
    'down_proj': (16, 24),
}


def _shapes(**changes) -> dict[str, tuple[int, ...]]:
  config = dataclasses.replace(tiny.TARGET, **changes)
  specs = params_lib.flatten(params_lib.declare(config))
  return {name: spec.shape for name, spec in specs}


def _layer(shapes: dict) -> dict:
  prefix = 'layers.1.'
  return {
      name.removeprefix(prefix): shape
      for name, shape in shapes.items()
      if name.startswith(prefix)
  }


def test_declare_names_every_parameter_of_a_llama():
  shapes = _shapes()
  assert _layer(shapes) == _LLAMA_LAYER
  outside = {n: s for n, s in shapes.items() if not n.startswith('layers')}
  assert outside == {'embed': (13, 16), 'final_norm': (16,), 'head': (13, 16)}
  assert len(shapes) == 3 + 2 * len(_LLAMA_LAYER)


def test_a_tied_head_is_no_parameter_of_its_own():
  assert set(_shapes()) - set(_shapes(head='tied')) == {'head'}


@pytest.mark.parametrize(
    'changes, more, fewer',
    [
        (
            {'qkv_bias': 'yes'},
            {'q_bias': (32,), 'k_bias': (16,), 'v_bias': (16,)},
            set(),
        ),
        ({'qk_norm': 'yes'}, {'q_norm': (8,), 'k_norm': (8,)}, set()),
        ({'o_bias': 'yes'}, {'o_bias': (16,)}, set()),
        (
            {'mlp_bias': 'yes'},
            {'gate_bias': (24,), 'up_bias': (24,), 'down_bias': (16,)},
            set(),
        ),
        ({'mlp': 'plain'}, {}, {'gate_proj'}),
        (
            {'mlp': 'plain', 'mlp_bias': 'yes'},
            {'up_bias': (24,), 'down_bias': (16,)},
            {'gate_proj'},
        ),
        (
            {'norm': 'layer'},
            {'attn_norm_bias': (16,), 'mlp_norm_bias': (16,)},
            set(),
        ),
    ],
    ids=lambda x: ' '.join(f'{k}={v}' for k, v in x.items())
    if isinstance(x, dict)
    else '',
)
def test_each_option_adds_and_removes_its_own_parameters(changes, more, fewer):
  expected = {n: s for n, s in _LLAMA_LAYER.items() if n not in fewer} | more
  assert _layer(_shapes(**changes)) == expected


def test_every_dimension_has_a_logical_axis_that_is_known(variant):
  for name, spec in params_lib.flatten(params_lib.declare(variant)):
    assert len(spec.axes) == len(spec.shape), name
    assert set(spec.axes) <= _LOGICAL_AXES, name
    assert (spec.kind == 'matrix') == (len(spec.shape) == 2), name


@pytest.mark.parametrize(
    'name, axes',
    [
        ('embed', ('vocab', 'embed')),
        ('head', ('vocab', 'embed')),
        ('layers.0.q_proj', ('heads', 'embed')),
        ('layers.0.k_proj', ('kv_heads', 'embed')),
        ('layers.0.v_proj', ('kv_heads', 'embed')),
        ('layers.0.o_proj', ('embed', 'heads')),
        ('layers.0.up_proj', ('mlp', 'embed')),
        ('layers.0.gate_proj', ('mlp', 'embed')),
        ('layers.0.down_proj', ('embed', 'mlp')),
        ('layers.0.attn_norm', ('embed',)),
    ],
)
def test_axes_split_columns_first_and_rows_after(name, axes):
  specs = dict(params_lib.flatten(params_lib.declare(tiny.TARGET)))
  assert specs[name].axes == axes


def test_build_asks_for_every_parameter_once_in_the_declared_order(variant):
  asked = []

  def get(name, spec, dtype):
    asked.append((name, spec))
    assert dtype == (jnp.bfloat16 if spec.kind == 'matrix' else jnp.float32)
    return np.zeros(spec.shape, dtype)

  params = params_lib.build(variant, jnp.bfloat16, get)
  declared = params_lib.declare(variant)
  assert asked == list(params_lib.flatten(declared))
  assert jax.tree.structure(params) == jax.tree.structure(declared)


def test_init_draws_matrices_by_fan_in_and_starts_norms_at_one(key):
  config = dataclasses.replace(
      tiny.TARGET, model_dim=64, mlp_dim=256, qkv_bias='yes'
  )
  params = params_lib.init(key, config)
  layer = params['layers'][0]
  for name, fan_in in (('up_proj', 64), ('down_proj', 256), ('o_proj', 32)):
    assert layer[name].std() * math.sqrt(fan_in) == pytest.approx(1, abs=0.05)
  np.testing.assert_array_equal(layer['attn_norm'], np.ones(64))
  np.testing.assert_array_equal(layer['q_bias'], np.zeros(32))
  other = params['layers'][1]['up_proj']
  assert not np.array_equal(layer['up_proj'], other)
  assert not np.array_equal(layer['up_proj'], layer['gate_proj'])


def test_init_follows_the_key(key):
  again, other = (
      params_lib.init(k, tiny.TARGET)['embed'] for k in (key, jax.random.key(1))
  )
  first = params_lib.init(key, tiny.TARGET)['embed']
  np.testing.assert_array_equal(first, again)
  assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    'config, expected',
    [
        (llama.SMOLLM2_135M, 134_515_008),
        (llama.LLAMA3_8B, 8_030_261_248),
        (llama.LLAMA3_70B, 70_553_706_496),
        (qwen2.QWEN2_5_CODER_0_5B, 494_032_768),
        (qwen2.QWEN2_5_CODER_1_5B, 1_543_714_304),
    ],
    ids=['smollm2', 'llama3 8b', 'llama3 70b', 'qwen 0.5b', 'qwen 1.5b'],
)
def test_num_params_of_published_models(config, expected):
  assert params_lib.num_params(config) == expected
