import dataclasses
import json
import pathlib
import shutil

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.checkpoints import draft_dir
from speculative.checkpoints import orbax_dir
from speculative.checkpoints import pretrained
from speculative.checkpoints.draft_dir import TargetIdentity
from speculative.errors import UserError
from speculative.models import draft as draft_lib
from speculative.models import params as params_lib
from speculative.sharding import Placement
from speculative.testing import tiny

_CONFIG = tiny.HIDDEN_DRAFT
_IDS = np.array(tiny.HEAD_IDS, np.int32)
_TARGET = TargetIdentity(
    tokenizer='ab' * 32,
    mark='cd' * 32,
    transformer=tiny.TARGET,
    reference='hf://made/up',
)


@pytest.fixture(scope='module')
def own() -> dict:
  return tiny.init_draft(jax.random.key(0), _CONFIG)


@pytest.fixture(scope='module')
def saved(own, tmp_path_factory) -> pathlib.Path:
  path = tmp_path_factory.mktemp('drafts') / 'draft'
  draft_dir.save(path, own, _IDS, _CONFIG, _TARGET)
  return path


@pytest.fixture
def copy(saved, tmp_path) -> pathlib.Path:
  return shutil.copytree(saved, tmp_path / 'copy')


def _edit(path: pathlib.Path, part: str, **fields) -> None:
  file = path / 'config.json'
  d = json.loads(file.read_text())
  d[part] |= fields
  file.write_text(json.dumps(d))


def test_what_was_saved_is_read_back_in_bfloat16(saved, own):
  target = {'embed': jnp.ones((13, 16))}
  opened = draft_dir.open_draft(saved)
  assert (opened.config, opened.target) == (_CONFIG, _TARGET)
  params = opened.load_params(jnp.bfloat16, Placement(), target)
  assert params['embed'] is target['embed']
  np.testing.assert_array_equal(params[draft_lib.HEAD_IDS], _IDS)
  for name, spec in params_lib.flatten(draft_lib.declare(_CONFIG)):
    got = dict(params_lib.flatten(params))[name]
    wanted = dict(params_lib.flatten(own))[name]
    dtype = jnp.bfloat16 if spec.kind == 'matrix' else jnp.float32
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, wanted.astype(dtype))


def test_nothing_that_was_saved_names_where(saved):
  files = [path for path in saved.rglob('*') if path.is_file()]
  assert files
  for path in files:
    assert str(saved.parent).encode() not in path.read_bytes(), path


def test_float32_is_kept_to_the_last_bit_where_it_is_asked_for(own, tmp_path):
  draft_dir.save(tmp_path / 'd', own, _IDS, _CONFIG, _TARGET, dtype='float32')
  got = draft_dir.open_draft(tmp_path / 'd').load_own(jnp.float32, Placement())
  jax.tree.map(np.testing.assert_array_equal, got, own)


def test_a_shared_head_is_made_of_the_targets_rows(tmp_path):
  config = dataclasses.replace(_CONFIG, head='shared')
  own = tiny.init_draft(jax.random.key(0), config)
  draft_dir.save(tmp_path / 'd', own, _IDS, config, _TARGET)
  target = {
      'embed': jnp.zeros((13, 16)),
      'head': jnp.arange(13 * 16.0).reshape(13, 16),
  }
  params = draft_dir.open_draft(tmp_path / 'd').load_params(
      jnp.bfloat16, Placement(), target
  )
  assert params['head'].dtype == jnp.bfloat16
  np.testing.assert_array_equal(
      params['head'], target['head'][_IDS].astype(jnp.bfloat16)
  )


@pytest.mark.parametrize(
    'other, message',
    [
        ({'tokenizer': 'ef' * 32}, 'another tokenizer .abababababab.*efefef'),
        (
            {'mark': '12' * 32},
            "another target .'hf://made/up', final norm cdcdcdcdcdcd.* than "
            "'hf://other' .final norm 121212121212",
        ),
        (
            {
                'transformer': dataclasses.replace(tiny.TARGET, model_dim=24),
                'mark': '12' * 32,
            },
            "model_dim=16 .* but 'hf://other' has 24",
        ),
    ],
    ids=['tokenizer', 'final norm', 'shape'],
)
def test_a_draft_of_another_target_is_refused(saved, other, message):
  opened = draft_dir.open_draft(saved)
  opened.check_target(dataclasses.replace(_TARGET, reference='elsewhere'))
  at_hand = dataclasses.replace(_TARGET, reference='hf://other', **other)
  with pytest.raises(UserError, match=message) as caught:
    opened.check_target(at_hand)
  assert '\n' not in str(caught.value)


def test_tensors_that_are_not_the_configs_are_named_before_any_is_read(
    own, tmp_path, monkeypatch
):
  arrays = dict(params_lib.flatten(own)) | {draft_lib.HEAD_IDS: _IDS}
  del arrays['layers.0.q_proj']
  arrays['lm_head'] = arrays['in_proj']
  arrays['head'] = arrays['head'][:5]
  config = {
      'format': draft_dir.FORMAT,
      'draft': dataclasses.asdict(_CONFIG),
      'target': dataclasses.asdict(_TARGET),
  }
  orbax_dir.save_arrays(tmp_path / 'd', arrays, config)
  monkeypatch.setattr(
      orbax_dir.OrbaxDirectory, 'read', lambda *_: pytest.fail('it was read')
  )
  with pytest.raises(UserError) as caught:
    draft_dir.open_draft(tmp_path / 'd')
  said = str(caught.value)
  assert 'missing (1): layers.0.q_proj;' in said
  assert 'unknown (1): lm_head;' in said
  assert 'head: [5, 16] -> [9, 16]' in said
  assert '\n' not in said


def test_what_is_saved_is_checked_as_well(own, tmp_path):
  with pytest.raises(UserError, match=r'head_ids: \[8\] -> \[9\]'):
    draft_dir.save(tmp_path / 'd', own, _IDS[:8], _CONFIG, _TARGET)
  with pytest.raises(UserError, match='in ascending order'):
    draft_dir.save(tmp_path / 'd', own, _IDS[::-1], _CONFIG, _TARGET)
  assert not list(tmp_path.iterdir())


def test_a_directory_that_was_not_finished_is_refused(copy):
  (copy / 'config.json').unlink()
  with pytest.raises(UserError, match='no config.json, which is written last'):
    draft_dir.open_draft(copy)


def test_a_directory_without_its_arrays_is_refused(copy):
  shutil.rmtree(copy / 'params')
  with pytest.raises(UserError, match='not a complete Orbax checkpoint'):
    draft_dir.open_draft(copy)


@pytest.mark.parametrize(
    'part, fields, message',
    [
        ('draft', {'heads': 3}, 'not one of this version .*heads'),
        ('draft', {'inputs': 'image'}, "inputs of the draft is 'image'"),
        ('target', {'transformer': {}}, 'not one of this version'),
    ],
)
def test_a_config_that_cannot_be_understood_is_refused(
    copy, part, fields, message
):
  _edit(copy, part, **fields)
  with pytest.raises(UserError, match=message) as caught:
    draft_dir.open_draft(copy)
  assert str(copy) in str(caught.value)


def test_a_model_is_no_draft_and_a_draft_no_model(saved, tmp_path):
  (tmp_path / 'config.json').write_text('{"format": "speculative"}')
  with pytest.raises(UserError, match='not that of a draft'):
    draft_dir.open_draft(tmp_path)
  with pytest.raises(UserError, match='name it in config.drafter.model'):
    pretrained.open_pretrained(str(saved))


def test_a_draft_is_replaced_only_when_asked_and_whole(copy, own):
  with pytest.raises(UserError, match='is there already'):
    draft_dir.save(copy, own, _IDS, _CONFIG, _TARGET)
  newer = dataclasses.replace(_TARGET, reference='newer')
  draft_dir.save(copy, own, _IDS, _CONFIG, newer, existing='replace')
  assert draft_dir.open_draft(copy).target == newer
  assert [p.name for p in copy.parent.iterdir()] == [copy.name]
  with pytest.raises(UserError, match='refuse, replace'):
    draft_dir.save(copy, own, _IDS, _CONFIG, newer, existing='yes')


def test_a_replacement_that_was_cut_short_is_taken_up(copy, own, monkeypatch):
  old = copy.with_name('.copy.old')
  copy.rename(old)
  copy.with_name('.copy.partial').mkdir()

  class Killed(BaseException):
    pass

  def save_arrays(*_):
    raise Killed

  with monkeypatch.context() as patch:
    patch.setattr(orbax_dir, 'save_arrays', save_arrays)
    with pytest.raises(Killed):
      draft_dir.save(copy, own, _IDS, _CONFIG, _TARGET, existing='replace')
  # What there was before is there while the new one is written.
  assert draft_dir.open_draft(copy).target == _TARGET
  newer = dataclasses.replace(_TARGET, reference='newer')
  draft_dir.save(copy, own, _IDS, _CONFIG, newer, existing='replace')
  assert draft_dir.open_draft(copy).target == newer
  assert [p.name for p in copy.parent.iterdir()] == [copy.name]


def test_a_target_is_known_by_its_final_norm():
  model = pretrained.open_pretrained('random://tiny')
  identity = model.identity
  assert identity.mark == draft_dir.mark(np.ones(32))
  assert identity.mark != draft_dir.mark(np.ones(32) + 1e-6)
  assert identity.tokenizer == model.tokenizer.fingerprint
