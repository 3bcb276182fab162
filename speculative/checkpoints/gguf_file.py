"""Reads a GGUF file: metadata at once, tensors one by one as float32.

The header is walked here instead of by `gguf.GGUFReader`, which makes an array
of every token and merge (4 to 8 s for a vocabulary of 50,000 to 150,000) and
checks no bounds; dequantisation is the `gguf` package's. Nothing is read before
every tensor is known to lie within the file and to be of a supported type.
"""

import math
import mmap
import pathlib
import struct
from typing import Any

import gguf
from gguf import quants
import numpy as np

from speculative.checkpoints import reader
from speculative.errors import UserError

SUPPORTED_TYPES = (
    'F32',
    'F16',
    'BF16',
    'Q8_0',
    'Q4_0',
    'Q4_1',
    'Q5_0',
    'Q5_1',
    'Q4_K',
    'Q5_K',
    'Q6_K',
)
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMS = 8
_VALUES_AT_ONCE = 1 << 18
_STRING = 8
_ARRAY = 9
# Value type in the file -> little-endian struct code.
_SCALARS = {
    0: 'B',
    1: 'b',
    2: 'H',
    3: 'h',
    4: 'I',
    5: 'i',
    6: 'f',
    7: '?',
    10: 'Q',
    11: 'q',
    12: 'd',
}


class GgufFile:
  """One GGUF file.

  Attributes:
    path: the file.
    fields: its metadata, name to plain Python value.
    tensors: every tensor, by its name in the file.
  """

  def __init__(self, path: pathlib.Path):
    """Reads the header and checks it against the file's size.

    Args:
      path: the file.

    Raises:
      UserError: If the file is not a GGUF, is cut short or damaged, is one part
        of several, or holds a tensor of an unsupported type.
    """
    self.path = path
    self.fields: dict[str, Any] = {}
    self.tensors: dict[str, reader.TensorInfo] = {}
    self._offsets: dict[str, int] = {}
    size = path.stat().st_size
    if size < 24:
      raise UserError(
          f'{path} is not a GGUF file: it has only {size} bytes; fetch it '
          'again.'
      )
    with path.open('rb') as file:
      with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
          self._read_header(data)
        # Lengths in a damaged header send the reader anywhere.
        except (
            struct.error,
            UnicodeDecodeError,
            RecursionError,
            _Damaged,
        ) as error:
          raise UserError(
              f'{path} is cut short or damaged: its header does not fit in '
              f'its {size} bytes ({error}); fetch it again.'
          ) from error
    self._check_types()
    self._check_extents(size)

  def read(self, name: str) -> np.ndarray:
    """Returns one tensor as float32 (F16 and BF16 ones too).

    Args:
      name: a key of `tensors`.

    Returns:
      An array the caller owns.

    Raises:
      UserError: If the file became shorter since it was opened.
    """
    info = self.tensors[name]
    raw = np.fromfile(
        self.path, np.uint8, info.num_bytes, offset=self._offsets[name]
    )
    if raw.size != info.num_bytes:
      raise UserError(
          f'{self.path} became shorter while it was read; fetch it again.'
      )
    kind = gguf.GGMLQuantizationType[info.dtype]
    # Rows for the dequantiser; a norm is one row.
    rows = raw.reshape(math.prod(info.shape[:-1]), -1)
    values = np.empty((len(rows), info.shape[-1]), np.float32)
    # In pieces: half the time and half the memory of one call for the tensor.
    step = max(1, _VALUES_AT_ONCE // info.shape[-1])
    for start in range(0, len(rows), step):
      piece = slice(start, start + step)
      values[piece] = quants.dequantize(rows[piece], kind)
    return values.reshape(info.shape)

  def _read_header(self, data: mmap.mmap) -> None:
    cursor = _Cursor(data)
    magic, version = data[:4], struct.unpack_from('<I', data, 4)[0]
    if magic != b'GGUF':
      raise UserError(
          f'{self.path} is not a GGUF file: it starts with {magic!r} instead '
          "of b'GGUF'."
      )
    if version not in _VERSIONS:
      raise UserError(
          f'{self.path} is GGUF version {version} (or big-endian); supported '
          'are little-endian versions 2 and 3. Convert it again.'
      )
    cursor.position = 8
    num_tensors, num_fields = cursor.unpack('<QQ')
    for _ in range(num_fields):
      name = cursor.string()
      self.fields[name] = cursor.value(cursor.unpack('<I')[0])
    if self.fields.get('split.count', 1) > 1:
      raise UserError(
          f'{self.path} is one of {self.fields["split.count"]} parts; join '
          'them first with llama-gguf-split --merge.'
      )
    for _ in range(num_tensors):
      self._read_tensor_info(cursor)
    alignment = self.fields.get('general.alignment', _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0:
      raise _Damaged(f'general.alignment is {alignment!r}')
    start = -(-cursor.position // alignment) * alignment
    self._offsets = {n: start + o for n, o in self._offsets.items()}

  def _read_tensor_info(self, cursor: '_Cursor') -> None:
    name = cursor.string()
    num_dims = cursor.unpack('<I')[0]
    if not 0 < num_dims <= _MAX_DIMS:
      raise _Damaged(f'tensor {name!r} has {num_dims} dimensions')
    # The file lists the fastest dimension first.
    shape = cursor.unpack(f'<{num_dims}Q')[::-1]
    type_id, offset = cursor.unpack('<IQ')
    if name in self.tensors or 0 in shape:
      raise _Damaged(f'tensor {name!r} appears twice or is empty')
    try:
      kind = gguf.GGMLQuantizationType(type_id)
      block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
      # Newer than the package: refused by name in _check_types.
      dtype, num_bytes = f'type {type_id}', 0
    else:
      if shape[-1] % block:
        raise _Damaged(
            f'rows of tensor {name!r} have {shape[-1]} values, not a multiple '
            f'of the {block} of {kind.name}'
        )
      dtype, num_bytes = kind.name, math.prod(shape) // block * block_bytes
    self.tensors[name] = reader.TensorInfo(tuple(shape), dtype, num_bytes)
    self._offsets[name] = offset

  def _check_types(self) -> None:
    refused = [
        f'{name} ({info.dtype})'
        for name, info in self.tensors.items()
        if info.dtype not in SUPPORTED_TYPES
    ]
    if refused:
      raise UserError(
          f'{self.path}: quantisation of {reader.listing(refused, limit=3)} is '
          f'not supported; use a file with {", ".join(SUPPORTED_TYPES)}.'
      )

  def _check_extents(self, size: int) -> None:
    ends = {n: self._offsets[n] + t.num_bytes for n, t in self.tensors.items()}
    end = max(ends.values(), default=0)
    if end > size:
      beyond = [name for name in ends if ends[name] > size]
      raise UserError(
          f'{self.path} is cut short: it has {size} bytes and its tensors need '
          f'{end} ({len(beyond)} of {len(ends)} lie beyond the end, first '
          f'{beyond[0]}); fetch it again.'
      )


class _Damaged(Exception):
  """The header contradicts itself or the file's size."""


class _Cursor:
  """Reads values in order, never past the end."""

  def __init__(self, data: mmap.mmap):
    self.data = data
    self.position = 0

  def unpack(self, layout: str) -> tuple[Any, ...]:
    values = struct.unpack_from(layout, self.data, self.position)
    self.position += struct.calcsize(layout)
    return values

  def take(self, count: int) -> bytes:
    if count > len(self.data) - self.position:
      raise _Damaged(f'{count} bytes wanted at byte {self.position}')
    start, self.position = self.position, self.position + count
    return self.data[start : self.position]

  def string(self) -> str:
    return self.take(self.unpack('<Q')[0]).decode('utf-8')

  def value(self, kind: int) -> Any:
    if kind == _STRING:
      return self.string()
    if kind == _ARRAY:
      return self.array()
    if kind not in _SCALARS:
      raise _Damaged(f'value type {kind} at byte {self.position}')
    return self.unpack('<' + _SCALARS[kind])[0]

  def array(self) -> list[Any]:
    kind, count = self.unpack('<IQ')
    if kind in _SCALARS:
      code = _SCALARS[kind]
      raw = self.take(count * struct.calcsize('<' + code))
      return list(struct.unpack(f'<{count}{code}', raw))
    # Every string or array takes 8 bytes at least: bounds the loop.
    if count * 8 > len(self.data) - self.position:
      raise _Damaged(f'{count} values announced at byte {self.position}')
    return [self.value(kind) for _ in range(count)]
