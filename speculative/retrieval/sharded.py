"""A store whose shards are dealt out over devices, searched where they lie.

Every device searches its own shards and reads its own matches. Two collectives
bring the results together, whatever the size of the store: one all-gather of
the lengths of every device's matches and their counts, from which each of them
knows the global numbers of its occurrences; and one all-reduce of the R rows of
C tokens, each read by the device that holds it and zero on the others. The
result is that of all shards on one device, in their order.
"""

from collections.abc import Sequence

import flax.struct
import jax
from jax import numpy as jnp
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import numpy as np

from speculative.retrieval import search
from speculative.retrieval.device_store import DeviceShard
from speculative.retrieval.device_store import DeviceStore
from speculative.retrieval.search import Continuations
from speculative.retrieval.search import Match


@flax.struct.dataclass
class ShardedStore:
  """Shards of one padded length, the first axis split over devices.

  Attributes:
    low_PN: as `DeviceShard.low_N`, separators behind the end.
    high_PN: as `DeviceShard.high_N`, or None.
    suffixes_PN: int32, zeros behind the end.
    num_suffixes_P: int32, entries that count.
    separator: id that ends documents.
    depth: tokens by which suffixes are sorted.
  """

  low_PN: jax.Array
  high_PN: jax.Array | None
  suffixes_PN: jax.Array
  num_suffixes_P: jax.Array
  separator: int = flax.struct.field(pytree_node=False)
  depth: int = flax.struct.field(pytree_node=False)

  def local(self) -> DeviceStore:
    """Returns the shards of one device, inside a `shard_map`."""
    return DeviceStore(
        shards=tuple(
            DeviceShard(
                low_N=self.low_PN[p],
                high_N=None if self.high_PN is None else self.high_PN[p],
                suffixes_N=self.suffixes_PN[p],
                num_suffixes=self.num_suffixes_P[p],
            )
            for p in range(self.low_PN.shape[0])
        ),
        separator=self.separator,
        depth=self.depth,
    )


def place(store: DeviceStore, mesh: Mesh, axis: str) -> ShardedStore:
  """Deals shards out to devices, as many to each.

  Devices of one coordinate along the axis hold the same ones. Missing shards
  are empty ones, so a store of many equally large shards wastes least.

  Args:
    store: of host arrays; only what this host's devices hold is read.
    mesh: of all devices.
    axis: its axis that shards are split over.

  Returns:
    The ShardedStore.
  """
  shards = store.shards
  num = -(-max(len(shards), 1) // mesh.shape[axis]) * mesh.shape[axis]
  sharding = NamedSharding(mesh, PartitionSpec(axis))

  def put(arrays: Sequence[np.ndarray], dtype: np.dtype, fill: int):
    width = max([len(array) for array in arrays], default=1)

    def some(index: tuple[slice, ...]) -> np.ndarray:
      wanted = range(*index[0].indices(num))
      rows = np.full((len(wanted), width), fill, dtype)
      for row, p in zip(rows, wanted, strict=True):
        if p < len(arrays):
          row[: len(arrays[p])] = arrays[p]
      return rows

    return jax.make_array_from_callback((num, width), sharding, some)

  separator = store.separator
  low_dtype = shards[0].low_N.dtype if shards else np.dtype(np.uint16)
  has_high = low_dtype == np.uint16 and separator >= 2**16
  counts = [int(shard.num_suffixes) for shard in shards]
  counts_P = np.array(counts + [0] * (num - len(shards)), np.int32)
  return ShardedStore(
      low_PN=put(
          [s.low_N for s in shards],
          low_dtype,
          separator & 0xFFFF if has_high else separator,
      ),
      high_PN=put([s.high_N for s in shards], np.uint8, separator >> 16)
      if has_high
      else None,
      suffixes_PN=put([s.suffixes_N for s in shards], np.int32, 0),
      num_suffixes_P=jax.make_array_from_callback(
          (num,), sharding, lambda index: counts_P[index]
      ),
      separator=separator,
      depth=store.depth,
  )


def _brought_together(
    local: DeviceStore,
    match: Match,
    *,
    axis: str,
    num_rows: int,
    length: int,
    backoff: bool,
) -> Continuations:
  """Returns what followed the matches of all devices, inside a `shard_map`."""
  mine_2BG = jnp.stack([match.length_BG, match.count_BG])
  all_Q2BG = jax.lax.all_gather(mine_2BG, axis)
  length_BG = all_Q2BG[:, 0].max(axis=0)
  # Devices that know less know nothing.
  count_QBG = jnp.where(all_Q2BG[:, 0] == length_BG[None], all_Q2BG[:, 1], 0)
  index_Q11 = jnp.arange(count_QBG.shape[0])[:, None, None]
  is_before_Q11 = index_Q11 < jax.lax.axis_index(axis)
  before_BG = search.total(jnp.where(is_before_Q11, count_QBG, 0), axis=0)
  count_BG = search.total(count_QBG, axis=0)
  counts_BG1 = (match.length_BG == length_BG)[..., None]
  match = Match(
      length_BG=length_BG,
      low_BGP=jnp.where(counts_BG1, match.low_BGP, 0),
      high_BGP=jnp.where(counts_BG1, match.high_BGP, 0),
  )
  match_BR, number_BR = search.share_out(count_BG, num_rows)
  mine_BR = number_BR - search.of_match(before_BG, match_BR)
  tokens_BRC, len_BR = search.read(
      local, match, match_BR, mine_BR, length=length
  )
  both = jnp.concatenate([tokens_BRC, len_BR[..., None]], axis=-1)
  both = jax.lax.psum(both, axis)
  return Continuations(
      tokens_BRC=both[..., :-1],
      len_BR=both[..., -1],
      weight_BR=search.weights(
          length_BG, count_BG, match_BR, number_BR, backoff
      ),
  )


def retrieve(
    store: ShardedStore,
    text_BS: jax.Array,
    seq_len_B: jax.Array,
    *,
    mesh: Mesh,
    axis: str,
    max_ngram: int,
    min_ngram: int = 1,
    num_rows: int,
    length: int,
    backoff: bool = False,
) -> Continuations:
  """Finds what followed the ends of texts, in the shards of all.

  Args:
    store: split over the axis.
    text_BS: int32, the same on every device.
    seq_len_B: int32, likewise.
    mesh: as the store was placed on.
    axis: likewise.
    max_ngram: see `search.find`.
    min_ngram: see `search.find`.
    num_rows: see `search.continuations`.
    length: see `search.continuations`.
    backoff: see `search.find`.

  Returns:
    The Continuations, the same on every device.
  """

  def on_device(store, text_BS, seq_len_B):
    local = store.local()
    match = search.find(
        local,
        text_BS,
        seq_len_B,
        max_ngram=max_ngram,
        min_ngram=min_ngram,
        backoff=backoff,
    )
    return _brought_together(
        local,
        match,
        axis=axis,
        num_rows=num_rows,
        length=length,
        backoff=backoff,
    )

  replicated = PartitionSpec()
  return jax.shard_map(
      on_device,
      mesh=mesh,
      in_specs=(PartitionSpec(axis), replicated, replicated),
      out_specs=replicated,
      # What comes of a gather is alike everywhere, but not known to be.
      check_vma=False,
  )(store, text_BS, seq_len_B)
