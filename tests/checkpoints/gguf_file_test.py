import struct

import gguf
from gguf import quants
import numpy as np
import pytest

from speculative.checkpoints import gguf_file
from speculative.errors import UserError

_TYPE = gguf.GGMLQuantizationType
_D = np.array([0.5], np.float16).view(np.uint8)
_D_MIN = np.array([0.25], np.float16).view(np.uint8)


def _values(bits: int, seed: int = 0) -> np.ndarray:
  return np.random.default_rng(seed).integers(0, 1 << bits, 256, np.uint8)


def _pack_scales(scale_8: np.ndarray, min_8: np.ndarray) -> np.ndarray:
  """Packs eight 6-bit scales and eight 6-bit minima into 12 bytes."""
  high = scale_8[4:] >> 4 << 6, min_8[4:] >> 4 << 6
  low = (scale_8[4:] & 15) | (min_8[4:] & 15) << 4
  return np.concatenate([scale_8[:4] | high[0], min_8[:4] | high[1], low])


def _pack_nibbles(q_256: np.ndarray, width: int) -> np.ndarray:
  """Puts two runs of `width` values into the nibbles of `width` bytes."""
  pairs = q_256.reshape(-1, 2, width)
  return (pairs[:, 0] | pairs[:, 1] << 4).ravel()


def _q4_k() -> tuple[np.ndarray, np.ndarray]:
  q, scale, low = _values(4), _values(6, 1)[:8], _values(6, 2)[:8]
  block = [_D, _D_MIN, _pack_scales(scale, low), _pack_nibbles(q, 32)]
  each = np.repeat(scale, 32) * 0.5, np.repeat(low, 32) * 0.25
  return np.concatenate(block), each[0] * q - each[1]


def _q5_k() -> tuple[np.ndarray, np.ndarray]:
  q, scale, low = _values(5), _values(6, 1)[:8], _values(6, 2)[:8]
  high = np.zeros(32, np.uint8)
  for j in range(8):
    high |= (q[32 * j : 32 * j + 32] >> 4) << j
  block = [_D, _D_MIN, _pack_scales(scale, low), high]
  block.append(_pack_nibbles(q & 15, 32))
  each = np.repeat(scale, 32) * 0.5, np.repeat(low, 32) * 0.25
  return np.concatenate(block), each[0] * q - each[1]


def _q6_k() -> tuple[np.ndarray, np.ndarray]:
  q = _values(6)
  scale = np.random.default_rng(1).integers(-128, 128, 16, np.int8)
  high = []
  for half in (q[:128], q[128:]):
    parts = half.reshape(4, 32) >> 4
    high.append(parts[0] | parts[1] << 2 | parts[2] << 4 | parts[3] << 6)
  block = [_pack_nibbles(q & 15, 64), *high, scale.view(np.uint8), _D]
  values = (q.astype(np.float32) - 32) * np.repeat(scale, 16) * 0.5
  return np.concatenate(block), values


# Largest error over the largest value of a block: half a step, or a whole one
# where the format clips one end, and the rounding of the scale to float16.
@pytest.mark.parametrize(
    'name, tolerance',
    [
        ('F32', 0.0),
        ('F16', 1e-3),
        ('BF16', 4e-3),
        ('Q8_0', 0.0045),
        ('Q4_0', 0.126),
        ('Q4_1', 0.068),
        ('Q5_0', 0.064),
        ('Q5_1', 0.034),
    ],
)
def test_read_gives_back_what_was_quantised(write_gguf, name, tolerance):
  x = np.random.default_rng(0).uniform(-1, 1, (300, 64)).astype(np.float32)
  raw = quants.quantize(x, _TYPE[name])
  path = write_gguf({'x': raw}, types={'x': _TYPE[name]})
  file = gguf_file.GgufFile(path)
  got = file.read('x')
  assert file.tensors['x'].dtype == name
  assert file.tensors['x'].shape == got.shape == x.shape
  assert got.dtype == np.float32
  assert np.abs(got - x).max() <= tolerance


@pytest.mark.parametrize(
    'name, build', [('Q4_K', _q4_k), ('Q5_K', _q5_k), ('Q6_K', _q6_k)]
)
def test_read_unpacks_k_quants_packed_by_hand(write_gguf, name, build):
  block, expected = build()
  path = write_gguf({'x': np.stack([block] * 3)}, types={'x': _TYPE[name]})
  got = gguf_file.GgufFile(path).read('x')
  np.testing.assert_allclose(got, np.stack([expected] * 3), rtol=1e-6)


def test_tensors_larger_than_a_piece_are_read_whole(write_gguf, monkeypatch):
  monkeypatch.setattr(gguf_file, '_VALUES_AT_ONCE', 128)
  x = np.arange(7 * 64, dtype=np.float32).reshape(7, 64)
  got = gguf_file.GgufFile(write_gguf({'x': x})).read('x')
  np.testing.assert_array_equal(got, x)


def test_fields_are_plain_values(write_gguf):
  fields = {
      'a.tokens': ['x', 'ü', '日本'],
      'a.types': [1, 2, 3],
      'a.scores': [0.5, -1.5],
      'a.text': 'words',
      'a.number': 7,
  }
  path = write_gguf({'x': np.zeros(32, np.float32)}, fields=fields)
  read = gguf_file.GgufFile(path).fields
  assert {name: read[name] for name in fields} == fields
  assert read['general.architecture'] == 'llama'


def test_every_cut_of_a_file_is_refused(write_gguf, gguf_tensors):
  fields = {'tokenizer.ggml.tokens': ['a', 'bc'], 'x.scores': [0.5, 1.5]}
  path = write_gguf(gguf_tensors, fields=fields)
  whole = path.read_bytes()
  # The last bytes may be padding, so what counts is where the tensors end.
  file = gguf_file.GgufFile(path)
  end = max(
      file._offsets[name] + info.num_bytes
      for name, info in file.tensors.items()
  )
  for length in [*range(0, 3000, 7), end - 1]:
    path.write_bytes(whole[:length])
    with pytest.raises(UserError, match='fetch it again'):
      gguf_file.GgufFile(path)


def test_a_file_of_another_kind_is_refused(tmp_path):
  path = tmp_path / 'model.gguf'
  path.write_bytes(b'version https://git-lfs.github.com/spec/v1\n')
  with pytest.raises(UserError, match='not a GGUF file'):
    gguf_file.GgufFile(path)


def test_another_version_is_refused(tmp_path):
  path = tmp_path / 'model.gguf'
  path.write_bytes(b'GGUF' + struct.pack('<IQQ', 1, 0, 0))
  with pytest.raises(UserError, match='version 1'):
    gguf_file.GgufFile(path)


def test_a_part_of_a_split_file_is_refused(write_gguf):
  path = write_gguf({'x': np.zeros(32, np.float32)}, fields={'split.count': 3})
  with pytest.raises(UserError, match='one of 3 parts'):
    gguf_file.GgufFile(path)


def test_unsupported_quantisation_names_tensor_type_and_choice(write_gguf):
  raw = np.zeros((2, 84), np.uint8)
  path = write_gguf(
      {'blk.0.ffn_up.weight': raw}, types={'blk.0.ffn_up.weight': _TYPE.Q2_K}
  )
  with pytest.raises(UserError, match=r'blk\.0\.ffn_up.*Q2_K.*Q4_K'):
    gguf_file.GgufFile(path)


def test_a_type_newer_than_the_package_is_refused_by_number(write_gguf):
  path = write_gguf({'x': np.zeros(32, np.float32)})
  data = path.read_bytes()
  # Name, one dimension, its size; then the type.
  place = data.index(b'\x01\0\0\0\0\0\0\0x') + 9 + 4 + 8
  path.write_bytes(data[:place] + struct.pack('<I', 999) + data[place + 4 :])
  with pytest.raises(UserError, match=r'x \(type 999\)'):
    gguf_file.GgufFile(path)
