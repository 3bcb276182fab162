import dataclasses

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.bench import bandwidth
from speculative.models import params as params_lib
from speculative.models import precision
from speculative.models import transformer
from speculative.testing import tiny


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_read_rate_is_that_of_the_bytes_it_reads(monkeypatch, dtype):
  monkeypatch.setattr(bandwidth, '_BYTES', 1 << 20)
  times = iter(np.arange(0, 1000, 0.5))
  monkeypatch.setattr(bandwidth.time, 'perf_counter', lambda: next(times))
  # Every run takes half a second by this clock.
  assert bandwidth.read_rate(jnp.dtype(dtype)) == (1 << 20) / 0.5


def test_the_fastest_run_counts(monkeypatch):
  monkeypatch.setattr(bandwidth, '_BYTES', 1 << 20)
  monkeypatch.setattr(bandwidth, '_REPEATS', 2)
  # Starts and ends of two runs each of the sum and of the product.
  times = iter([0.0, 4.0, 4.0, 7.0, 7.0, 8.0, 8.0, 10.0])
  monkeypatch.setattr(bandwidth.time, 'perf_counter', lambda: next(times))
  assert bandwidth.read_rate(jnp.dtype('float32')) == 1 << 20


def _bytes(config, dtype='float32', **lengths) -> tuple[int, int]:
  """Returns the bytes of a step, and those of all weights."""
  formats = precision.choose(dtype)
  model = transformer.Transformer(config, formats)
  params = params_lib.build(
      config,
      formats.param_dtype,
      lambda name, spec, dtype: np.zeros(spec.shape, dtype),
  )
  lengths = {'batch': 1, 'num_slots': 48} | lengths
  weights = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
  return bandwidth.plain_step_bytes(model, params, **lengths), weights


def _cache_bytes(config, slots: int, batch: int = 1, itemsize: int = 4) -> int:
  row = config.num_kv_heads * config.head_dim * itemsize
  return 2 * config.num_layers * batch * slots * row


def test_a_step_reads_all_weights_of_a_tied_model_and_the_whole_cache():
  config = dataclasses.replace(tiny.TARGET, head='tied')
  total, weights = _bytes(config)
  assert total == weights + _cache_bytes(config, 48)


def test_an_embedding_beside_a_head_is_not_read():
  config = tiny.TARGET
  total, weights = _bytes(config)
  embed = config.vocab_size * config.model_dim * 4
  assert total == weights - embed + _cache_bytes(config, 48)


def test_the_cache_counts_for_every_row_in_its_dtype():
  config = tiny.TARGET
  one, _ = _bytes(config, 'bfloat16')
  three, _ = _bytes(config, 'bfloat16', batch=3)
  assert three - one == 2 * _cache_bytes(config, 48, itemsize=2)


def test_several_calls_are_timed_as_one(monkeypatch):
  times = iter(np.arange(0, 1000, 0.5))
  monkeypatch.setattr(bandwidth.time, 'perf_counter', lambda: next(times))
  rate = bandwidth.read_rate(
      jnp.dtype('float32'), num_bytes=1 << 20, num_calls=4
  )
  assert rate == 4 * (1 << 20) / 0.5
