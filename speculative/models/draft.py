"""A shallow draft that leans on its target's embedding, head and hidden state.

  token x_t, the target's embedding of it ─┐
                                           ├─ in_proj ─ layers ─ norm ─ out_proj
  hidden state h_{t-1} of the target ──────┘                               │
                                                    head ─── g_t, in h_t's place

It has a width of its own between two projections. Its head may hold only the
most frequent tokens; all others have logit minus infinity and are never
drafted, which costs acceptance and nothing else. With inputs 'hidden' it also
reads what the target's last pass knew: the target's hidden state, after the
final norm, of the token before. For tokens that the target has not seen, its
own output stands there.
"""

from collections.abc import Sequence
import dataclasses

import jax
from jax import numpy as jnp

from speculative.errors import UserError
from speculative.models import layers
from speculative.models import params as params_lib
from speculative.models import transformer
from speculative.models.config import TransformerConfig
from speculative.models.kv_cache import KVCache
from speculative.models.params import Params
from speculative.models.params import ParamSpec
from speculative.models.precision import Precision
from speculative.models.transformer import Output
from speculative.models.transformer import Transformer
from speculative.sharding import Placement

INPUTS = ('tokens', 'hidden')
SOURCES = ('shared', 'own')
# Params that are not trained and not weights: ids of the head's tokens.
HEAD_IDS = 'head_ids'


@dataclasses.dataclass(frozen=True)
class DraftConfig:
  """Shapes of a draft model.

  Attributes:
    layers: its layers; vocab_size is the target's, head is not looked at.
    target_dim: model_dim of the target, width of embedding and head.
    head_size: tokens it can draft; layers.vocab_size is all of them.
    inputs: 'tokens', or 'hidden' for the target's hidden state beside them.
    embedding: 'shared' with the target, or its 'own'.
    head: 'shared' (rows of the target's), or its 'own'.
  """

  layers: TransformerConfig
  target_dim: int
  head_size: int
  inputs: str = 'hidden'
  embedding: str = 'shared'
  head: str = 'shared'

  def __post_init__(self) -> None:
    for name, known in (
        ('inputs', INPUTS),
        ('embedding', SOURCES),
        ('head', SOURCES),
    ):
      if getattr(self, name) not in known:
        raise UserError(
            f'{name} of the draft is {getattr(self, name)!r}; it needs to be '
            f'one of {", ".join(known)}.'
        )
    if not 0 < self.head_size <= self.layers.vocab_size:
      raise UserError(
          f'head_size of the draft is {self.head_size}; it needs to be in 1 to '
          f'{self.layers.vocab_size}, the vocabulary.'
      )
    if self.target_dim <= 0:
      raise UserError(f'target_dim needs to be > 0, got {self.target_dim}.')

  @property
  def vocab_size(self) -> int:
    """V, the target's."""
    return self.layers.vocab_size

  @property
  def num_layers(self) -> int:
    """L of the draft."""
    return self.layers.num_layers

  @property
  def max_position(self) -> int:
    """Longest text."""
    return self.layers.max_position

  @property
  def axis_sizes(self) -> dict[str, int]:
    """Sizes of the logical axes a mesh can split."""
    return self.layers.axis_sizes | {'vocab': self.head_size}


def declare(config: DraftConfig) -> Params:
  """Returns the tree of ParamSpecs of what a draft has for itself."""
  inner = params_lib.declare(config.layers)
  D, D_target = config.layers.model_dim, config.target_dim
  num_inputs = 1 if config.inputs == 'tokens' else 2
  specs: Params = {
      'in_proj': _matrix(D, num_inputs * D_target),
      'layers': inner['layers'],
  }
  specs |= {k: v for k, v in inner.items() if k.startswith('final_norm')}
  if D != D_target:
    specs['out_proj'] = _matrix(D_target, D)
  if config.embedding == 'own':
    # Whole on every device: the mesh divides head_size, not all the tokens.
    specs['embed'] = _matrix(config.vocab_size, D_target)
  if config.head == 'own':
    specs['head'] = _matrix(config.head_size, D_target, 'vocab')
  return specs


def _matrix(out: int, into: int, axis: str | None = 'embed') -> ParamSpec:
  return ParamSpec((out, into), (axis, 'embed'), 'normal', 'matrix')


def attach(
    config: DraftConfig, own: Params, head_ids: jax.Array, target: Params
) -> Params:
  """Returns the params a draft runs with: its own and what it shares.

  Args:
    config: the draft's.
    own: in the tree that `declare` describes.
    head_ids: int32 [head_size], tokens of the head's rows, ascending.
    target: the target's params; its embedding is shared, not copied.
  """
  params = {**own, HEAD_IDS: head_ids}
  if config.embedding == 'shared':
    params['embed'] = target['embed']
  if config.head == 'shared':
    head = target['head'] if 'head' in target else target['embed']
    whole = config.head_size == config.vocab_size
    params['head'] = head if whole else head[head_ids]
  return params


@dataclasses.dataclass(frozen=True)
class DraftModel:
  """The draft's static half; hashable, so that jit can take it as static.

  Attributes:
    config: shapes and settings.
    precision: number formats.
    num_tokens: tokens that stand for text; 0 means all.
    placement: where weights, caches and activations lie.
  """

  config: DraftConfig
  precision: Precision = Precision()
  num_tokens: int = 0
  placement: Placement = Placement()

  @property
  def _layers(self) -> Transformer:
    return Transformer(
        self.config.layers, self.precision, placement=self.placement
    )

  @property
  def slack(self) -> int:
    """Slots a pass of one row may write beyond that row."""
    return self._layers.slack

  def init_cache(self, batch: int, max_seq_len: int) -> KVCache:
    """Returns an empty cache of max_seq_len slots a row."""
    return self._layers.init_cache(batch, max_seq_len)

  def forward(
      self,
      params: Params,
      tokens_BT: jax.Array,
      cache: KVCache,
      *,
      hidden_BTD: jax.Array | None = None,
      positions_BT: jax.Array | None = None,
      ancestors_BTT: jax.Array | None = None,
      visible_BTS: jax.Array | None = None,
      features: Sequence[int] = (),
  ) -> Output:
    """Runs T new tokens a row through the layers.

    Args:
      params: as `attach` returns them.
      tokens_BT: int32.
      cache: as `Transformer.forward` takes it.
      hidden_BTD: for inputs 'hidden': [B, T, target_dim], of the token before
        each, the target's or an earlier `Output.hidden_BTD` of this model;
        zeros before the first token of a text.
      positions_BT: see `Transformer.forward`.
      ancestors_BTT: see `Transformer.forward`.
      visible_BTS: see `Transformer.forward`.
      features: see `Transformer.forward`.

    Returns:
      The Output; its hidden_BTD has the target's width.
    """
    with jax.named_scope('embed'):
      x_BTE = params['embed'][tokens_BT].astype(self.precision.activations)
      if self.config.inputs == 'hidden':
        hidden_BTD = hidden_BTD.astype(self.precision.activations)
        x_BTE = jnp.concatenate([x_BTE, hidden_BTD], axis=-1)
      x_BTD = self._project(x_BTE, params['in_proj'])
    out = self._layers.forward(
        params,
        tokens_BT,
        cache,
        positions_BT=positions_BT,
        ancestors_BTT=ancestors_BTT,
        visible_BTS=visible_BTS,
        embedded_BTD=x_BTD,
        features=features,
    )
    if 'out_proj' not in params:
      return out
    return out.replace(
        hidden_BTD=self._project(out.hidden_BTD, params['out_proj'])
    )

  def _project(self, x_BTD: jax.Array, weight_FD: jax.Array) -> jax.Array:
    """Multiplies by a matrix; never by a single row, which is slow."""
    T = x_BTD.shape[1]
    x_BTD = transformer.pad_rows(x_BTD, self.precision)
    return layers.project(x_BTD, weight_FD, precision=self.precision)[:, :T]

  def head_logits(self, params: Params, hidden_BTD: jax.Array) -> jax.Array:
    """Returns float32 logits [B, T, head_size] of the head's own tokens."""
    logits_BTW = transformer.head_logits(
        hidden_BTD,
        params['head'],
        precision=self.precision,
        placement=self.placement,
    )
    if not 0 < self.num_tokens < self.config.vocab_size:
      return logits_BTW
    is_token_W = params[HEAD_IDS] < self.num_tokens
    return jnp.where(is_token_W[None, None, :], logits_BTW, -jnp.inf)

  def logits(self, params: Params, hidden_BTD: jax.Array) -> jax.Array:
    """Returns float32 logits [B, T, V]; minus infinity outside the head."""
    return self.spread(params, self.head_logits(params, hidden_BTD), -jnp.inf)

  def spread(self, params: Params, x_BTW: jax.Array, fill: float) -> jax.Array:
    """Puts numbers of the head's tokens into the whole vocabulary.

    Args:
      params: as `attach` returns them.
      x_BTW: a number for each of the head_size tokens.
      fill: of all other tokens.

    Returns:
      An array [B, T, V].
    """
    if self.config.head_size == self.config.vocab_size:
      return x_BTW
    B, T, _ = x_BTW.shape
    whole_BTV = jnp.full((B, T, self.config.vocab_size), fill, x_BTW.dtype)
    return whole_BTV.at[:, :, params[HEAD_IDS]].set(
        x_BTW, unique_indices=True, indices_are_sorted=True
    )
