"""What a plain decoding step is made of, beside the floor of reading weights.

  python scripts/bench_step.py --model=REFERENCE [--dtype=auto]

Says how long reading the weights takes at the rate measured first, then times
in turn and warm: the matrix products of one step alone, and a forward pass over
one token with a cache of 32 slots and of 512. Medians.
"""

import argparse
from collections.abc import Callable
import statistics
import time

import jax
from jax import numpy as jnp

from speculative import api
from speculative.bench import bandwidth
from speculative.models import layers
from speculative.models import transformer

_REPEATS = 40


def _products(model: transformer.Transformer, rows: int) -> Callable:
  """Returns the step's matrix products alone, each fed by the one before."""

  def run(params: dict) -> jax.Array:
    total = jnp.zeros((), jnp.float32)
    matrices = [
        leaf
        for layer in params['layers']
        for leaf in layer.values()
        if leaf.ndim == 2
    ]
    head = 'embed' if model.config.head == 'tied' else 'head'
    for weight_FD in [*matrices, params[head]]:
      # The sum of the last product makes this one wait for it.
      x_1TD = jnp.full((1, rows, weight_FD.shape[1]), 1e-3 + 1e-30 * total)
      y_1TF = layers.project(x_1TD, weight_FD, precision=model.precision)
      total = y_1TF[0, 0, 0]
    return total

  return jax.jit(run)


def _forward(model: transformer.Transformer) -> Callable:
  def run(params: dict, cache: object) -> jax.Array:
    token_11 = jnp.zeros((1, 1), jnp.int32)
    out = model.forward(params, token_11, cache)
    return model.logits(params, out.hidden_BTD)

  return jax.jit(run)


def main() -> None:
  """Prints one line a part."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--model', required=True)
  parser.add_argument('--dtype', default='auto')
  arguments = parser.parse_args()
  loaded = api.load(arguments.model, dtype=arguments.dtype)
  engine = loaded.engine()
  model, params = engine.step.model, engine.weights.target
  num_bytes = bandwidth.plain_step_bytes(model, params, batch=1, num_slots=32)
  rate = bandwidth.read_rate(model.precision.param_dtype)
  products = _products(model, max(model.precision.min_rows, 1))
  forward = _forward(model)
  parts = {
      'matrix products alone': (products, (params,)),
      'forward pass, 32 slots': (forward, (params, model.init_cache(1, 32))),
      'forward pass, 512 slots': (forward, (params, model.init_cache(1, 512))),
  }
  times = {name: [] for name in parts}
  for repeat in range(_REPEATS + 2):
    for name, (function, operands) in parts.items():
      started = time.perf_counter()
      jax.block_until_ready(function(*operands))
      if repeat >= 2:
        times[name].append(time.perf_counter() - started)
  print(f'jax {jax.__version__}, {model.precision.dtype}, {num_bytes} bytes')
  print(f'{1e3 * num_bytes / rate:6.1f} ms  reading at {rate / 1e9:.1f} GB/s')
  for name, seconds in times.items():
    print(f'{1e3 * statistics.median(seconds):6.1f} ms  {name}')


if __name__ == '__main__':
  main()
