"""Plans for eight CPU devices, and what they refuse."""

import importlib
import json
import pathlib

import jax
import pytest

from speculative import chips
from speculative.errors import UserError
from speculative.tasks import plan

_ROOT = pathlib.Path(__file__).parent.parent.parent


@pytest.fixture
def get_plan(monkeypatch):
  """Returns the tiny plan of Chinchilla with fields replaced."""
  monkeypatch.syspath_prepend(str(_ROOT))
  module = importlib.import_module('configs.chinchilla_70b')

  def call(**fields):
    config = module.get_config('tiny')
    config.update_from_flattened_dict(
        {name.replace('__', '.'): value for name, value in fields.items()}
    )
    return config

  return call


@pytest.fixture(scope='module')
def found(tmp_path_factory):
  """Results of the tiny plan, and the folder they are in."""
  path = tmp_path_factory.mktemp('plan') / 'run'
  with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(_ROOT))
    module = importlib.import_module('configs.chinchilla_70b')
    result = plan.run(module.get_config('tiny'), path)
  return result.results, path


@pytest.mark.slow
def test_a_round_has_two_all_reduces_a_layer(found):
  results, _ = found
  # Three layers of the target, one of the draft, four draft passes.
  assert results['plan/all_reduces_per_round'] == 2 * 3 + 2 * 1 * 4


@pytest.mark.slow
def test_every_program_and_layout_is_counted(found):
  results, path = found
  rows = {row['row/name']: row for row in results['rows']}
  assert set(rows) == {
      'draft step over 1',
      'draft step over 2',
      'draft step over 4',
      'draft step over 8',
      'plain',
      'verify',
      'round',
      'prefill',
  }
  # Two in the layer, one of the embedding, one of the logits.
  assert rows['draft step over 8']['plan/collectives'] == 4
  assert rows['draft step over 1']['plan/collectives'] == 0
  # Logits of five tokens, and of one in each of four draft passes.
  assert results['plan/sampling_collective_bytes'] == 4 * 512 * (5 + 4)
  assert results['plan/topology'] == 'cpu:8'
  assert json.loads((path / 'results.json').read_text()) == results
  text = (path / 'plan.md').read_text()
  # Every program has its table of collectives, as compiled.
  assert '### draft step over 8\n\n| kind | result' in text
  assert '### draft step over 1\n\nNone.' in text
  # Of verification two in each of three layers, and the embedding's.
  assert '| all-reduce | f32[1,5,32] | 8 | 640 | 3 | 7 |' in text
  assert 'its weights once a pass, and of the cache 32 tokens' in text
  assert rows['plain']['plan/compiler_flops'] > 0
  # There is no latency model of a CPU, and nothing pretends to one.
  assert 'plan/plain_ms_per_token' not in results
  assert 'plan/ms' not in rows['plain']


@pytest.mark.slow
def test_a_device_is_given_its_share(found):
  """By the compiler's own count of the bytes of a draft step's arguments."""
  results, _ = found
  rows = {row['row/name']: row for row in results['rows']}
  given = {
      n: rows[f'draft step over {n}']['plan/argument_gib'] * 2**30
      for n in (1, 2, 4, 8)
  }
  # Float32: one layer of four matrices of 32 x 32 and two of 32 x 64, the
  # embedding of 512, and keys and values of 8 heads of 4. The caches have
  # 32 + 4 + 1 slots and those that passes of few rows need; say 40.
  split = 4 * (4 * 32 * 32 + 2 * 32 * 64 + 512 * 32 + 2 * 8 * 4 * 40)
  for n in (2, 4, 8):
    saved = given[1] - given[n]
    assert saved == pytest.approx(split * (1 - 1 / n), rel=0.03)


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'plan__topology': 'v4'}, "topology 'v4' is not of the form"),
        ({'plan__topology': 'v9:2x2'}, 'unknown generation'),
        ({'mesh__model': 4}, 'mesh.model=4 needs to be the 8 devices'),
        (
            {'plan__target.num_heads': 12, 'plan__target.num_kv_heads': 4},
            'heads=12 of the target',
        ),
        ({'plan__draft.mlp_dim': 20}, 'mlp=20 of the draft'),
        ({'drafter__shards': 3}, 'shards is 3'),
        ({'plan__batch': 0}, 'plan.batch needs to be >= 1'),
        (
            {'mesh__data': 2, 'mesh__model': 4},
            'plan.batch=1 cannot be dealt out to config.mesh.data=2',
        ),
        ({'plan__measured_plain_ms': 1.0}, 'measured_plain_ms=1 explains no'),
        ({'drafter__kind': 'lookup'}, "drafter.kind is 'lookup'"),
        ({'drafter__model': 'target'}, "drafter.model is 'target'"),
        ({'drafter__dtype': 'int8'}, "drafter.dtype is 'int8'"),
        ({'drafter__dtype': 'int4'}, "drafter.dtype is 'int4'"),
        ({'drafter__shape': 'tree'}, "drafter.shape is 'tree'.*to 'chain'"),
        ({'drafter__shape': 'drawn_tree'}, "shape is 'drawn_tree'"),
        ({'drafter__num_layers': 1}, 'drafter.num_layers=1 is of drafter'),
        ({'drafter__num_layers': -1}, 'num_layers needs to be >= 0'),
        ({'decode__verification': 'all'}, "decode.verification is 'all'"),
        ({'plan__prompt_len': 64}, 'prompt_len=64 is longer than'),
        ({'plan__acceptance_rate': 1.5}, r'needs to be in \[0, 1\]'),
        ({'plan__measured_plain_ms': -1.0}, 'measured_plain_ms needs'),
        ({'plan__account': 'mine'}, "account is 'mine'"),
        ({'decode__num_draft_tokens': 0}, 'num_draft_tokens needs'),
    ],
)
def test_what_cannot_be_planned_is_named(get_plan, tmp_path, fields, message):
  with pytest.raises(UserError, match=message):
    plan.run(get_plan(**fields), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def test_models_without_shapes_are_named(get_plan, tmp_path):
  config = get_plan()
  config.unlock()
  config.plan.draft = {}
  with pytest.raises(UserError, match='config.drafter.model to a checkpoint'):
    plan.run(config, tmp_path / 'run')


@pytest.fixture
def on_v5e(monkeypatch):
  """Says that the CPU devices are v5e chips; returns the chip."""
  devices, _ = plan._devices('cpu:8')
  chip = chips.find('v5e')
  monkeypatch.setattr(plan, '_devices', lambda name: (devices, chip))
  return chip


@pytest.mark.parametrize(
    ('batch', 'helps'),
    [
        # 4 layers, key and value of 8 heads of 4, float32: 1024 bytes a token,
        # of 2^20 + 5 slots and as many rows as make 16 GiB on eight.
        (
            2**7,
            r'16\.0 GiB a device, 0\.3 more .* v5e; config.mesh.model=16 ',
        ),
        (
            2**20,
            'GiB a device, .* v5e; more devices along config.mesh.model',
        ),
    ],
)
def test_models_that_do_not_fit_are_refused_with_what_would_hold_them(
    get_plan, tmp_path, on_v5e, batch, helps
):
  config = get_plan(plan__context=2**20, plan__batch=batch)
  config.plan.target.num_heads = config.plan.target.num_kv_heads = 16
  config.plan.target.head_dim = 2
  config.plan.draft.num_heads = config.plan.draft.num_kv_heads = 16
  config.plan.draft.head_dim = 2
  with pytest.raises(UserError, match=helps):
    plan.run(config, tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def test_a_plain_step_faster_than_its_weights_is_refused(
    get_plan, tmp_path, on_v5e
):
  with pytest.raises(UserError, match='config.plan.measured_plain_ms=1e-05 is'):
    plan.run(get_plan(plan__measured_plain_ms=1e-5), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def test_more_cpu_devices_than_jax_has_started_with_are_refused():
  jax.devices()
  with pytest.raises(UserError, match="'cpu:16', but jax has started with 8"):
    plan._devices('cpu:16')


def test_the_rule_of_verification_is_planned(get_plan):
  models, _ = plan._open(get_plan(decode__verification='block'))
  assert models.setting(0).step.rule == 'block'


@pytest.mark.slow
def test_a_predicted_time_follows_from_the_counts(get_plan, tmp_path, on_v5e):
  config = get_plan(plan__measured_plain_ms=1.0, plan__account='chen2023')
  results = plan.run(config, tmp_path / 'run').results
  assert results['plan/plain_ms_per_token'] == pytest.approx(1.0)
  assert results['plan/fits'] is True
  # Six in layers, the embedding's and the logits' take nearly all of it.
  assert results['plan/collective_latency_us'] == pytest.approx(125, rel=0.01)
  # Half of that for a draft of one layer; whole on every device it has none.
  assert results['plan/draft_ms'] == pytest.approx(0.5, rel=0.02)
  assert results['plan/fastest_draft_shards'] == 1
  assert results['plan/round_ms'] == pytest.approx(
      4 * results['plan/draft_ms'] + results['plan/verify_ms']
  )
  rows = {row['row/name']: row for row in results['rows']}
  # The whole round, counted as one program, is the sum of its parts.
  assert rows['round']['plan/ms'] == pytest.approx(
      results['plan/round_ms'], rel=0.01
  )
  text = (tmp_path / 'run/plan.md').read_text()
  assert 'Reading and arithmetic overlap perfectly' in text
  assert '0.851' in text, 'the acceptance that HumanEval implies'
