"""What a run starts from: the part of the target that it keeps, and weights."""

import flax.struct
import jax
from jax import numpy as jnp

from speculative.models import draft as draft_lib
from speculative.models import params as params_lib
from speculative.models.draft import DraftModel
from speculative.models.params import Params


@flax.struct.dataclass
class Frozen:
  """What training does not change.

  Attributes:
    shared: 'embed' and 'head' where the draft shares them, and 'head_ids'.
    target_head_WD: the target's head rows of the draft's tokens, in its dtype.
    rows_V: int32, the row of the draft's head that a token has, or -1.
    target: the target's params where it has to score the text itself.
  """

  shared: Params
  target_head_WD: jax.Array
  rows_V: jax.Array
  target: Params | None = None


def freeze(
    model: DraftModel, head_ids: jax.Array, target: Params, *, keep: str
) -> Frozen:
  """Takes what a draft needs of its target.

  Args:
    model: the draft.
    head_ids: int32 [head_size], ascending.
    target: the target's params.
    keep: 'all' keeps the target to score text with, 'shared' only what the
      draft shares with it.

  Returns:
    The Frozen.
  """
  config, placement = model.config, model.placement
  dtype = model.precision.param_dtype

  def take(target, head_ids):
    head = target['head'] if 'head' in target else target['embed']
    axes = ('vocab', 'embed')
    rows_WD = placement.constrain(head[head_ids], axes)
    rows_V = jnp.full((config.vocab_size,), -1, jnp.int32)
    rows_V = rows_V.at[head_ids].set(jnp.arange(config.head_size))
    shared = {draft_lib.HEAD_IDS: placement.replicate(head_ids)}
    if config.head == 'shared':
      shared['head'] = placement.constrain(rows_WD.astype(dtype), axes)
    return shared, rows_WD, placement.replicate(rows_V)

  shared, rows_WD, rows_V = jax.jit(take)(target, head_ids)
  if config.embedding == 'shared':
    shared['embed'] = target['embed'].astype(dtype)
  return Frozen(
      shared, rows_WD, rows_V, dict(target) if keep == 'all' else None
  )


def init_params(
    key: jax.Array,
    model: DraftModel,
    *,
    target: Params,
    head_ids: jax.Array,
    from_layers: tuple[int, ...] = (),
) -> Params:
  """Returns the weights a run starts from, float32.

  Args:
    key: PRNG key.
    model: the draft.
    target: the target's params.
    head_ids: tokens of the draft's head.
    from_layers: layers of the target to start from, one for each of the
      draft's; all weights are random when there are none. The input projection
      then passes the target's hidden state on, and a little of the token.

  Returns:
    The params that `draft.declare` describes.
  """
  config = model.config
  specs = draft_lib.declare(config)
  params = params_lib.init_tree(key, specs)
  if from_layers:
    params['layers'] = [
        {name: target['layers'][i][name] for name in layer}
        for i, layer in zip(from_layers, params['layers'], strict=True)
    ]
    params |= {k: target[k] for k in specs if k.startswith('final_norm')}
    D = config.target_dim
    identity = jnp.eye(D)
    if config.inputs == 'hidden':
      small = params['in_proj'][:, :D]
      identity = jnp.concatenate([small, identity], axis=1)
    params['in_proj'] = identity
    if config.embedding == 'own':
      params['embed'] = target['embed']
    if config.head == 'own':
      head = target['head'] if 'head' in target else target['embed']
      params['head'] = head[head_ids]
  # A copy of everything: the state is donated, and the target stays.
  return jax.jit(
      lambda params: jax.tree.map(
          lambda x, spec: model.placement.constrain(
              x.astype(jnp.float32) + 0, spec.axes
          ),
          params,
          specs,
      )
  )(params)
