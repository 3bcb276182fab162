"""TPU slices that are not there, for their compiler alone.

libtpu compiles for any slice on a machine without one. The devices made here
fill a `jax.sharding.Mesh`; a program lowered for it with abstract arguments
compiles to what would run, its collectives and its memory included:

  mesh = Mesh(topology.devices('v4:2x2x4').reshape(2, 8), ('data', 'model'))
  x = jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))
  compiled = jax.jit(f).lower(x).compile()
"""

from collections.abc import Iterator
import contextlib
import dataclasses
import importlib.util
import math
import os
import re

from jax.experimental import topologies
import numpy as np

from speculative.errors import UserError

_NAME = re.compile(r'([a-z]\w*):(\d+(?:x\d+)*)')
# libtpu looks for a TPU's metadata, peers and lock file unless told not to.
_NO_TPU = {
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
    'TPU_SKIP_MDS_QUERY': '1',
    'TPU_WORKER_HOSTNAMES': 'localhost',
}


@dataclasses.dataclass(frozen=True)
class Generation:
  """What the slices of one generation have in common.

  Attributes:
    num_dims: of the torus.
    max_chips: of the largest slice sold.
    cores_per_chip: devices that jax sees on a chip.
    chip_config: libtpu's name for it where the default differs.
    example: a small slice.
  """

  num_dims: int
  max_chips: int
  cores_per_chip: int
  chip_config: str
  example: str


# Sizes are those of cloud.google.com/tpu/docs. `megacore` joins the two cores
# of a v4 chip to the one device that jax sees on a real one.
GENERATIONS = {
    'v4': Generation(3, 4096, 1, 'megacore', 'v4:2x2x1'),
    'v5e': Generation(2, 256, 1, '', 'v5e:2x4'),
    'v5p': Generation(3, 8960, 1, '', 'v5p:2x2x1'),
    'v6e': Generation(2, 256, 1, '', 'v6e:2x4'),
    'tpu7x': Generation(3, 9216, 2, '', 'tpu7x:2x2x1'),
}


@dataclasses.dataclass(frozen=True)
class Topology:
  """A slice, by its name.

  Attributes:
    name: `v4:2x2x4`.
    generation: `v4`.
    shape: chips along each side of the torus.
  """

  name: str
  generation: str
  shape: tuple[int, ...]

  @property
  def num_chips(self) -> int:
    """Chips of the slice."""
    return math.prod(self.shape)

  @property
  def num_devices(self) -> int:
    """Devices that jax sees on the slice."""
    return self.num_chips * GENERATIONS[self.generation].cores_per_chip


def parse(name: str) -> Topology:
  """Reads the name of a slice without asking libtpu.

  Args:
    name: generation and chips along each side, `v5e:2x4`.

  Returns:
    The slice.

  Raises:
    UserError: If the name is malformed, the generation unknown or the size
      none of that generation's.
  """
  match = _NAME.fullmatch(name)
  known = ', '.join(GENERATIONS)
  if not match:
    raise UserError(
        f'topology {name!r} is not of the form GENERATION:AxB or '
        f'GENERATION:AxBxC, such as v5e:2x4 or v4:2x2x4; generations: {known}.'
    )
  generation, sizes = match.groups()
  if generation not in GENERATIONS:
    raise UserError(
        f'topology {name!r} is of an unknown generation; use one of {known}.'
    )
  limits = GENERATIONS[generation]
  shape = tuple(map(int, sizes.split('x')))
  if len(shape) != limits.num_dims:
    raise UserError(
        f'topology {name!r} has {len(shape)} sides, but a {generation} slice '
        f'has {limits.num_dims}: write it like {limits.example}.'
    )
  # libtpu ends the process at a size of zero.
  if not 0 < math.prod(shape) <= limits.max_chips:
    raise UserError(
        f'topology {name!r} has {math.prod(shape)} chips; a {generation} slice '
        f'has 1 to {limits.max_chips}.'
    )
  return Topology(name, generation, shape)


def unavailable() -> str | None:
  """Returns why no slice can be made here, None if one can."""
  if importlib.util.find_spec('libtpu') or 'TPU_LIBRARY_PATH' in os.environ:
    return None
  return (
      'compiling for a TPU that is not there needs libtpu: '
      "pip install 'speculative[tpu]'"
  )


def devices(name: str) -> np.ndarray:
  """Returns the devices of a slice, to compile for.

  No backend of jax is started and no TPU is touched, so any number of
  processes may do this at once, on a machine with a TPU as well.

  Args:
    name: of the slice, as for `parse`.

  Returns:
    Devices by the place of their chip, [x, y] or [x, y, z]; where a chip has
    two devices, in a last axis of that size. Flattened, neighbours on the last
    side follow one another.

  Raises:
    UserError: If there is no such slice or no libtpu.
  """
  topology = parse(name)
  if reason := unavailable():
    raise UserError(f'{reason}.')
  generation = GENERATIONS[topology.generation]
  options = {}
  if generation.chip_config:
    options['chip_config_name'] = generation.chip_config
  try:
    with _without_tpu():
      found = topologies.get_topology_desc(
          platform='tpu', topology_name=name, **options
      ).devices
  except Exception as error:  # The class differs between releases of jax.
    line = str(error).strip().splitlines()[0]
    raise UserError(
        f'libtpu knows no topology {name!r} ({line}); '
        f'try one like {generation.example}.'
    ) from error
  shape = topology.shape
  if generation.cores_per_chip > 1:
    shape = (*shape, generation.cores_per_chip)
  placed = np.empty(shape, dtype=object)
  for device in found:
    place = (*device.coords, 0)[: len(topology.shape)]
    placed[(*place, device.core_on_chip)[: placed.ndim]] = device
  return placed


@contextlib.contextmanager
def _without_tpu() -> Iterator[None]:
  """Tells libtpu, while it loads, that it is not to look for a TPU."""
  added = {k: v for k, v in _NO_TPU.items() if k not in os.environ}
  os.environ.update(added)
  try:
    yield
  finally:
    # A pod's own peers are looked up by the same variable later.
    for key in added:
      os.environ.pop(key, None)
