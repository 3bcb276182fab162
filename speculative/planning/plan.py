"""What decoding would cost on devices that are not there.

The compiler says how many collectives a program has, of what size, and how much
memory it takes. `speculative.latency` turns that into time: weights and cache
over the memory's bandwidth, arithmetic over the peak, and the collectives.
Memory traffic and arithmetic are counted by hand from what is placed on a
device (`speculative.planning.work`).
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses

from absl import logging

from speculative import chips
from speculative import latency
from speculative import theory
from speculative.errors import UserError
from speculative.latency import Machine
from speculative.latency import Pass
from speculative.models.transformer import Transformer
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
class Layout:
  """A way to lay the draft out.

  Attributes:
    shards: devices each of its layers is split over.
    draft_ms: one draft step; None without a latency model.
    weights_gib: of the draft on a device.
    num_collectives: of one draft step.
  """

  shards: int
  draft_ms: float | None
  weights_gib: float
  num_collectives: int


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


def memory_gib(setting: Setting) -> float:
  """Returns weights and caches of both models on one device, in GiB."""
  carry = abstract.carry(
      setting.step,
      programs.weights(setting),
      batch=setting.batch,
      prompt_len=setting.prompt_len,
      max_seq_len=setting.context + setting.num_draft_tokens + 1,
      draft=setting.draft,
  )
  return _gib([programs.weights(setting), carry])


def weights_gib(model: Transformer) -> float:
  """Returns a model's weights on one device, in GiB."""
  return _gib(abstract.params(model))


def _gib(tree) -> float:
  return abstract.num_bytes(tree) / 2**30


def check_fits(setting: Setting, chip: chips.Chip) -> None:
  """Refuses what the devices cannot hold, before anything is compiled.

  Args:
    setting: what is decoded.
    chip: of the devices.

  Raises:
    UserError: By how much it is too large, and what would hold it.
  """
  needed = memory_gib(setting)
  room = chip.hbm_gib / chip.num_devices
  if needed <= room:
    return
  model = setting.target.placement.model_size
  enough = model
  while needed * model / enough > room:
    enough *= 2
  raise UserError(
      f'the models with a batch of {setting.batch} and {setting.context} '
      f'tokens of context need {needed:.1f} GiB a device, {needed - room:.1f} '
      f'more than the {room:g} of {chip.name}; some {enough} devices along '
      f'config.mesh.model (now {model}) would hold them, or a smaller batch, '
      'context or draft.'
  )


def draft_layouts(
    setting: Setting,
    with_shards: Callable[[int], Setting],
    machine: Machine | None,
) -> list[tuple[Layout, Cost]]:
  """Compiles one draft step for every way to lay the draft out.

  Args:
    setting: what is decoded.
    with_shards: returns it with the draft over a number of devices, or raises
      UserError where that does not divide it.
    machine: None where only counts are wanted.
  """
  found = []
  model = setting.target.placement.model_size
  for shards in (n for n in range(1, model + 1) if model % n == 0):
    try:
      one = with_shards(shards)
    except UserError as error:
      logging.info('A draft over %d devices is left out: %s', shards, error)
      continue
    program = programs.draft_step(one)
    step = cost(
        program,
        [Part(one.draft, 1, one.context)],
        batch=one.batch,
        machine=machine,
    )
    logging.info('draft step over %d: %.0f s', shards, program.compile_s)
    layout = Layout(
        shards=shards,
        draft_ms=None if machine is None else step.time.total_ms,
        weights_gib=weights_gib(one.draft),
        num_collectives=step.num_collectives,
    )
    found.append((layout, step))
  return found


def make_machine(
    chip: chips.Chip | None,
    plain: Callable[[Machine], Cost],
    *,
    collective_latency_us: float,
    measured_plain_ms: float,
) -> Machine | None:
  """Returns the slice, with the latency of its collectives.

  Args:
    chip: None where there is no latency model.
    plain: returns the cost of a plain step on a machine.
    collective_latency_us: assumed, where nothing was measured.
    measured_plain_ms: time of a plain step from which the latency is fitted; 0
      where nothing was measured.
  """
  if chip is None:
    return None
  machine = Machine(chip, collective_latency_s=collective_latency_us * 1e-6)
  if not measured_plain_ms:
    return machine
  fitted = latency.fit_collective_latency_s(
      measured_plain_ms, plain(machine).work, machine
  )
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
