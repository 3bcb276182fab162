"""Grouped-query attention of T new rows over a cache of S slots.

New rows are first written to the cache and then read back with the older ones,
so that a prompt, a single token, a drafted chain and a drafted tree run the
same code and differ in their mask alone.
"""

import flax.struct
import jax
from jax import numpy as jnp

from speculative.models import kv_cache
from speculative.models import layers
from speculative.models import rope
from speculative.models.config import TransformerConfig
from speculative.models.precision import Precision
from speculative.sharding import Placement

_MASKED = -1e30  # finite: a fully masked row must not turn into NaN


@flax.struct.dataclass
class Rows:
  """Where the T new rows of a pass stand; shared by all layers.

  Attributes:
    positions_BT: int32, position of every row in its text; siblings of a tree
      share one.
    start_B: int32, cache slot of the first new row; row t goes to start + t.
    ancestors_BTT: bool, [b, t, u] is true where new row u is row t or an
      ancestor of it in the drafted tree; None for a chain, whose ancestors are
      all rows up to t.
    rotation_BT1h: cosines and sines of the positions.
    visible_BTS: bool, the slots every row sees; None where start and ancestors
      say it.
  """

  positions_BT: jax.Array
  start_B: jax.Array
  ancestors_BTT: jax.Array | None
  rotation_BT1h: tuple[jax.Array, jax.Array]
  visible_BTS: jax.Array | None = None


def mask(rows: Rows, max_seq_len: int) -> jax.Array:
  """Returns bool [B, T, S]: which slots each new row may see.

    start 2, three rows, five slots, chain     tree: rows 1, 2 children of 0
      row 0: 1 1 1 0 0                           row 0: 1 1 1 0 0
      row 1: 1 1 1 1 0                           row 1: 1 1 1 1 0
      row 2: 1 1 1 1 1                           row 2: 1 1 1 0 1

  Args:
    rows: the pass.
    max_seq_len: S.
  """
  if rows.visible_BTS is not None:
    return rows.visible_BTS
  slots_S = jnp.arange(max_seq_len, dtype=jnp.int32)
  offset_BS = slots_S[None, :] - rows.start_B[:, None]
  T = rows.positions_BT.shape[1]
  if rows.ancestors_BTT is None:
    row_T = jnp.arange(T, dtype=jnp.int32)
    return offset_BS[:, None, :] <= row_T[None, :, None]
  is_new_BS = (offset_BS >= 0) & (offset_BS < T)
  among_new_BTS = jnp.take_along_axis(
      rows.ancestors_BTT, jnp.clip(offset_BS, 0, T - 1)[:, None, :], axis=2
  )
  is_old_BS = offset_BS < 0
  return is_old_BS[:, None, :] | (is_new_BS[:, None, :] & among_new_BTS)


def _heads(
    config: TransformerConfig,
    precision: Precision,
    placement: Placement,
    params: dict,
    x_BTD: jax.Array,
    rows: Rows,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Projects to rotated q [B,T,N,H], rotated k and v [B,T,K,H].

  K counts the copies that the placement makes of key/value heads.
  """
  B, T, _ = x_BTD.shape
  heads = []
  for name, count in (
      ('q', config.num_heads),
      ('k', config.num_kv_heads),
      ('v', config.num_kv_heads),
  ):
    flat = layers.project(
        x_BTD,
        params[f'{name}_proj'],
        params.get(f'{name}_bias'),
        precision=precision,
    )
    heads.append(flat.reshape(B, T, count, config.head_dim))
  q_BTNH, k_BTKH, v_BTKH = heads
  if config.qk_norm == 'yes':
    q_BTNH = layers.rms_norm(q_BTNH, params['q_norm'], config.norm_eps)
    k_BTKH = layers.rms_norm(k_BTKH, params['k_norm'], config.norm_eps)
  q_BTNH = rope.rotate(q_BTNH, rows.rotation_BT1h)
  k_BTKH = rope.rotate(k_BTKH, rows.rotation_BT1h)
  copies = placement.num_kv_copies(config.num_heads, config.num_kv_heads)
  if copies > 1:
    k_BTKH = jnp.repeat(k_BTKH, copies, axis=2)
    v_BTKH = jnp.repeat(v_BTKH, copies, axis=2)
  axes = ('batch', None, 'heads', None)
  return tuple(placement.constrain(x, axes) for x in (q_BTNH, k_BTKH, v_BTKH))


def attend(
    q_BTNH: jax.Array,
    k_BKSH: jax.Array,
    v_BKSH: jax.Array,
    mask_BTS: jax.Array,
    *,
    precision: Precision,
) -> jax.Array:
  """Returns softmax(q k / sqrt(H)) v as [B, T, N, H]; softmax in float32."""
  B, T, N, H = q_BTNH.shape
  K, S = k_BKSH.shape[1:3]
  G = N // K
  # One product a kv head over all its G queries and T rows: [G T, H] [H, S].
  q_BKGTH = q_BTNH.reshape(B, T, K, G, H).transpose(0, 2, 3, 1, 4)
  q_BKRH = q_BKGTH.reshape(B, K, G * T, H).astype(k_BKSH.dtype)
  scores_BKRS = jnp.einsum(
      'BKRH,BKSH->BKRS',
      q_BKRH,
      k_BKSH,
      precision=precision.matmul,
      preferred_element_type=jnp.float32,
  )
  scores_BKGTS = scores_BKRS.reshape(B, K, G, T, S) * H**-0.5
  scores_BKGTS = jnp.where(mask_BTS[:, None, None], scores_BKGTS, _MASKED)
  weights_BKGTS = jax.nn.softmax(scores_BKGTS, axis=-1)
  out_BKRH = jnp.einsum(
      'BKRS,BKSH->BKRH',
      weights_BKGTS.reshape(B, K, G * T, S).astype(v_BKSH.dtype),
      v_BKSH,
      precision=precision.matmul,
      preferred_element_type=jnp.dtype(precision.activations),
  )
  out_BKGTH = out_BKRH.reshape(B, K, G, T, H)
  return out_BKGTH.transpose(0, 3, 1, 2, 4).reshape(B, T, N, H)


def attention(
    config: TransformerConfig,
    precision: Precision,
    placement: Placement,
    params: dict,
    x_BTD: jax.Array,
    *,
    k_BKSH: jax.Array,
    v_BKSH: jax.Array,
    rows: Rows,
    mask_BTS: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Attends the new rows to the cache and themselves.

  With heads over the mesh axis 'model' everything up to the output projection
  is local; that leaves partial sums [B, T, D]{U_model}, one all-reduce.

  Returns:
    The layer's output [B, T, D] and the keys and values with the new rows.
  """
  B, T, _ = x_BTD.shape
  q_BTNH, k_BTKH, v_BTKH = _heads(
      config, precision, placement, params, x_BTD, rows
  )
  k_BKSH = kv_cache.write(k_BKSH, k_BTKH.swapaxes(1, 2), rows.start_B)
  v_BKSH = kv_cache.write(v_BKSH, v_BTKH.swapaxes(1, 2), rows.start_B)
  out_BTNH = attend(q_BTNH, k_BKSH, v_BKSH, mask_BTS, precision=precision)
  out_BTD = layers.project(
      out_BTNH.reshape(B, T, -1),
      params['o_proj'],
      params.get('o_bias'),
      precision=precision,
  )
  return out_BTD, k_BKSH, v_BKSH
