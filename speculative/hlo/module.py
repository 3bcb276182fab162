"""The text of a compiled program as computations of instructions.

Read are the forms that the CPU and the TPU compiler print: names with and
without `%`, operands with and without their types, layouts, comments
(`/*index=5*/`), attributes over several lines, and computations that end in
`}, execution_thread="sparsecore"`.
"""

from collections.abc import Mapping
import dataclasses
import functools
import re

from speculative.hlo import shapes

# A comment, or a string that could hold what looks like one.
_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|/\*.*?\*/')
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_BEGIN = re.compile(r'(?P<entry>ENTRY\s+)?%?(?P<name>[\w.-]+)\s*(\(.*)?\{\s*$')
_INSTRUCTION = re.compile(r'\s*(?P<root>ROOT\s+)?%?(?P<name>[\w.-]+) = ')
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_CLOSING = {'(': ')', '[': ']', '{': '}'}
_CALLEES = (
    'calls',
    'called_computations',
    'branch_computations',
    'true_computation',
    'false_computation',
)


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One line of a computation.

  Attributes:
    name: without `%`.
    type: its result's type as printed.
    opcode: `all-reduce`, `while`, `fusion`.
    operands: names without `%`; a literal's text for a constant.
    attributes: what follows the operands, by key, as printed.
    op_name: where it comes from: the path of named scopes, '' if not said.
  """

  name: str
  type: str
  opcode: str
  operands: tuple[str, ...]
  attributes: Mapping[str, str]
  op_name: str = ''

  @property
  def callees(self) -> tuple[str, ...]:
    """Computations it runs once each, but for a loop's and a reduction's."""
    keys = _CALLEES + (('to_apply',) if self.opcode == 'call' else ())
    return tuple(
        name
        for key in keys
        for name in re.findall(r'[\w.-]+', self.attributes.get(key, ''))
    )

  def called(self, key: str) -> str:
    """Returns the computation that an attribute names."""
    return self.attributes[key].lstrip('%')


@dataclasses.dataclass(frozen=True)
class Computation:
  """A function of the program.

  Attributes:
    name: without `%`.
    instructions: in the order of the text, which is the schedule's.
    root: the instruction whose result it returns.
  """

  name: str
  instructions: tuple[Instruction, ...]
  root: Instruction

  @functools.cached_property
  def by_name(self) -> Mapping[str, Instruction]:
    """Its instructions by name."""
    return {i.name: i for i in self.instructions}


@dataclasses.dataclass(frozen=True)
class Module:
  """A compiled program.

  Attributes:
    header: the first line's attributes, by key, as printed.
    computations: by name.
    entry: what one execution of the program runs.
  """

  header: Mapping[str, str]
  computations: Mapping[str, Computation]
  entry: Computation

  @property
  def num_devices(self) -> int:
    """Devices that run it together."""
    return int(self.header.get('num_partitions', 1)) * int(
        self.header.get('replica_count', 1)
    )


@functools.lru_cache(maxsize=2)
def parse(text: str) -> Module:
  """Reads a program.

  Args:
    text: of `jax.stages.Compiled.as_text()`.

  Returns:
    The program.

  Raises:
    ValueError: If the text is not that of a compiled program.
  """
  if not text.lstrip().startswith('HloModule'):
    raise ValueError(
        'needs the text of a compiled program, which begins with HloModule; '
        f'got {text.lstrip()[:40]!r}. Call .compile() before .as_text().'
    )
  text = _COMMENT.sub(lambda match: match[1] or '', text)
  lines = iter(text.lstrip().splitlines())
  header = _attributes(next(lines).partition(',')[2])
  computations = {}
  entry = None
  name, is_entry, instructions, root, pending = None, False, [], None, ''
  for line in lines:
    if name is None:
      if (begin := _BEGIN.match(line)) and not _INSTRUCTION.match(line):
        name, is_entry = begin['name'], bool(begin['entry'])
        instructions, root = [], None
      continue
    if not pending and line.startswith('}'):
      last = root or instructions[-1]
      computations[name] = Computation(name, tuple(instructions), last)
      entry = computations[name] if is_entry else entry
      name = None
      continue
    pending = f'{pending} {line.strip()}' if pending else line
    if pending.strip() and _is_whole(pending):
      instruction, is_root = _instruction(pending)
      instructions.append(instruction)
      root = instruction if is_root else root
      pending = ''
  if entry is None:
    raise ValueError('found no ENTRY computation; was the text cut?')
  return Module(header, computations, entry)


def _blank(text: str) -> str:
  """Returns the text with strings blanked, every character in its place."""
  return _STRING.sub(lambda match: '"' + ' ' * (len(match[0]) - 2) + '"', text)


def _is_whole(text: str) -> bool:
  """Tells whether no bracket is open and nothing is to follow a comma."""
  blank = _blank(text)
  return not blank.rstrip().endswith(',') and all(
      blank.count(opening) <= blank.count(closing)
      for opening, closing in _CLOSING.items()
  )


def _close(blank: str, start: int) -> int:
  """Returns the index behind the bracket that closes the one at `start`."""
  depth = 0
  for match in re.compile(r'[([{)\]}]').finditer(blank, start):
    depth += 1 if match[0] in _CLOSING else -1
    if depth == 0:
      return match.end()
  raise ValueError(f'no bracket closes {blank[start : start + 60]!r}.')


def _attributes(text: str) -> dict[str, str]:
  """Reads `key=value, key=value`, brackets and strings respected."""
  found = {}
  start = 0
  blanked = _blank(text)
  for blank in shapes.split(blanked):
    # The pieces stand in order, so each lies where its blanked form does.
    start = blanked.index(blank, start)
    key, equals, value = text[start : start + len(blank)].partition('=')
    if equals:
      found[key.strip()] = value.strip()
    start += len(blank)
  return found


def _instruction(line: str) -> tuple[Instruction, bool]:
  """Reads one instruction, and whether it is the root."""
  match = _INSTRUCTION.match(line)
  if not match:
    raise ValueError(f'not an instruction: {line.strip()[:80]!r}.')
  blank = _blank(line)
  start = match.end()
  if blank[start] == '(':
    end = _close(blank, start)
  else:
    end = blank.index(' ', start)
  opening = blank.index('(', end)
  closing = _close(blank, opening)
  inside = line[opening + 1 : closing - 1]
  opcode = line[end:opening].strip()
  if opcode == 'constant':
    operands = (inside,)
  else:
    # An operand may stand behind its type: `f32[8]{0} %x`.
    pieces = shapes.split(inside)
    operands = tuple(piece.split()[-1].lstrip('%') for piece in pieces)
  attributes = _attributes(line[closing:].lstrip(', '))
  op_name = _OP_NAME.search(attributes.get('metadata', ''))
  instruction = Instruction(
      name=match['name'],
      type=line[start:end],
      opcode=opcode,
      operands=operands,
      attributes=attributes,
      # Quotes inside come escaped: `cache[\'k\']`.
      op_name=re.sub(r'\\(.)', r'\1', op_name[1]) if op_name else '',
  )
  return instruction, bool(match['root'])
