"""How often a loop runs, where the text tells.

The CPU compiler writes `known_trip_count` beside a loop over a range, as
`lax.scan` makes; the TPU compiler does not. There the count is read from the
loop itself: an element of its carry that starts at a constant, grows by a
constant and is compared with a constant.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import functools
import re
from typing import Any

from speculative.hlo.module import Computation
from speculative.hlo.module import Instruction
from speculative.hlo.module import Module

_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
# Instructions whose result is their first operand's as far as numbers go.
_SAME = frozenset(
    {
        'bitcast',
        'convert',
        'copy',
        'copy-done',
        'copy-start',
        'opt-barrier',
        'reshape',
    }
)
# How `compare` reads with its operands the other way round.
_TURNED = {'LT': 'GT', 'LE': 'GE', 'GT': 'LT', 'GE': 'LE'}


@dataclasses.dataclass(frozen=True)
class _Element:
  """An element of a loop's carry, plus a constant."""

  carry: 'Carry'
  index: int
  offset: int = 0


@dataclasses.dataclass(frozen=True)
class _Tuple:
  """A tuple, whose elements are found out when they are asked for."""

  frame: 'Frame'
  operands: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class _Final:
  """What a loop leaves behind."""

  carry: 'Carry'


@dataclasses.dataclass(frozen=True)
class _Compared:
  """The result of a comparison."""

  left: Any
  right: Any
  direction: str


# What a computation's parameter holds, found out only when it is asked.
Argument = Callable[[], Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Frame:
  """One run of a computation.

  Attributes:
    module: the program.
    computation: what runs.
    arguments: of its parameters; too few of them are unknown ones.
  """

  module: Module
  computation: Computation
  arguments: Sequence[Argument] = ()

  def call(self, index: int, caller: Instruction) -> 'Frame':
    """Returns the frame of one of the computations an instruction runs."""
    operands = caller.operands
    if caller.opcode == 'conditional':
      operands = operands[index + 1 : index + 2]
    return Frame(
        self.module,
        self.module.computations[caller.callees[index]],
        [functools.partial(self.value, operand) for operand in operands],
    )

  def value(self, name: str) -> Any:
    """Returns what is known of a result: an int, a part of a carry, None."""
    instruction = self.computation.by_name[name]
    opcode, operands = instruction.opcode, instruction.operands
    if opcode == 'constant':
      return int(operands[0]) if re.fullmatch(r'-?\d+', operands[0]) else None
    if opcode == 'parameter':
      number = int(operands[0])
      known = number < len(self.arguments)
      return self.arguments[number]() if known else None
    if opcode in _SAME:
      return self.value(operands[0])
    if opcode == 'tuple':
      return _Tuple(self, operands)
    if opcode == 'get-tuple-element':
      return self.element(operands[0], int(instruction.attributes['index']))
    if opcode == 'add':
      return _add(self.value(operands[0]), self.value(operands[1]))
    if opcode == 'compare':
      direction = instruction.attributes['direction']
      return _Compared(*map(self.value, operands), direction)
    if opcode == 'while':
      return _Final(Carry(self, instruction))
    if opcode in ('call', 'fusion'):
      frame = self.call(0, instruction)
      return frame.value(frame.computation.root.name)
    return None

  def element(self, name: str, index: int) -> Any:
    """Returns what is known of one element of a tuple."""
    whole = self.value(name)
    if isinstance(whole, _Tuple):
      return whole.frame.value(whole.operands[index])
    if isinstance(whole, Carry):
      return _Element(whole, index)
    if isinstance(whole, _Final):
      return fixed(_Element(whole.carry, index))
    return None


@dataclasses.dataclass(frozen=True, eq=False)
class Carry:
  """What a loop hands from one iteration to the next.

  Attributes:
    frame: the run that the loop stands in.
    loop: the `while`.
  """

  frame: Frame
  loop: Instruction

  def inside(self, key: str) -> Frame:
    """Returns the frame of the loop's `body` or `condition`."""
    module = self.frame.module
    computation = module.computations[self.loop.called(key)]
    return Frame(module, computation, [lambda: self])

  def initial(self, index: int) -> Any:
    """Returns what an element starts with."""
    return self.frame.element(self.loop.operands[0], index)

  def next(self, index: int) -> Any:
    """Returns what an iteration makes of an element."""
    body = self.inside('body')
    return body.element(body.computation.root.name, index)

  def trip_count(self) -> int | None:
    """Returns how often the body runs, or None where the text is silent."""
    if match := _KNOWN.search(self.loop.attributes.get('backend_config', '')):
      return int(match[1])
    condition = self.inside('condition')
    test = condition.value(condition.computation.root.name)
    if not isinstance(test, _Compared):
      return None
    left, right, direction = test.left, test.right, test.direction
    if fixed(left) is not None:
      left, right, direction = right, left, _TURNED.get(direction, direction)
    limit = fixed(right)
    if not isinstance(left, _Element) or left.carry is not self:
      return None
    start, step = fixed(self.initial(left.index)), self.next(left.index)
    if None in (start, limit) or not isinstance(step, _Element):
      return None
    if step.carry is not self or step.index != left.index:
      return None
    return _count(start + left.offset, step.offset, limit, direction)


def fixed(value: Any) -> int | None:
  """Returns a value that is the same in every iteration, None if unknown."""
  if isinstance(value, int):
    return value
  if not isinstance(value, _Element) or not _is_kept(value.carry, value.index):
    return None
  initial = fixed(value.carry.initial(value.index))
  return None if initial is None else initial + value.offset


def _is_kept(carry: Carry, index: int) -> bool:
  """Tells whether the loop's body hands an element on as it is."""
  body = carry.inside('body')
  root = body.computation.root
  if root.opcode != 'tuple':
    return False
  name = root.operands[index]
  while True:
    instruction = body.computation.by_name[name]
    if instruction.opcode == 'get-tuple-element':
      source = body.computation.by_name[instruction.operands[0]]
      same = int(instruction.attributes['index']) == index
      return source.opcode == 'parameter' and same
    if instruction.opcode not in _SAME:
      return False
    name = instruction.operands[0]


def _add(left: Any, right: Any) -> Any:
  """Adds a constant to what is known of a value."""
  for one, other in ((left, right), (right, left)):
    constant = fixed(other)
    if constant is not None and isinstance(one, _Element):
      return dataclasses.replace(one, offset=one.offset + constant)
    if constant is not None and isinstance(one, int):
      return one + constant
  return None


def _count(start: int, step: int, limit: int, direction: str) -> int | None:
  """Returns the number of values from start in steps until the limit."""
  if direction == 'NE' and step and (limit - start) % step == 0:
    direction = 'LT' if step > 0 else 'GT'
  if direction in ('LE', 'GE'):
    limit += 1 if direction == 'LE' else -1
  grows = direction in ('LT', 'LE')
  if direction in ('EQ', 'NE') or step == 0 or (step > 0) != grows:
    return None
  return max(0, -(-(limit - start) // step))
