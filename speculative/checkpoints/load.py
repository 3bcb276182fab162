"""Opens a checkpoint of any kind and streams its tensors to the devices.

Opening reads only headers. Loading first compares every name and shape with
what the config declares and refuses the checkpoint, with all differences in one
message, before the first tensor is read; nothing is ever left at a random value
and nothing in the file is silently left over. Then one tensor after another is
read, brought to our layout and dtype, placed and freed.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
import os
import pathlib
import time
from typing import Any

from absl import logging
import jax
from jax import numpy as jnp
import numpy as np

from speculative.checkpoints import draft_dir
from speculative.checkpoints import gguf_file
from speculative.checkpoints import hf_dir
from speculative.checkpoints import names
from speculative.checkpoints import orbax_dir
from speculative.checkpoints import reader as reader_lib
from speculative.checkpoints import sources
from speculative.errors import UserError
from speculative.models import families
from speculative.models import params as params_lib
from speculative.models import rope_scaling
from speculative.models.config import TransformerConfig
from speculative.sharding import Placement

_LOG_EVERY_S = 5.0


@dataclasses.dataclass(frozen=True, eq=False)
class Checkpoint:
  """An opened checkpoint; no tensor has been read.

  Attributes:
    reference: the string it was opened by.
    path: the file or directory on this machine.
    kind: 'hf', 'gguf' or 'orbax'.
    config: of the model.
    metadata: the parsed config.json, or the fields of the GGUF.
    reader: its tensors.
  """

  reference: str
  path: pathlib.Path
  kind: str
  config: TransformerConfig
  metadata: dict[str, Any]
  reader: reader_lib.TensorReader

  @property
  def gguf_fields(self) -> dict[str, Any] | None:
    """The metadata of a GGUF, where its tokenizer is; None for a directory."""
    return self.metadata if self.kind == 'gguf' else None

  @property
  def directory(self) -> pathlib.Path | None:
    """Where tokenizer files lie; None for a GGUF."""
    return None if self.kind == 'gguf' else self.path


@dataclasses.dataclass(frozen=True)
class Progress:
  """How far loading has come.

  Attributes:
    num_done: tensors placed.
    num_tensors: tensors in all.
    bytes_done: bytes of the file behind the tensors placed.
    bytes_total: bytes of the file in all.
    elapsed_s: since the start.
  """

  num_done: int
  num_tensors: int
  bytes_done: int
  bytes_total: int
  elapsed_s: float

  @property
  def mb_per_s(self) -> float:
    """Rate so far, 10^6 bytes of the file per second."""
    return self.bytes_done / 1e6 / max(self.elapsed_s, 1e-9)


def open_checkpoint(
    reference: str, *, cache_dir: str | os.PathLike[str] | None = None
) -> Checkpoint:
  """Finds a checkpoint, fetching it if need be, and reads its headers.

  Args:
    reference: as `sources.resolve` takes it.
    cache_dir: where fetched files are kept, see `sources.resolve`.

  Returns:
    The Checkpoint.

  Raises:
    UserError: If it cannot be found or fetched, is damaged, or is of a family,
      a setting or a quantisation that is not supported.
  """
  path = sources.resolve(reference, cache_dir=cache_dir)
  if path.is_file():
    file = gguf_file.GgufFile(path)
    config = _in_file(path, _config_from_gguf, file)
    return Checkpoint(reference, path, 'gguf', config, file.fields, file)
  d = hf_dir.read_json(path / 'config.json')
  if d.get('format') == orbax_dir.FORMAT:
    config = _in_file(path, orbax_dir.config_from_json, d)
    tensors = orbax_dir.OrbaxDirectory(path)
    return Checkpoint(reference, path, 'orbax', config, d, tensors)
  if d.get('format') == draft_dir.FORMAT:
    raise UserError(
        f'{path} is a draft that leans on its target and is no model by '
        'itself; name it in config.drafter.model.'
    )
  config = _in_file(path, _config_from_hf, d)
  with well_formed(path):
    tensors = hf_dir.HfDirectory(path)
  return Checkpoint(reference, path, 'hf', config, d, tensors)


@contextlib.contextmanager
def well_formed(path: pathlib.Path) -> Iterator[None]:
  """Turns what parsing trips over into one line that names the file.

  Args:
    path: of what is being parsed.

  Raises:
    UserError: Where a field has another type than every published file's.
  """
  try:
    yield
  except UserError:
    raise
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    raise UserError(
        f'{path} is malformed ({type(error).__name__}: {error}); fetch the '
        'checkpoint again.'
    ) from error


def _in_file(
    path: pathlib.Path, parse: Callable[[Any], TransformerConfig], source: Any
) -> TransformerConfig:
  try:
    with well_formed(path):
      return parse(source)
  except UserError as error:
    if str(path) in str(error):
      raise
    raise UserError(f'{path}: {error}') from error


def _config_from_hf(d: dict[str, Any]) -> TransformerConfig:
  config = families.by_hf(d)
  if d.get('quantization_config'):
    raise UserError(
        'quantised safetensors are not supported (quantization_config is '
        f'{d["quantization_config"]!r:.120}); use the unquantised checkpoint '
        'or a GGUF file.'
    )
  return config


def _config_from_gguf(file: gguf_file.GgufFile) -> TransformerConfig:
  config = families.by_gguf(file.fields)
  config = names.settings_from_tensors(config, file.tensors)
  if names.GGUF_ROPE_FACTORS in file.tensors:
    rope = rope_scaling.with_frequency_factors(
        config.rope,
        file.read(names.GGUF_ROPE_FACTORS),
        head_dim=config.head_dim,
    )
    config = dataclasses.replace(config, rope=rope)
  return config


def read_param(checkpoint: Checkpoint, name: str) -> np.ndarray:
  """Reads one parameter, whatever is wrong with the others.

  Args:
    checkpoint: as `open_checkpoint` returned it.
    name: ours, 'final_norm' for instance.

  Returns:
    float32, in our layout.

  Raises:
    UserError: If there is no such tensor.
  """
  source = _sources(checkpoint)[name]
  if source.name not in checkpoint.reader.tensors:
    raise UserError(
        f'{checkpoint.path} has no tensor {source.name}; use the config and '
        'the weights of one and the same checkpoint.'
    )
  array = source.restore(checkpoint.reader.read(source.name))
  return array.astype(np.float32)


def _sources(checkpoint: Checkpoint) -> dict[str, names.Source]:
  return names.sources(
      checkpoint.config,
      kind=checkpoint.kind,
      architecture=checkpoint.metadata.get('general.architecture', ''),
  )


def load_params(
    checkpoint: Checkpoint,
    *,
    dtype: jax.typing.DTypeLike,
    placement: Placement | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> params_lib.Params:
  """Reads all parameters, never holding two tensors in host memory.

  Args:
    checkpoint: as `open_checkpoint` returned it.
    dtype: of matrices; vectors are float32.
    placement: where the parameters go; every device gets its shards only. The
      default device when absent.
    progress: called after every tensor.

  Returns:
    The parameters, in the tree that `params.declare` describes.

  Raises:
    UserError: If tensors are missing, left over, or of another shape: all are
      named at once, and none has been read.
  """
  found = _sources(checkpoint)
  _check(checkpoint, found)
  placement = placement or Placement()
  tensors = checkpoint.reader.tensors
  meter = _Meter(
      num_tensors=len(found),
      bytes_total=sum(tensors[s.name].num_bytes for s in found.values()),
      callback=progress,
  )
  logging.info(
      'Loading %d tensors (%.0f MB) of %s as %s.',
      meter.num_tensors,
      meter.bytes_total / 1e6,
      checkpoint.path,
      jnp.dtype(dtype).name,
  )

  def get(name: str, spec: params_lib.ParamSpec, dtype: jnp.dtype) -> jax.Array:
    source = found[name]
    array = source.restore(checkpoint.reader.read(source.name))
    array = array.astype(jnp.dtype(dtype), copy=False)
    # Transfers are asynchronous: without waiting, several tensors would be in
    # host memory at once.
    placed = jax.block_until_ready(placement.put(array, spec.axes))
    meter.add(tensors[source.name].num_bytes)
    return placed

  params = params_lib.build(checkpoint.config, jnp.dtype(dtype), get)
  meter.log('Loaded')
  return params


def _check(checkpoint: Checkpoint, found: dict[str, names.Source]) -> None:
  """Compares all names and shapes; one error lists every difference."""
  config, available = checkpoint.config, checkpoint.reader.tensors
  specs = dict(params_lib.flatten(params_lib.declare(config)))
  aside = names.ignored(config, kind=checkpoint.kind, names=available)
  wanted = {source.name for source in found.values()}
  missing = [s.name for s in found.values() if s.name not in available]
  unused = [n for n in available if n not in wanted and n not in aside]
  misshaped = [
      f'{source.name}: {list(available[source.name].shape)} -> '
      f'{list(specs[name].shape)}'
      for name, source in found.items()
      if source.name in available
      and available[source.name].shape != specs[name].shape
  ]
  problems = [
      f'{title} ({len(items)}): {reader_lib.listing(items)}'
      for title, items in (
          ('missing', missing),
          ('unused', unused),
          ('mismatched file shape -> model shape', misshaped),
      )
      if items
  ]
  if problems:
    raise UserError(
        f'{checkpoint.path}: the tensors are not those of its '
        f'{config.family} config; {"; ".join(problems)}. Use the config and '
        'the weights of one and the same checkpoint.'
    )
  for name, reason in aside.items():
    logging.info('%s is not loaded: %s.', name, reason)
  logging.info('The head is %s the embedding.', _HEAD_TEXT[config.head])


_HEAD_TEXT = {'tied': 'tied to', 'untied': 'separate from'}


class _Meter:
  """Counts what is loaded, calls back, and logs every few seconds."""

  def __init__(
      self,
      *,
      num_tensors: int,
      bytes_total: int,
      callback: Callable[[Progress], None] | None,
  ):
    self.num_tensors = num_tensors
    self.bytes_total = bytes_total
    self._callback = callback
    self._num_done = 0
    self._bytes_done = 0
    self._start_s = time.monotonic()
    self._logged_s = self._start_s

  def add(self, num_bytes: int) -> None:
    self._num_done += 1
    self._bytes_done += num_bytes
    if self._callback is not None:
      self._callback(self._progress())
    if time.monotonic() - self._logged_s > _LOG_EVERY_S:
      self._logged_s = time.monotonic()
      self.log('Loading')

  def _progress(self) -> Progress:
    return Progress(
        num_done=self._num_done,
        num_tensors=self.num_tensors,
        bytes_done=self._bytes_done,
        bytes_total=self.bytes_total,
        elapsed_s=time.monotonic() - self._start_s,
    )

  def log(self, verb: str) -> None:
    p = self._progress()
    logging.info(
        '%s: tensor %d/%d [%d%%]  %.0f MB/s  %.1f s',
        verb,
        p.num_done,
        p.num_tensors,
        100 * p.bytes_done // max(p.bytes_total, 1),
        p.mb_per_s,
        p.elapsed_s,
    )
