"""Arguments of a program without their numbers: shapes, dtypes, shardings.

A program lowered for them compiles for devices that are not there, and for a
model that no memory here could hold.
"""

import functools
import math
from typing import Any

import jax
from jax import numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

from speculative.decoding import config as config_lib
from speculative.decoding import loop
from speculative.decoding.config import DecodeConfig
from speculative.decoding.loop import Carry
from speculative.decoding.loop import Step
from speculative.decoding.loop import Weights
from speculative.models import draft as draft_lib
from speculative.models import kv_cache
from speculative.models import params as params_lib
from speculative.models.draft import DraftModel
from speculative.models.kv_cache import KVCache
from speculative.models.params import Params
from speculative.models.params import ParamSpec
from speculative.models.transformer import Transformer
from speculative.sharding import Placement

Struct = jax.ShapeDtypeStruct


def params(model: Transformer) -> Params:
  """Returns a model's parameters, stacked where its layers are scanned."""
  sharding = model.placement.sharding

  def leaf(name: str, spec: ParamSpec, dtype: jnp.dtype) -> Struct:
    del name
    return Struct(spec.shape, dtype, sharding=sharding(spec.axes))

  built = params_lib.build(model.config, model.precision.param_dtype, leaf)
  if model.layout == 'scanned':
    built['layers'] = {
        name: _stacked(leaf, model.config.num_layers)
        for name, leaf in built['layers'][0].items()
    }
  return built


def draft_params(model: DraftModel, target: Params) -> Params:
  """Returns the params of a draft that leans on a target.

  Args:
    model: the draft; its head is its own, or holds a part of the tokens.
    target: structs of the target's params.
  """
  config, sharding = model.config, model.placement.sharding
  dtype = model.precision.param_dtype

  def leaf(name: str, spec: ParamSpec, dtype: jnp.dtype) -> Struct:
    del name
    return Struct(spec.shape, dtype, sharding=sharding(spec.axes))

  built = params_lib.build_tree(draft_lib.declare(config), dtype, leaf)
  built[draft_lib.HEAD_IDS] = Struct(
      (config.head_size,), jnp.int32, sharding=sharding()
  )
  if config.embedding == 'shared':
    built['embed'] = target['embed']
  if config.head == 'shared':
    built['head'] = Struct(
        (config.head_size, config.target_dim),
        dtype,
        sharding=sharding(('vocab', 'embed')),
    )
  return built


def _stacked(leaf: Struct, num: int) -> Struct:
  split = leaf.sharding
  if split is not None:
    split = NamedSharding(split.mesh, PartitionSpec(None, *split.spec))
  return Struct((num, *leaf.shape), leaf.dtype, sharding=split)


def everywhere(tree: Any, placement: Placement) -> Any:
  """Returns the structs of arrays that every device holds."""
  return jax.tree.map(
      lambda x: Struct(x.shape, x.dtype, sharding=placement.sharding()), tree
  )


def cache(found: KVCache, placement: Placement) -> KVCache:
  """Returns the structs of a cache, where `kv_cache.place` puts it."""
  return kv_cache.map_slots(
      found,
      lambda x, axes: Struct(
          x.shape, x.dtype, sharding=placement.sharding(axes)
      ),
      everywhere(found.len_B, placement),
  )


def prefill_arguments(
    model: Transformer, *, batch: int, prompt_len: int
) -> tuple[Any, ...]:
  """Returns what `loop.prefill` takes behind the weights.

  Args:
    model: the target.
    batch: B.
    prompt_len: T of the bucket.
  """
  row = DecodeConfig()
  lens = jnp.zeros((batch,), jnp.int32)
  arrays = jax.eval_shape(
      lambda: (
          jnp.zeros((batch, prompt_len), jnp.int32),
          lens,
          lens,
          jnp.asarray(config_lib.padded_ids([row.stop_ids] * batch)),
          jax.tree.map(jnp.asarray, config_lib.sampling_of([row] * batch)),
      )
  )
  return everywhere(arrays, model.placement)


def carry(
    step: Step,
    weights: Weights,
    *,
    batch: int,
    prompt_len: int,
    max_seq_len: int,
    draft: Transformer | DraftModel | None = None,
    log_probs: str = 'none',
) -> Carry:
  """Returns what the loop carries.

  Args:
    step: the round.
    weights: structs.
    batch: B.
    prompt_len: T of the prompts' bucket.
    max_seq_len: S, slots of the caches.
    draft: the draft model, if the drafter has one with a cache of its own.
    log_probs: what the rows record, one of `log_probs.KINDS`.

  Returns:
    The Carry of structs.
  """
  start = functools.partial(
      loop.prefill, step=step, max_seq_len=max_seq_len, log_probs=log_probs
  )
  arguments = prefill_arguments(step.model, batch=batch, prompt_len=prompt_len)
  found = jax.eval_shape(start, weights, *arguments)
  placement = step.model.placement
  state = everywhere(found.state.replace(cache=None), placement)
  state = state.replace(cache=cache(found.state.cache, placement))
  drafter_state = found.drafter_state
  if draft is not None:
    drafter_state = drafter_state.replace(
        cache=cache(drafter_state.cache, draft.placement)
    )
  return Carry(state=state, drafter_state=drafter_state)


def device_shape(struct: Struct) -> tuple[int, ...]:
  """Returns the shape of what one device holds of a struct."""
  if struct.sharding is None:
    return struct.shape
  return struct.sharding.shard_shape(struct.shape)


def num_bytes(tree: Any) -> int:
  """Returns what structs take on one device.

  Args:
    tree: of structs, with or without shardings.
  """
  return sum(
      math.prod(device_shape(x)) * x.dtype.itemsize
      for x in jax.tree.leaves(tree)
  )
