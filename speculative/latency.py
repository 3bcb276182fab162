"""How long a pass over sharded weights takes on TPU chips, on paper.

The time of one compiled pass is

    max(HBM bytes / HBM bandwidth, FLOPs / peak)
    + sum over collectives of times x (latency + wire bytes / ICI bandwidth)
    + what every step costs beside them.

Assumptions, each of which can be wrong:

* Reading and arithmetic overlap perfectly; collectives overlap with neither.
  The next matrix product of a decoding step needs the sum, and prefetching
  weights during it, which the compiler may do, is left out.
* HBM delivers `hbm_efficiency` of its data sheet; at 1.0 the time is a floor.
* A collective runs as a ring around the axes of the torus that its group spans.
  With a wrapped ring both directions carry half the bytes each; an open one (a
  slice smaller than the torus, such as v4:2x2x4) has one direction's bandwidth.
* `collective_latency_s` is one effective figure for starting a collective, its
  hops and its waiting, and does not depend on the size of the group. At the few
  rows of a decoding step it is nearly all of a collective.

Every number is that of one device, which is one chip except where
`Chip.num_devices` says otherwise. HBM and peak are shared by the devices of a
chip; a link of the ring is not, since it joins two devices of different chips.
"""

import dataclasses
import math
import typing

from speculative import chips
from speculative.errors import UserError
from speculative.models import params as params_lib
from speculative.models.config import TransformerConfig


class Collective(typing.NamedTuple):
  """Equal collectives of a pass.

  Attributes:
    kind: as compiled text spells it, see `wire_bytes`.
    num_bytes: of the whole array on one device: the sum of an all-reduce, the
      result of an all-gather, the operand of a reduce-scatter, of an all-to-all
      and of a collective-permute.
    group_size: devices that take part.
    times: how often the pass runs it.
  """

  kind: str
  num_bytes: float
  group_size: int
  times: int = 1


@dataclasses.dataclass(frozen=True)
class Pass:
  """What one device does in a pass, counted from compiled text or by hand.

  Attributes:
    hbm_bytes: read from and written to its memory.
    flops: a multiply-add is two.
    collectives: in any order; plain tuples of the four fields will do.
  """

  hbm_bytes: float
  flops: float
  collectives: tuple[Collective, ...] = ()

  @property
  def num_collectives(self) -> int:
    return sum(Collective(*c).times for c in self.collectives)


@dataclasses.dataclass(frozen=True)
class Machine:
  """A slice of chips and how well it is used.

  Attributes:
    chip: its peaks.
    ici_axes: axes of the torus that the model axis of the mesh spans; a
      collective uses the links of all of them.
    ring: 'wrapped' if these axes close to rings, else 'open'.
    hbm_efficiency: achieved over data sheet; 1.0 is a floor.
    collective_latency_s: of one collective, whatever its size.
    step_s: fixed cost of a pass, such as starting it and drawing a token.
  """

  chip: chips.Chip
  ici_axes: int = 1
  ring: str = 'wrapped'
  hbm_efficiency: float = 1.0
  collective_latency_s: float = 0.0
  step_s: float = 0.0

  def __post_init__(self):
    if not 1 <= self.ici_axes <= self.chip.ici_axes:
      raise UserError(
          f'ici_axes={self.ici_axes}, but the torus of {self.chip.name} has '
          f'{self.chip.ici_axes}: give a number from 1 to that.'
      )
    if self.ring not in ('wrapped', 'open'):
      raise UserError(f"ring={self.ring!r} has to be 'wrapped' or 'open'.")
    if not 0 < self.hbm_efficiency <= 1:
      raise UserError(
          f'hbm_efficiency={self.hbm_efficiency} has to lie above 0 and be 1 '
          'at most, the data sheet.'
      )

  @property
  def hbm_bytes_per_s(self) -> float:
    """Of one device."""
    share = self.hbm_efficiency / self.chip.num_devices
    return self.chip.hbm_bytes_per_s * share

  @property
  def flops_per_s(self) -> float:
    """Of one device, in bfloat16."""
    return self.chip.bf16_flops / self.chip.num_devices

  @property
  def ici_bytes_per_s(self) -> float:
    """What a ring can send out of one device."""
    if self.ring == 'wrapped':
      return self.ici_axes * self.chip.ici_axis_bytes_per_s
    return self.ici_axes * self.chip.ici_link_bytes_per_s


@dataclasses.dataclass(frozen=True)
class PassTime:
  """A pass taken apart, in ms.

  Attributes:
    hbm_ms: reading weights and cache.
    flops_ms: arithmetic; overlaps with the reading.
    wire_ms: bytes of collectives on the links.
    collective_latency_ms: what collectives cost beside their bytes.
    step_ms: fixed cost of the pass.
  """

  hbm_ms: float
  flops_ms: float
  wire_ms: float
  collective_latency_ms: float
  step_ms: float

  @property
  def total_ms(self) -> float:
    return (
        max(self.hbm_ms, self.flops_ms)
        + self.wire_ms
        + self.collective_latency_ms
        + self.step_ms
    )

  @property
  def collectives_ms(self) -> float:
    return self.wire_ms + self.collective_latency_ms


# Bytes that a device sends over those of the whole array, for a group of n.
_WIRE_SHARE = {
    'all-reduce': lambda n: 2 * (n - 1) / n,
    'all-gather': lambda n: (n - 1) / n,
    'reduce-scatter': lambda n: (n - 1) / n,
    # Without the hops through other devices, so a floor.
    'all-to-all': lambda n: (n - 1) / n,
    'collective-permute': lambda n: 1.0,
}


def wire_bytes(collective: Collective) -> float:
  """Returns the bytes one device sends for one run of a collective.

  A ring reduces by sending (n - 1)/n of the array and gathers by sending as
  much again; an all-reduce does both.

  Args:
    collective: its `times` is not applied.

  Raises:
    UserError: If the kind is unknown or the group has no device.
  """
  share = _WIRE_SHARE.get(collective.kind)
  if share is None:
    raise UserError(
        f'{collective.kind!r} is no known collective: give one of '
        f'{", ".join(_WIRE_SHARE)}.'
    )
  if collective.group_size < 1:
    raise UserError(
        f'group_size={collective.group_size} has to be 1 or more devices.'
    )
  if collective.group_size == 1:
    return 0.0
  return collective.num_bytes * share(collective.group_size)


def estimate(work: Pass, machine: Machine) -> PassTime:
  """Returns how long a pass takes; see the module for what is assumed.

  Args:
    work: what one device does.
    machine: where. A collective within a group of one costs nothing.
  """
  wire_s = latency_s = 0.0
  for collective in work.collectives:
    collective = Collective(*collective)
    num_bytes = wire_bytes(collective)
    wire_s += collective.times * num_bytes / machine.ici_bytes_per_s
    if collective.group_size > 1:
      latency_s += collective.times * machine.collective_latency_s
  return PassTime(
      hbm_ms=1e3 * work.hbm_bytes / machine.hbm_bytes_per_s,
      flops_ms=1e3 * work.flops / machine.flops_per_s,
      wire_ms=1e3 * wire_s,
      collective_latency_ms=1e3 * latency_s,
      step_ms=1e3 * machine.step_s,
  )


def fit_collective_latency_s(
    measured_ms: float, work: Pass, machine: Machine
) -> float:
  """Returns the latency a collective must have for a pass to take that long.

  Args:
    measured_ms: time of the pass.
    work: what it does; needs a collective.
    machine: its own `collective_latency_s` is not used.

  Raises:
    UserError: If the pass has no collective, or takes less than its floor.
  """
  floor = estimate(work, dataclasses.replace(machine, collective_latency_s=0.0))
  unit = estimate(work, dataclasses.replace(machine, collective_latency_s=1e-3))
  num_collectives = unit.collective_latency_ms
  if not num_collectives:
    raise UserError('The pass has no collective whose latency could be fitted.')
  if measured_ms < floor.total_ms:
    raise UserError(
        f'measured_ms={measured_ms} is less than the {floor.total_ms:.2f} ms '
        'that memory and links alone take: check the chip and the counts.'
    )
  return 1e-3 * (measured_ms - floor.total_ms) / num_collectives


def read_params(config: TransformerConfig) -> int:
  """Counts the parameters a pass reads: the layers' matrices and the head.

  Of an embedding that is not the head it reads a row a token, nothing here;
  norms and biases are a hundred-thousandth of the rest.

  Args:
    config: the model.
  """
  return sum(
      math.prod(spec.shape)
      for name, spec in params_lib.flatten(params_lib.declare(config))
      if spec.kind == 'matrix' and (name != 'embed' or config.head == 'tied')
  )


def analytic_pass(
    config: TransformerConfig,
    *,
    batch: int = 1,
    positions: int = 1,
    context: int = 0,
    model_axis: int = 1,
    value_bytes: int = 2,
) -> Pass:
  """Returns what one of `model_axis` devices does, without a compiler.

  Megatron sharding: every matrix is split evenly over the model axis, and each
  layer ends its attention and its MLP with an all-reduce of [B, T, D]. Left out
  are the collectives of embedding and sampling, activations in memory, and the
  uneven rest where the axis does not divide the heads, except that a key/value
  head is never split: its cache is then held more than once.

  Args:
    config: the model.
    batch: B, sequences on this device.
    positions: T, tokens of each that this pass scores.
    context: positions of each that are cached already.
    model_axis: devices the model is split over.
    value_bytes: of a weight, a cached number and an activation.
  """
  rows = batch * positions
  kv_heads = -(-config.num_kv_heads // model_axis)
  kv_values = 2 * config.num_layers * kv_heads * config.head_dim
  # Scores and their sum over values; a row sees its context and, on average,
  # half of its own pass, which is left out.
  attention_flops = (
      4 * rows * context * config.num_layers * config.num_heads
  ) * config.head_dim
  all_reduce = Collective(
      'all-reduce',
      rows * config.model_dim * value_bytes,
      model_axis,
      2 * config.num_layers,
  )
  return Pass(
      hbm_bytes=value_bytes
      * (read_params(config) / model_axis + kv_values * batch * context),
      flops=(2 * rows * read_params(config) + attention_flops) / model_axis,
      collectives=(all_reduce,) if model_axis > 1 else (),
  )
