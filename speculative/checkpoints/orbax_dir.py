"""Our own checkpoints: an Orbax directory of parameters beside a config.json.

  DIR/config.json   {"format": "speculative", "transformer": {...}}
  DIR/params/       written by Orbax, one flat dict 'layers.0.q_proj' -> array

config.json is written last, so a directory that has one is complete.
"""

from collections.abc import Mapping
import dataclasses
import json
import math
import os
import pathlib
from typing import Any

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

from speculative.checkpoints import reader
from speculative.errors import UserError
from speculative.models import params as params_lib
from speculative.models.config import RopeConfig
from speculative.models.config import TransformerConfig

FORMAT = 'speculative'
CONFIG_NAME = 'config.json'
_PARAMS_NAME = 'params'


def save(
    path: str | os.PathLike[str],
    params: params_lib.Params,
    config: TransformerConfig,
) -> None:
  """Writes a checkpoint that `load.open_checkpoint` reads back.

  With several processes, every one of them calls this with the same path.

  Args:
    path: directory to make; files already there (a tokenizer) are kept.
    params: in the tree that `params.declare(config)` describes.
    config: the model.

  Raises:
    UserError: If the directory already holds a checkpoint.
  """
  path = pathlib.Path(path).expanduser().resolve()
  for name in (CONFIG_NAME, _PARAMS_NAME):
    if (path / name).exists():
      raise UserError(
          f'{path} already holds {name}; choose another directory or remove it.'
      )
  save_arrays(
      path,
      dict(params_lib.flatten(params)),
      {'format': FORMAT, 'transformer': dataclasses.asdict(config)},
  )


def save_arrays(
    path: pathlib.Path, arrays: Mapping[str, Any], config: Mapping[str, Any]
) -> None:
  """Writes arrays and, when they are complete, config.json.

  Args:
    path: directory, absolute, made if need be.
    arrays: by name.
    config: what goes into config.json.
  """
  path.mkdir(parents=True, exist_ok=True)
  ocp.save(path / _PARAMS_NAME, dict(arrays))
  if jax.process_index() == 0:
    beside = path / f'.{CONFIG_NAME}.partial'
    beside.write_text(json.dumps(config, indent=2) + '\n', encoding='utf-8')
    os.replace(beside, path / CONFIG_NAME)


def config_from_json(d: Mapping[str, Any]) -> TransformerConfig:
  """Returns the config that `save` wrote.

  Args:
    d: the parsed config.json.

  Returns:
    The config.

  Raises:
    UserError: If a field is unknown or missing, or its value is not allowed.
  """
  try:
    fields = dict(d['transformer'])
    return TransformerConfig(**fields | {'rope': RopeConfig(**fields['rope'])})
  except (KeyError, TypeError) as error:
    raise UserError(
        f'"transformer" in {CONFIG_NAME} is not one of this version: {error}.'
    ) from error


class OrbaxDirectory:
  """The parameters of a checkpoint that `save` wrote.

  Attributes:
    path: the directory.
    tensors: every parameter, by our own name.
  """

  def __init__(self, path: pathlib.Path):
    """Reads the names and shapes; no tensor.

    Args:
      path: the directory.

    Raises:
      UserError: If the parameters are absent or damaged.
    """
    self.path = path.resolve()
    try:
      leaves = ocp.metadata(self.path / _PARAMS_NAME).metadata
    # Orbax raises errors of many kinds for a directory it cannot read.
    except Exception as error:
      raise UserError(
          f'{self.path / _PARAMS_NAME} is not a complete Orbax checkpoint: '
          f'{" ".join(str(error).split()):.200}.'
      ) from error
    self._dtypes = {n: np.dtype(leaf.dtype) for n, leaf in leaves.items()}
    self.tensors = {
        name: reader.TensorInfo(
            tuple(leaf.shape),
            self._dtypes[name].name,
            math.prod(leaf.shape) * self._dtypes[name].itemsize,
        )
        for name, leaf in leaves.items()
    }

  def read(self, name: str) -> np.ndarray:
    """Returns one parameter in the dtype it was saved in.

    Args:
      name: a key of `tensors`.

    Returns:
      An array the caller owns.
    """
    wanted: dict[str, Any] = dict.fromkeys(self.tensors, ocp.PLACEHOLDER)
    wanted[name] = np.empty(self.tensors[name].shape, self._dtypes[name])
    return ocp.load(self.path / _PARAMS_NAME, wanted)[name]
