"""Key/value cache with a length per row.

Slots at or beyond `len_B` hold rubbish that nobody reads: undoing rejected
tokens is setting the length back, and costs nothing (`rollback`).

  two rows, four slots; lens [2, 1]; a pass over T = 2 new tokens a row writes
  slots 2, 3 of row 0 and 1, 2 of row 1 and advances the lens to [4, 3];
  rollback to [3, 1] then keeps one of them in row 0 and none in row 1.
"""

from collections.abc import Callable
from typing import Any

import flax.struct
import jax
from jax import numpy as jnp

from speculative.sharding import Placement


@flax.struct.dataclass
class KVCache:
  """Keys and values of every layer.

  Attributes:
    k: a tuple of L arrays [B, K, S, H], or one [L, B, K, S, H] when the layers
      are scanned. Keys are stored rotated.
    v: as k.
    len_B: int32, slots in use; the next pass writes from this slot on. The
      caller keeps len + T <= S for every pass: a write beyond the end would
      be moved back by the compiler and overwrite valid slots.
  """

  k: tuple[jax.Array, ...] | jax.Array
  v: tuple[jax.Array, ...] | jax.Array
  len_B: jax.Array

  @property
  def max_seq_len(self) -> int:
    """S, slots allocated."""
    return (self.k[0] if isinstance(self.k, tuple) else self.k).shape[-2]


def init(
    *,
    num_layers: int,
    batch: int,
    num_kv_heads: int,
    max_seq_len: int,
    head_dim: int,
    dtype: jnp.dtype,
    layout: str,
) -> KVCache:
  """Returns an empty cache; layout is 'unrolled' or 'scanned'."""
  shape = (batch, num_kv_heads, max_seq_len, head_dim)

  def zeros() -> tuple[jax.Array, ...] | jax.Array:
    if layout == 'scanned':
      return jnp.zeros((num_layers, *shape), dtype)
    return tuple(jnp.zeros(shape, dtype) for _ in range(num_layers))

  return KVCache(k=zeros(), v=zeros(), len_B=jnp.zeros((batch,), jnp.int32))


def map_slots(
    cache: KVCache,
    function: Callable[[Any, tuple[str | None, ...]], Any],
    len_B: Any,
) -> KVCache:
  """Applies a function to every array of slots and its logical axes.

  Args:
    cache: of arrays or of their structs.
    function: of an array and the axis of each of its dimensions.
    len_B: of the result.
  """

  def one(slots: Any) -> Any:
    axes = (None,) * (len(slots.shape) - 4) + ('batch', 'heads', None, None)
    return function(slots, axes)

  return KVCache(
      k=jax.tree.map(one, cache.k), v=jax.tree.map(one, cache.v), len_B=len_B
  )


def place(cache: KVCache, placement: Placement) -> KVCache:
  """Says where a cache lies: rows over `data`, heads over `model`."""
  return map_slots(cache, placement.constrain, placement.replicate(cache.len_B))


def rollback(cache: KVCache, len_B: jax.Array) -> KVCache:
  """Keeps the first len_B slots of every row and forgets the rest."""
  return cache.replace(len_B=len_B)


def compact(cache: KVCache, start_B: jax.Array, path_BA: jax.Array) -> KVCache:
  """Moves what a pass wrote for an accepted path of a tree together.

    nodes in slots 5 to 8, nodes 1 and 3 accepted (path [1, 3, -1]): slots 6 and
    8 go to 5 and 6

  Args:
    cache: node m of row b is in slot start + m. The caller keeps start + A <= S
      for every row.
    start_B: int32.
    path_BA: int32, the accepted node of every depth, ascending; -1 beyond them,
      where a slot stays as it is.

  Returns:
    The cache; its lengths are left to the caller. A slots a row were read and
    written, whatever the size of the tree.
  """
  A = path_BA.shape[1]
  index_A = jnp.arange(A, dtype=jnp.int32)
  from_BA = jnp.where(path_BA >= 0, path_BA, index_A[None, :])
  from_BA = start_B[:, None] + from_BA

  def one_layer(slots_BKSH: jax.Array) -> jax.Array:
    moved_BKAH = jnp.take_along_axis(
        slots_BKSH, from_BA[:, None, :, None], axis=2
    )
    return write(slots_BKSH, moved_BKAH, start_B)

  def one(slots: jax.Array) -> jax.Array:
    return one_layer(slots) if slots.ndim == 4 else jax.vmap(one_layer)(slots)

  return cache.replace(
      k=jax.tree.map(one, cache.k), v=jax.tree.map(one, cache.v)
  )


def write(
    slots_BKSH: jax.Array, new_BKTH: jax.Array, start_B: jax.Array
) -> jax.Array:
  """Writes T new entries a row from slot start_B on."""
  new_BKTH = new_BKTH.astype(slots_BKSH.dtype)
  zero = jnp.int32(0)
  if slots_BKSH.shape[0] == 1:
    # Under vmap this would become a scatter, slower for the commonest batch.
    start = (zero, zero, start_B[0], zero)
    return jax.lax.dynamic_update_slice(slots_BKSH, new_BKTH, start)

  def one_row(slots: jax.Array, new: jax.Array, start: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_slice(slots, new, (zero, start, zero))

  return jax.vmap(one_row)(slots_BKSH, new_BKTH, start_B)
