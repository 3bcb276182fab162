"""The transformer of every family against float64 numpy, and its options."""

import dataclasses

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.models import transformer
from speculative.models.precision import Precision
from speculative.models.transformer import Transformer
from speculative.testing import oracles
from speculative.testing import tiny

# Float32 against float64 through two layers; logits are of the order of 5.
_STACK_ATOL = 1e-4
# bfloat16 keeps 8 bits: single values are off by 2**-9, logits by more.
_BFLOAT16_ATOL = 0.15


def _float64(params: dict) -> dict:
  return jax.tree.map(lambda x: np.asarray(x, np.float64), params)


def test_logits_of_every_family_equal_the_numpy_oracle(variant, forward, text):
  params = tiny.init(jax.random.key(1), variant)
  model = Transformer(variant)
  logits_1TV, _ = forward(model, params, text[None], model.init_cache(1, 16))
  expected_TV, _ = oracles.transformer(variant, _float64(params), text)
  np.testing.assert_allclose(logits_1TV[0], expected_TV, atol=_STACK_ATOL)
  assert logits_1TV.dtype == jnp.float32


@pytest.mark.parametrize('wanted', [(0,), (1,), (0, 1)])
def test_features_are_the_residual_stream_after_the_layers_asked_for(
    tiny_params, forward, text, wanted
):
  model = Transformer(tiny.TARGET)
  _, out = forward(
      model,
      tiny_params,
      text[None],
      model.init_cache(1, 16),
      features=wanted,
  )
  _, streams = oracles.transformer(tiny.TARGET, _float64(tiny_params), text)
  assert tuple(out.features) == wanted
  for layer in wanted:
    np.testing.assert_allclose(
        out.features[layer][0], streams[layer], atol=_STACK_ATOL
    )


def test_scanned_layers_equal_unrolled_ones(tiny_params, forward, text):
  unrolled = Transformer(tiny.TARGET)
  scanned = Transformer(tiny.TARGET, layout='scanned')
  stacked = transformer.stack_layers(jax.tree.map(lambda x: x, tiny_params))
  cache, scanned_cache = unrolled.init_cache(1, 16), scanned.init_cache(1, 16)
  for chunk in (text[None, :8], text[None, 8:]):
    logits, out = forward(unrolled, tiny_params, chunk, cache)
    scanned_logits, scanned_out = forward(
        scanned, stacked, chunk, scanned_cache
    )
    cache, scanned_cache = out.cache, scanned_out.cache
    np.testing.assert_allclose(scanned_logits, logits, atol=_STACK_ATOL)
  for layer in range(tiny.TARGET.num_layers):
    np.testing.assert_allclose(
        scanned_cache.k[layer], cache.k[layer], atol=_STACK_ATOL
    )


def test_scanned_layers_refuse_to_return_features(tiny_params, text):
  model = Transformer(tiny.TARGET, layout='scanned')
  with pytest.raises(ValueError, match='features need unrolled layers'):
    model.forward(
        transformer.stack_layers(jax.tree.map(lambda x: x, tiny_params)),
        jnp.asarray(text[None]),
        model.init_cache(1, 16),
        features=(0,),
    )


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_padding_one_row_to_two_changes_nothing_visible(forward, text, dtype):
  params = tiny.init(jax.random.key(7), tiny.TARGET, jnp.dtype(dtype))
  model = Transformer(tiny.TARGET, Precision(dtype, min_rows=2))
  assert model.slack == 1
  _, prompt = forward(model, params, text[None, :4], model.init_cache(1, 16))
  padded, out = forward(
      model, params, text[None, 4:5], prompt.cache, features=(0, 1)
  )
  # The same two-row product with another second row.
  both, wide = forward(
      model, params, text[None, 4:6], prompt.cache, features=(0, 1)
  )
  assert padded.shape == (1, 1, tiny.TARGET.vocab_size)
  np.testing.assert_array_equal(padded, both[:, :1])
  np.testing.assert_array_equal(out.hidden_BTD, wide.hidden_BTD[:, :1])
  np.testing.assert_array_equal(out.features[1], wide.features[1][:, :1])
  np.testing.assert_array_equal(out.cache.len_B, [5])
  np.testing.assert_array_equal(
      out.cache.k[0][:, :, :5], wide.cache.k[0][:, :, :5]
  )


@pytest.mark.parametrize(
    'dtype, atol', [('float32', _STACK_ATOL), ('bfloat16', _BFLOAT16_ATOL)]
)
def test_padded_single_rows_equal_one_pass_over_all(forward, text, dtype, atol):
  params = tiny.init(jax.random.key(7), tiny.TARGET, jnp.dtype(dtype))
  model = Transformer(tiny.TARGET, Precision(dtype, min_rows=2))
  cache, rows = model.init_cache(1, 16), []
  for token in text:
    logits, out = forward(model, params, token[None, None], cache)
    cache = out.cache
    rows.append(logits[0, 0])
  whole, _ = forward(model, params, text[None], model.init_cache(1, 16))
  np.testing.assert_allclose(np.stack(rows), whole[0], atol=atol)


@pytest.mark.parametrize('batch, num_written', [(1, 2), (2, 1)])
def test_padding_is_for_products_of_one_row_only(
    tiny_params, forward, text, batch, num_written
):
  model = Transformer(tiny.TARGET, Precision(min_rows=2))
  _, out = forward(
      model, tiny_params, text[:batch, None], model.init_cache(batch, 16)
  )
  written_S = np.asarray(out.cache.k[0]).any(axis=(0, 1, 3))
  np.testing.assert_array_equal(written_S, np.arange(16) < num_written)


def test_bfloat16_stays_near_float32_and_returns_float32_logits(forward, text):
  params = tiny.init(jax.random.key(7), tiny.TARGET)
  narrow = tiny.init(jax.random.key(7), tiny.TARGET, jnp.bfloat16)
  assert narrow['layers'][0]['q_proj'].dtype == jnp.bfloat16
  assert narrow['layers'][0]['attn_norm'].dtype == jnp.float32
  exact = Transformer(tiny.TARGET)
  expected, _ = forward(exact, params, text[None], exact.init_cache(1, 16))
  for precision in (
      Precision('bfloat16', 'float32', min_rows=2),
      Precision('bfloat16', 'bfloat16'),
  ):
    model = Transformer(tiny.TARGET, precision)
    logits, out = forward(model, narrow, text[None], model.init_cache(1, 16))
    assert logits.dtype == jnp.float32
    assert out.hidden_BTD.dtype == jnp.dtype(precision.activations)
    assert out.cache.k[0].dtype == jnp.bfloat16
    difference = np.abs(np.asarray(logits - expected))
    assert 0 < difference.mean() < _BFLOAT16_ATOL


def test_transformer_is_hashable_so_that_jit_can_take_it_as_static():
  config = dataclasses.replace(tiny.TARGET)
  assert hash(Transformer(config)) == hash(Transformer(tiny.TARGET))
  assert Transformer(config) == Transformer(tiny.TARGET)


def test_rows_of_a_padded_head_are_never_drawn(key):
  config = dataclasses.replace(tiny.TARGET, head='untied')
  padded = Transformer(config, num_tokens=config.vocab_size - 3)
  whole = Transformer(config)
  params = tiny.init(key, config)
  hidden_BTD = jax.random.normal(key, (2, 3, config.model_dim))
  logits = padded.logits(params, hidden_BTD)
  assert jnp.all(logits[..., -3:] == -jnp.inf)
  np.testing.assert_array_equal(
      logits[..., :-3], whole.logits(params, hidden_BTD)[..., :-3]
  )
