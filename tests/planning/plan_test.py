"""What fits, and what is left out because it does not."""

import dataclasses

import jax
import pytest

from speculative import sharding
from speculative.errors import UserError
from speculative.models import precision
from speculative.models.config import TransformerConfig
from speculative.models.transformer import Transformer
from speculative.planning import plan
from speculative.planning import programs

_CONFIG = TransformerConfig(
    num_layers=1,
    model_dim=16,
    num_heads=4,
    num_kv_heads=4,
    head_dim=4,
    mlp_dim=32,
    vocab_size=64,
)


def _setting(shards: int) -> programs.Setting:
  mesh = sharding.make_mesh(1, 2, devices=jax.devices()[:2])
  target, draft = (
      Transformer(
          _CONFIG,
          precision.choose('float32', platform='cpu'),
          'scanned',
          placement=sharding.place(mesh, _CONFIG.axis_sizes, shards=n),
      )
      for n in (0, shards)
  )
  return programs.Setting(
      target, draft, num_draft_tokens=2, batch=1, prompt_len=4, context=8
  )


def test_a_draft_over_fewer_devices_takes_more_of_each():
  # Attention 4 x 16 x 16, MLP 3 x 16 x 32, the embedding 64 x 16, and a cache
  # of 8 + 2 + 1 slots and those of small passes.
  slots = 8 + plan.loop.slack(_setting(2).step)
  half = 4 * (4 * 256 + 3 * 512 + 1024 + 2 * 16 * slots) / 2
  more = (plan.held_gib(_setting(1)) - plan.held_gib(_setting(2))) * 2**30
  assert more == pytest.approx(half)


@pytest.mark.slow
def test_a_layout_without_room_is_left_out_with_the_reason():
  setting = _setting(2)
  between = (plan.held_gib(setting) + plan.held_gib(_setting(1))) / 2
  found = plan.draft_layouts(setting, _setting, None, room_gib=between)
  assert list(found.steps) == [2]
  assert 'weights and caches take' in found.left_out[1]


def test_what_the_compiler_cannot_fit_is_the_users_error():
  class Lowered:

    def compile(self):
      raise jax.errors.JaxRuntimeError(
          'RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on '
          'HBM, the total memory required for HLO temporaries (19.00G) exceeds '
          'available HBM (15.75G). HLO module: jit_run.\nSee https://openxla'
      )

  class Jitted:

    def lower(self, *args):
      return Lowered()

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(programs.jax, 'jit', lambda *args, **kwargs: Jitted())
    with pytest.raises(
        UserError,
        match=r"'round' needs 19.00 GiB a device .* 3\.25 more than the 15.75",
    ) as caught:
      programs.compile_program('round', lambda: None)
  assert '\n' not in str(caught.value)
  assert 'config.mesh.model or a smaller batch' in str(caught.value)


def test_an_unreadable_refusal_keeps_its_first_line():
  said = 'RESOURCE_EXHAUSTED: no more.\nSee there'
  assert 'RESOURCE_EXHAUSTED: no more.)' in programs._too_large('plain', said)


@pytest.mark.parametrize('measured', [0.5, 3.0])
def test_a_machine_is_fitted_or_says_which_field_is_wrong(measured):
  # 1 ms of reading on a v5e.
  work = plan.Pass(819e6, 0, (('all-reduce', 0, 2, 10),))

  def call():
    return plan.make_machine(
        plan.chips.find('v5e'),
        work,
        collective_latency_us=1,
        measured_plain_ms=measured,
    )

  if measured > 1:
    assert call().collective_latency_s == pytest.approx(2e-4)
    return
  with pytest.raises(UserError, match='config.plan.measured_plain_ms=0.5'):
    call()


def test_a_setting_has_a_rule():
  block = dataclasses.replace(_setting(2), rule='block')
  assert block.step.rule == 'block'
