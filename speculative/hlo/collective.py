"""The collectives of a compiled program, each counted once."""

from collections.abc import Iterator
import dataclasses
import math
import re

from speculative.hlo import groups as groups_lib
from speculative.hlo import loops as loops_lib
from speculative.hlo import module as module_lib
from speculative.hlo import shapes
from speculative.hlo.module import Computation
from speculative.hlo.module import Instruction
from speculative.hlo.module import Module
from speculative.hlo.shapes import Array

KINDS = (
    'all-gather',
    'all-reduce',
    'all-to-all',
    'collective-broadcast',
    'collective-permute',
    'ragged-all-to-all',
    'reduce-scatter',
)
_KIND = re.compile(f'({"|".join(KINDS)})(-start)?')
_START = 'AsyncCollectiveStart'
# What calls the entry computation.
_ENTRY = Instruction('', '', 'call', (), {})


@dataclasses.dataclass(frozen=True)
class Loop:
  """A loop around an instruction.

  Attributes:
    name: of the `while` instruction.
    computation: its body, or its condition where the instruction is there.
    times: how often one execution of the loop runs that computation, None
      where the text does not tell, as for a loop that decodes until the end.
  """

  name: str
  computation: str
  times: int | None


@dataclasses.dataclass(frozen=True)
class Collective:
  """One collective, as often as the program holds it.

  Sizes are those of one device. A collective that the compiler made of several
  arrays is one collective of several results.

  Attributes:
    kind: one of `KINDS`. A TPU's all-reduce that keeps one shard of its sum
      is a `reduce-scatter`, whatever the text calls it.
    results: what each device holds afterwards.
    groups: devices that take part together, as positions in the flat array of
      the mesh's devices; (source, target) pairs of a `collective-permute`.
    name: of the instruction, without `%`.
    computation: that the instruction stands in.
    op_name: the path of named scopes it comes from; that of the loop, branch
      or call around it if the compiler made it.
    loops: around it, the outermost first.
    branches: computations of conditionals around it, the outermost first.
  """

  kind: str
  results: tuple[Array, ...]
  groups: groups_lib.Groups
  name: str
  computation: str
  op_name: str
  loops: tuple[Loop, ...]
  branches: tuple[str, ...]

  @property
  def num_bytes(self) -> int:
    """Bytes of the results on one device."""
    return sum(result.num_bytes for result in self.results)

  @property
  def group_size(self) -> int:
    """Devices in each group."""
    return max(map(len, self.groups))

  @property
  def dtypes(self) -> frozenset[str]:
    """Of the results."""
    return frozenset(result.dtype for result in self.results)

  @property
  def times(self) -> int | None:
    """Runs in one execution of the program; see `times_below`."""
    return self.times_below(0)

  def times_below(self, depth: int) -> int | None:
    """Returns its runs in one iteration of the loop around it at a depth.

    Branches count as if they were taken.

    Args:
      depth: 0 for one execution of the program, 1 for one iteration of the
        outermost loop.

    Returns:
      The number of runs; None where a loop further in has no known count.
    """
    times = [loop.times for loop in self.loops[depth:]]
    return None if None in times else math.prod(times)

  def within(self, scope: str) -> bool:
    """Tells whether a `jax.named_scope` of this name is around it."""
    # A transformed scope reads `vmap(attention)`.
    return scope in re.split(r'[/()]', self.op_name)


def collectives(text: str) -> tuple[Collective, ...]:
  """Finds every collective that an execution of a program may run.

  An asynchronous one counts once, as do the start, the middle and the end that
  a TPU compiler fuses with other work. One in a computation that is called
  from two places counts twice. What a Pallas kernel sends is not in the text.

  Args:
    text: of `jax.stages.Compiled.as_text()`.

  Returns:
    The collectives in the order in which the program reaches them.

  Raises:
    ValueError: If the text is not that of a compiled program.
  """
  module = module_lib.parse(text)
  found = list(_walk(loops_lib.Frame(module, module.entry), _ENTRY, (), ()))
  started = {channel for _, channel, part in found if part == 'start'}
  return tuple(
      collective
      for collective, channel, part in found
      if part != 'rest' or channel not in started
  )


def _walk(
    frame: loops_lib.Frame,
    caller: Instruction,
    loops: tuple[Loop, ...],
    branches: tuple[str, ...],
) -> Iterator[tuple[Collective, str, str]]:
  """Yields collectives with their channel and the part they are of it.

  A fusion may hold a `whole` collective or, where one is spread over several
  fusions, its `start` or the `rest`.
  """
  is_fused = caller.opcode == 'fusion'
  part = _part(frame.computation) if is_fused else 'whole'
  for instruction in frame.computation.instructions:
    if not instruction.op_name:
      instruction = dataclasses.replace(instruction, op_name=caller.op_name)
    if match := _KIND.fullmatch(instruction.opcode):
      is_scatter = is_fused and _keeps_a_shard(frame, instruction)
      result = frame.computation.root if is_scatter else instruction
      collective = Collective(
          kind='reduce-scatter' if is_scatter else match[1],
          results=_results(result.type, match[1], is_start=bool(match[2])),
          groups=_groups(frame.module, instruction),
          name=instruction.name,
          computation=frame.computation.name,
          op_name=instruction.op_name,
          loops=loops,
          branches=branches,
      )
      yield collective, instruction.attributes.get('channel_id', ''), part
    elif instruction.opcode == 'while':
      carry = loops_lib.Carry(frame, instruction)
      times = carry.trip_count()
      # The last test fails.
      for key, more in (('condition', 1), ('body', 0)):
        inside = carry.inside(key)
        loop = Loop(
            name=instruction.name,
            computation=inside.computation.name,
            times=None if times is None else times + more,
        )
        yield from _walk(inside, instruction, (*loops, loop), branches)
    elif not instruction.opcode.endswith(('-done', '-update')):
      # These name once more what their `-start` runs.
      for index, name in enumerate(instruction.callees):
        is_branch = instruction.opcode == 'conditional'
        yield from _walk(
            frame.call(index, instruction),
            instruction,
            loops,
            (*branches, name) if is_branch else branches,
        )


def _part(computation: Computation) -> str:
  """Tells what a fusion holds of its collectives, by TPU's custom calls."""
  targets = {
      i.attributes.get('custom_call_target', '').strip('"')
      for i in computation.instructions
  }
  return 'start' if _START in targets else 'rest'


def _keeps_a_shard(frame: loops_lib.Frame, instruction: Instruction) -> bool:
  """Tells whether a fusion returns a slice of this all-reduce alone."""
  root = frame.computation.root
  return (
      instruction.opcode == 'all-reduce'
      and root.opcode == 'dynamic-slice'
      and root.operands[0] == instruction.name
  )


def _results(text: str, kind: str, *, is_start: bool) -> tuple[Array, ...]:
  """Returns the arrays in the type of a collective.

  The type of a `-start` may be (operand, result, …) or, if it has several
  operands, ((operands), (results), …); but that of an `all-reduce-start` is
  its result.
  """
  parts = shapes.elements(text)
  if is_start and (kind != 'all-reduce' or parts[0].startswith('(')):
    text = parts[1] if len(parts) > 1 else parts[0]
  return shapes.arrays(text)


def _groups(module: Module, instruction: Instruction) -> groups_lib.Groups:
  """Returns the groups of a collective."""
  attributes = instruction.attributes
  if 'source_target_pairs' in attributes:
    text = attributes['source_target_pairs']
  else:
    text = attributes.get('replica_groups', '{}')
    if 'device_ids' in attributes:
      # The comma in front of it looks like one between attributes.
      text = f'{text}, device_ids={attributes["device_ids"]}'
  return groups_lib.parse(text, num_devices=module.num_devices)
