"""What the target thinks of every token of a store, added shard by shard.

Documents of about one length go through the target together, padded at their
ends, where the causal mask keeps the padding from what lies before it. Hidden
states are kept in bfloat16; log_norm is of the logits that the kept ones have,
so that probabilities made from both sum to one.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import functools

import jax
from jax import numpy as jnp
import ml_dtypes
import numpy as np

from speculative.decoding import engine as engine_lib
from speculative.models.params import Params
from speculative.models.transformer import Transformer
from speculative.train import store as store_lib
from speculative.train.store import Store

# Tokens of one pass, about, and of one product with the head.
_TOKENS_PER_PASS = 2048
_TOKENS_PER_HEAD = 256


@functools.partial(jax.jit, static_argnames=('model',))
def _score(
    params: Params, tokens_BT: jax.Array, *, model: Transformer
) -> tuple[jax.Array, jax.Array]:
  """Returns hidden states [B, T, D] in bfloat16 and log_norm [B, T]."""
  B, T = tokens_BT.shape
  out = model.forward(params, tokens_BT, model.init_cache(B, T + model.slack))
  hidden_BTD = out.hidden_BTD.astype(jnp.bfloat16)
  return hidden_BTD, log_norm(model, params, hidden_BTD)


def log_norm(
    model: Transformer, params: Params, hidden_BTD: jax.Array
) -> jax.Array:
  """Returns the log-sum-exp of logits [B, T], some tokens at a time.

  Args:
    model: the target.
    params: its own.
    hidden_BTD: bfloat16, as it is kept.
  """
  B, T, D = hidden_BTD.shape

  def one(hidden_1TD: jax.Array) -> jax.Array:
    wide = hidden_1TD.astype(model.precision.activations)
    return jax.nn.logsumexp(model.logits(params, wide), axis=-1)

  # Logits of all tokens at once would not fit.
  block = min(_TOKENS_PER_HEAD, B * T)
  padded = jnp.pad(
      hidden_BTD.reshape(B * T, D), ((0, -(B * T) % block), (0, 0))
  )
  found = jax.lax.map(one, padded.reshape(-1, 1, block, D))
  return found.reshape(-1)[: B * T].reshape(B, T)


def _batches(
    lens: np.ndarray, num_rows: Callable[[int], int]
) -> Iterator[tuple[int, np.ndarray]]:
  """Yields a width and the documents of every pass, short ones first."""
  order = np.argsort(lens, kind='stable')
  widths = np.array([engine_lib.bucket(int(lens[i])) for i in order])
  for width in dict.fromkeys(widths.tolist()):
    of_width = order[widths == width]
    size = num_rows(width)
    for first in range(0, len(of_width), size):
      yield width, of_width[first : first + size]


def score_documents(
    model: Transformer,
    params: Params,
    documents: Sequence[np.ndarray],
    *,
    on_pass: Callable[[int], None] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """Runs documents through a target.

  Args:
    model: the target.
    params: its own.
    documents: token ids of each.
    on_pass: called with the number of tokens of every pass.

  Returns:
    Hidden states, bfloat16 [N, D], and log_norm, float32 [N], of the documents
    one after another.
  """
  lens = np.array([len(tokens) for tokens in documents], np.int64)
  starts = np.concatenate([[0], np.cumsum(lens)])
  hidden_ND = np.zeros((starts[-1], model.config.model_dim), ml_dtypes.bfloat16)
  log_norm_N = np.zeros(starts[-1], np.float32)
  placement = model.placement

  def num_rows(width: int) -> int:
    size = placement.data_size
    return -(-max(_TOKENS_PER_PASS // width, 1) // size) * size

  for width, chosen in _batches(lens, num_rows):
    # As many rows as every pass of this width has: one program.
    tokens_BT = np.zeros((num_rows(width), width), np.int32)
    for row, i in enumerate(chosen):
      tokens_BT[row, : lens[i]] = documents[i]
    hidden_BTD, log_norm_BT = jax.device_get(
        _score(params, placement.put(tokens_BT), model=model)
    )
    for row, i in enumerate(chosen):
      span = slice(starts[i], starts[i + 1])
      hidden_ND[span] = hidden_BTD[row, : lens[i]]
      log_norm_N[span] = log_norm_BT[row, : lens[i]]
    if on_pass is not None:
      on_pass(int(lens[chosen].sum()))
  return hidden_ND, log_norm_N


def score_shard(
    model: Transformer,
    params: Params,
    store: Store,
    shard: int,
    *,
    on_pass: Callable[[int], None] | None = None,
) -> None:
  """Adds hidden states to a shard, whole or not at all.

  Args:
    model: the target whose mark the store has.
    params: its own.
    store: that has the shard.
    shard: its number.
    on_pass: see `score_documents`.
  """
  arrays = store.arrays(shard)
  documents = np.split(arrays['tokens'], arrays['starts'][1:-1])
  if not store.index.shards[shard].num_documents:
    documents = []
  hidden, log_norm = score_documents(model, params, documents, on_pass=on_pass)
  store_lib.write_scores(
      store.path / store.index.shards[shard].name,
      hidden=hidden,
      log_norm=log_norm,
  )
