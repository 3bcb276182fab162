"""Plans by the TPU compiler, on a machine without a TPU."""

import importlib
import pathlib

import jax
from jax import numpy as jnp
import pytest

from speculative import topology
from speculative.errors import UserError
from speculative.planning import programs
from speculative.tasks import plan

_ROOT = pathlib.Path(__file__).parent.parent.parent
pytestmark = [pytest.mark.tpu_compiler, pytest.mark.slow]


@pytest.fixture
def get_config(monkeypatch):
  """Returns the plan of Chinchilla in a variant, with fields replaced."""
  monkeypatch.syspath_prepend(str(_ROOT))
  module = importlib.import_module('configs.chinchilla_70b')

  def call(variant, **fields):
    config = module.get_config(variant)
    config.update_from_flattened_dict(
        {name.replace('__', '.'): value for name, value in fields.items()}
    )
    return config

  return call


def test_a_plan_from_end_to_end(get_config, tmp_path):
  config = get_config(
      'tiny',
      plan__topology='v5e:2x4',
      plan__measured_plain_ms=1.0,
      plan__batch=2,
      mesh__data=2,
      mesh__model=4,
      decode__num_draft_tokens=2,
      target__dtype='bfloat16',
  )
  found = plan.run(config, tmp_path / 'run').results
  # Three layers of the target, one of the draft in each of two passes.
  assert found['plan/all_reduces_per_round'] == 2 * 3 + 2 * 1 * 2
  assert found['plan/num_devices'] == 8
  assert found['plan/fits'] is True
  assert found['plan/plain_ms_per_token'] == pytest.approx(1.0)
  assert found['plan/fastest_draft_shards'] == 1
  text = (tmp_path / 'run/plan.md').read_text()
  assert 'fits into 15.75 GiB' in text
  # The activations are summed in the dtype that they have.
  assert '| all-reduce | bf16[1,1,32] | 4 | 64 |' in text


def test_chinchilla_on_sixteen_chips(get_config):
  models, chip = plan._open(get_config('full'))
  program = programs.whole_round(models.setting(0))
  # 160 of the target, 16 of the draft in each of K = 4 passes.
  assert plan.plan_lib.layer_all_reduces(program) == 160 + 16 * 4
  assert program.memory_bytes < chip.usable_hbm_gib * 2**30 < 32 * 2**30
  # Logits of five tokens, and of one in each of four draft passes.
  assert plan.plan_lib.sampling_bytes(program) == 4 * 32_000 * (5 + 4)


def test_what_the_compiler_cannot_fit_is_said_with_the_bytes():
  device = topology.devices('v5e:2x4').reshape(-1)[0]
  # 8 GiB, and twice that for a result in float32 which cannot take its place.
  x = jax.ShapeDtypeStruct(
      (2**22, 1024),
      jnp.bfloat16,
      sharding=jax.sharding.SingleDeviceSharding(device),
  )
  with pytest.raises(
      UserError, match=r"'plain' .* \d+\.\d\d more than the 15.75 .* would help"
  ) as caught:
    programs.compile_program('plain', lambda x: x.astype(jnp.float32), x)
  assert '\n' not in str(caught.value)
