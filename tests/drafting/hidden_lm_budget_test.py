"""What a round with a draft that leans on its target sends between devices."""

import dataclasses
import functools

import pytest

from speculative import sharding
from speculative.models.draft import DraftConfig
from speculative.testing import budget
from speculative.testing import rounds
from speculative.testing import tiny
from speculative.testing.rounds import Setting

pytestmark = pytest.mark.slow

_TARGET = dataclasses.replace(
    tiny.TARGET,
    vocab_size=32_768,
    model_dim=192,
    num_heads=8,
    num_kv_heads=4,
    head_dim=32,
    mlp_dim=1024,
)
_DRAFT = DraftConfig(
    dataclasses.replace(_TARGET, num_layers=1, model_dim=128),
    target_dim=192,
    head_size=8192,
    head='own',
)
_J, _MODEL = 3, 4


@functools.cache
def _round(shards: int) -> rounds.Round:
  setting = Setting(_TARGET, _DRAFT, num_draft_tokens=_J, shards=shards)
  return rounds.compile_round(setting, sharding.make_mesh(2, _MODEL))


@pytest.mark.parametrize('shards', [0, 2])
def test_a_pass_sends_two_all_reduces_an_embedding_and_its_head(shards):
  found = _round(shards)
  b, width = found.rows, found.num_devices('draft')
  # The first pass reads what the last round may have brought.
  passes = {_J + 1: 1, 1: _J - 1}
  layers = {
      ('all-reduce', 'f32', b * T * _DRAFT.layers.model_dim): 2 * times
      for T, times in passes.items()
  }
  # The embedding is the target's and lies where that does.
  embedding = {
      ('all-reduce', 'f32', b * T * _DRAFT.target_dim): times
      for T, times in passes.items()
  }
  logits = {('all-gather', 'f32', b * _DRAFT.head_size): _J}

  def sent(num: int) -> dict:
    inside = [c for c in found.along('model', num) if c.within('draft')]
    return budget.sizes(inside)

  if width == _MODEL:
    assert sent(_MODEL) == {**layers, **embedding, **logits}
  else:
    assert sent(width) == {**layers, **logits}
    assert sent(_MODEL) == embedding


def test_rows_of_other_devices_are_waited_for_by_a_few_bytes_alone():
  found = _round(0)
  assert all(c.num_bytes <= 64 for c in found.along('data', 2))
