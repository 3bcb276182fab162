"""One decoder-only transformer for every family.

The model knows nothing of speculation. It takes tokens, writes their keys and
values to the cache from the row's length on, and returns hidden states; a tree
of tokens is a matter of positions and of which new rows are ancestors of which.
"""

from collections.abc import Sequence
import dataclasses

import flax.struct
import jax
from jax import numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

from speculative.models import attention
from speculative.models import kv_cache
from speculative.models import layers
from speculative.models import rope
from speculative.models.config import TransformerConfig
from speculative.models.kv_cache import KVCache
from speculative.models.params import Params
from speculative.models.precision import Precision
from speculative.sharding import Placement

# Among `features`: the hidden state after the final norm, whatever the depth.
FINAL = -1


@flax.struct.dataclass
class Output:
  """What one pass over T tokens returns.

  Attributes:
    hidden_BTD: after the final norm; `Transformer.logits` turns rows of it into
      logits, so that a caller pays only for the rows it needs.
    cache: with the new rows written and len_B advanced by T.
    features: the residual stream after each layer asked for, [B, T, D]; under
      FINAL hidden_BTD again.
  """

  hidden_BTD: jax.Array
  cache: KVCache
  features: dict[int, jax.Array]


def pad_rows(x: jax.Array, precision: Precision) -> jax.Array:
  """Repeats the last of axis 1 where there are fewer rows than products want.

  Args:
    x: [B, T, ...].
    precision: gives the fewest rows.
  """
  B, T = x.shape[:2]
  if B * T >= precision.min_rows:
    return x
  missing = precision.min_rows - T
  tail = jnp.repeat(x[:, -1:], missing, axis=1)
  return jnp.concatenate([x, tail], axis=1)


def head_logits(
    hidden_BTD: jax.Array,
    head_VD: jax.Array,
    *,
    precision: Precision,
    placement: Placement,
) -> jax.Array:
  """Returns float32 logits [B, T, V], split or gathered as is cheaper.

  Args:
    hidden_BTD: after the final norm.
    head_VD: [V, D], split over the vocabulary where there is a mesh.
    precision: of the product, whose sums stay float32: bfloat16 logits of a
      large vocabulary tie.
    placement: of the model.
  """
  T = hidden_BTD.shape[1]
  rows_BTD = pad_rows(hidden_BTD, precision)
  wide = dataclasses.replace(precision, activations='float32')
  logits_BTV = layers.project(rows_BTD, head_VD, precision=wide)
  logits_BTV = placement.constrain(logits_BTV, ('batch', None, 'vocab'))
  B, rows, V = logits_BTV.shape
  axis = placement.logits_axis(B * rows, V)
  return placement.constrain(logits_BTV, ('batch', None, axis))[:, :T]


@dataclasses.dataclass(frozen=True)
class Transformer:
  """The model's static half; hashable, so that jit can take it as static.

  Attributes:
    config: shapes and settings.
    precision: number formats.
    layout: 'unrolled' layers (fastest to run) or 'scanned' ones (fastest to
      compile; `stack_layers` prepares the params).
    num_tokens: tokens that stand for text; rows of a padded head beyond them
      have logit minus infinity and are never drawn. 0 means all.
    placement: where weights, caches and activations lie.
  """

  config: TransformerConfig
  precision: Precision = Precision()
  layout: str = 'unrolled'
  num_tokens: int = 0
  placement: Placement = Placement()

  @property
  def slack(self) -> int:
    """Slots a pass of one row may write beyond that row."""
    return self.precision.min_rows - 1

  def init_cache(self, batch: int, max_seq_len: int) -> KVCache:
    """Returns an empty cache of max_seq_len slots a row."""
    copies = self.placement.num_kv_copies(
        self.config.num_heads, self.config.num_kv_heads
    )
    cache = kv_cache.init(
        num_layers=self.config.num_layers,
        batch=batch,
        num_kv_heads=self.config.num_kv_heads * copies,
        max_seq_len=max_seq_len,
        head_dim=self.config.head_dim,
        dtype=self.precision.param_dtype,
        layout=self.layout,
    )
    return kv_cache.place(cache, self.placement)

  def forward(
      self,
      params: Params,
      tokens_BT: jax.Array,
      cache: KVCache,
      *,
      positions_BT: jax.Array | None = None,
      ancestors_BTT: jax.Array | None = None,
      visible_BTS: jax.Array | None = None,
      embedded_BTD: jax.Array | None = None,
      features: Sequence[int] = (),
  ) -> Output:
    """Runs T new tokens a row through the layers.

    Args:
      params: as `params.declare` describes; stacked when the layers are
        scanned.
      tokens_BT: int32.
      cache: holds the tokens before; needs len + max(T, min_rows) <= S.
      positions_BT: int32; counted on from the row's length when absent.
      ancestors_BTT: bool, for a tree (see attention.Rows); absent for a chain.
      visible_BTS: bool, the slots every row sees, where neither says it.
      embedded_BTD: what stands for the tokens; their embeddings when absent.
      features: layers (from 0) whose output is returned too, not with scanned
        layers; or FINAL.

    Returns:
      The Output.
    """
    B, T = tokens_BT.shape
    if positions_BT is None:
      steps_T = jnp.arange(T, dtype=jnp.int32)
      positions_BT = cache.len_B[:, None] + steps_T[None, :]
    if embedded_BTD is None:
      with jax.named_scope('embed'):
        embedded_BTD = params['embed'][tokens_BT]
    # The extra rows land in slots beyond the new length, which nobody reads.
    x_BTD, positions_BT = (
        pad_rows(x, self.precision) for x in (embedded_BTD, positions_BT)
    )
    if x_BTD.shape[1] > T:
      # One row more needs no mask of its own: what it sees is not looked at.
      ancestors_BTT = None
    if visible_BTS is not None:
      visible_BTS = pad_rows(visible_BTS, self.precision)
    x_BTD, k, v, kept = self._layers(
        params,
        self._whole(x_BTD.astype(self.precision.activations)),
        cache,
        attention.Rows(
            positions_BT=positions_BT,
            start_B=cache.len_B,
            ancestors_BTT=ancestors_BTT,
            visible_BTS=visible_BTS,
            rotation_BT1h=rope.rotation(
                self.config.rope, self.config.head_dim, positions_BT
            ),
        ),
        [i for i in features if i != FINAL],
    )
    hidden_BTD = layers.norm(self.config, params, 'final_norm', x_BTD)
    if FINAL in features:
      kept[FINAL] = hidden_BTD
    return Output(
        hidden_BTD=hidden_BTD[:, :T],
        cache=kv_cache.place(
            KVCache(k=k, v=v, len_B=cache.len_B + T), self.placement
        ),
        features={i: f_BTD[:, :T] for i, f_BTD in kept.items()},
    )

  def _whole(self, x_BTD: jax.Array) -> jax.Array:
    """Says that devices along the axis model hold the same activations."""
    return self.placement.constrain(x_BTD, ('batch', None, None))

  def _layers(self, params, x_BTD, cache, rows, features):
    mask_BTS = attention.mask(rows, cache.max_seq_len)

    def layer(x_BTD, layer_params, k_BKSH, v_BKSH):
      with jax.named_scope('attention'):
        y_BTD, k_BKSH, v_BKSH = attention.attention(
            self.config,
            self.precision,
            self.placement,
            layer_params,
            layers.norm(self.config, layer_params, 'attn_norm', x_BTD),
            k_BKSH=k_BKSH,
            v_BKSH=v_BKSH,
            rows=rows,
            mask_BTS=mask_BTS,
        )
        x_BTD = x_BTD + self._whole(y_BTD)
      with jax.named_scope('mlp'):
        normed_BTD = layers.norm(self.config, layer_params, 'mlp_norm', x_BTD)
        y_BTD = layers.mlp(
            self.config,
            self.precision,
            self.placement,
            layer_params,
            normed_BTD,
        )
        x_BTD = x_BTD + self._whole(y_BTD)
      return x_BTD, k_BKSH, v_BKSH

    if self.layout == 'scanned':
      if features:
        raise ValueError('features need unrolled layers; got scanned ones.')

      def body(x_BTD, slices):
        x_BTD, k_BKSH, v_BKSH = layer(x_BTD, *slices)
        return x_BTD, (k_BKSH, v_BKSH)

      x_BTD, (k, v) = jax.lax.scan(
          body, x_BTD, (params['layers'], cache.k, cache.v)
      )
      return x_BTD, k, v, {}

    k, v, kept = [], [], {}
    for i, layer_params in enumerate(params['layers']):
      x_BTD, k_BKSH, v_BKSH = layer(x_BTD, layer_params, cache.k[i], cache.v[i])
      k.append(k_BKSH)
      v.append(v_BKSH)
      if i in features:
        kept[i] = x_BTD
    return x_BTD, tuple(k), tuple(v), kept

  def logits(self, params: Params, hidden_BTD: jax.Array) -> jax.Array:
    """Returns float32 logits [B, T, V] of hidden states."""
    logits_BTV = head_logits(
        hidden_BTD,
        params['embed' if self.config.head == 'tied' else 'head'],
        precision=self.precision,
        placement=self.placement,
    )
    if not 0 < self.num_tokens < self.config.vocab_size:
      return logits_BTV
    is_token_V = jnp.arange(self.config.vocab_size) < self.num_tokens
    return jnp.where(is_token_V[None, None, :], logits_BTV, -jnp.inf)


def stack_layers(params: Params) -> Params:
  """Returns params for scanned layers: one array a name, [L, ...].

  Takes the layers of `params` apart, so that the devices never hold more than
  one name twice.

  Args:
    params: with unrolled layers, which are empty afterwards.
  """
  stacked = {}
  for name in list(params['layers'][0]):
    leaves = [layer.pop(name) for layer in params['layers']]
    split = leaves[0].sharding
    if isinstance(split, NamedSharding):
      split = NamedSharding(split.mesh, PartitionSpec(None, *split.spec))
    stacked[name] = jax.block_until_ready(
        jax.jit(lambda *x: jnp.stack(x), out_shardings=split)(*leaves)
    )
  return {**params, 'layers': stacked}
