import contextlib
import os

import numpy as np
import pytest

from speculative.errors import UserError
from speculative.retrieval import build
from speculative.retrieval import datastore
from speculative.retrieval import parts
from speculative.retrieval.build import Document
from speculative.retrieval.build import Plan
from speculative.retrieval.datastore import Facts
from speculative.retrieval.store_file import Source

_VOCAB = 70_000


def _documents(num, seed=0):
  rng = np.random.default_rng(seed)
  found = [
      Document([rng.integers(0, _VOCAB, rng.integers(0, 12))], int(i % 2))
      for i in range(num)
  ]
  cut = Document([np.arange(3), np.arange(4)], 0, 5)
  return [*found, Document([], 1, 9), cut, Document([np.arange(50)], 0)]


def _plan(path, shard_tokens=20, inputs='some', **facts):
  sources = (Source('a'), Source('b'))
  return Plan(
      path,
      Facts('aaaa', _VOCAB, sources=sources, **facts),
      shard_tokens,
      inputs,
  )


def _build(path, documents, **fields):
  before = fields.pop('before', None)
  on_shard = fields.pop('on_shard', lambda *args: None)
  return build.build(
      _plan(path, **fields),
      lambda first: iter(documents[first:]),
      before=before,
      on_shard=on_shard,
  )


def _texts(store):
  return [
      tokens.tolist()
      for shard in store.shards
      for tokens in build.split(shard, separator=_VOCAB)
  ]


def _shards(store):
  return [
      (shard.tokens().tolist(), shard.suffixes.tolist())
      for shard in store.shards
  ]


def test_documents_are_there_in_their_order_and_counted(tmp_path):
  documents = _documents(20)
  built = _build(tmp_path / 'x', documents)
  store = datastore.open_store(tmp_path / 'x', verify='all')
  wanted = [d.parts[0].tolist() for d in documents[:20] if len(d.parts[0])]
  long = list(range(50))
  wanted += [long[:3], long[:4], long[:19], long[19:38], long[38:]]
  assert _texts(store) == wanted
  assert len(store.shards) > 5
  assert all(shard.num_tokens <= 20 for shard in store.shards)
  sources = store.facts.sources
  assert sum(s.num_documents for s in sources) == store.num_documents
  assert sum(s.num_tokens for s in sources) == store.num_tokens
  assert [s.num_left_out for s in sources] == [1, 1]
  assert [s.left_out_tokens for s in sources] == [5, 9]
  assert built.num_sorted == store.num_tokens
  assert os.listdir(tmp_path) == ['x']


class _Killed(Exception):
  pass


@pytest.mark.parametrize('kill_at', range(0, 24, 3))
def test_a_build_that_was_killed_goes_on_to_the_same_file(tmp_path, kill_at):
  documents = _documents(20)
  _build(tmp_path / 'whole', documents)
  (tmp_path / 'x').write_bytes((tmp_path / 'whole').read_bytes())

  def dying(first):
    for number, document in enumerate(documents[first:], first):
      if number == kill_at:
        raise _Killed
      yield document

  with pytest.raises(_Killed):
    build.build(_plan(tmp_path / 'x'), dying)
  # The older one is as it was.
  assert datastore.open_store(tmp_path / 'x', verify='all').num_tokens
  seen = []

  def rest(first):
    seen.append(first)
    return iter(documents[first:])

  build.build(_plan(tmp_path / 'x'), rest)
  assert seen[0] <= kill_at
  assert kill_at < 6 or seen[0] > 0
  whole = (tmp_path / 'whole').read_bytes()
  assert (tmp_path / 'x').read_bytes() == whole
  assert not (tmp_path / 'x.partial').exists()


def test_a_kill_inside_a_long_document_goes_on_inside_it(tmp_path):
  documents = [Document([np.arange(50), np.arange(100)])]
  _build(tmp_path / 'whole', documents)

  def die(*unused):
    raise _Killed

  for _ in range(3):
    with pytest.raises(_Killed):
      _build(tmp_path / 'x', documents, on_shard=die)
  _build(tmp_path / 'x', documents)
  assert (tmp_path / 'x').read_bytes() == (tmp_path / 'whole').read_bytes()


@pytest.mark.parametrize('num_first', [0, 1, 7, 20])
def test_append_gives_the_shards_of_a_build_of_both(tmp_path, num_first):
  documents = _documents(20)
  both = _build(tmp_path / 'both', documents).store
  _build(tmp_path / 'x', documents[:num_first])
  before = datastore.open_store(tmp_path / 'x')
  store = _build(tmp_path / 'x', documents[num_first:], before=before).store
  assert _shards(store) == _shards(both)
  assert len(store.facts.sources) == 4
  assert sum(s.num_tokens for s in store.facts.sources) == store.num_tokens


def test_append_makes_no_full_shard_again(tmp_path):
  documents = _documents(20)
  before = _build(tmp_path / 'x', documents).store
  done = []
  built = _build(
      tmp_path / 'x',
      [Document([np.arange(3)])],
      before=before,
      on_shard=lambda tokens, seconds: done.append(tokens),
  )
  assert sum(done) == built.num_sorted == before.shards[-1].num_tokens + 4


@pytest.mark.parametrize('where', ['write', 'rmtree'])
def test_an_append_that_was_killed_at_its_end_is_done_once(
    tmp_path, monkeypatch, where
):
  before = _build(tmp_path / 'x', _documents(4)).store
  new = [Document([np.arange(30)])]

  def die(*unused):
    raise _Killed

  with monkeypatch.context() as patch:
    if where == 'write':
      patch.setattr(parts.Parts, 'finish', die)
    else:
      patch.setattr(parts.shutil, 'rmtree', die)
    with pytest.raises(_Killed):
      _build(tmp_path / 'x', new, before=before)
  before = datastore.open_store(tmp_path / 'x')
  store = _build(tmp_path / 'x', new, before=before).store
  assert _texts(store)[-2:] == [list(range(19)), list(range(19, 30))]
  assert _texts(store).count(list(range(19, 30))) == 1
  assert os.listdir(tmp_path) == ['x']


@pytest.mark.parametrize(
    'change', [{'inputs': 'others'}, {'shard_tokens': 30}, {'depth': 8}]
)
def test_an_unfinished_build_of_something_else_is_not_gone_on_with(
    tmp_path, change
):
  def die(*unused):
    raise _Killed

  with pytest.raises(_Killed):
    _build(tmp_path / 'x', _documents(9), on_shard=die)
  with pytest.raises(UserError, match='x.partial holds an unfinished'):
    _build(tmp_path / 'x', _documents(9), **change)
  assert not (tmp_path / 'x').exists()
  _build(tmp_path / 'x', _documents(9))


def test_two_processes_do_not_build_one_datastore(tmp_path):
  def meanwhile(*unused):
    with pytest.raises(UserError, match='another process writes'):
      _build(tmp_path / 'x', _documents(9))

  _build(tmp_path / 'x', _documents(9), on_shard=meanwhile)


def test_nothing_to_take_makes_an_empty_datastore_that_says_why(tmp_path):
  store = _build(tmp_path / 'x', [Document([], 1, 2)] * 3).store
  assert store.shards == ()
  assert [s.num_left_out for s in store.facts.sources] == [0, 3]
  more = _build(tmp_path / 'x', [Document([np.arange(3)])], before=store).store
  assert _texts(more) == [[0, 1, 2]]


@pytest.mark.parametrize('bad', [-1, _VOCAB])
def test_ids_outside_the_vocabulary_are_refused(tmp_path, bad):
  with pytest.raises(ValueError, match='document 1 has ids outside'):
    _build(
        tmp_path / 'x', [Document([np.arange(3)]), Document([np.array([bad])])]
    )


_MEASURE = """
import pathlib
import sys
import numpy as np
from speculative.retrieval import build
from speculative.retrieval.build import Document
from speculative.retrieval.build import Plan
from speculative.retrieval.datastore import Facts
from speculative.retrieval.store_file import Source
tokens = np.random.default_rng(0).integers(0, {vocab_size}, 2_000_000)
built = build.build(
    Plan(
        pathlib.Path({path!r}),
        Facts('aaaa', {vocab_size}, sources=(Source('a'),)),
        3_000_000,
        'some',
    ),
    lambda first: iter([Document([tokens])][first:]),
)
assert built.sort_s > 0
print(built.peak_bytes)
"""


@pytest.mark.parametrize(
    # Bytes of a token and of its place; see suffix_array for what comes beside.
    ('vocab_size', 'least', 'most'),
    [(60_000, 2 + 4, 30), (70_000, 4 + 4, 45)],
)
def test_the_peak_of_memory_is_measured(
    fresh_number, tmp_path, vocab_size, least, most
):
  program = _MEASURE.format(vocab_size=vocab_size, path=str(tmp_path / 'x'))
  assert least < fresh_number(program) <= most


def test_a_last_shard_of_few_tokens_is_not_the_peak(tmp_path, monkeypatch):
  grown = iter([3000, 900])

  class Peak(contextlib.nullcontext):
    grown = 0

    def __enter__(self):
      self.grown = next(grown)
      return self

  monkeypatch.setattr(build.memory, 'Peak', Peak)
  documents = [Document([np.arange(99)]), Document([np.arange(5)])]
  built = _build(tmp_path / 'x', documents, shard_tokens=100)
  assert [len(s.tokens()) for s in built.store.shards] == [100, 6]
  width = built.store.shards[0].tokens().itemsize
  assert built.peak_bytes == pytest.approx(30 + width)
