"""Types as a compiler prints them: `bf16[8,512]{1,0:T(8,128)(2,1)S(1)}`."""

from collections.abc import Iterator
import dataclasses
import math
import re

_ARRAY = re.compile(r'([a-z]\w*)\[([\d,<=? ]*)\]')
_BITS = re.compile(r'(?:bf|f|s|u|c)(\d+)')


@dataclasses.dataclass(frozen=True)
class Array:
  """An array of one device.

  Attributes:
    dtype: as the compiler names it: `bf16`, `f32`, `s32`, `pred`.
    shape: sizes, those of one device's share.
  """

  dtype: str
  shape: tuple[int, ...]

  @property
  def num_bytes(self) -> int:
    """Bytes without the padding of a layout; 0 for a token."""
    if self.dtype == 'pred':
      bits = 8
    else:
      match = _BITS.match(self.dtype)
      bits = int(match[1]) if match else 0
    return -(-bits * math.prod(self.shape) // 8)

  def __str__(self) -> str:
    return f'{self.dtype}[{",".join(map(str, self.shape))}]'


def arrays(text: str) -> tuple[Array, ...]:
  """Returns the arrays of a type, those of nested tuples in order."""
  return tuple(
      Array(dtype, tuple(int(size) for size in re.findall(r'\d+', sizes)))
      for dtype, sizes in _ARRAY.findall(text)
  )


def elements(text: str) -> tuple[str, ...]:
  """Returns the types in a tuple's type; an array's is its only one."""
  text = text.strip()
  if not text.startswith('('):
    return (text,)
  return tuple(split(text[1:-1]))


def split(text: str) -> Iterator[str]:
  """Yields what stands between the commas outside all brackets."""
  depth = start = 0
  for match in re.finditer(r'[([{)\]},]', text):
    if match[0] in '([{':
      depth += 1
    elif match[0] in ')]}':
      depth -= 1
    elif depth == 0:
      yield text[start : match.start()].strip()
      start = match.end()
  if last := text[start:].strip():
    yield last
