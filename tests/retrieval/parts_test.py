import numpy as np
import pytest

from speculative.errors import UserError
from speculative.retrieval import datastore
from speculative.retrieval.datastore import Facts
from speculative.retrieval.parts import Counts
from speculative.retrieval.parts import Parts
from speculative.retrieval.parts import Place
from speculative.retrieval.store_file import Source

_FACTS = Facts('aaaa', 9, sources=(Source('a'), Source('b')))


def _open(path, inputs='some'):
  return Parts(path, _FACTS, inputs, before=None)


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


def test_a_damaged_part_is_named(tmp_path):
  with _open(tmp_path / 'x') as parts:
    parts.add([_shard(1)], _counts((0, 2)), Place(1))
  (tmp_path / 'x.partial/part_00000').write_bytes(b'')
  with _open(tmp_path / 'x') as parts:
    with pytest.raises(UserError, match='part_00000 is no datastore'):
      parts.place()
