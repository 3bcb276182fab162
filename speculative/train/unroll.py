"""K drafted tokens at every position of a text at once.

A draft reads the target's hidden state of the token before where there is one,
and its own output beyond. So it is trained on both ("training-time test" of
EAGLE-3, arXiv:2503.01840): step 1 reads the target's, step k what step k - 1
put out at the position before. Row t of step k is the k-th token drafted after
the target saw everything up to t - k + 1; its keys are those that a decoder
would have in its cache then:

  step 1 at all positions up to t - k + 1, and step i at t - k + i, i = 2 .. k

                 step 1       step 2       step 3
  t = 3, k = 1   0 1 2 3
  t = 3, k = 2   0 1 2        3
  t = 3, k = 3   0 1          2            3

The steps write into one cache of K T slots, each behind the one before.
"""

import jax
from jax import numpy as jnp

from speculative.models import kv_cache
from speculative.models.draft import DraftModel
from speculative.models.kv_cache import KVCache
from speculative.models.params import Params


def shift(x: jax.Array, by: int) -> jax.Array:
  """Returns row t - by in place of row t of axis 1; zeros where there is none.

  Args:
    x: [B, T, ...].
    by: how far; negative to look ahead.
  """
  pads = [(0, 0)] * x.ndim
  pads[1] = (max(by, 0), max(-by, 0))
  start = max(-by, 0)
  return jax.lax.slice_in_dim(
      jnp.pad(x, pads), start, start + x.shape[1], axis=1
  )


def has_before(document_BT: jax.Array, by: int) -> jax.Array:
  """Returns bool: is row t - by of the same document as row t?

  Args:
    document_BT: number of every row's document, 0 for padding.
    by: how far back.
  """
  return (document_BT > 0) & (shift(document_BT, by) == document_BT)


def visible(document_BT: jax.Array, step: int) -> jax.Array:
  """Returns bool [B, T, step T]: the slots that row t of a step sees.

  Args:
    document_BT: number of every row's document, 0 for padding.
    step: k, from 1.
  """
  T = document_BT.shape[1]
  same_BTT = (document_BT[:, :, None] == document_BT[:, None, :]) & (
      document_BT[:, :, None] > 0
  )
  back_TT = jnp.arange(T)[:, None] - jnp.arange(T)[None, :]
  parts = [back_TT >= step - 1]
  parts += [back_TT == step - i for i in range(2, step + 1)]
  return jnp.concatenate([same_BTT & p_TT[None] for p_TT in parts], axis=-1)


def _longer(cache: KVCache, slots: int) -> KVCache:
  """Adds empty slots at the end of a cache."""
  return kv_cache.map_slots(
      cache,
      lambda x, axes: jnp.pad(
          x, [(0, 0)] * (x.ndim - 2) + [(0, slots), (0, 0)]
      ),
      cache.len_B,
  )


def unroll(
    model: DraftModel,
    params: Params,
    *,
    tokens_BT: jax.Array,
    document_BT: jax.Array,
    positions_BT: jax.Array,
    hidden_BTD: jax.Array,
    num_steps: int,
    remat: str = 'none',
) -> jax.Array:
  """Runs a draft over a text for K steps.

  Args:
    model: the draft.
    params: as `draft.attach` returns them.
    tokens_BT: int32.
    document_BT: number of every row's document, 0 for padding.
    positions_BT: int32, in its document.
    hidden_BTD: the target's, of the token before each.
    num_steps: K.
    remat: 'steps' keeps nothing of a step but its output.

  Returns:
    [K, B, T, D], what the draft puts out in the place of the target's hidden
    state at each position. Row t of step k is what no decoder would ever see
    where its document began less than k - 1 rows before.
  """
  B, T = tokens_BT.shape

  def one(params, cache, hidden_BTD, visible_BTS):
    return model.forward(
        params,
        tokens_BT,
        cache,
        hidden_BTD=hidden_BTD,
        positions_BT=positions_BT,
        visible_BTS=visible_BTS,
    )

  if remat == 'steps':
    one = jax.checkpoint(one)
  cache = model.init_cache(B, T)
  outputs = []
  for step in range(1, num_steps + 1):
    if step > 1:
      cache = _longer(cache, T)
      before_BT = has_before(document_BT, 1)
      hidden_BTD = jnp.where(before_BT[:, :, None], shift(outputs[-1], 1), 0)
    out = one(params, cache, hidden_BTD, visible(document_BT, step))
    cache = out.cache
    outputs.append(out.hidden_BTD)
  return jnp.stack(outputs)
