"""What a compiled program asks of the host while it runs."""

import dataclasses

from speculative.hlo import module as module_lib
from speculative.hlo.module import Instruction

_ALWAYS = frozenset({'infeed', 'outfeed'})
_IF_MARKED = frozenset({'recv', 'send'})
_COPIES = frozenset({'copy', 'copy-start'})
# The memory space of the host in a layout.
_HOST_MEMORY = 'S(5)'


@dataclasses.dataclass(frozen=True)
class HostTransfer:
  """One instruction that reaches the host.

  Attributes:
    kind: `infeed`, `outfeed`, `send`, `recv`, `custom-call`, `copy` to or from
      the host's memory, or `call` of a computation that the host runs.
    target: whom it asks: a callback's target or handler, else ''.
    name: of the instruction, without `%`.
    computation: that it stands in.
    op_name: the path of named scopes it comes from.
  """

  kind: str
  target: str
  name: str
  computation: str
  op_name: str


def host_transfers(text: str) -> tuple[HostTransfer, ...]:
  """Finds callbacks, feeds and copies between a device and its host.

  `jax.debug.print`, `pure_callback` and `io_callback` are custom calls on a CPU
  and pairs of send and receive on a TPU.

  Args:
    text: of `jax.stages.Compiled.as_text()`.

  Returns:
    The transfers in the order of the text, each once; none in a program that
    runs on its device alone.

  Raises:
    ValueError: If the text is not that of a compiled program.
  """
  module = module_lib.parse(text)
  return tuple(
      HostTransfer(
          kind=kind,
          target=_target(instruction),
          name=instruction.name,
          computation=computation.name,
          op_name=instruction.op_name,
      )
      for computation in module.computations.values()
      for instruction in computation.instructions
      if (kind := _kind(instruction))
  )


def _kind(instruction: Instruction) -> str:
  """Returns the kind of transfer an instruction is, '' for none."""
  opcode, attributes = instruction.opcode, instruction.attributes
  if opcode in _ALWAYS:
    return opcode
  if opcode in _IF_MARKED and attributes.get('is_host_transfer') == 'true':
    return opcode
  if opcode == 'custom-call' and 'callback' in _target(instruction):
    return opcode
  if opcode in _COPIES and _HOST_MEMORY in instruction.type:
    return 'copy'
  if attributes.get('async_execution_thread') == '"host"':
    return 'call' if opcode.endswith('-start') else ''
  return ''


def _target(instruction: Instruction) -> str:
  """Returns the custom call's target or the transfer's handler."""
  attributes = instruction.attributes
  if 'custom_call_target' in attributes:
    return attributes['custom_call_target'].strip('"')
  frontend = attributes.get('frontend_attributes', '')
  _, _, handler = frontend.partition('_xla_host_transfer_handler_name="')
  return handler.partition('"')[0]
