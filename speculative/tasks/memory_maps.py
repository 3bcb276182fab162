"""Room for compiled programs.

On a CPU every compiled program maps memory, a large one in hundreds of pieces.
Linux grants a process so many (65,530, vm.max_map_count); beyond them the
compiler ends it with a segmentation fault, minutes into a run.
"""

import pathlib

from speculative.errors import UserError

_MAPS = pathlib.Path('/proc/self/maps')
_MOST = pathlib.Path('/proc/sys/vm/max_map_count')
# What is left is for the next program, whose size is not known before.
_FULL = 0.85


def num_maps() -> int:
  """Returns the pieces of memory the process maps; 0 where nobody tells."""
  return len(_MAPS.read_bytes().splitlines()) if _MAPS.exists() else 0


def check(done: int, wanted: int) -> None:
  """Ends a run that is about to be ended by the compiler.

  Args:
    done: pairs of a setting and a shape of prompts that are compiled.
    wanted: such pairs in all.

  Raises:
    UserError: If too few maps are left for more programs.
  """
  if not _MOST.exists():
    return
  num, most = num_maps(), int(_MOST.read_text())
  if num > _FULL * most:
    raise UserError(
        f'{num} pieces of memory are mapped by the programs of {done} of '
        f'{wanted} pairs of setting and length of prompts, and this system '
        f'grants a process {most}; list fewer in config.bench.settings, take '
        'prompts of more equal length, or raise vm.max_map_count.'
    )
