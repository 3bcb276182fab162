"""How much memory a piece of work took, where Linux tells."""

import pathlib

_CLEAR = pathlib.Path('/proc/self/clear_refs')
_STATUS = pathlib.Path('/proc/self/status')


class Peak:
  """Measures the most memory in use inside a `with` block.

  Attributes:
    grown: bytes above what was in use before; 0 where nobody tells.
  """

  def __init__(self) -> None:
    """Measures nothing yet."""
    self.grown = 0
    self._before = 0

  def __enter__(self) -> 'Peak':
    try:
      # Sets the highest mark back to what is in use now.
      _CLEAR.write_text('5')
      self._before = _read('VmRSS')
    except (OSError, ValueError, StopIteration):
      self._before = 0
    return self

  def __exit__(self, *exception: object) -> None:
    if self._before:
      self.grown = max(0, _read('VmHWM') - self._before)


def _read(name: str) -> int:
  lines = _STATUS.read_text().splitlines()
  line = next(line for line in lines if line.startswith(f'{name}:'))
  return int(line.split()[1]) * 1024
