import errno
import json

import ml_dtypes
import numpy as np
import pytest

from speculative.errors import UserError
from speculative.train import store
from speculative.train.store import Document


def _documents(*lens, domain='code', largest=99):
  rng = np.random.default_rng(sum(lens))
  return [Document(rng.integers(0, largest, n), n // 2, domain) for n in lens]


def _writer(path, **changed):
  settings = {'tokenizer': 'tok', 'mark': 'm', 'domains': ('text', 'code')}
  return store.Writer(path, **settings | changed)


def _assert_same(found, wanted):
  np.testing.assert_array_equal(found.tokens, wanted.tokens)
  assert (found.prompt_len, found.domain) == (wanted.prompt_len, wanted.domain)


def test_documents_come_back_across_shards_in_their_order(tmp_path):
  first, second = _documents(5, 1, 3), _documents(4, domain='text')
  writer = _writer(tmp_path / 'there')
  writer.add(first)
  writer.add([])
  writer.add(second)
  found = store.open_store(tmp_path / 'there', tokenizer='tok', mark='m')
  assert (found.num_documents, found.num_tokens) == (4, 13)
  assert found.lens().tolist() == [5, 1, 3, 4]
  assert not found.is_scored
  for i, document in enumerate([*first, *second]):
    _assert_same(found.document(i), document)
  for i in (-1, 4):
    with pytest.raises(IndexError):
      found.document(i)


def test_ids_take_two_bytes_unless_they_need_more(tmp_path):
  writer = _writer(tmp_path)
  writer.add([Document(np.array([0, 65535]))])
  writer.add([Document(np.array([0, 65536]))])
  found = store.open_store(tmp_path)
  assert [found.document(i).tokens.dtype for i in (0, 1)] == ['u2', 'u4']
  assert [found.document(i).tokens[1] for i in (0, 1)] == [65535, 65536]


def test_a_writer_goes_on_after_the_last_finished_shard(tmp_path):
  writer = _writer(tmp_path, about={'seed': 1, 'temperatures': (0.0, 1.0)})
  writer.add(_documents(3), facts={'next': 7})
  writer.close()
  # A shard without an index entry is not finished, whatever its files say.
  for name in ('.shard_00001', 'shard_00001'):
    (tmp_path / name).mkdir()
    (tmp_path / name / 'tokens.npy').write_text('half')
  assert store.open_store(tmp_path).num_documents == 1
  writer = _writer(tmp_path, about={'seed': 1, 'temperatures': (0.0, 1.0)})
  assert not list(tmp_path.glob('*shard_00001'))
  assert writer.index.shards[-1].facts == {'next': 7}
  writer.add(_documents(2))
  assert store.open_store(tmp_path).lens().tolist() == [3, 2]


@pytest.mark.parametrize(
    ('changed', 'said'),
    [
        ({'tokenizer': 'other'}, "tokenizer 'tok', not 'other'"),
        ({'mark': 'other'}, "target 'm', not 'other'"),
        ({'domains': ('code',)}, 'domains'),
        ({'about': {'seed': 2}}, "seed '1', not '2'"),
    ],
)
def test_a_store_that_was_made_in_another_way_is_refused(
    tmp_path, changed, said
):
  _writer(tmp_path, about={'seed': 1}).close()
  with pytest.raises(UserError, match=said):
    _writer(tmp_path, **{'about': {'seed': 1}} | changed)


def test_two_writers_at_once_are_refused(tmp_path):
  writer = _writer(tmp_path)
  with pytest.raises(UserError, match='another process writes'):
    _writer(tmp_path)
  writer.close()
  _writer(tmp_path)


def test_a_directory_with_something_else_in_it_is_left_alone(tmp_path):
  (tmp_path / 'shard_00000').mkdir()
  with pytest.raises(UserError, match='no token store'):
    _writer(tmp_path)
  assert (tmp_path / 'shard_00000').exists()


@pytest.mark.parametrize(
    'index', [None, '', '{}', '[]', '{"format": "other"}', '{"format":']
)
def test_what_is_no_store_is_an_error_of_one_line(tmp_path, index):
  if index is not None:
    (tmp_path / 'index.json').write_text(index)
  with pytest.raises(UserError, match='is no token store') as caught:
    store.open_store(tmp_path)
  assert '\n' not in str(caught.value)


def test_another_tokenizer_is_refused_when_reading(tmp_path):
  _writer(tmp_path)
  with pytest.raises(UserError, match="tokenizer 'tok', not 'other'"):
    store.open_store(tmp_path, tokenizer='other')
  with pytest.raises(UserError, match="target 'm', not 'other'"):
    store.open_store(tmp_path, mark='other')


def test_a_damaged_shard_is_named(tmp_path):
  writer = _writer(tmp_path)
  writer.add(_documents(3))
  np.save(tmp_path / 'shard_00000/tokens.npy', np.zeros(2, np.uint16))
  with pytest.raises(UserError, match='shard_00000 is damaged: tokens has 2'):
    store.open_store(tmp_path).document(0)
  (tmp_path / 'shard_00000/tokens.npy').unlink()
  with pytest.raises(UserError, match='shard_00000 is damaged'):
    store.open_store(tmp_path).document(0)


@pytest.mark.parametrize(
    'document',
    [Document(np.array([], int)), Document(np.array([1]), 2)],
    ids=['empty', 'prompt longer than it'],
)
def test_documents_that_cannot_be_are_refused(tmp_path, document):
  with pytest.raises(ValueError, match='a document is empty'):
    _writer(tmp_path).add([document])
  assert store.open_store(tmp_path).num_documents == 0


def test_scores_belong_to_their_tokens(tmp_path):
  writer = _writer(tmp_path)
  writer.add(_documents(3, 2))
  writer.add(_documents(4))
  hidden = np.arange(10).reshape(5, 2).astype(ml_dtypes.bfloat16)
  log_norm = np.arange(5, dtype=np.float32)
  store.write_scores(tmp_path / 'shard_00000', hidden=hidden, log_norm=log_norm)
  found = store.open_store(tmp_path)
  assert [found.is_shard_scored(i) for i in (0, 1)] == [True, False]
  assert not found.is_scored
  document = found.document(1)
  assert document.hidden.dtype == ml_dtypes.bfloat16
  np.testing.assert_array_equal(document.hidden, hidden[3:])
  np.testing.assert_array_equal(document.log_norm, log_norm[3:])
  assert found.document(2).hidden is None


@pytest.fixture
def full_disk(monkeypatch):
  """Lets a file of this name be written by half, and no further."""

  def fill(name):
    save = np.save

    def refuse(path, array):
      save(path, array)
      if path.name.lstrip('.') == name:
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(np, 'save', refuse)

  return fill


def _assert_refused(path, call):
  with pytest.raises(UserError, match='No space left') as caught:
    call()
  assert str(path) in str(caught.value)
  assert '\n' not in str(caught.value)


def test_a_shard_that_finds_no_space_leaves_nothing(
    tmp_path, full_disk, monkeypatch
):
  writer = _writer(tmp_path)
  writer.add(_documents(3))
  before = sorted(tmp_path.iterdir())
  full_disk('starts.npy')
  _assert_refused(tmp_path / 'shard_00001', lambda: writer.add(_documents(2)))
  assert sorted(tmp_path.iterdir()) == before
  monkeypatch.undo()
  # The same at the very end, where only the index is missing.
  monkeypatch.setattr(store.store_index, 'write', _no_space)
  _assert_refused(tmp_path, lambda: writer.add(_documents(2)))
  assert sorted(tmp_path.iterdir()) == before
  monkeypatch.undo()
  writer.add(_documents(2))
  assert store.open_store(tmp_path).lens().tolist() == [3, 2]


def _no_space(*unused):
  raise OSError(errno.ENOSPC, 'No space left on device')


def test_scores_that_find_no_space_leave_nothing(tmp_path, full_disk):
  _writer(tmp_path).add(_documents(3))
  shard = tmp_path / 'shard_00000'
  before = sorted(shard.iterdir())
  full_disk('log_norm.npy')
  hidden = np.zeros((3, 2), ml_dtypes.bfloat16)
  _assert_refused(
      shard,
      lambda: store.write_scores(shard, hidden=hidden, log_norm=np.zeros(3)),
  )
  assert sorted(shard.iterdir()) == before


def test_a_place_that_cannot_be_is_an_error_of_one_line(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(UserError, match='file/store cannot be written') as caught:
    _writer(tmp_path / 'file/store')
  assert '\n' not in str(caught.value)


def test_documents_that_bring_their_scores_make_a_scored_shard(tmp_path):
  writer = _writer(tmp_path)
  documents = [
      Document(
          np.arange(n),
          hidden=np.full((n, 2), n, ml_dtypes.bfloat16),
          log_norm=np.full(n, n, np.float32),
      )
      for n in (3, 2)
  ]
  writer.add(documents)
  assert store.open_store(tmp_path).is_scored
  found = store.open_store(tmp_path).document(1)
  np.testing.assert_array_equal(found.hidden, documents[1].hidden)
  np.testing.assert_array_equal(found.log_norm, [2, 2])
  writer.add([*documents, *_documents(2)])
  assert not store.open_store(tmp_path).is_scored


def test_the_index_is_plain_json(tmp_path):
  _writer(tmp_path).add(_documents(3, 2), facts={'next': 2})
  assert json.loads((tmp_path / 'index.json').read_text()) == {
      'format': 'speculative-tokens',
      'tokenizer': 'tok',
      'mark': 'm',
      'domains': ['text', 'code'],
      'about': {},
      'shards': [
          {
              'name': 'shard_00000',
              'num_documents': 2,
              'num_tokens': 5,
              'facts': {'next': 2},
          }
      ],
  }
