"""A datastore's arrays on the device, as the search reads them.

Token ids lie in two planes, the low 16 bits and, where the vocabulary needs
them, the next 8: three bytes a token instead of four.
"""

from collections.abc import Sequence
from typing import Protocol

import flax.struct
import jax
from jax import numpy as jnp
import numpy as np

from speculative.retrieval import suffix_array

# The search weighs the tokens of an end by powers of two, in int32.
MOST_NGRAM = 30


@flax.struct.dataclass
class DeviceShard:
  """A suffix array with its tokens.

  Attributes:
    low_N: uint16, low bits of the ids; documents, each ended by the separator.
      Whole ids in more bits where three bytes do not hold them.
    high_N: uint8, the next bits; None where low_N has all.
    suffixes_N: int32, positions in the order of what begins there.
    num_suffixes: int32, entries of suffixes_N that count.
  """

  low_N: jax.Array
  high_N: jax.Array | None
  suffixes_N: jax.Array
  num_suffixes: jax.Array

  def windows_at(self, first: jax.Array, width: int) -> jax.Array:
    """Returns the tokens that begin at some positions.

    Args:
      first: int32 [...], positions.
      width: W; beyond the shard's end its last token, a separator, is repeated.

    Returns:
      int32 ids [..., W].
    """
    shape = (*first.shape, width)
    step = jax.lax.broadcasted_iota(jnp.int32, shape, first.ndim)
    positions = jnp.minimum(first[..., None] + step, self.low_N.shape[0] - 1)
    ids = self.low_N.at[positions].get(mode='promise_in_bounds')
    ids = ids.astype(jnp.int32)
    if self.high_N is None:
      return ids
    high = self.high_N.at[positions].get(mode='promise_in_bounds')
    return ids | (high.astype(jnp.int32) << 16)


@flax.struct.dataclass
class DeviceStore:
  """A datastore on the device.

  Attributes:
    shards: P of them; none is an empty store.
    separator: id that ends documents, above every token's.
    depth: tokens by which suffixes are sorted; no match is longer.
  """

  shards: tuple[DeviceShard, ...]
  separator: int = flax.struct.field(pytree_node=False)
  depth: int = flax.struct.field(pytree_node=False, default=16)

  def check_ngrams(self, min_ngram: int, max_ngram: int) -> None:
    """Refuses lengths of ends that cannot be looked for.

    Args:
      min_ngram: shortest.
      max_ngram: longest.

    Raises:
      ValueError: If they are not in order, or beyond the depth.
    """
    most = min(self.depth, MOST_NGRAM)
    if not 1 <= min_ngram <= max_ngram <= most:
      raise ValueError(
          f'a search needs 1 <= {min_ngram=} <= {max_ngram=} <= {most}, the '
          f'depth of the store, which counts up to {MOST_NGRAM}.'
      )


class Arrays(Protocol):
  """A shard as a file holds it."""

  low: np.ndarray
  high: np.ndarray | None
  suffixes: np.ndarray


def host_shard(
    low_N: np.ndarray, high_N: np.ndarray | None, suffixes_N: np.ndarray
) -> DeviceShard:
  """Returns a shard of host arrays, views of the given ones if it can.

  Args:
    low_N: uint16, or whole ids in more bits.
    high_N: uint8, or None.
    suffixes_N: positions, any integers.

  Raises:
    ValueError: If there are more tokens than int32 counts.
  """
  if len(low_N) > suffix_array.MOST_TOKENS:
    raise ValueError(
        f'a shard has {len(low_N)} tokens; it needs to have at most '
        f'{suffix_array.MOST_TOKENS}.'
    )
  suffixes_N = np.asarray(suffixes_N).astype(np.uint32, copy=False)
  return DeviceShard(
      low_N=np.asarray(low_N),
      high_N=None if high_N is None else np.asarray(high_N, np.uint8),
      # The same bits, as positions are below 2**31.
      suffixes_N=suffixes_N.view(np.int32),
      num_suffixes=np.int32(len(suffixes_N)),
  )


def of_arrays(
    shards: Sequence[Arrays], *, separator: int, depth: int = 16
) -> DeviceStore:
  """Returns a store of host arrays; a memory map's stay where they are.

  Args:
    shards: of an open datastore; those without suffixes are left out.
    separator: id that ends documents.
    depth: by which suffixes are sorted.
  """
  return DeviceStore(
      shards=tuple(
          host_shard(shard.low, shard.high, shard.suffixes)
          for shard in shards
          if len(shard.suffixes)
      ),
      separator=separator,
      depth=depth,
  )
