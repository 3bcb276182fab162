"""From a draft's directory to text."""

import dataclasses
import pathlib

import jax
import numpy as np
import pytest

import speculative
from speculative import api
from speculative.checkpoints import draft_dir
from speculative.checkpoints import pretrained
from speculative.drafting.config import DrafterConfig
from speculative.drafting.hidden_lm import HiddenLm
from speculative.drafting.hybrid import Hybrid
from speculative.drafting.lm import Lm
from speculative.errors import UserError
from speculative.models.draft import DraftConfig
from speculative.sharding import MeshConfig
from speculative.testing import tiny

_NAME = 'random://tiny_mesh'
_PROMPTS = ['abcabcabcabc', 'Once upon a time']


def _config(**changes) -> DraftConfig:
  layers = dataclasses.replace(
      pretrained.PRESETS['tiny_mesh_draft'], model_dim=24
  )
  return DraftConfig(layers, target_dim=32, head_size=64, **changes)


def _save(path: pathlib.Path, config: DraftConfig, **identity) -> str:
  target = pretrained.open_pretrained(_NAME).identity
  draft_dir.save(
      path,
      tiny.init_draft(jax.random.key(0), config),
      np.arange(3, 67, dtype=np.int32),
      config,
      dataclasses.replace(target, **identity),
  )
  return str(path)


@pytest.fixture(scope='module')
def hidden(tmp_path_factory) -> str:
  return _save(tmp_path_factory.mktemp('d') / 'hidden', _config())


def _load(model: str, kind: str = 'lm', **settings) -> api.LanguageModel:
  mesh = settings.pop('mesh', None)
  drafter = DrafterConfig(
      kind, model, **{'dtype': 'float32', 'num_draft_tokens': 3} | settings
  )
  return speculative.load(_NAME, dtype='float32', drafter=drafter, mesh=mesh)


def test_a_saved_draft_and_its_hybrid_say_what_plain_decoding_says(hidden):
  model = _load(hidden)
  assert isinstance(model.engine().step.drafter, HiddenLm)
  settings = dict(max_new_tokens=20, stop_ids=())
  plain = model.generate(_PROMPTS, drafter='none', **settings)
  hybrid = dataclasses.replace(model.drafter, kind='hybrid', hybrid_ngram=2)
  assert isinstance(model.engine(hybrid).step.drafter, Hybrid)
  for drafter in (None, hybrid):
    got = model.generate(_PROMPTS, drafter=drafter, **settings)
    assert got.generation.token_ids == plain.generation.token_ids
  # Both lie over the same arrays.
  assert model.engine(hybrid).weights is model.engine().weights


@pytest.mark.slow
def test_a_draft_that_reads_tokens_alone_is_an_lm(tmp_path):
  config = _config(inputs='tokens', embedding='own', head='shared')
  path = _save(tmp_path / 'd', config)
  model = _load(path)
  assert isinstance(model.engine().step.drafter, Lm)
  settings = dict(max_new_tokens=9, stop_ids=())
  plain = model.generate(_PROMPTS, drafter='none', **settings)
  got = model.generate(_PROMPTS, **settings)
  assert got.generation.token_ids == plain.generation.token_ids


@pytest.mark.slow
def test_a_draft_in_int8_changes_no_token(hidden):
  settings = dict(max_new_tokens=20, stop_ids=())
  model = _load(hidden, dtype='int8')
  plain = model.generate(_PROMPTS, drafter='none', **settings)
  got = model.generate(_PROMPTS, **settings)
  assert got.generation.token_ids == plain.generation.token_ids
  mesh = MeshConfig(model=2)
  with pytest.raises(UserError, match='whole on every device.*shards to 1'):
    _load(hidden, dtype='int8', mesh=mesh)
  with pytest.raises(UserError, match="made of the target's own layers"):
    _load('target', dtype='int8')


@pytest.mark.slow
@pytest.mark.parametrize('shards', [0, 1, 2])
def test_a_mesh_changes_no_token(hidden, shards):
  settings = dict(max_new_tokens=12, stop_ids=(), temperature=0.8)
  expected = _load(hidden).generate(_PROMPTS, **settings)
  mesh = MeshConfig(data=2, model=4)
  got = _load(hidden, mesh=mesh, shards=shards).generate(_PROMPTS, **settings)
  assert got.generation.token_ids == expected.generation.token_ids
  np.testing.assert_array_equal(
      got.generation.accepted, expected.generation.accepted
  )


@pytest.mark.parametrize(
    'identity, message',
    [
        ({'tokenizer': 'ab' * 32}, 'another tokenizer'),
        ({'mark': 'ab' * 32}, 'another target .*abababababab'),
    ],
)
def test_a_draft_of_another_target_is_refused_unread(
    tmp_path, monkeypatch, identity, message
):
  path = _save(tmp_path / 'd', _config(), **identity)
  monkeypatch.setattr(
      draft_dir.DraftCheckpoint, 'load_own', lambda *_: pytest.fail('read')
  )
  with pytest.raises(UserError, match=message):
    api.open_model(_NAME, drafter=DrafterConfig('lm', model=path))


def test_layers_of_a_trained_draft_cannot_be_left_out(hidden):
  drafter = DrafterConfig('lm', model=hidden, num_layers=1)
  with pytest.raises(UserError, match='num_layers is 1, .*leave it at 0'):
    api.open_model(_NAME, drafter=drafter)


def test_a_head_that_the_mesh_does_not_divide_is_named(tmp_path):
  config = dataclasses.replace(_config(), head_size=63)
  target = pretrained.open_pretrained(_NAME).identity
  own = tiny.init_draft(jax.random.key(0), config)
  draft_dir.save(tmp_path / 'd', own, np.arange(63), config, target)
  drafter = DrafterConfig('lm', model=str(tmp_path / 'd'))
  with pytest.raises(UserError, match='vocab=63 of the draft cannot be split'):
    api.open_model(_NAME, drafter=drafter, mesh=MeshConfig(model=4))
