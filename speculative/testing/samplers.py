"""Sampling parameters of a batch, whatever fields a row has by now."""

from collections.abc import Sequence

import jax
from jax import numpy as jnp
import numpy as np

from speculative.decoding import config as config_lib
from speculative.decoding.config import DecodeConfig
from speculative.decoding.sampling import Sampling


def sampling(
    batch: int, *, seed: int | Sequence[int] = 0, **settings: object
) -> Sampling:
  """Returns the Sampling of a batch.

  Args:
    batch: B.
    seed: of the first row, those after it count up; or one a row.
    **settings: fields of DecodeConfig: a value for all rows, or a list with one
      a row. What is not given has its default, so that a row is greedy.
  """
  lists = {k: v for k, v in settings.items() if isinstance(v, list)}
  shared = {k: v for k, v in settings.items() if k not in lists}
  if lists:
    values = zip(*lists.values(), strict=True)
    configs = [
        DecodeConfig(**shared, **dict(zip(lists, row, strict=True)))
        for row in values
    ]
  else:
    configs = [DecodeConfig(**shared)] * batch
  if len(configs) != batch:
    raise ValueError(f'{batch=} rows, but the lists have {len(configs)}.')
  seeds = np.asarray(seed)
  if not seeds.ndim:
    seeds = seeds + np.arange(batch)
  return jax.tree.map(jnp.asarray, config_lib.sampling_of(configs)).replace(
      seed_B=jnp.asarray(seeds.astype(np.uint32))
  )
