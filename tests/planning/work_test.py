"""Bytes and FLOPs of one device, against numbers worked out by hand."""

import dataclasses

import jax
from jax import numpy as jnp
import pytest

from speculative import sharding
from speculative.models import precision
from speculative.models.config import TransformerConfig
from speculative.models.transformer import Transformer
from speculative.planning import work

# Grouped queries as Llama 3 has them: 4 query heads to a key/value head.
_CONFIG = TransformerConfig(
    num_layers=2,
    model_dim=32,
    num_heads=8,
    num_kv_heads=2,
    head_dim=4,
    mlp_dim=64,
    vocab_size=512,
    head='untied',
)
# Norms are float32 on every device.
_NORMS = (2 * 2 + 1) * 32 * 4


def _model(config=_CONFIG, layout='scanned', data=1, model=8, **fields):
  mesh = sharding.make_mesh(data, model, devices=jax.devices()[: data * model])
  placement = sharding.place(mesh, config.axis_sizes, **fields)
  chosen = precision.choose('bfloat16', platform='cpu')
  assert chosen.param_dtype == jnp.bfloat16
  return Transformer(config, chosen, layout, placement=placement)


@pytest.mark.parametrize('layout', ['scanned', 'unrolled'])
def test_key_value_projections_held_whole_are_read_and_computed_whole(layout):
  counted = work.count(
      work.Part(_model(layout=layout), positions=5, context=7), batch=3
  )
  # Of a layer: q and o 32 x 32 over eight, k and v 8 x 32 each and whole, three
  # MLP matrices of 32 x 64 over eight; the head over eight, the embedding's
  # rows are left out.
  matrices = 2 * (2 * 128 + 2 * 256 + 3 * 256) + 2048
  # Every device holds a copy of one of the two heads: 2 layers, key and value
  # of 4 numbers, 3 rows of 7 tokens.
  cache = 2 * 2 * 4 * 3 * 7
  assert counted.hbm_bytes == 2 * (matrices + cache) + _NORMS
  # 15 tokens; each attends to 7 with one head of 4 in 2 layers, twice.
  assert counted.flops == 15 * (2 * matrices + 4 * 7 * 2 * 4)


def test_key_value_heads_that_divide_are_split():
  config = dataclasses.replace(_CONFIG, num_kv_heads=8, head='tied')
  counted = work.count(work.Part(_model(config), 1, 7), batch=1)
  matrices = (2 * (4 * 32 * 32 + 3 * 32 * 64) + 512 * 32) // 8
  cache = 2 * 2 * 4 * 7
  assert counted.hbm_bytes == 2 * (matrices + cache) + _NORMS
  assert counted.flops == 2 * matrices + 4 * 7 * 2 * 4


def test_what_does_not_divide_is_held_whole():
  config = dataclasses.replace(_CONFIG, num_heads=6, num_kv_heads=2)
  model = _model(config, model=4, indivisible='replicate')
  counted = work.count(work.Part(model, 1, 7), batch=1)
  # q and o 24 x 32, k and v 8 x 32 whole; MLP and head over four.
  matrices = 2 * (2 * 24 * 32 + 2 * 8 * 32 + 3 * 512) + 4096
  cache = 2 * 2 * 2 * 4 * 7
  assert counted.hbm_bytes == 2 * (matrices + cache) + _NORMS
  assert counted.flops == 2 * matrices + 4 * 7 * 2 * 6 * 4


def test_rows_are_dealt_out_and_weights_are_not():
  one = work.count(work.Part(_model(model=2), 1, 7), batch=2)
  two = work.count(work.Part(_model(data=2, model=2), 1, 7), batch=4)
  assert two == one
