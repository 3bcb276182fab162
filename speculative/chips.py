"""What one chip of each TPU generation can do, and who says so.

The numbers are peaks of data sheets, so a time computed from them is a floor.
A `Chip` is a whole chip. jax shows the chip of v4 and v5p as one device (their
two cores work as one, "megacore"), that of tpu7x as two: see `num_devices`.

Units: bandwidths and rates are decimal (1 GB/s = 1e9 bytes/s), capacities
binary. Google's pages print the capacities of v5e, v5p and v6e as GB where they
are GiB: jax's own table (`jax/_src/tpu_info.py`) has 17.2e9 bytes for v5e's 16
and 34.4e9 for v6e's 32, and the pages of v5p and tpu7x say GiB by now.

Sources, for each field:

* `hbm_gib`, `hbm_bytes_per_s`, `bf16_flops`: the pages "TPU v4", "TPU v5e",
  "TPU v5p", "TPU v6e" and "TPU7x (Ironwood)" under
  https://docs.cloud.google.com/tpu/docs/, except where said otherwise beside
  the number.
* `ici_link_bytes_per_s`, one link in one direction: v4 from Jouppi et al. 2023
  (arXiv:2304.01433), Table 4, "6 links @ 50 GB/s"; the others from the same
  pages' bidirectional bandwidth a chip (v5e 400, v6e 800, v5p 1200 GB/s) over
  links and two directions. The all-reduce bandwidth a pod agrees for v5e (51.2
  TB/s / 256 chips / 4 links = 50 GB/s) and v6e (100 GB/s); for v4 it gives 45
  (1.1 PB/s / 4096 / 6). https://jax-ml.github.io/scaling-book/tpus/ reckons
  with 45 and 90 for all, what is left of 50 and 100 in practice.
* `usable_hbm_gib`: what the compiler of libtpu 0.0.52 says is there when a
  program is too large ("available HBM"), a device; the system takes the rest.
* `ici_axes`: 2D torus (4 links) or 3D torus (6 links), the same pages.
"""

from collections.abc import Mapping
import dataclasses
import types

from speculative.errors import UserError


@dataclasses.dataclass(frozen=True)
class Chip:
  """Peaks of one chip.

  Attributes:
    name: as `jax` and Google Cloud spell the generation, in lower case.
    hbm_gib: capacity of its memory in GiB, before the system takes its share.
    usable_hbm_gib: what a program may fill of one device's share.
    hbm_bytes_per_s: what that memory can be read with.
    bf16_flops: multiply-adds in bfloat16 count as two.
    ici_link_bytes_per_s: one link to a neighbour, one direction.
    ici_axes: dimensions of the torus; each has a link to either side.
    num_devices: how many jax devices the chip shows as, which share all of the
      above evenly; the two of tpu7x have faster links between them.
  """

  name: str
  hbm_gib: float
  usable_hbm_gib: float
  hbm_bytes_per_s: float
  bf16_flops: float
  ici_link_bytes_per_s: float
  ici_axes: int
  num_devices: int = 1

  @property
  def ici_axis_bytes_per_s(self) -> float:
    """Both directions of one axis: what a ring around it can send a chip."""
    return 2 * self.ici_link_bytes_per_s


_V4 = Chip(
    name='v4',
    hbm_gib=32,
    usable_hbm_gib=30.75,
    # The page rounds to 1200 GB/s, jax's table to 1.23e12; 4 HBM2 stacks of
    # 1024 bits at 2.4 Gbit/s are 1228.8e9.
    hbm_bytes_per_s=1228e9,
    bf16_flops=275e12,
    ici_link_bytes_per_s=50e9,
    ici_axes=3,
)
_V5E = Chip(
    name='v5e',
    hbm_gib=16,
    usable_hbm_gib=15.75,
    # A later edition of the page says 800 GiB/s, 859e9; jax has 8.20e11.
    hbm_bytes_per_s=819e9,
    bf16_flops=197e12,
    ici_link_bytes_per_s=50e9,
    ici_axes=2,
)
_V5P = Chip(
    name='v5p',
    # jax's table has 103e9 bytes, 96 GiB.
    hbm_gib=95,
    usable_hbm_gib=95.73,
    # 2575 GiB/s on the page's later edition, the same; jax has 2.46e12.
    hbm_bytes_per_s=2765e9,
    bf16_flops=459e12,
    ici_link_bytes_per_s=100e9,
    ici_axes=3,
)
_V6E = Chip(
    name='v6e',
    hbm_gib=32,
    usable_hbm_gib=31.24,
    # 1640 on older editions of the page, 1638 on the newest.
    hbm_bytes_per_s=1638e9,
    bf16_flops=918e12,
    ici_link_bytes_per_s=100e9,
    ici_axes=2,
)
_TPU7X = Chip(
    name='tpu7x',
    hbm_gib=192,
    usable_hbm_gib=94.74,
    # Google's announcement of Ironwood: 7.37 TB/s; jax's table has 7.40e12.
    hbm_bytes_per_s=7370e9,
    # 4614e12 in float8.
    bf16_flops=2307e12,
    # The announcement: 9.6 Tbit/s a chip, both directions, over six links.
    ici_link_bytes_per_s=100e9,
    ici_axes=3,
    num_devices=2,
)

CHIPS: Mapping[str, Chip] = types.MappingProxyType(
    {chip.name: chip for chip in (_V4, _V5E, _V5P, _V6E, _TPU7X)}
)


def find(name: str) -> Chip:
  """Returns the chip of that name.

  Args:
    name: one of CHIPS, or a topology that begins with one, such as
      `v4:2x2x4`.

  Raises:
    UserError: If there is none.
  """
  chip = CHIPS.get(name.split(':')[0])
  if chip is None:
    raise UserError(
        f'{name!r} names no known TPU generation: choose one of '
        f'{", ".join(CHIPS)}.'
    )
  return chip
