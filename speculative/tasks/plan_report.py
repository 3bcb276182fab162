"""What task `plan` found, as keys and as tables."""

from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

from speculative import chips
from speculative import hlo
from speculative import latency
from speculative.bench import report
from speculative.planning import plan as plan_lib
from speculative.planning.plan import Choice
from speculative.planning.plan import Cost
from speculative.planning.plan import Layouts
from speculative.planning.programs import Setting


@dataclasses.dataclass(frozen=True)
class Plan:
  """Everything a report is made of.

  Attributes:
    setting: what is decoded, with the draft as the config lays it out.
    chip: None where there is no latency model.
    machine: likewise.
    topology: name of the devices.
    acceptance: i.i.d. rate the plan is for.
    plain: a step of plain decoding.
    verify: the pass over K + 1 tokens.
    whole: a round.
    prefill: reading the prompts.
    layouts: ways to lay the draft out, and what a draft step costs.
    acceptances: rates to say more about.
  """

  setting: Setting
  chip: chips.Chip | None
  machine: latency.Machine | None
  topology: str
  acceptance: float
  plain: Cost
  verify: Cost
  whole: Cost
  prefill: Cost
  layouts: Layouts
  acceptances: tuple[float, ...]

  @property
  def draft(self) -> Cost:
    """A draft step in the layout that the config names."""
    return self.layouts.steps[self.setting.draft.placement.model_size]

  @property
  def memory_gib(self) -> float:
    """Of the program that needs most, on one device."""
    costs = (self.plain, self.verify, self.whole, self.prefill)
    return max(c.program.memory_bytes for c in costs) / 2**30

  @functools.cached_property
  def verify_ms(self) -> list[float]:
    """Of a pass over K + 1 tokens, for K = 1, 2, ..."""
    return [
        latency.estimate(
            plan_lib.with_positions(
                self.verify,
                self.plain,
                measured=self.setting.num_draft_tokens + 1,
                positions=k + 1,
            ),
            self.machine,
        ).total_ms
        for k in range(1, plan_lib.MOST_DRAFT_TOKENS + 1)
    ]

  def choice(self, acceptance: float) -> Choice:
    """Returns what to expect at an acceptance rate."""
    return plan_lib.choose(
        acceptance,
        plain_ms=self.plain.time.total_ms,
        draft_ms=self.draft.time.total_ms,
        verify_ms=self.verify_ms,
    )

  @property
  def round_ms(self) -> float:
    """K draft steps and the verify pass."""
    num = self.setting.num_draft_tokens
    return num * self.draft.time.total_ms + self.verify.time.total_ms


def values(plan: Plan) -> dict[str, Any]:
  """Returns the plan/* keys of a plan."""
  found = {
      'plan/topology': plan.topology,
      'plan/num_devices': plan.setting.target.placement.mesh.size,
      'plan/num_draft_tokens': plan.setting.num_draft_tokens,
      'plan/hbm_per_chip_gib': plan.memory_gib
      * (1 if plan.chip is None else plan.chip.num_devices),
      'plan/all_reduces_per_round': plan_lib.layer_all_reduces(
          plan.whole.program
      ),
      'plan/sampling_collective_bytes': plan_lib.sampling_bytes(
          plan.whole.program
      ),
      'plan/collectives_per_round': plan.whole.num_collectives,
      'plan/collective_bytes_per_round': plan.whole.collective_bytes,
      'rows': _rows(plan),
  }
  if plan.machine is None:
    return found
  choice = plan.choice(plan.acceptance)
  return found | {
      'plan/fits': plan.memory_gib <= plan.chip.usable_hbm_gib,
      'plan/plain_ms_per_token': plan.plain.time.total_ms,
      'plan/floor_ms': plan.plain.time.hbm_ms,
      'plan/draft_ms': plan.draft.time.total_ms,
      'plan/verify_ms': plan.verify.time.total_ms,
      'plan/round_ms': plan.round_ms,
      'plan/acceptance_rate': plan.acceptance,
      'plan/speedup': choice.speedups[plan.setting.num_draft_tokens],
      'plan/best_k': choice.best_k,
      'plan/best_speedup': choice.speedups[choice.best_k],
      'plan/fastest_draft_shards': plan.layouts.fastest,
      'plan/collective_latency_us': 1e6 * plan.machine.collective_latency_s,
  }


def _rows(plan: Plan) -> list[dict[str, Any]]:
  rows = []
  for shards, cost in plan.layouts.steps.items():
    rows.append(_row(f'draft step over {shards}', cost))
  for cost in (plan.plain, plan.verify, plan.whole, plan.prefill):
    rows.append(_row(cost.program.name, cost))
  return rows


def _row(name: str, cost: Cost) -> dict[str, Any]:
  program = cost.program
  row = {
      'row/name': name,
      'plan/memory_gib': program.memory_bytes / 2**30,
      'plan/argument_gib': program.argument_bytes / 2**30,
      'plan/collectives': cost.num_collectives,
      'plan/collective_bytes': cost.collective_bytes,
      'plan/hbm_bytes': cost.work.hbm_bytes,
      'plan/flops': cost.work.flops,
      'plan/compiler_bytes': program.compiler_bytes,
      'plan/compiler_flops': program.compiler_flops,
      'plan/compile_s': round(program.compile_s, 1),
  }
  if cost.time is not None:
    row |= {
        'plan/ms': cost.time.total_ms,
        'plan/hbm_ms': cost.time.hbm_ms,
        'plan/flops_ms': cost.time.flops_ms,
        'plan/collectives_ms': cost.time.collectives_ms,
    }
  return row


def render(plan: Plan) -> str:
  """Returns the report as Markdown."""
  parts = [_title(plan), _programs(plan)]
  parts += [
      f'A draft over {shards} devices is left out: {reason}.'
      for shards, reason in plan.layouts.left_out.items()
  ]
  if plan.machine is not None:
    parts += [_choices(plan), _advice(plan)]
  return '\n\n'.join(parts) + '\n'


def appendix(plan: Plan) -> str:
  """Returns what the report rests on: assumptions, and every collective."""
  parts = ['## What is assumed', _assumptions(plan), '## Collectives']
  named = {
      f'draft step over {shards}': cost
      for shards, cost in plan.layouts.steps.items()
  }
  costs = (plan.plain, plan.verify, plan.whole, plan.prefill)
  named |= {cost.program.name: cost for cost in costs}
  for name, cost in named.items():
    found = cost.program.collectives
    parts += [f'### {name}', hlo.table(found) if found else 'None.']
  return '\n\n'.join(parts) + '\n'


def _assumptions(plan: Plan) -> str:
  context = plan.setting.context
  in_branches = sum(
      c.times or 1 for c in plan.whole.program.collectives if c.branches
  )
  lines = [
      'GiB is what the compiler says a program takes: arguments, results that '
      'do not replace them, temporaries and code.',
      'HBM GB and GFLOP are counted by hand from what is placed on a device: '
      'its weights once a pass, and of the cache '
      f'{context} tokens a row in every pass, full or not; activations are '
      'left out. The columns of the compiler are its own counts, which take '
      'the body of a loop once (layers are scanned) and include what moves '
      'between fast and slow memory.',
      "Collectives are the compiler's. Every branch of a conditional counts "
      f'as taken, greedy and sampled: {in_branches} of the '
      f'{plan.whole.num_collectives} of a round stand in one.',
  ]
  if plan.machine is not None:
    lines += [
        'Bandwidth and peak are those of the data sheet '
        f'({plan.chip.hbm_bytes_per_s / 1e9:g} GB/s, '
        f'{plan.chip.bf16_flops / 1e12:g} TFLOP/s a chip), so a time is a '
        'floor.',
        'Reading and arithmetic overlap perfectly; collectives overlap with '
        'nothing.',
        'A collective runs on one ring wound through all chips of its group, '
        'with both directions of its links in use '
        f'({plan.chip.ici_axis_bytes_per_s / 1e9:g} GB/s).',
        'One latency for a collective of any kind, size and group; what a '
        'step costs beside reading, arithmetic and collectives is left out, '
        'or, where the latency is fitted, is in it.',
        'Every drafted token is accepted with one probability, independent of '
        'the others.',
        'A round costs K draft steps over one token each and the verify pass; '
        'a pass over another number of tokens than was compiled is scaled '
        'from the two that were.',
    ]
  return '\n'.join(f'* {line}' for line in lines)


def _title(plan: Plan) -> str:
  setting = plan.setting
  mesh = dict(setting.target.placement.mesh.shape)
  return (
      f'{plan.topology}, mesh {mesh}, batch {setting.batch}, context '
      f'{setting.context}, K = {setting.num_draft_tokens}; numbers of one '
      'device.'
  )


def _programs(plan: Plan) -> str:
  header = ['program', 'GiB', 'collectives', 'their MB', 'HBM GB', 'GFLOP']
  header += ['compiler: GB', 'GFLOP']
  header += (
      [] if plan.machine is None else ['HBM ms', 'FLOP ms', 'links ms', 'ms']
  )
  cells = []
  for row in _rows(plan):
    line = [
        row['row/name'],
        row['plan/memory_gib'],
        row['plan/collectives'],
        row['plan/collective_bytes'] / 1e6,
        row['plan/hbm_bytes'] / 1e9,
        row['plan/flops'] / 1e9,
        row['plan/compiler_bytes'] / 1e9,
        row['plan/compiler_flops'] / 1e9,
    ]
    if plan.machine is not None:
      names = ('hbm_ms', 'flops_ms', 'collectives_ms', 'ms')
      line += [row[f'plan/{name}'] for name in names]
    cells.append(line)
  return report.table(header, cells)


def _choices(plan: Plan) -> str:
  columns: Sequence[int] = (1, 2, 3, 4, 6, 8)
  rates = sorted({plan.acceptance, *plan.acceptances})
  cells = []
  for rate in rates:
    choice = plan.choice(rate)
    cells.append(
        [f'{rate:.2f}']
        + [choice.speedups[k] for k in columns]
        + [choice.best_k, choice.speedups[choice.best_k]]
    )
  header = ['acceptance', *(f'K = {k}' for k in columns), 'best K', 'speed-up']
  return report.table(header, cells)


def _advice(plan: Plan) -> str:
  room = plan.chip.usable_hbm_gib
  fits = 'fits' if plan.memory_gib <= room else 'does not fit'
  shards = plan.layouts.fastest
  where = 'whole on every device' if shards == 1 else f'over {shards} devices'
  draft_ms = plan.layouts.steps[shards].time.total_ms
  latency_us = 1e6 * plan.machine.collective_latency_s
  in_layers = plan_lib.layer_all_reduces(plan.whole.program)
  sampling = plan_lib.sampling_bytes(plan.whole.program)
  return (
      f'Plain {plan.plain.time.total_ms:.2f} ms a token (floor '
      f'{plan.plain.time.hbm_ms:.2f}), a round {plan.round_ms:.2f} ms with '
      f'{in_layers} all-reduces in layers and {sampling} bytes exchanged for '
      f'sampling. {plan.memory_gib:.2f} GiB {fits} into {room:g} GiB. The '
      f'draft is fastest {where}: {draft_ms:.2f} ms a step. One '
      f'collective is taken to cost {latency_us:.1f} us beside its bytes.'
  )
