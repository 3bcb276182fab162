"""Every parameter of a transformer, declared once.

The declaration (shape, logical axes, initialiser) is a tree; the arrays, their
shardings, the checkpoint importers and the random initialisation are all
derived from it. Weight matrices stay `[out, in]`: that is how checkpoints store
them, and on a CPU products with two or more rows run fastest that way.
"""

from collections.abc import Callable
from collections.abc import Iterator
import dataclasses
import math
from typing import Any

import jax
from jax import numpy as jnp
import numpy as np

from speculative.models.config import TransformerConfig
from speculative.sharding import Placement

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class ParamSpec:
  """One parameter before it exists.

  Attributes:
    shape: its dimensions.
    axes: the logical axis of every dimension, which sharding rules map to mesh
      axes; None is never split.
    init: 'normal' (std 1 / sqrt(fan in)), 'ones' or 'zeros'.
    kind: 'matrix' is stored in the compute dtype, 'vector' (norms, biases)
      always in float32.
  """

  shape: tuple[int, ...]
  axes: tuple[str | None, ...]
  init: str
  kind: str


def _matrix(out: int, out_axis: str | None, into: int, in_axis: str | None):
  return ParamSpec((out, into), (out_axis, in_axis), 'normal', 'matrix')


def _vector(size: int, axis: str | None, init: str) -> ParamSpec:
  return ParamSpec((size,), (axis,), init, 'vector')


def _norm(config: TransformerConfig, name: str, size: int) -> dict:
  specs = {name: _vector(size, 'embed', 'ones')}
  if config.norm == 'layer':
    specs[f'{name}_bias'] = _vector(size, 'embed', 'zeros')
  return specs


def _declare_layer(config: TransformerConfig) -> dict[str, ParamSpec]:
  c = config
  D, F = c.model_dim, c.mlp_dim
  q_dim, kv_dim = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
  specs = _norm(c, 'attn_norm', D)
  specs['q_proj'] = _matrix(q_dim, 'heads', D, 'embed')
  specs['k_proj'] = _matrix(kv_dim, 'kv_heads', D, 'embed')
  specs['v_proj'] = _matrix(kv_dim, 'kv_heads', D, 'embed')
  if c.qkv_bias == 'yes':
    specs['q_bias'] = _vector(q_dim, 'heads', 'zeros')
    specs['k_bias'] = _vector(kv_dim, 'kv_heads', 'zeros')
    specs['v_bias'] = _vector(kv_dim, 'kv_heads', 'zeros')
  if c.qk_norm == 'yes':
    specs['q_norm'] = _vector(c.head_dim, None, 'ones')
    specs['k_norm'] = _vector(c.head_dim, None, 'ones')
  specs['o_proj'] = _matrix(D, 'embed', q_dim, 'heads')
  if c.o_bias == 'yes':
    specs['o_bias'] = _vector(D, 'embed', 'zeros')
  specs |= _norm(c, 'mlp_norm', D)
  if c.mlp == 'gated':
    specs['gate_proj'] = _matrix(F, 'mlp', D, 'embed')
  specs['up_proj'] = _matrix(F, 'mlp', D, 'embed')
  specs['down_proj'] = _matrix(D, 'embed', F, 'mlp')
  if c.mlp_bias == 'yes':
    if c.mlp == 'gated':
      specs['gate_bias'] = _vector(F, 'mlp', 'zeros')
    specs['up_bias'] = _vector(F, 'mlp', 'zeros')
    specs['down_bias'] = _vector(D, 'embed', 'zeros')
  return specs


def declare(config: TransformerConfig) -> Params:
  """Returns the tree of ParamSpecs of a model: the one place they are named."""
  D, V = config.model_dim, config.vocab_size
  specs: Params = {'embed': _matrix(V, 'vocab', D, 'embed')}
  specs['layers'] = [_declare_layer(config) for _ in range(config.num_layers)]
  specs |= _norm(config, 'final_norm', D)
  if config.head == 'untied':
    specs['head'] = _matrix(V, 'vocab', D, 'embed')
  return specs


def flatten(specs: Params) -> Iterator[tuple[str, ParamSpec]]:
  """Yields ('layers.3.q_proj', spec) for every parameter, in a fixed order."""
  for name, value in specs.items():
    if name == 'layers':
      for i, layer in enumerate(value):
        for leaf, spec in layer.items():
          yield f'layers.{i}.{leaf}', spec
    else:
      yield name, value


def build(
    config: TransformerConfig,
    dtype: jnp.dtype,
    get: Callable[[str, ParamSpec, jnp.dtype], jax.Array],
) -> Params:
  """Makes the tree of arrays of a model; see `build_tree`."""
  return build_tree(declare(config), dtype, get)


def build_tree(
    specs: Params,
    dtype: jnp.dtype,
    get: Callable[[str, ParamSpec, jnp.dtype], jax.Array],
) -> Params:
  """Makes the tree of arrays by asking for one parameter after another.

  Args:
    specs: as `declare` returns them.
    dtype: storage dtype of matrices; vectors are float32.
    get: called with (name, spec, dtype) for every parameter in turn; a loader
      reads, checks and places that one tensor, so that the host never holds
      more than one of them.

  Returns:
    The parameters, in the tree that `specs` describes.
  """

  def one(name: str, spec: ParamSpec) -> jax.Array:
    return get(name, spec, dtype if spec.kind == 'matrix' else jnp.float32)

  params: Params = {}
  for name, value in specs.items():
    if name == 'layers':
      params['layers'] = [
          {leaf: one(f'layers.{i}.{leaf}', s) for leaf, s in layer.items()}
          for i, layer in enumerate(value)
      ]
    else:
      params[name] = one(name, value)
  return params


def init(
    key: jax.Array, config: TransformerConfig, dtype: jnp.dtype = jnp.float32
) -> Params:
  """Returns random parameters: matrices N(0, 1 / fan in), norms one."""
  return init_tree(key, declare(config), dtype)


def init_tree(
    key: jax.Array, specs: Params, dtype: jnp.dtype = jnp.float32
) -> Params:
  """Returns random parameters for the tree that `specs` describes."""
  names = {name: i for i, (name, _) in enumerate(flatten(specs))}

  def get(name: str, spec: ParamSpec, dtype: jnp.dtype) -> jax.Array:
    if spec.init == 'ones':
      return jnp.ones(spec.shape, dtype)
    if spec.init == 'zeros':
      return jnp.zeros(spec.shape, dtype)
    leaf_key = jax.random.fold_in(key, names[name])
    scale = 1.0 / math.sqrt(spec.shape[-1])
    return (jax.random.normal(leaf_key, spec.shape) * scale).astype(dtype)

  return build_tree(specs, dtype, get)


def place(
    params: Params, config: TransformerConfig, placement: Placement
) -> Params:
  """Returns parameters where the placement wants them.

  Args:
    params: on one device.
    config: the model they belong to.
    placement: its own.
  """
  arrays = dict(flatten(params))
  return build(
      config,
      jnp.float32,
      lambda name, spec, _: placement.put(arrays[name], spec.axes),
  )


def num_params(config: TransformerConfig) -> int:
  """Counts the parameters of a model without making any."""
  return sum(int(np.prod(s.shape)) for _, s in flatten(declare(config)))
