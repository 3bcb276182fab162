"""The floor of plain decoding: bytes it must read over the measured rate."""

import time

import jax
from jax import numpy as jnp
import numpy as np

from speculative.models import transformer
from speculative.models.params import Params

_BYTES = 1 << 29
_REPEATS = 7


def read_rate(
    dtype: jnp.dtype, *, num_bytes: int | None = None, num_calls: int = 1
) -> float:
  """Measures how many bytes a second the device reads.

  Sums 512 MB, and multiplies as many bytes of matrix by two rows; the faster of
  the two counts, as no decoder could read faster.

  Args:
    dtype: the matrix's.
    num_bytes: to read instead of 512 MB, of a device that does those in the
      time of a call.
    num_calls: one after another of each run, so that an accelerator is handed
      the next before it is done.

  Returns:
    Bytes a second, the best of several runs.
  """
  width = 4096
  num_bytes = num_bytes or _BYTES
  numbers = jnp.ones((num_bytes // 4,), jnp.float32)
  rows = num_bytes // width // jnp.dtype(dtype).itemsize
  weight_FD = jnp.ones((rows, width), dtype)
  x_TD = jnp.ones((2, width), dtype)
  product = jax.jit(lambda x, w: jnp.einsum('TD,FD->TF', x, w))
  total = jax.jit(jnp.sum)
  best_s = np.inf
  for function, arguments in (
      (total, (numbers,)),
      (product, (x_TD, weight_FD)),
  ):
    jax.block_until_ready(function(*arguments))
    for _ in range(_REPEATS):
      started = time.perf_counter()
      jax.block_until_ready([function(*arguments) for _ in range(num_calls)])
      best_s = min(best_s, time.perf_counter() - started)
  return num_calls * num_bytes / best_s


def plain_step_bytes(
    model: transformer.Transformer,
    params: Params,
    *,
    batch: int,
    num_slots: int,
) -> int:
  """Counts the bytes one plain decoding step reads.

  Args:
    model: the target.
    params: its weights.
    batch: rows.
    num_slots: S, slots of the cache; see `engine.cache_slots`.

  Returns:
    All weights once, but of an embedding apart from the head only the rows
    looked up, and every slot of the cache.
  """
  weights = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
  if model.config.head == 'untied':
    weights -= params['embed'].nbytes
  cache = jax.eval_shape(lambda: model.init_cache(batch, num_slots))
  kv_bytes = sum(
      leaf.size * leaf.dtype.itemsize
      for leaf in jax.tree.leaves((cache.k, cache.v))
  )
  return weights + kv_bytes
