"""The file of a bigram table, and what drafts look up in it."""

import dataclasses
import os

from jax import numpy as jnp
import numpy as np
import pytest

from speculative.errors import UserError
from speculative.retrieval import bigram_table
from speculative.retrieval import datastore
from speculative.retrieval import store_writer
from speculative.retrieval.bigram_counts import Counter
from speculative.retrieval.store_file import Source

_SOURCES = (Source('a/*.py', 3, 40, 1), Source('b.jsonl', 1, 9))
# After 1 comes 2 twice and 3 once, after 2 comes 1; 4 stands at an end alone.
_DOCUMENTS = [[1, 2, 1, 2], [1, 3], [4]]


def _counted(tmp_path, vocab_size=6, documents=_DOCUMENTS):
  counter = Counter(vocab_size, pairs_at_once=100, directory=tmp_path)
  for tokens in documents:
    counter.add(np.array(tokens))
  return counter.counted(3)


def _write(tmp_path, name='x', **settings):
  counted = _counted(tmp_path, **settings)
  path = tmp_path / name
  bigram_table.write(path, counted, tokenizer='aaaa', sources=_SOURCES)
  return path, counted


@pytest.mark.parametrize('vocab_size', [6, 70_000])
def test_what_is_written_reads_back(tmp_path, vocab_size):
  documents = [[1, 2, vocab_size - 1, 1, 2], [vocab_size - 1, 0]]
  path, counted = _write(tmp_path, vocab_size=vocab_size, documents=documents)
  found = bigram_table.open_table(path, tokenizer='aaaa')
  assert found.header.sources == _SOURCES
  assert found.header.vocab_size == vocab_size
  assert found.counted.num_tokens == 7
  assert found.counted.num_distinct == 4
  for field in dataclasses.fields(counted):
    expected = getattr(counted, field.name)
    got = getattr(found.counted, field.name)
    np.testing.assert_array_equal(got, expected, err_msg=field.name)


def test_the_first_bytes_are_as_documented(tmp_path):
  path, counted = _write(tmp_path)
  data = path.read_bytes()
  assert data[:16] == b'\x89SPECBG\n\x01\0\0\0\0\0\0\0'
  offset, length = np.frombuffer(data[16:32], '<u8').tolist()
  assert offset + length == len(data)
  assert data[offset:].startswith(b'{"tokenizer": "aaaa"')
  successors = np.frombuffer(data[64 : 64 + 4 * 18], '<i4')
  np.testing.assert_array_equal(successors, counted.successors_VW.reshape(-1))


def _spoiled(data: bytearray, damage: str) -> bytes:
  offset = int.from_bytes(data[16:24], 'little')
  if damage == 'cut':
    return data[:-1]
  if damage == 'cut to its start':
    return data[:20]
  if damage == 'empty':
    return b''
  if damage == 'version':
    data[8] = 2
  elif damage == 'header':
    data[offset + 20] ^= 1
  elif damage == 'bit':
    data[64] ^= 1
  return data


@pytest.mark.parametrize(
    ('damage', 'said'),
    [
        ('cut', 'where .* were written'),
        ('cut to its start', 'cut short: it has 20 bytes'),
        ('empty', 'is no bigram table'),
        ('version', 'has version 2, not 1'),
        ('header', 'checksum of its header'),
        ('bit', 'checksum of successors is another'),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path, damage, said):
  path, _ = _write(tmp_path)
  path.write_bytes(_spoiled(bytearray(path.read_bytes()), damage))
  with pytest.raises(UserError, match=said) as caught:
    bigram_table.open_table(path)
  assert '\n' not in str(caught.value)
  assert str(caught.value).startswith(f'bigram table {path} ')


@pytest.mark.parametrize('change', [{'size': 7}, {'offset': 65}])
def test_a_header_that_points_elsewhere_is_refused(
    tmp_path, monkeypatch, change
):
  add = store_writer.FileWriter.add
  monkeypatch.setattr(
      store_writer.FileWriter,
      'add',
      lambda self, data: dataclasses.replace(add(self, data), **change),
  )
  path, _ = _write(tmp_path)
  with pytest.raises(UserError, match='has an array successors'):
    bigram_table.open_table(path)


def test_a_table_is_no_datastore_and_a_datastore_no_table(tmp_path):
  path, _ = _write(tmp_path)
  with pytest.raises(UserError, match='is no datastore'):
    datastore.open_store(path)
  datastore.write(tmp_path / 'y', datastore.Facts('aaaa', 9), [])
  with pytest.raises(UserError, match='is no bigram table'):
    bigram_table.open_table(tmp_path / 'y')


def test_another_tokenizer_and_an_absent_file_are_refused(tmp_path):
  path, _ = _write(tmp_path)
  with pytest.raises(UserError, match='holds ids of the tokenizer aaaa'):
    bigram_table.open_table(path, tokenizer='bbbb')
  with pytest.raises(UserError, match="there is no bigram table .*'bigram'"):
    bigram_table.open_table(tmp_path / 'absent')
  with pytest.raises(UserError, match='cannot be read'):
    bigram_table.open_table(tmp_path)


def test_a_write_that_fails_leaves_the_older_file(tmp_path, monkeypatch):
  path, _ = _write(tmp_path)
  before = path.read_bytes()

  def fail(self, data):
    raise RuntimeError('killed')

  monkeypatch.setattr(store_writer.FileWriter, 'add', fail)
  with pytest.raises(RuntimeError):
    _write(tmp_path, documents=[[1, 1]])
  assert path.read_bytes() == before
  assert os.listdir(tmp_path) == ['x']


@pytest.mark.parametrize('fallback', ['frequent', 'none'])
def test_what_follows_and_how_likely_it_is(tmp_path, fallback):
  table = bigram_table.for_device(_counted(tmp_path))
  assert table.num_successors == 3
  # Known ones; one that ends a text, one that is not there; none at all.
  tokens_BN = jnp.array([[1, 2], [4, 0], [-1, 6]])
  got, scores = table.after(tokens_BN, fallback=fallback)
  assert got[0].tolist() == [[2, 3, -1], [1, -1, -1]]
  np.testing.assert_allclose(
      np.exp(scores[0]), [[2 / 3, 1 / 3, 0], [1, 0, 0]], rtol=1e-6
  )
  frequent, shares = [1, 2, 3], [3 / 7, 2 / 7, 1 / 7]
  if fallback == 'none':
    frequent, shares = [-1, -1, -1], [0, 0, 0]
  for row in (1, 2):
    assert got[row].tolist() == [frequent] * 2
    np.testing.assert_allclose(np.exp(scores[row]), [shares] * 2, rtol=1e-6)
