"""What decoding would cost on devices that are not there.

The compiler says how many collectives a program has, of what size, and how much
memory it takes. `speculative.latency` turns that into time: weights and cache
over the memory's bandwidth, arithmetic over the peak, and the collectives.
Memory traffic and arithmetic are counted by hand from what is placed on a
device (`speculative.planning.work`).
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import math

from absl import logging
from jax.sharding import AbstractMesh
from jax.sharding import AxisType

from speculative import chips
from speculative import latency
from speculative import sharding
from speculative import theory
from speculative.decoding import loop
from speculative.errors import UserError
from speculative.latency import Machine
from speculative.latency import Pass
from speculative.planning import abstract
from speculative.planning import programs
from speculative.planning import work as work_lib
from speculative.planning.programs import Program
from speculative.planning.programs import Setting
from speculative.planning.work import Part

# Scopes of the layers' own collectives.
_LAYER_SCOPES = ('attention', 'mlp')
MOST_DRAFT_TOKENS = 12


@dataclasses.dataclass(frozen=True)
class Cost:
  """One program, in numbers of one device.

  Attributes:
    program: as compiled.
    work: what it does.
    time: how long that takes; None without a latency model.
  """

  program: Program
  work: Pass
  time: latency.PassTime | None

  @property
  def num_collectives(self) -> int:
    """Runs of all of them."""
    return self.work.num_collectives

  @property
  def collective_bytes(self) -> float:
    """Of all their results."""
    return sum(c.num_bytes * c.times for c in self.work.collectives)


def layer_all_reduces(program: Program) -> int:
  """Counts the all-reduces of attention and MLP layers."""
  return sum(
      c.times or 1
      for c in program.collectives
      if c.kind == 'all-reduce' and any(map(c.within, _LAYER_SCOPES))
  )


def sampling_bytes(program: Program) -> int:
  """Sums what collectives outside of layers and embedding leave behind."""
  scopes = (*_LAYER_SCOPES, 'embed')
  return sum(
      c.num_bytes * (c.times or 1)
      for c in program.collectives
      if not any(map(c.within, scopes))
  )


def cost(
    program: Program,
    parts: Sequence[Part],
    *,
    batch: int,
    machine: Machine | None,
) -> Cost:
  """Returns what a program costs.

  Args:
    program: compiled.
    parts: the passes in it.
    batch: B, of all devices.
    machine: None where only counts are wanted.
  """
  work = work_lib.total(parts, program.collectives, batch=batch)
  time = None if machine is None else latency.estimate(work, machine)
  return Cost(program, work, time)


def with_positions(
    verify: Cost, plain: Cost, *, measured: int, positions: int
) -> Pass:
  """Returns a verify pass over another number of tokens.

  Arithmetic and the bytes of collectives grow with the tokens from the plain
  pass to the compiled one; weights and cache are read once whatever their
  number.

  Args:
    verify: compiled, over `measured` positions.
    plain: over one.
    measured: K + 1 of the compiled pass.
    positions: wanted.
  """
  share = (positions - 1) / (measured - 1)
  flops = plain.work.flops + share * (verify.work.flops - plain.work.flops)
  scale = positions / measured
  return Pass(
      hbm_bytes=verify.work.hbm_bytes,
      flops=flops,
      collectives=tuple(
          c._replace(num_bytes=c.num_bytes * scale)
          for c in verify.work.collectives
      ),
  )


def held_gib(setting: Setting) -> float:
  """Returns weights and caches of both models on one device, in GiB.

  Args:
    setting: its placements need no devices, only a mesh.
  """
  slots = setting.context + loop.slack(setting.step)
  return (
      sum(
          abstract.num_bytes(abstract.params(model))
          + work_lib.cache_bytes(model, batch=setting.batch, context=slots)
          for model in (setting.target, setting.draft)
      )
      / 2**30
  )


def check_fits(setting: Setting, chip: chips.Chip) -> None:
  """Refuses what the devices cannot hold, before anything is compiled.

  Args:
    setting: what is decoded.
    chip: of the devices.

  Raises:
    UserError: By how much it is too large, and what would hold it.
  """
  needed, room = held_gib(setting), chip.usable_hbm_gib
  if needed <= room:
    return
  model = setting.target.placement.model_size
  enough = _enough_devices(setting, room)
  helps = programs.WHAT_HELPS
  if enough:
    helps = (
        f'config.mesh.model={enough} (now {model}) would hold them, a smaller '
        'batch, context or draft might'
    )
  raise UserError(
      f'the models with a batch of {setting.batch} and {setting.context} '
      f'tokens of context need {needed:.1f} GiB a device, {needed - room:.1f} '
      f'more than the {room:g} that a program may fill of {chip.name}; {helps}.'
  )


def _enough_devices(setting: Setting, room_gib: float) -> int | None:
  """Returns the first multiple of the model axis that holds both models."""
  target, draft = setting.target.placement, setting.draft.placement
  scaled = ['target']
  if draft.model_size == target.model_size:
    scaled.append('draft')
  for factor in range(2, 65):
    num = factor * target.model_size
    mesh = AbstractMesh(
        (target.data_size, num), ('data', 'model'), (AxisType.Auto,) * 2
    )
    models = {}
    try:
      for name in scaled:
        model = getattr(setting, name)
        placement = sharding.place(mesh, model.config.axis_sizes, name=name)
        models[name] = dataclasses.replace(model, placement=placement)
    except UserError:
      continue
    if held_gib(dataclasses.replace(setting, **models)) <= room_gib:
      return num
  return None


@dataclasses.dataclass(frozen=True)
class Layouts:
  """The ways to lay the draft out.

  Attributes:
    steps: the cost of a draft step by the devices each layer is split over.
    left_out: why not, by the same number.
  """

  steps: Mapping[int, Cost]
  left_out: Mapping[int, str]

  @property
  def fastest(self) -> int:
    """Devices of the layout whose step is predicted to be fastest."""
    return min(self.steps, key=lambda n: self.steps[n].time.total_ms)


def draft_layouts(
    setting: Setting,
    with_shards: Callable[[int], Setting],
    machine: Machine | None,
    *,
    room_gib: float = math.inf,
) -> Layouts:
  """Compiles one draft step for every way to lay the draft out.

  Args:
    setting: what is decoded; its own layout is among them.
    with_shards: returns it with the draft over a number of devices, or raises
      UserError where that does not divide it.
    machine: None where only counts are wanted.
    room_gib: what weights and caches of both models may take on a device.
  """
  steps, left_out = {}, {}
  model = setting.target.placement.model_size
  own = setting.draft.placement.model_size
  for shards in (n for n in range(1, model + 1) if model % n == 0):
    try:
      one = setting if shards == own else with_shards(shards)
      needed = held_gib(one)
      if shards != own and needed > room_gib:
        left_out[shards] = (
            f'weights and caches take {needed:.2f} GiB a device, and there is '
            f'room for {room_gib:.2f} beside what the programs need'
        )
        continue
      program = programs.draft_step(one)
    except UserError as error:
      if shards == own:
        raise
      left_out[shards] = str(error).rstrip('.')
      continue
    logging.info('draft step over %d: %.0f s', shards, program.compile_s)
    steps[shards] = cost(
        program,
        [Part(one.draft, 1, one.context)],
        batch=one.batch,
        machine=machine,
    )
  return Layouts(steps, left_out)


def check_measured(
    setting: Setting, chip: chips.Chip | None, measured_plain_ms: float
) -> None:
  """Refuses a time that no plain step can take, before anything is compiled.

  Args:
    setting: what is decoded.
    chip: None where there is no latency model.
    measured_plain_ms: of a plain step; 0 where nothing was measured.

  Raises:
    UserError: If it is too short for the weights, or there is no model for it.
  """
  if not measured_plain_ms:
    return
  name = f'config.plan.measured_plain_ms={measured_plain_ms:g}'
  if chip is None:
    raise UserError(
        f'{name} explains nothing on CPU devices, which have no latency model; '
        'set it to 0, or config.plan.topology to a TPU slice.'
    )
  part = Part(setting.target, 1, setting.context)
  work = work_lib.count(part, batch=setting.batch)
  floor_ms = latency.estimate(work, Machine(chip)).total_ms
  if measured_plain_ms < floor_ms:
    raise UserError(
        f'{name} is less than the {floor_ms:.2f} ms that reading weights and '
        f'cache takes on {chip.name}; check the time, the topology, '
        'config.plan.context and config.plan.batch.'
    )


def make_machine(
    chip: chips.Chip | None,
    plain: Pass,
    *,
    collective_latency_us: float,
    measured_plain_ms: float,
) -> Machine | None:
  """Returns the slice, with the latency of its collectives.

  Args:
    chip: None where there is no latency model.
    plain: what a plain step does.
    collective_latency_us: assumed, where nothing was measured.
    measured_plain_ms: time of a plain step from which the latency is fitted; 0
      where nothing was measured.

  Raises:
    UserError: If no latency explains that time.
  """
  if chip is None:
    return None
  machine = Machine(chip, collective_latency_s=collective_latency_us * 1e-6)
  if not measured_plain_ms:
    return machine
  try:
    fitted = latency.fit_collective_latency_s(measured_plain_ms, plain, machine)
  except UserError as error:
    raise UserError(
        f'config.plan.measured_plain_ms={measured_plain_ms:g} cannot be '
        f'explained by a latency of collectives: {error}'
    ) from error
  return dataclasses.replace(machine, collective_latency_s=fitted)


@dataclasses.dataclass(frozen=True)
class Choice:
  """What to expect at one acceptance rate.

  Attributes:
    acceptance: i.i.d. rate.
    speedups: over plain decoding at K = 0, 1, 2, ...
    best_k: K of the largest; 0 where drafting does not pay.
  """

  acceptance: float
  speedups: tuple[float, ...]
  best_k: int


def choose(
    acceptance: float,
    *,
    plain_ms: float,
    draft_ms: float,
    verify_ms: Sequence[float],
) -> Choice:
  """Returns the speed-up at every K, and the best.

  Args:
    acceptance: i.i.d. rate.
    plain_ms: of a plain step.
    draft_ms: of a draft step.
    verify_ms: of a pass over K + 1 tokens, one for every K from 1 on.
  """
  costs = [1.0, *(ms / plain_ms for ms in verify_ms)]
  draft_cost = draft_ms / plain_ms
  return Choice(
      acceptance=acceptance,
      speedups=(
          1.0,
          *(
              theory.speedup(
                  acceptance, k, draft_cost=draft_cost, verify_cost=costs[k]
              )
              for k in range(1, len(costs))
          ),
      ),
      best_k=theory.best_num_draft_tokens(
          acceptance, draft_cost=draft_cost, verify_costs=costs
      ),
  )
