"""Models small enough to compile and run in a moment, with random weights.

A vocabulary of a dozen tokens and a sharpened head make their texts repeat
themselves now and then, so that drafts are sometimes right and sometimes wrong.
"""

import dataclasses
import math

import jax
from jax import numpy as jnp

from speculative.models import draft as draft_lib
from speculative.models import params as params_lib
from speculative.models.config import TransformerConfig
from speculative.models.draft import DraftConfig
from speculative.models.params import Params
from speculative.models.params import ParamSpec

TARGET = TransformerConfig(
    vocab_size=13,
    num_layers=2,
    model_dim=16,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    mlp_dim=24,
    max_position=512,
    head='untied',
)
DRAFT = dataclasses.replace(TARGET, num_layers=1, num_kv_heads=1)
# Of another width than the target, which it leans on, and with a head of its
# own over part of the tokens.
HIDDEN_DRAFT = DraftConfig(
    layers=dataclasses.replace(TARGET, num_layers=1, model_dim=12, mlp_dim=20),
    target_dim=16,
    head_size=9,
)
HEAD_IDS = (0, 1, 2, 3, 4, 6, 8, 9, 12)

# Makes logits of a random head spread like a trained model's.
_SHARPNESS = 3.0


def init(
    key: jax.Array, config: TransformerConfig, dtype: jnp.dtype = jnp.float32
) -> Params:
  """Returns params that are random in norms and biases too.

  `params.init` starts them at one and zero, where a model that forgot to apply
  them would compute the same.

  Args:
    key: PRNG key.
    config: the model.
    dtype: of matrices.

  Returns:
    The parameters.
  """
  return _init_tree(key, params_lib.declare(config), dtype)


def init_draft(
    key: jax.Array, config: DraftConfig, dtype: jnp.dtype = jnp.float32
) -> Params:
  """Returns random params of what a draft has for itself, like `init`."""
  return _init_tree(key, draft_lib.declare(config), dtype)


def _init_tree(key: jax.Array, specs: Params, dtype: jnp.dtype) -> Params:
  names = [name for name, _ in params_lib.flatten(specs)]
  index = {name: i for i, name in enumerate(names)}

  def get(name: str, spec: ParamSpec, dtype: jnp.dtype) -> jax.Array:
    noise = jax.random.normal(jax.random.fold_in(key, index[name]), spec.shape)
    if spec.kind == 'vector':
      centre = 1.0 if spec.init == 'ones' else 0.0
      return (centre + 0.3 * noise).astype(dtype)
    scale = _SHARPNESS if name == 'head' else 1.0
    return (noise * scale / math.sqrt(spec.shape[-1])).astype(dtype)

  return params_lib.build_tree(specs, dtype, get)


def perturb(key: jax.Array, params: Params, *, scale: float) -> Params:
  """Returns params of a model that agrees with this one only mostly.

  Args:
    key: PRNG key.
    params: of the model.
    scale: standard deviation of the noise, in that of each array.

  Returns:
    The parameters with noise added.
  """
  leaves, tree = jax.tree.flatten(params)
  noisy = []
  for i, leaf in enumerate(leaves):
    noise = jax.random.normal(jax.random.fold_in(key, i), leaf.shape)
    noisy.append(leaf + (noise * scale * jnp.std(leaf)).astype(leaf.dtype))
  return jax.tree.unflatten(tree, noisy)
