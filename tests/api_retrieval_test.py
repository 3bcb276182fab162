"""From a datastore on disk to text."""

import pathlib

import numpy as np
import pytest

import speculative
from speculative import api
from speculative.drafting.config import DrafterConfig
from speculative.drafting.retrieval_config import RetrievalConfig
from speculative.errors import UserError
from speculative.retrieval import datastore
from speculative.retrieval.datastore import Facts
from speculative.sharding import MeshConfig

_NAME = 'random://tiny_mesh'
_PROMPTS = ['abcabcabcabc', 'Once upon a time']
_SETTINGS = dict(max_new_tokens=24, temperature=0.8)


def _write(path: pathlib.Path, texts, of, **facts) -> str:
  vocab_size = of.vocab_size
  shards = []
  for text in texts:
    tokens = np.array([*text, vocab_size])
    shards.append(
        datastore.make_shard(tokens, separator=vocab_size, num_threads=1)
    )
  known = {'tokenizer': of.fingerprint, 'vocab_size': vocab_size}
  datastore.write(path, Facts(**(known | facts)), shards)
  return str(path)


@pytest.fixture(scope='module')
def plain():
  model = speculative.load(_NAME, dtype='float32')
  return model, model.generate(_PROMPTS, **_SETTINGS)


@pytest.fixture(scope='module')
def store(tmp_path_factory, plain) -> str:
  """What the target says, with another beginning and another end."""
  model, result = plain
  texts = [ids[2:20] + [7, 8] for ids in result.generation.token_ids]
  path = tmp_path_factory.mktemp('store') / 'store'
  return _write(path, texts, model.tokenizer)


@pytest.mark.parametrize(
    'placement, mesh', [('whole', None), ('split', MeshConfig(1, 2))]
)
def test_a_store_drafts_and_changes_nothing(plain, store, placement, mesh):
  drafter = DrafterConfig(
      'retrieval',
      store=store,
      retrieval=RetrievalConfig(sources='store', placement=placement),
  )
  model = speculative.load(_NAME, dtype='float32', drafter=drafter, mesh=mesh)
  got = model.generate(_PROMPTS, **_SETTINGS)
  assert got.texts == plain[1].texts
  generation = got.generation
  assert generation.num_rounds < plain[1].generation.num_rounds
  assert generation.acceptance_rate > 0.3
  # The same weights serve drafters that need no store.
  assert (
      model.generate(_PROMPTS, drafter='lookup', **_SETTINGS).texts == got.texts
  )


def test_a_store_of_another_tokenizer_is_refused_unread(tmp_path, plain):
  path = _write(
      tmp_path / 's', [[1, 2]], plain[0].tokenizer, tokenizer='x' * 64
  )
  with pytest.raises(UserError, match='tokenizer'):
    api.open_model(_NAME, drafter=DrafterConfig('retrieval', store=path))


def test_a_store_sorted_by_fewer_tokens_than_are_looked_for_is_refused(
    tmp_path, plain
):
  path = _write(tmp_path / 's', [[1, 2]], plain[0].tokenizer, depth=8)
  with pytest.raises(UserError, match='max_ngram is 16, but .* sorted by 8'):
    api.open_model(_NAME, drafter=DrafterConfig('retrieval', store=path))


def test_another_drafter_may_not_look_for_longer_ends(tmp_path, plain):
  path = _write(tmp_path / 's', [[1, 2]], plain[0].tokenizer, depth=8)
  short, long = (
      DrafterConfig(
          'retrieval', store=path, retrieval=RetrievalConfig(max_ngram=most)
      )
      for most in (8, 9)
  )
  model = api.open_model(_NAME, drafter=short)
  with pytest.raises(UserError, match='max_ngram is 9, but .* sorted by 8'):
    model.generate('a', drafter=long)


def test_a_corrupt_store_is_refused(tmp_path, plain):
  path = pathlib.Path(_write(tmp_path / 's', [[1, 2]], plain[0].tokenizer))
  data = path.read_bytes()
  path.write_bytes(data[:64] + b'\7' + data[65:])
  with pytest.raises(UserError, match='checksum of low of shard 0'):
    api.open_model(_NAME, drafter=DrafterConfig('retrieval', store=str(path)))


def test_a_store_that_is_not_there_is_named():
  with pytest.raises(UserError, match='no/such/store'):
    api.open_model(
        _NAME, drafter=DrafterConfig('retrieval', store='no/such/store')
    )
