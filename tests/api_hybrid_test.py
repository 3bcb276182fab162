"""A datastore and a draft model in one process, for every drafter of them."""

import dataclasses
import pathlib

import jax
import numpy as np
import pytest

import speculative
from speculative import api
from speculative.checkpoints import draft_dir
from speculative.checkpoints import pretrained
from speculative.drafting.cascade import Cascade
from speculative.drafting.config import DrafterConfig
from speculative.drafting.hybrid import HybridTree
from speculative.drafting.retrieval_config import RetrievalConfig
from speculative.errors import UserError
from speculative.models.draft import DraftConfig
from speculative.retrieval import datastore
from speculative.retrieval.datastore import Facts
from speculative.sharding import MeshConfig
from speculative.testing import tiny

_NAME = 'random://tiny_mesh'
_PROMPTS = ['abcabcabcabc', 'Once upon a time']
_SETTINGS = dict(max_new_tokens=24, temperature=0.8)
_CONTEXT = RetrievalConfig(sources='context')


@pytest.fixture(scope='module')
def plain():
  model = speculative.load(_NAME, dtype='float32')
  greedy = model.generate(_PROMPTS, max_new_tokens=24)
  return model, model.generate(_PROMPTS, **_SETTINGS).texts, greedy.texts


@pytest.fixture(scope='module')
def store(tmp_path_factory, plain) -> str:
  """What the target says, with another beginning and another end."""
  tokenizer = plain[0].tokenizer
  V = tokenizer.vocab_size
  said = plain[0].generate(_PROMPTS, **_SETTINGS).generation.token_ids
  shards = [
      datastore.make_shard(
          np.array([*ids[2:20], 7, 8, V]), separator=V, num_threads=1
      )
      for ids in said
  ]
  path = tmp_path_factory.mktemp('store') / 'store'
  facts = Facts(tokenizer=tokenizer.fingerprint, vocab_size=V)
  datastore.write(path, facts, shards)
  return str(path)


def _hybrid(store: str, /, **settings) -> DrafterConfig:
  return DrafterConfig(
      **{
          'kind': 'hybrid',
          'model': 'random://tiny_mesh_draft',
          'dtype': 'float32',
          'hybrid_source': 'retrieval',
          'store': store,
      }
      | settings
  )


@pytest.fixture(scope='module')
def both(store) -> api.LanguageModel:
  return speculative.load(_NAME, dtype='float32', drafter=_hybrid(store))


_TREE = dict(shape='tree', levels=2, width=3, num_draft_tokens=6)
_OTHERS = {
    'itself': {},
    'tree': _TREE,
    'cascade': {'kind': 'cascade'},
    'cascade of look-up': {
        'kind': 'cascade',
        'hybrid_source': 'lookup',
        'store': '',
    },
    'hybrid of look-up': {'hybrid_source': 'lookup', 'store': ''},
    'hybrid of the context': {'retrieval': _CONTEXT, 'store': ''},
    'lm': {'kind': 'lm', 'store': ''},
    'lm tree': {'kind': 'lm', 'store': '', **_TREE},
    'retrieval': {'kind': 'retrieval', 'model': ''},
    'context': {
        'kind': 'retrieval',
        'model': '',
        'store': '',
        'retrieval': _CONTEXT,
    },
    'lookup': {'kind': 'lookup', 'model': '', 'store': ''},
}

_FEW = ('tree', 'cascade', 'lookup')


@pytest.mark.parametrize('name', _OTHERS)
def test_every_drafter_gets_what_it_needs_of_what_was_loaded(both, store, name):
  drafter = _hybrid(store, **_OTHERS[name])
  engine = both.engine(drafter)
  whole = both.engine().weights
  assert engine.weights.target is whole.target
  wanted = whole.drafter
  if not (drafter.uses_store and drafter.uses_model):
    wanted = wanted.store if drafter.uses_store else wanted.model
  if not (drafter.uses_store or drafter.uses_model):
    wanted = None
  found = jax.tree.leaves(engine.weights.drafter)
  assert [id(x) for x in found] == [id(x) for x in jax.tree.leaves(wanted)]


@pytest.mark.parametrize(
    'name',
    [
        name if name in _FEW else pytest.param(name, marks=pytest.mark.slow)
        for name in _OTHERS
    ],
)
def test_what_was_loaded_serves_every_drafter_of_it(both, store, plain, name):
  drafter = _hybrid(store, **_OTHERS[name])
  got = both.generate(_PROMPTS, drafter=drafter, max_new_tokens=24)
  assert got.texts == plain[2]
  if drafter.is_deterministic:
    sampled = both.generate(_PROMPTS, drafter=drafter, **_SETTINGS)
    assert sampled.texts == plain[1]
    if drafter.uses_store:
      assert sampled.generation.acceptance_rate > 0.3


def test_what_was_not_loaded_is_refused(both, store):
  other = DrafterConfig('retrieval', store='another')
  with pytest.raises(UserError, match="datastore 'another' is not loaded"):
    both.engine(other)
  with pytest.raises(UserError, match="'random://tiny' is not loaded"):
    both.engine(_hybrid(store, model='random://tiny'))
  alone = api.open_model(_NAME, drafter=_hybrid('', hybrid_source='lookup'))
  with pytest.raises(UserError, match='datastore .* is not loaded'):
    alone.check_drafter(_hybrid(store))
  retrieval = DrafterConfig('retrieval', store=store)
  alone = api.open_model(_NAME, drafter=retrieval)
  with pytest.raises(UserError, match='draft model .* is not loaded'):
    alone.check_drafter(_hybrid(store))


@pytest.mark.parametrize(
    'settings, message',
    [
        ({'num_layers': 1}, "num_layers is 1, .*_draft' is loaded with 0"),
        ({'dtype': 'int8'}, "dtype is 'int8', .* is loaded with 'float32'"),
        ({'shards': 1}, 'shards is 1, but the draft model .* with 0; set it'),
        (
            {'retrieval': RetrievalConfig(placement='split')},
            "retrieval.placement is 'split', but the datastore .* with 'whole'",
        ),
    ],
    ids=str,
)
def test_what_was_loaded_otherwise_is_named_by_its_field(
    both, store, settings, message
):
  with pytest.raises(UserError, match=f'config.drafter.{message}'):
    both.check_drafter(_hybrid(store, **settings))


def test_a_drafter_is_checked_by_its_kind_alone(both):
  both.check_drafter('lookup')
  with pytest.raises(UserError, match="kind is 'medusa'"):
    both.check_drafter('medusa')


@pytest.mark.slow
@pytest.mark.parametrize('placement', ['whole', 'split'])
@pytest.mark.parametrize('settings', [_TREE, {'kind': 'cascade'}], ids=str)
def test_a_mesh_changes_no_token(both, store, placement, settings):
  drafter = _hybrid(store, **settings)
  expected = both.generate(_PROMPTS, drafter=drafter, **_SETTINGS).generation
  model = speculative.load(
      _NAME,
      dtype='float32',
      drafter=dataclasses.replace(
          drafter, retrieval=RetrievalConfig(placement=placement)
      ),
      mesh=MeshConfig(2, 2),
  )
  got = model.generate(_PROMPTS, **_SETTINGS).generation
  assert got.token_ids == expected.token_ids
  for mine, theirs in zip(got.accepted, expected.accepted, strict=True):
    np.testing.assert_array_equal(mine, theirs)


def _draft(path: pathlib.Path, inputs: str) -> str:
  layers = dataclasses.replace(
      pretrained.PRESETS['tiny_mesh_draft'], model_dim=24
  )
  config = DraftConfig(
      layers, target_dim=32, head_size=64, inputs=inputs, embedding='own'
  )
  draft_dir.save(
      path,
      tiny.init_draft(jax.random.key(0), config),
      np.arange(3, 67, dtype=np.int32),
      config,
      pretrained.open_pretrained(_NAME).identity,
  )
  return str(path)


def test_a_draft_that_reads_its_own_output_is_no_part_of_a_cascade(tmp_path):
  hidden, tokens = (
      _draft(tmp_path / inputs, inputs) for inputs in ('hidden', 'tokens')
  )
  with pytest.raises(UserError, match="token by token .*kind to 'hybrid'"):
    api.open_model(_NAME, drafter=DrafterConfig('cascade', hidden))
  model = api.open_model(_NAME, drafter=DrafterConfig('cascade', tokens))
  assert isinstance(model._step(model.drafter).drafter, Cascade)


def test_a_hybrid_tree_has_the_depth_and_the_sizes_of_what_is_retrieved(
    both, store
):
  settings = RetrievalConfig(length=7, min_ngram=1, buckets=(4, 9))
  drafter = _hybrid(
      store,
      retrieval=settings,
      hybrid_ngram=5,
      **(_TREE | {'num_draft_tokens': 12}),
  )
  built = both.engine(drafter).step.drafter
  assert isinstance(built, HybridTree)
  assert (built.max_depth, built.buckets) == (7, (4, 9, 12))
  assert built.text.settings == dataclasses.replace(settings, min_ngram=5)
