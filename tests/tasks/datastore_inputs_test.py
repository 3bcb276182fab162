import gzip
import json
import os
import pathlib
import sysconfig

import numpy as np
import pytest

from speculative.errors import UserError
from speculative.tasks.datastore_inputs import Inputs
from speculative.train import store as store_lib


def _inputs(*, texts=(), rows=(), row_field='text', stores=(), output='output'):
  return Inputs(
      texts=texts,
      rows=rows,
      row_field=row_field,
      stores=stores,
      tokenizer='aaaa',
      output=pathlib.Path(output),
  )


@pytest.fixture
def mixed(tmp_path):
  """Returns two files, three rows in two files, and two collected texts."""
  for name in ('a.txt', 'b.txt'):
    (tmp_path / name).write_text(name)
  (tmp_path / 'a.jsonl').write_text('{"text": "one"}\n\n{"text": ["two"]}\n')
  with gzip.open(tmp_path / 'b.jsonl.gz', 'wt') as file:
    file.write(json.dumps({'text': 'three'}))
  writer = store_lib.Writer(tmp_path / 'store', tokenizer='aaaa')
  writer.add([store_lib.Document(np.array([4])) for _ in range(2)])
  writer.close()
  return _inputs(
      texts=(f'{tmp_path}/*.txt',),
      rows=(f'{tmp_path}/*.jsonl*',),
      stores=(f'{tmp_path}/store',),
  )


@pytest.mark.parametrize('first', range(8))
def test_documents_are_numbered_across_all_sources(mixed, tmp_path, first):
  every = list(mixed.items(0))
  wheres = [item.where.removeprefix(f'{tmp_path}/') for item in every]
  assert wheres == [
      'a.txt',
      'b.txt',
      'a.jsonl:1',
      'a.jsonl:3',
      'b.jsonl.gz:1',
      'store#0',
      'store#1',
  ]
  assert [item.source for item in every] == [0, 0, 1, 1, 1, 2, 2]
  assert [item.text for item in every[2:5]] == ['one', 'two', 'three']
  assert every[6].tokens.tolist() == [4]
  assert [item.where for item in mixed.items(first)] == [
      item.where for item in every[first:]
  ]


def test_sizes_add_up_for_progress(mixed):
  every = list(mixed.items(0))
  assert all(item.size >= 0 for item in every)
  assert sum(item.size for item in every) == pytest.approx(mixed.size, rel=0.1)


@pytest.mark.parametrize('first', [0, 1, 4, 7])
def test_what_is_skipped_and_what_is_left_are_all(mixed, first):
  skipped = []
  left = list(mixed.items(first, on_skipped=skipped.append))
  every = [item.size for item in mixed.items(0)]
  assert skipped == every[:first]
  assert [item.size for item in left] == every[first:]


def test_a_file_is_taken_once_and_the_output_not_at_all(tmp_path):
  for name in ('a', 'b', 'x.store', 'x.store.txt'):
    (tmp_path / name).write_text('text')
  (tmp_path / 'again').symlink_to(tmp_path / 'a')
  for name in ('x.store.partial', 'x.store.partial.done'):
    (tmp_path / name).mkdir()
    (tmp_path / name / 'part_00000').write_text('text')
  found = _inputs(
      texts=(f'{tmp_path}/**', f'{tmp_path}/[ab]*'), output=tmp_path / 'x.store'
  )
  names = [os.path.relpath(path, tmp_path) for path in found.paths]
  assert names == ['a', 'b', 'x.store.txt']
  assert len(found.sources) == 2


def test_a_store_may_lie_in_the_home_directory(tmp_path, monkeypatch):
  writer = store_lib.Writer(tmp_path / 'store', tokenizer='aaaa')
  writer.add([store_lib.Document(np.array([4]))])
  writer.close()
  monkeypatch.setenv('HOME', str(tmp_path))
  found = _inputs(stores=('~/store',))
  assert [item.tokens.tolist() for item in found.items(0)] == [[4]]
  assert found.sources[0].name == '~/store'


def test_what_changed_is_something_else(mixed, tmp_path):
  before = json.dumps(mixed.identity())
  assert json.dumps(mixed.identity()) == before
  os.utime(tmp_path / 'a.txt', ns=(0, 0))
  assert json.dumps(mixed.identity()) != before


def test_the_standard_library_has_no_installed_packages():
  found = _inputs(texts=('python:stdlib',))
  root = sysconfig.get_path('stdlib')
  assert os.path.join(root, 'json', 'decoder.py') in found.paths
  assert not [path for path in found.paths if 'site-packages' in path]


def test_a_row_that_is_not_what_it_should_be_is_named(tmp_path):
  path = tmp_path / 'a.jsonl'
  for text, said in (('[1]\n', "a.jsonl:1 has no field 'text'"), ('?', 'JSON')):
    path.write_text(text)
    with pytest.raises(UserError, match=said):
      _inputs(rows=(str(path),))
  path.write_text('[1, "a", {"x": "b"}]')
  (item,) = _inputs(rows=(str(path),), row_field='').items(0)
  assert item.text == 'a\nb'
