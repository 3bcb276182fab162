import json

import ml_dtypes
import numpy as np
import pytest

from speculative.checkpoints import hf_dir
from speculative.errors import UserError


@pytest.mark.parametrize('num_shards', [1, 3])
def test_every_tensor_is_read_from_its_file(
    write_hf, hf_config, hf_tensors, num_shards
):
  opened = hf_dir.HfDirectory(write_hf(hf_config, hf_tensors, num_shards))
  assert set(opened.tensors) == set(hf_tensors)
  for name, tensor in hf_tensors.items():
    assert opened.tensors[name].shape == tensor.shape
    assert opened.tensors[name].num_bytes == tensor.nbytes
    np.testing.assert_array_equal(opened.read(name), tensor)


@pytest.mark.parametrize(
    'dtype', [ml_dtypes.bfloat16, np.float16, np.float64], ids=str
)
def test_read_keeps_the_dtype_of_the_file(write_hf, dtype):
  x = np.array([[1.0, -2.5, 0.125]], dtype)
  got = hf_dir.HfDirectory(write_hf({}, {'x': x})).read('x')
  assert got.dtype == dtype
  np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize('kept', [0, 5, 100, -1], ids=lambda n: f'{n}_bytes')
def test_a_cut_file_is_refused_when_opened(
    write_hf, hf_config, hf_tensors, kept
):
  path = write_hf(hf_config, hf_tensors)
  file = path / 'model.safetensors'
  file.write_bytes(file.read_bytes()[:kept])
  with pytest.raises(UserError, match='cut short.*fetch it again'):
    hf_dir.HfDirectory(path)


def test_absent_shards_are_named(write_hf, hf_config, hf_tensors):
  path = write_hf(hf_config, hf_tensors, num_shards=3)
  (path / 'model-00002-of-00003.safetensors').unlink()
  with pytest.raises(UserError, match='1 of 3.*model-00002-of-00003'):
    hf_dir.HfDirectory(path)


def test_tensors_that_only_the_index_has_are_named(
    write_hf, hf_config, hf_tensors
):
  path = write_hf(hf_config, hf_tensors, num_shards=2)
  index = path / 'model.safetensors.index.json'
  d = json.loads(index.read_text())
  d['weight_map']['ghost'] = d['weight_map']['lm_head.weight']
  index.write_text(json.dumps(d))
  with pytest.raises(UserError, match='ghost'):
    hf_dir.HfDirectory(path)


def test_a_directory_without_safetensors_is_refused(tmp_path):
  (tmp_path / 'pytorch_model.bin').write_bytes(b'x')
  with pytest.raises(UserError, match=r'neither model\.safetensors nor'):
    hf_dir.HfDirectory(tmp_path)


def test_integer_tensors_are_refused_by_name(write_hf):
  path = write_hf({}, {'qweight': np.zeros((2, 2), np.int32)})
  with pytest.raises(UserError, match=r'qweight \(I32\)'):
    hf_dir.HfDirectory(path)


@pytest.mark.parametrize(
    'text, message',
    [('{"a": ', 'not valid JSON'), ('[1]', 'JSON object'), (None, 'read')],
)
def test_read_json_says_what_is_wrong(tmp_path, text, message):
  path = tmp_path / 'config.json'
  if text is not None:
    path.write_text(text)
  with pytest.raises(UserError, match=message):
    hf_dir.read_json(path)
