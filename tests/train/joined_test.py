import ml_dtypes
import numpy as np
import pytest

from speculative.errors import UserError
from speculative.train import joined
from speculative.train import store as store_lib
from speculative.train.store import Document


def _write(path, *documents, mark='m', scored='yes'):
  domains = sorted({document.domain for document in documents})
  writer = store_lib.Writer(path, tokenizer='t', mark=mark, domains=domains)
  writer.add(documents)
  writer.close()
  if scored == 'yes':
    num = sum(len(document.tokens) for document in documents)
    store_lib.write_scores(
        path / writer.index.shards[0].name,
        hidden=np.zeros((num, 2), ml_dtypes.bfloat16),
        log_norm=np.zeros(num),
    )
  return path


def _open(*paths):
  return joined.open_stores(paths, tokenizer='t', mark='m')


def test_documents_of_all_stores_are_numbered_on(tmp_path):
  texts = [np.arange(n) for n in (3, 2, 4)]
  one = _write(
      tmp_path / 'a',
      Document(texts[0], 1, 'chat'),
      Document(texts[1], 0, 'code'),
  )
  two = _write(tmp_path / 'b', Document(texts[2], 2, 'chat'))
  found = _open(one, two)
  assert (found.num_documents, found.num_tokens) == (3, 9)
  assert found.domains == ('chat', 'code')
  assert found.lens().tolist() == [3, 2, 4]
  assert found.is_scored
  for i, text in enumerate(texts):
    np.testing.assert_array_equal(found.document(i).tokens, text)
  last = found.document(2)
  assert (last.prompt_len, last.domain) == (2, 'chat')
  for outside in (-1, 3):
    with pytest.raises(IndexError):
      found.document(outside)


def test_scores_are_of_this_target_and_of_all_or_none(tmp_path):
  document = Document(np.arange(3), 0, 'text')
  mine = _write(tmp_path / 'mine', document)
  bare = _write(tmp_path / 'bare', document, mark='other', scored='no')
  other = _write(tmp_path / 'other', document, mark='other')
  # What nobody scored is any target's.
  assert not _open(bare).is_scored
  with pytest.raises(UserError, match='other.*target'):
    _open(mine, other)
  with pytest.raises(UserError, match='bare has no hidden states .*mine has'):
    _open(mine, bare)


def test_a_directory_is_not_read_twice(tmp_path):
  path = _write(tmp_path / 'a', Document(np.arange(3), 0, 'text'))
  (tmp_path / 'link').symlink_to(path)
  for again in (path, f'{path}/.', tmp_path / 'link'):
    with pytest.raises(UserError, match='are the same directory') as error:
      _open(path, again)
    assert '\n' not in str(error.value)
