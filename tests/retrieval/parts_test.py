import dataclasses
import os
import pathlib

import numpy as np
import pytest

from speculative.errors import UserError
from speculative.retrieval import datastore
from speculative.retrieval import parts as parts_lib
from speculative.retrieval.datastore import Facts
from speculative.retrieval.parts import Counts
from speculative.retrieval.parts import Parts
from speculative.retrieval.parts import Place
from speculative.retrieval.store_file import Source

_FACTS = Facts('aaaa', 9, sources=(Source('a'), Source('b')))


def _open(path, inputs='some', *, before=None):
  return Parts(path, _FACTS, inputs, before=before)


def _counts(*documents):
  counts = Counts(2)
  for source, num_tokens in documents:
    counts.add(source, num_tokens, 0)
  return counts


def _shard(*tokens):
  return datastore.make_shard(np.array([*tokens, 9]), separator=9)


def test_parts_wait_in_their_order_and_become_one_file(tmp_path):
  path = tmp_path / 'x'
  with _open(path) as parts:
    assert parts.place() == Place()
    parts.add([_shard(1, 2)], _counts((0, 3)), Place(1, 2))
  with _open(path) as parts:
    assert parts.place() == Place(1, 2)
    counts = _counts((0, 2), (1, 2))
    counts.add(1, 0, 7)
    parts.add([_shard(3)], counts, Place(4))
    assert parts.place() == Place(4)
    assert not path.exists()
    parts.finish()
  store = datastore.open_store(path)
  assert [s.tokens().tolist() for s in store.shards] == [[1, 2, 9], [3, 9]]
  assert store.facts.sources == (Source('a', 2, 5), Source('b', 1, 2, 1, 7))
  assert not (tmp_path / 'x.partial').exists()


def test_a_kill_before_the_plan_was_written_is_no_hindrance(tmp_path):
  (tmp_path / 'x.partial').mkdir()
  with _open(tmp_path / 'x') as parts:
    assert parts.place() == Place()


@pytest.mark.parametrize('text', ['', '{}', 'nonsense', '[1]'])
def test_a_plan_that_cannot_be_read_is_another_one(tmp_path, text):
  with _open(tmp_path / 'x'):
    pass
  (tmp_path / 'x.partial/plan.json').write_text(text)
  with pytest.raises(UserError, match='holds an unfinished datastore'):
    with _open(tmp_path / 'x'):
      pass


def _keep(parts, *tokens):
  number = parts.place().document
  parts.add([_shard(*tokens)], _counts((0, len(tokens) + 1)), Place(number + 1))


def _tokens(path):
  shards = datastore.open_store(path, verify='all').shards
  return [shard.tokens().tolist() for shard in shards]


class _Killed(Exception):
  pass


def _finish_killed(path, monkeypatch, *, inputs, tokens, before=None):
  """Appends, killed once the datastore is there and its parts are too."""
  with monkeypatch.context() as patch, pytest.raises(_Killed):
    patch.setattr(parts_lib.os, 'replace', _but_directories)
    with _open(path, inputs, before=before) as parts:
      _keep(parts, *tokens)
      parts.finish()


def _but_directories(source, target, *, replace=os.replace):
  if pathlib.Path(source).is_dir():
    raise _Killed
  replace(source, target)


def test_what_another_append_left_does_not_keep_one_from_its_work(
    tmp_path, monkeypatch
):
  path = tmp_path / 'x'
  _finish_killed(path, monkeypatch, inputs='first', tokens=[1])
  assert (tmp_path / 'x.partial').exists()
  before = datastore.open_store(path)
  with _open(path, 'first', before=before) as parts:
    assert parts.is_finished
  _finish_killed(path, monkeypatch, inputs='first', tokens=[1])
  before = datastore.open_store(path)
  with _open(path, 'second', before=before) as parts:
    assert not parts.is_finished
    assert parts.place() == Place()
    _keep(parts, 1)
    _keep(parts, 2)
    parts.finish()
  assert _tokens(path) == [[1, 9], [2, 9]]
  assert os.listdir(tmp_path) == ['x']


def test_a_half_removed_directory_is_not_gone_on_with(tmp_path, monkeypatch):
  path = tmp_path / 'x'

  def remove_one(directory):
    os.unlink(directory / 'part_00000')
    raise _Killed

  with monkeypatch.context() as patch, pytest.raises(_Killed):
    patch.setattr(parts_lib, '_remove', lambda d: d.exists() and remove_one(d))
    with _open(path) as parts:
      _keep(parts, 1)
      _keep(parts, 2)
      parts.finish()
  with _open(path) as parts:
    assert parts.place() == Place()
  assert _tokens(path) == [[1, 9], [2, 9]]


@pytest.mark.parametrize('absent', [0, 1])
def test_a_missing_part_is_named_and_none_is_written_over(tmp_path, absent):
  path = tmp_path / 'x'
  with _open(path) as parts:
    for token in range(3):
      _keep(parts, token)
  (tmp_path / f'x.partial/part_0000{absent}').unlink()
  with _open(path) as parts:
    said = f'x.partial has no part_0000{absent}, but later'
    with pytest.raises(UserError, match=said):
      parts.place()
    with pytest.raises(UserError, match=said):
      parts.add([_shard(5)], _counts((0, 2)), Place(4))
    with pytest.raises(UserError, match=said):
      parts.finish()
  assert not path.exists()


def test_what_cannot_be_removed_is_no_error_once_the_datastore_is_there(
    tmp_path, monkeypatch
):
  def refuse(*unused, **unused_too):
    raise PermissionError('no')

  with monkeypatch.context() as patch:
    patch.setattr(parts_lib.shutil, 'rmtree', refuse)
    with _open(tmp_path / 'x') as parts:
      _keep(parts, 1)
      parts.finish()
  assert _tokens(tmp_path / 'x') == [[1, 9]]


def test_parts_without_a_plan_belong_to_nobody(tmp_path):
  with _open(tmp_path / 'x', 'others') as parts:
    _keep(parts, 1)
  (tmp_path / 'x.partial/plan.json').unlink()
  with _open(tmp_path / 'x') as parts:
    assert parts.place() == Place()
    _keep(parts, 2)
    parts.finish()
  assert _tokens(tmp_path / 'x') == [[2, 9]]


def test_an_append_keeps_what_was_known_of_the_datastore(tmp_path):
  path = tmp_path / 'x'
  facts = dataclasses.replace(
      _FACTS, sources=(Source('c', 1, 2, 3, 4),), about={'reduced': 7}
  )
  datastore.write(path, facts, [_shard(1)])
  with _open(path, before=datastore.open_store(path)) as parts:
    _keep(parts, 1)
    _keep(parts, 2)
    parts.finish()
  found = datastore.open_store(path).facts
  assert found.about['reduced'] == 7
  assert found.sources[0] == Source('c', 1, 2, 3, 4)


def test_a_part_damaged_after_it_was_written_is_not_taken(tmp_path):
  with _open(tmp_path / 'x') as parts:
    _keep(parts, 1, 2, 3)
    part = tmp_path / 'x.partial/part_00000'
    data = part.read_bytes()
    part.write_bytes(data[:64] + b'\2' + data[65:])
    with pytest.raises(UserError, match='part_00000 is corrupt'):
      parts.finish()
  assert not (tmp_path / 'x').exists()


def test_a_damaged_part_is_named(tmp_path):
  with _open(tmp_path / 'x') as parts:
    parts.add([_shard(1)], _counts((0, 2)), Place(1))
  (tmp_path / 'x.partial/part_00000').write_bytes(b'')
  with _open(tmp_path / 'x') as parts:
    with pytest.raises(UserError, match='part_00000 is no datastore'):
      parts.place()
