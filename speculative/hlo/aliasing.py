"""Which outputs of a compiled program reuse the memory of a parameter."""

import dataclasses
import re

from speculative.hlo import module as module_lib
from speculative.hlo import shapes

_ALIAS = re.compile(r'\{([\d, ]*)\}: \((\d+), \{([\d, ]*)\}(?:, ([\w-]+))?\)')


@dataclasses.dataclass(frozen=True)
class Alias:
  """One output that is written over one parameter.

  Attributes:
    output: its path in the program's result; () if it is the only one.
    parameter: number of the parameter; jax leaves out what is not used.
    parameter_index: path inside the parameter; () for an array.
    name: of the argument as jax calls it, `cache['k']`; '' if not said.
    num_bytes: on one device.
  """

  output: tuple[int, ...]
  parameter: int
  parameter_index: tuple[int, ...]
  name: str
  num_bytes: int


def aliased(text: str) -> tuple[Alias, ...]:
  """Finds the donations that the compiler made use of.

  A donated argument that is missing here is copied or freed, not reused.

  Args:
    text: of `jax.stages.Compiled.as_text()`.

  Returns:
    The aliases in the order of the outputs.

  Raises:
    ValueError: If the text is not that of a compiled program.
  """
  module = module_lib.parse(text)
  parameters = {
      int(i.operands[0]): i
      for i in module.entry.instructions
      if i.opcode == 'parameter'
  }
  found = []
  for output, number, path, _ in _ALIAS.findall(
      module.header.get('input_output_alias', '')
  ):
    parameter = parameters[int(number)]
    kind = parameter.type
    for index in _path(path):
      kind = shapes.elements(kind)[index]
    found.append(
        Alias(
            output=_path(output),
            parameter=int(number),
            parameter_index=_path(path),
            name=parameter.op_name,
            num_bytes=sum(array.num_bytes for array in shapes.arrays(kind)),
        )
    )
  return tuple(sorted(found, key=lambda alias: alias.output))


def _path(text: str) -> tuple[int, ...]:
  """Returns the numbers of a path."""
  return tuple(int(number) for number in re.findall(r'\d+', text))
