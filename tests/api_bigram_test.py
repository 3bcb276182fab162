"""From a bigram table on disk to text."""

import dataclasses
import pathlib

import numpy as np
import pytest

import speculative
from speculative import api
from speculative.drafting.config import DrafterConfig
from speculative.errors import UserError
from speculative.retrieval import bigram_table
from speculative.retrieval.bigram_counts import Counter
from speculative.sharding import MeshConfig

_NAME = 'random://tiny_mesh'
_PROMPTS = ['abcabcabcabc', 'Once upon a time', 'abab', 'x']
_ROWS = [
    {'temperature': 0.8},
    {'temperature': 0.8, 'seed': 1},
    {'temperature': 0.0, 'max_new_tokens': 9},
    {'temperature': 1.0, 'frequency_penalty': 0.3},
]
_SETTINGS = dict(max_new_tokens=24, rows=_ROWS)


def _write(path: pathlib.Path, texts, of, *, tokenizer='', num=3) -> str:
  counter = Counter(of.vocab_size, pairs_at_once=100, directory=path.parent)
  for text in texts:
    counter.add(np.array(text))
  bigram_table.write(
      path, counter.counted(num), tokenizer=tokenizer or of.fingerprint
  )
  return str(path)


def _drafter(table: str, **settings) -> DrafterConfig:
  return DrafterConfig('bigram', table=table, **settings)


_TREE = dict(shape='tree', num_draft_tokens=6, levels=2)


@pytest.fixture(scope='module')
def plain():
  model = speculative.load(_NAME, dtype='float32')
  return model, model.generate(_PROMPTS, **_SETTINGS)


@pytest.fixture(scope='module')
def table(tmp_path_factory, plain) -> str:
  """What follows what in the answers of the target."""
  model, result = plain
  path = tmp_path_factory.mktemp('table') / 'table'
  return _write(path, result.generation.token_ids, model.tokenizer)


@pytest.mark.parametrize(
    'settings, mesh',
    [({}, None), (_TREE, None), ({}, MeshConfig(2, 2))],
    ids=['chain', 'tree', 'mesh'],
)
def test_a_table_drafts_and_changes_nothing(plain, table, settings, mesh):
  drafter = _drafter(table, **settings)
  model = speculative.load(_NAME, dtype='float32', drafter=drafter, mesh=mesh)
  got = model.generate(_PROMPTS, **_SETTINGS)
  assert got.texts == plain[1].texts
  generation = got.generation
  assert generation.num_rounds < plain[1].generation.num_rounds
  assert generation.acceptance_rate > 0.1


def test_a_table_beside_another_drafter_serves_a_change_of_it(plain, table):
  drafter = DrafterConfig('lookup', table=table)
  model = speculative.load(_NAME, dtype='float32', drafter=drafter)
  bigram = dataclasses.replace(drafter, kind='bigram')
  for each in (None, bigram):
    got = model.generate(_PROMPTS, drafter=each, **_SETTINGS)
    assert got.texts == plain[1].texts
  assert got.generation.accepted.sum() > 0


def test_a_table_that_is_not_loaded_is_named(table):
  model = api.open_model(_NAME, drafter='lookup')
  with pytest.raises(UserError, match='bigram table .* is not loaded'):
    model.check_drafter(_drafter(table))


def _flip(path: str, place: int) -> str:
  data = bytearray(pathlib.Path(path).read_bytes())
  data[place] ^= 1
  pathlib.Path(path).write_bytes(data)
  return path


@pytest.mark.parametrize('kind', ['bigram', 'lookup'])
@pytest.mark.parametrize(
    'wrong, said',
    [
        ('absent', 'there is no bigram table .*absent'),
        ('damaged', 'checksum of successors is another'),
        ('version', 'has version 0, not 1'),
        ('tokenizer', 'holds ids of the tokenizer xxxxxxxxxxxx'),
        ('store', 'is no bigram table'),
    ],
)
def test_a_table_of_no_use_is_refused_unread(
    tmp_path, plain, monkeypatch, kind, wrong, said
):
  monkeypatch.setattr(
      api.LanguageModel, 'load_weights', lambda self: pytest.fail('read')
  )
  of, path = plain[0].tokenizer, tmp_path / 'x'
  if wrong == 'damaged':
    _flip(_write(path, [[1, 2]], of), 64)
  elif wrong == 'version':
    _flip(_write(path, [[1, 2]], of), 8)
  elif wrong == 'tokenizer':
    _write(path, [[1, 2]], of, tokenizer='x' * 64)
  elif wrong == 'store':
    path.write_text('def f(): pass\n' * 10)
  else:
    path = tmp_path / 'absent'
  with pytest.raises(UserError, match=said) as caught:
    api.open_model(_NAME, drafter=DrafterConfig(kind, table=str(path)))
  assert '\n' not in str(caught.value)


def test_a_tree_of_more_nodes_than_there_are_paths_is_refused(tmp_path, plain):
  path = _write(tmp_path / 'x', [[1, 2]], plain[0].tokenizer, num=2)
  tree = dict(shape='tree', levels=2)
  api.open_model(_NAME, drafter=_drafter(path, num_draft_tokens=6, **tree))
  with pytest.raises(UserError, match='2 levels has at most 6 .* 2 succ.*=7;'):
    api.open_model(_NAME, drafter=_drafter(path, num_draft_tokens=7, **tree))
