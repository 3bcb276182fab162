"""What a round whose draft is drafted for sends between devices."""

import collections
import dataclasses
import functools

import pytest

from speculative import sharding
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
_DRAFT = dataclasses.replace(_TARGET, num_layers=1, model_dim=128)
_J, _G, _MODEL = 5, 3, 4


@functools.cache
def _round(num_guessed: int) -> rounds.Round:
  setting = Setting(
      _TARGET, _DRAFT, num_draft_tokens=_J, num_guessed=num_guessed
  )
  return rounds.compile_round(setting, sharding.make_mesh(2, _MODEL))


def test_a_pass_of_either_width_sends_two_all_reduces_and_an_embedding():
  found = _round(_G)
  b, D, V = found.rows, _DRAFT.model_dim, _DRAFT.vocab_size
  sent = collections.Counter(
      (c.kind, r.shape[0] * r.shape[1] * r.shape[2], r.shape[-1])
      for c in found.within('draft')
      for r in c.results
  )
  expected = collections.Counter()
  # The first pass reads one token more; each is in the program once.
  for width in (_G + 2, _G + 1):
    expected['all-reduce', b * width * D, D] += 3
    expected['all-gather', b * (_G + 1) * V, V] += 1
  assert sent == expected


def test_verification_sends_what_it_sends_for_the_model_alone():
  def sent(num_guessed: int) -> collections.Counter:
    return collections.Counter(
        (c.kind, str(c.results), c.groups)
        for c in _round(num_guessed).collectives
        if c.within('verify')
    )

  assert sent(0)
  assert sent(_G) == sent(0)


def test_rows_of_other_devices_are_waited_for_by_a_few_bytes_alone():
  compiled = _round(_G)
  found = compiled.along('data', 2)
  assert found
  # Whether they are done, their lengths, and the ids of what was drafted.
  ids = 4 * 2 * compiled.rows * _J
  assert all(c.num_bytes <= ids for c in found)
