"""Stands in for `checkpoints.draft_dir` until that is there."""

import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
from typing import Any

import jax
from jax import numpy as jnp
import numpy as np
from orbax.checkpoint import v1 as ocp

from speculative.models import draft as draft_lib
from speculative.models import params as params_lib
from speculative.models.config import TransformerConfig
from speculative.models.draft import DraftConfig
from speculative.models.params import Params


@dataclasses.dataclass(frozen=True)
class TargetIdentity:
  """Which target a draft was made for."""

  tokenizer: str
  mark: str
  transformer: TransformerConfig
  reference: str = ''


def mark(final_norm_D: Any) -> str:
  """Returns what a target is known by: hex SHA-256 of its final norm."""
  wide_D = np.ascontiguousarray(np.asarray(final_norm_D, np.float32))
  return hashlib.sha256(wide_D.tobytes()).hexdigest()


def save(
    path: str | os.PathLike[str],
    own_params: Params,
    head_ids: Any,
    config: DraftConfig,
    target: TargetIdentity,
    *,
    dtype: str = 'bfloat16',
    existing: str = 'refuse',
) -> None:
  """Writes a draft."""
  del existing
  path = pathlib.Path(path).expanduser().resolve()
  specs = dict(params_lib.flatten(draft_lib.declare(config)))
  saved = {
      name: jnp.asarray(
          x, jnp.dtype(dtype) if specs[name].kind == 'matrix' else jnp.float32
      )
      for name, x in params_lib.flatten(own_params)
  }
  saved[draft_lib.HEAD_IDS] = jnp.asarray(head_ids, jnp.int32)
  beside = path.with_name(f'.{path.name}.partial')
  if jax.process_index() == 0:
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
  ocp.save(beside / 'params', saved)
  if jax.process_index() == 0:
    d = {
        'format': 'speculative-draft',
        'draft': dataclasses.asdict(config),
        'target': dataclasses.asdict(target),
    }
    (beside / 'config.json').write_text(json.dumps(d, indent=2) + '\n')
    shutil.rmtree(path, ignore_errors=True)
    os.replace(beside, path)
