"""From a datastore on disk to text."""

import pathlib

import jax
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
    'placement, mesh',
    [
        ('whole', None),
        ('split', MeshConfig(1, 2)),
        ('host', MeshConfig(2, 1)),
    ],
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


def _load(store: str, **settings):
  shape = settings.pop('shape', 'chain')
  drafter = DrafterConfig(
      'retrieval',
      shape=shape,
      num_draft_tokens=4 if shape == 'chain' else 12,
      store=store,
      retrieval=RetrievalConfig(**settings),
  )
  return speculative.load(_NAME, dtype='float32', drafter=drafter)


@pytest.mark.parametrize(
    'shape, sources',
    [
        ('chain', 'both'),
        ('tree', 'store'),
        pytest.param('chain', 'store', marks=pytest.mark.slow),
        pytest.param('tree', 'both', marks=pytest.mark.slow),
    ],
)
def test_a_store_on_the_host_drafts_what_it_drafts_on_the_device(
    store, shape, sources
):
  # Two that draw what the store knows, and a greedy one that ends early.
  prompts = [*_PROMPTS, 'abab']
  rows = [
      {'temperature': 0.8},
      {'temperature': 0.8, 'seed': 1},
      {'temperature': 0.0, 'max_new_tokens': 9},
  ]
  whole, host = (
      _load(store, shape=shape, sources=sources, placement=placement)
      .generate(prompts, rows=rows, max_new_tokens=24)
      .generation
      for placement in ('whole', 'host')
  )
  assert host.num_rounds < 24 - 1 and host.accepted.sum() > 0
  for name in ('token_ids', 'reasons', 'num_rounds'):
    assert getattr(host, name) == getattr(whole, name), name
  for name in ('round_starts', 'rounds', 'drafted', 'tested', 'accepted'):
    np.testing.assert_array_equal(
        np.concatenate([np.ravel(x) for x in getattr(host, name)]),
        np.concatenate([np.ravel(x) for x in getattr(whole, name)]),
        err_msg=name,
    )


@pytest.fixture(scope='module')
def on_host(store):
  return _load(store, placement='host')


def test_streams_and_stop_strings_are_the_same_from_a_store_on_the_host(
    plain, on_host
):
  text = plain[1].texts[0]
  stop = next(c for c in text[6:] if c.isascii() and c not in text[:6])
  settings = _SETTINGS | {'stop_strings': (stop,), 'rounds_per_call': 2}
  said = ['', '']

  def say(row, new):
    said[row] += new

  got = on_host.generate(_PROMPTS, on_text=say, **settings)
  assert got.texts == said
  assert got.texts == plain[0].generate(_PROMPTS, **settings).texts
  assert got.texts[0] == text[: text.index(stop)]


@pytest.mark.parametrize('placement', ['whole', 'host'])
@pytest.mark.parametrize('name', ['low', 'suffixes'])
def test_a_damaged_store_is_refused_wherever_it_is_to_lie(
    tmp_path, store, name, placement
):
  opened = datastore.open_store(store)
  data = bytearray(pathlib.Path(store).read_bytes())
  # One bit of the last number.
  said = opened.header.shards[-1].arrays[name]
  size = getattr(opened.shards[-1], name).nbytes
  data[said.offset + size - 1] ^= 1
  path = tmp_path / 'damaged'
  path.write_bytes(data)
  with pytest.raises(UserError, match='damaged'):
    _load(str(path), placement=placement, sources='store')


def test_a_store_on_the_host_of_one_process_is_refused_to_several(
    monkeypatch, store
):
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  drafter = DrafterConfig(
      'retrieval', store=store, retrieval=RetrievalConfig(placement='host')
  )
  with pytest.raises(UserError, match="'host', .* one process, .* are 2"):
    api.open_model(_NAME, drafter=drafter)


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
