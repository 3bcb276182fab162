"""The mesh, and where every array lies on it: declared here and nowhere else.

The mesh has two axes, `data` (rows of the batch) and `model` (Megatron's tensor
parallelism, arXiv:1909.08053). Arrays name their dimensions by logical axes,
and one table maps these to mesh axes: q, k, v, up and gate projections are
split by their outputs, o and down projections by their inputs, embedding and
head by the vocabulary. Per layer that leaves two sums over the axis `model`,
written [B, T, D]{U_model}: two all-reduces.

A draft can lie on the same devices in another way: over fewer neighbours of the
axis `model`, with copies on the others, or whole on every device.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import math

import jax
from jax.sharding import AxisType
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import numpy as np

from speculative.errors import UserError

DATA, MODEL, _COPIES = 'data', 'model', 'copies'

# Logical axis -> mesh axis; an axis that is not here is never split.
_RULES = {
    'batch': DATA,
    'vocab': MODEL,
    'heads': MODEL,
    'kv_heads': MODEL,
    'mlp': MODEL,
}
LOGITS = ('auto', 'split', 'gathered')
INDIVISIBLE = ('error', 'replicate')

# When sampling gathers the logits: one all-gather of B T V float32 takes
# bytes / _GATHER_BYTES_PER_S, while split logits need some 80 sums of a few
# bytes one after another (two bisections of 32 steps, and sixteen others), each
# of which takes _SMALL_COLLECTIVE_S whatever its size. Both are rough figures
# of a TPU's interconnect: one link of 50 GB/s, and the time of a small
# all-reduce among tens of chips. What counts is their order: a gather of more
# than 40 MB is slower, and its copies would also fill the memory.
_GATHER_BYTES_PER_S = 50e9
_SMALL_COLLECTIVE_S = 10e-6
_NUM_SMALL_COLLECTIVES = 80
GATHER_BELOW_BYTES = (
    _GATHER_BYTES_PER_S * _SMALL_COLLECTIVE_S * _NUM_SMALL_COLLECTIVES
)


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """The mesh as a user names it.

  Attributes:
    data: devices the rows of a batch are dealt out to.
    model: devices every layer is split over.
    indivisible: 'error', or 'replicate' to hold what the axis model does not
      divide on every device.
    logits: 'split' over the vocabulary while sampling, 'gathered', or 'auto'.
  """

  data: int = 1
  model: int = 1
  indivisible: str = 'error'
  logits: str = 'auto'

  def __post_init__(self) -> None:
    for name, known in (('indivisible', INDIVISIBLE), ('logits', LOGITS)):
      value = getattr(self, name)
      if value not in known:
        raise UserError(
            f'config.mesh.{name} is {value!r}; it needs to be one of '
            f'{", ".join(known)}.'
        )
    for name in (DATA, MODEL):
      if getattr(self, name) < 1:
        raise UserError(
            f'config.mesh.{name} needs to be >= 1, got {getattr(self, name)}.'
        )


def make_mesh(
    data: int = 1,
    model: int = 1,
    *,
    devices: Sequence[jax.Device] | None = None,
) -> Mesh:
  """Returns the mesh of all computation.

  Args:
    data: devices the rows of a batch are dealt out to.
    model: devices every layer is split over.
    devices: data x model of them, neighbours in the axis model next to each
      other; chosen among all devices when absent.

  Raises:
    UserError: If there are not as many devices.
  """
  found = jax.devices() if devices is None else list(devices)
  if data * model > len(found):
    raise UserError(
        f'config.mesh.data={data} times config.mesh.model={model} needs '
        f'{data * model} devices, but there are {len(found)}; their product '
        f'can be at most that.'
    )
  types = (AxisType.Auto, AxisType.Auto)
  if devices is None and data * model == len(found):
    # Puts neighbours in an axis where the wires are.
    return jax.make_mesh((data, model), (DATA, MODEL), axis_types=types)
  if jax.process_count() > 1 and data * model < len(found):
    raise UserError(
        f'config.mesh.data={data} times config.mesh.model={model} leaves some '
        f'of the {len(found)} devices of {jax.process_count()} hosts without '
        'work; their product needs to be that number.'
    )
  grid = np.array(found[: data * model]).reshape(data, model)
  return Mesh(grid, (DATA, MODEL), axis_types=types)


def _over_fewer(mesh: Mesh, shards: int) -> Mesh:
  """Returns the mesh whose axis model has `shards` devices, with copies."""
  data, model = mesh.devices.shape
  if not (0 < shards <= model and model % shards == 0):
    valid = [n for n in range(1, model + 1) if model % n == 0]
    raise UserError(
        f'config.drafter.shards is {shards}, but config.mesh.model={model} '
        f'allows {", ".join(map(str, valid))} (or 0: as the target).'
    )
  return Mesh(
      mesh.devices.reshape(data, model // shards, shards),
      (DATA, _COPIES, MODEL),
      axis_types=(AxisType.Auto,) * 3,
  )


@dataclasses.dataclass(frozen=True)
class Placement:
  """How the arrays of one model lie on the devices; hashable.

  Attributes:
    mesh: None where nothing is said about devices, as in most tests.
    whole: logical axes that every device holds entirely.
    logits: 'split' over the vocabulary while sampling, 'gathered', or 'auto',
      whichever is cheaper.
  """

  mesh: Mesh | None = None
  whole: tuple[str, ...] = ()
  logits: str = 'auto'

  @property
  def model_size(self) -> int:
    """Devices a layer is split over."""
    return 1 if self.mesh is None else self.mesh.shape[MODEL]

  @property
  def data_size(self) -> int:
    """Devices the batch is dealt out to."""
    return 1 if self.mesh is None else self.mesh.shape[DATA]

  @property
  def num_devices(self) -> int:
    """Devices of the mesh."""
    return 1 if self.mesh is None else self.mesh.size

  def spec(self, axes: Sequence[str | None]) -> PartitionSpec:
    """Returns the mesh axis of every dimension.

    Args:
      axes: logical axis of every dimension, or None.
    """
    return PartitionSpec(
        *(None if axis in self.whole else _RULES.get(axis) for axis in axes)
    )

  def sharding(self, axes: Sequence[str | None] = ()) -> NamedSharding | None:
    """Returns the sharding of an array; without axes it is on every device."""
    if self.mesh is None:
      return None
    return NamedSharding(self.mesh, self.spec(axes))

  def constrain(self, x: jax.Array, axes: Sequence[str | None]) -> jax.Array:
    """Tells the compiler where a value lies.

    Args:
      x: traced.
      axes: as many as x has dimensions.
    """
    if self.mesh is None:
      return x
    return jax.lax.with_sharding_constraint(x, self.sharding(axes))

  def replicate(self, tree):
    """Tells the compiler that every device holds all of these values."""
    if self.mesh is None:
      return tree
    return jax.tree.map(
        lambda x: jax.lax.with_sharding_constraint(x, self.sharding()), tree
    )

  def put(self, tree, axes: Sequence[str | None] = ()):
    """Moves host arrays to the devices; only shards of this host are copied.

    Args:
      tree: of numpy arrays or numbers, equal on all hosts.
      axes: logical axes of every leaf; on every device when absent.
    """
    if self.mesh is None:
      return jax.device_put(tree)
    sharding = self.sharding(axes)

    def one(x):
      x = np.asarray(x)
      return jax.make_array_from_callback(x.shape, sharding, lambda i: x[i])

    # The guard takes the callback for an accident.
    with jax.transfer_guard_host_to_device('allow'):
      return jax.tree.map(one, tree)

  def num_kv_copies(self, num_heads: int, num_kv_heads: int) -> int:
    """Returns how often a key/value head is held, so that heads can be split.

    With fewer of them than devices, neighbours hold the same one: 8 of them
    with 64 query heads over 16 devices are held twice each. Copies are made
    where queries need them, so that attention stays local.

    Args:
      num_heads: N, query heads.
      num_kv_heads: K.
    """
    if 'heads' in self.whole:
      return 1
    group = num_heads // num_kv_heads
    return next(
        r
        for r in range(1, group + 1)
        if group % r == 0 and num_kv_heads * r % self.model_size == 0
    )

  def logits_axis(self, num_rows: int, vocab_size: int) -> str | None:
    """Returns the logical axis logits are split by while sampling, or None.

    Args:
      num_rows: B T, of all devices.
      vocab_size: V.
    """
    if self.logits != 'auto':
      return 'vocab' if self.logits == 'split' else None
    held = num_rows * vocab_size * 4 // self.data_size
    return 'vocab' if held >= GATHER_BELOW_BYTES else None


def place(
    mesh: Mesh,
    sizes: Mapping[str, int],
    *,
    name: str = 'target',
    shards: int = 0,
    indivisible: str = 'error',
    logits: str = 'auto',
) -> Placement:
  """Decides how a model lies on the mesh.

  Args:
    mesh: from `make_mesh`.
    sizes: of the logical axes 'vocab', 'heads', 'kv_heads' and 'mlp'.
    name: of the model, for messages.
    shards: devices a layer is split over, a divisor of the mesh's axis; 0 is
      all of them.
    indivisible: 'error', or 'replicate' to hold what does not divide on every
      device.
    logits: 'auto', 'split' or 'gathered'.

  Returns:
    The Placement.

  Raises:
    UserError: If sizes do not divide: names each, with the sizes that would.
  """
  if shards:
    mesh = _over_fewer(mesh, shards)
  model = mesh.shape[MODEL]
  wrong = {
      axis: size
      for axis, size in sizes.items()
      # Key/value heads are copied until they divide, if query heads do.
      if axis != 'kv_heads' and size % model
  }
  if wrong and indivisible == 'error':
    named = ', '.join(f'{axis}={size}' for axis, size in wrong.items())
    common = math.gcd(*(s for axis, s in sizes.items() if axis != 'kv_heads'))
    valid = [n for n in range(1, common + 1) if common % n == 0]
    raise UserError(
        f'{named} of the {name} cannot be split over {model} devices of the '
        f'mesh axis model; all of it can over {", ".join(map(str, valid))}. '
        "Choose one of these, or set config.mesh.indivisible to 'replicate'."
    )
  whole = set(wrong)
  if 'heads' in wrong or sizes.get('kv_heads', model) % model:
    whole.add('kv_heads')
  return Placement(mesh=mesh, whole=tuple(sorted(whole)), logits=logits)
