import dataclasses
import os

import numpy as np
import pytest

from speculative.errors import UserError
from speculative.retrieval import datastore
from speculative.retrieval import store_file
from speculative.retrieval import store_writer
from speculative.retrieval.datastore import Facts
from speculative.retrieval.datastore import ShardView
from speculative.retrieval.store_file import Source

_SOURCES = (Source('a/*.py', 3, 40, 1), Source('b.jsonl', 1, 9))


def _shard(vocab_size, *, seed=0):
  """Makes a shard of two documents with the smallest and the largest id."""
  rng = np.random.default_rng(seed)
  ids = rng.choice([0, 1, vocab_size // 2, vocab_size - 1], 30)
  tokens = np.concatenate([ids[:10], [vocab_size], ids, [vocab_size]])
  return tokens, datastore.make_shard(tokens, separator=vocab_size)


def _write(path, vocab_size=1000, seeds=(0, 1)):
  shards = [_shard(vocab_size, seed=seed)[1] for seed in seeds]
  facts = Facts('aaaa', vocab_size, sources=_SOURCES, about={'x': [1]})
  datastore.write(path, facts, iter(shards))
  return facts, shards


@pytest.mark.parametrize(
    ('vocab_size', 'id_bytes'),
    [(65_535, 2), (65_536, 3), (2**24 - 1, 3), (2**24, 4)],
)
def test_what_is_written_reads_back(tmp_path, vocab_size, id_bytes):
  path = tmp_path / 'x.store'
  facts, shards = _write(path, vocab_size)
  found = datastore.open_store(path, tokenizer='aaaa', verify='all')
  assert found.facts == facts
  assert found.header.id_bytes == id_bytes
  assert found.header.separator == vocab_size
  assert (found.num_tokens, found.num_documents) == (84, 4)
  for seed, (shard, view) in enumerate(zip(shards, found.shards, strict=True)):
    tokens, _ = _shard(vocab_size, seed=seed)
    assert view.tokens().tolist() == tokens.tolist()
    assert view.suffixes.tolist() == shard.suffixes.tolist()
    assert view.suffixes.dtype == np.uint32
    assert (view.high is None) == (id_bytes != 3)
    assert not view.suffixes.flags.owndata


def test_a_datastore_may_be_empty(tmp_path):
  datastore.write(tmp_path / 'x', Facts('aaaa', 9), [])
  assert datastore.open_store(tmp_path / 'x', verify='all').shards == ()


def test_the_first_bytes_are_as_documented(tmp_path):
  _write(tmp_path / 'x')
  data = (tmp_path / 'x').read_bytes()
  assert data[:16] == b'\x89SPECDS\n\x01\0\0\0\0\0\0\0'
  offset, length = np.frombuffer(data[16:32], '<u8').tolist()
  assert offset + length == len(data)
  assert data[offset:].startswith(b'{"tokenizer": "aaaa"')
  shard = datastore.open_store(tmp_path / 'x').header.shards[0]
  assert shard.arrays['low'].offset == 64
  assert data[64 : 64 + 84] == _shard(1000)[1].low.tobytes()


def _spoil(path, damage):
  data = bytearray(path.read_bytes())
  offset = int.from_bytes(data[16:24], 'little')
  if damage == 'cut':
    data = data[:-1]
  elif damage == 'cut to its start':
    data = data[:20]
  elif damage == 'longer':
    data += b'\0'
  elif damage == 'empty':
    data = b''
  elif damage == 'text':
    data = b'x' * len(data)
  elif damage == 'version':
    data[8] = 2
  elif damage == 'header':
    data[offset + 20] ^= 1
  elif damage == 'checksum':
    data[40] ^= 1
  path.write_bytes(data)


@pytest.mark.parametrize(
    ('damage', 'said'),
    [
        ('cut', 'where .* were written'),
        ('cut to its start', 'cut short: it has 20 bytes'),
        ('longer', 'where .* were written'),
        ('empty', 'is no datastore'),
        ('text', 'is no datastore'),
        ('version', 'has version 2, not 1'),
        ('header', 'checksum of its header'),
        ('checksum', 'checksum of its header'),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path, damage, said):
  path = tmp_path / 'x'
  _write(path)
  _spoil(path, damage)
  with pytest.raises(UserError, match=said) as caught:
    datastore.open_store(path)
  assert '\n' not in str(caught.value)
  assert str(path) in str(caught.value)


@pytest.mark.parametrize('name', ['low', 'suffixes'])
def test_a_flipped_bit_of_an_array_is_found_by_its_checksum(tmp_path, name):
  path = tmp_path / 'x'
  _write(path)
  array = datastore.open_store(path).header.shards[1].arrays[name]
  data = bytearray(path.read_bytes())
  data[array.offset + 5] ^= 4
  path.write_bytes(data)
  datastore.open_store(path)
  with pytest.raises(UserError, match=f'checksum of {name} of shard 1'):
    datastore.open_store(path, verify='all')


@pytest.mark.parametrize(
    'change',
    [{'size': 43}, {'offset': 65}, {'offset': 10**9}, {'offset': -64}],
)
def test_a_header_that_points_outside_is_refused(tmp_path, monkeypatch, change):
  path = tmp_path / 'x'
  add = store_writer.FileWriter.add
  monkeypatch.setattr(
      store_writer.FileWriter,
      'add',
      lambda self, data: dataclasses.replace(add(self, data), **change),
  )
  _write(path)
  with pytest.raises(UserError, match='has an array low'):
    datastore.open_store(path)


def test_another_tokenizer_and_an_absent_file_are_refused(tmp_path):
  _write(tmp_path / 'x')
  with pytest.raises(UserError, match='holds ids of the tokenizer aaaa'):
    datastore.open_store(tmp_path / 'x', tokenizer='bbbb')
  with pytest.raises(UserError, match='there is no datastore'):
    datastore.open_store(tmp_path / 'absent')
  with pytest.raises(UserError, match='cannot be read'):
    datastore.open_store(tmp_path)


def test_a_file_replaced_while_it_is_opened_is_read_as_it_was(
    tmp_path, monkeypatch
):
  path, other = tmp_path / 'x', tmp_path / 'y'
  _write(path)
  _write(other, seeds=(2,))
  read = store_file.read_header

  def and_replace(file):
    header = read(file)
    os.replace(other, path)
    return header

  monkeypatch.setattr(store_file, 'read_header', and_replace)
  store = datastore.open_store(path, verify='all')
  assert store.shards[1].tokens().tolist() == _shard(1000, seed=1)[0].tolist()


def test_a_write_that_fails_leaves_the_older_file(tmp_path):
  path = tmp_path / 'x'
  _write(path)
  before = path.read_bytes()

  def dying():
    yield _shard(1000)[1]
    raise RuntimeError('killed')

  with pytest.raises(RuntimeError):
    datastore.write(path, Facts('aaaa', 1000), dying())
  assert path.read_bytes() == before
  assert os.listdir(tmp_path) == ['x']


def test_what_a_killed_writer_left_is_overwritten(tmp_path):
  path = tmp_path / 'x'
  (tmp_path / '.x.new').write_bytes(b'y' * 10_000)
  _write(path)
  datastore.open_store(path, verify='all')
  assert os.listdir(tmp_path) == ['x']


def test_two_processes_do_not_write_one_file(tmp_path):
  path = tmp_path / 'x'

  def meanwhile():
    with pytest.raises(UserError, match='another process writes'):
      _write(path)
    yield _shard(1000)[1]

  datastore.write(path, Facts('aaaa', 1000), meanwhile())
  assert len(datastore.open_store(path, verify='all').shards) == 1


def test_a_directory_that_is_not_there_is_the_users_mistake(tmp_path):
  with pytest.raises(UserError, match='cannot be written'):
    _write(tmp_path / 'absent/x')


def test_tokens_of_three_bytes_are_put_together():
  view = ShardView(
      np.array([1, 2], np.uint16),
      np.array([0, 3], np.uint8),
      np.zeros(2, np.uint32),
      0,
  )
  assert view.tokens().tolist() == [1, 2 + 3 * 65_536]
