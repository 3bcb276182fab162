import pathlib

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.errors import UserError
from speculative.train import checkpoint


def _state(scale):
  return {
      'a': jnp.arange(6, dtype=jnp.float32).reshape(2, 3) * scale,
      'b': [jnp.ones(3, jnp.bfloat16) / 3, jnp.int32(scale)],
  }


def test_a_checkpoint_comes_back_bit_for_bit(tmp_path):
  checkpoint.save(tmp_path, 7, _state(0.1), {'position': [1, 2]}, keep=2)
  found = checkpoint.load(tmp_path, 7, _state(9))
  jax.tree.map(np.testing.assert_array_equal, found, _state(0.1))
  assert found['b'][0].dtype == jnp.bfloat16
  assert checkpoint.read_progress(tmp_path, 7) == {'position': [1, 2]}


def test_a_directory_may_be_named_from_the_working_directory(
    tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  here = pathlib.Path('run') / 'checkpoints'
  checkpoint.save(here, 1, _state(2), {}, keep=1)
  assert int(checkpoint.load(here, 1, _state(0))['b'][1]) == 2


def test_old_ones_go_when_newer_ones_are_complete(tmp_path):
  assert checkpoint.steps(tmp_path / 'nowhere') == []
  for step in (1, 2, 30):
    checkpoint.save(tmp_path, step, _state(step), {}, keep=2)
  assert checkpoint.steps(tmp_path) == [2, 30]


def test_what_was_cut_short_does_not_count_and_is_written_again(tmp_path):
  checkpoint.save(tmp_path, 1, _state(1), {}, keep=2)
  checkpoint.save(tmp_path, 2, _state(2), {}, keep=2)
  (tmp_path / '00000002' / 'progress.json').unlink()
  assert checkpoint.steps(tmp_path) == [1]
  checkpoint.save(tmp_path, 2, _state(3), {}, keep=2)
  assert int(checkpoint.load(tmp_path, 2, _state(0))['b'][1]) == 3


def test_damage_is_named_with_what_to_do(tmp_path):
  checkpoint.save(tmp_path, 1, _state(1), {}, keep=2)
  for file in (tmp_path / '00000001' / 'state').rglob('*'):
    if file.is_file():
      file.unlink()
  with pytest.raises(UserError, match='00000001.*remove its directory'):
    checkpoint.load(tmp_path, 1, _state(1))
