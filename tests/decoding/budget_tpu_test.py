"""What a round sends, as a TPU compiler emits it for slices that are not there.

The CPU compiler sums bfloat16 in float32 and splits other values than a TPU's:
dtypes are held here, and so is the rest of `budget_test.py` that may differ.
"""

import dataclasses
import functools
import math

import pytest

from speculative import hlo
from speculative import sharding
from speculative import topology
from speculative.models.precision import Precision
from speculative.testing import budget
from speculative.testing import rounds
from speculative.testing import tiny
from speculative.testing.rounds import Setting

pytestmark = [pytest.mark.tpu_compiler, pytest.mark.slow]

_S = 384
_TARGET = dataclasses.replace(
    tiny.TARGET,
    vocab_size=32_768,
    num_layers=2,
    model_dim=512,
    num_heads=8,
    num_kv_heads=8,
    head_dim=64,
    mlp_dim=1024,
)
_SETTING = Setting(
    _TARGET,
    dataclasses.replace(_TARGET, num_layers=1),
    num_draft_tokens=3,
    precision=Precision('bfloat16', 'bfloat16'),
    max_seq_len=_S,
)
_SLICES = {
    'v4:2x2x4': ((2, 8), 'split'),
    'v5e:2x4': ((2, 4), 'gathered'),
    'v6e:2x4': ((1, 8), 'split'),
}


@functools.cache
def _round(name):
  shape, logits = _SLICES[name]
  mesh = sharding.make_mesh(*shape, devices=topology.devices(name).flat)
  return rounds.compile_round(
      dataclasses.replace(_SETTING, logits=logits), mesh
  )


@pytest.mark.parametrize('name', _SLICES)
@pytest.mark.parametrize('scope', ['draft', 'verify'])
def test_layers_sum_bfloat16_twice_and_embeddings_once(name, scope):
  found = _round(name)
  model = found.setting.draft if scope == 'draft' else found.setting.target
  once = budget.passes(found, scope, 'bf16')
  sent = [c for c in found.within(scope) if budget.is_stream(found, c)]
  inside = [c for c in found.within(scope) if budget.in_layers(c)]
  for part in ('attention', 'mlp'):
    assert budget.sizes(c for c in inside if c.within(part)) == {
        k: v * model.num_layers for k, v in once.items()
    }
  assert budget.sizes(c for c in sent if c not in inside) == once


@pytest.mark.parametrize('scope', ['draft', 'verify'])
@pytest.mark.parametrize('name', _SLICES)
def test_sampling_sends_its_fixed_set(name, scope):
  found = _round(name)
  others = [c for c in found.within(scope) if not budget.is_stream(found, c)]
  if found.setting.logits == 'split':
    expected = budget.sampling(found, scope, compiler='tpu')
  else:
    J = found.setting.num_draft_tokens
    T, times = (1, J) if scope == 'draft' else (J + 1, 1)
    logits = found.rows * T * found.setting.target.vocab_size
    expected = {('all-gather', 'f32', logits): times}
  assert budget.sizes(others) == expected


@pytest.mark.parametrize('name', _SLICES)
def test_rows_exchange_verdicts_and_predicates_alone(name):
  found = _round(name)
  data, model = found.mesh.devices.shape
  B, J = found.setting.batch, found.setting.num_draft_tokens
  rows = set(found.along('data', data)) if data > 1 else set()
  assert set(found.collectives) == set(found.along('model', model)) | rows
  assert not found.within('commit')
  most = {'pred': 1, 'u32': 1, 's32': B * J}
  for c in rows:
    for r in c.results:
      assert math.prod(r.shape) <= most.get(r.dtype, 0), c


@pytest.mark.parametrize('name', _SLICES)
def test_a_round_writes_over_its_state_and_asks_no_host(name):
  found = _round(name)
  assert set(budget.copied(found)) <= set(budget.MADE_ANEW)
  assert hlo.host_transfers(found.text) == ()
