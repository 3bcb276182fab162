import dataclasses

import pytest

from speculative.errors import UserError
from speculative.testing import tiny
from speculative.train.config import TrainConfig

_GOOD = TrainConfig(store='x')


@pytest.mark.parametrize(
    'changed, said',
    [
        ({'store': ''}, "config.train.store is ''; it needs a directory"),
        ({'store': 'a,'}, "config.train.store is 'a,'"),
        (
            {'store': 'a,builtin'},
            "'a,builtin'; 'builtin' is for tests",
        ),
        ({'init': 'random'}, "config.train.init is 'random'.*fresh, target"),
        ({'remat': 'yes'}, 'config.train.remat'),
        ({'num_steps': 0}, 'config.train.num_steps needs to be >= 1, got 0'),
        ({'hold_out_every': 1}, 'hold_out_every needs to be >= 2'),
        ({'learning_rate': 0.0}, 'learning_rate needs to be > 0'),
        ({'clip_norm': float('inf')}, 'clip_norm needs to be > 0 and finite'),
        ({'kl': -1.0}, 'kl needs to be >= 0'),
        ({'kl': 0.0}, 'all 0; at least one loss'),
        ({'unroll': 256}, 'unroll=256 needs to be smaller'),
        ({'inputs': 'tokens'}, 'unroll=3 is of no use.*set it to 1'),
        ({'init': 'target'}, 'from_layers'),
        ({'init': 'draft'}, "from_draft is ''.*needs the directory"),
        ({'from_draft': 'x'}, "from_draft is 'x' where .*init is 'fresh'"),
    ],
)
def test_a_mistake_is_named_in_one_line(changed, said):
  with pytest.raises(UserError, match=said) as error:
    dataclasses.replace(_GOOD, **changed)
  assert '\n' not in str(error.value)


def test_shapes_are_the_targets_unless_given():
  found = _GOOD.draft_config(tiny.TARGET)
  assert found.layers == dataclasses.replace(tiny.TARGET, num_layers=1)
  assert found.head_size == tiny.TARGET.vocab_size
  wide = dataclasses.replace(_GOOD, model_dim=64, num_heads=2, head_size=9)
  found = wide.draft_config(tiny.TARGET)
  assert (found.layers.model_dim, found.target_dim) == (64, 16)
  assert (found.layers.num_heads, found.head_size) == (2, 9)


def test_layers_of_the_target_need_its_shapes_and_to_be_there():
  from_target = {'init': 'target', 'from_layers': (1,)}
  dataclasses.replace(_GOOD, **from_target).draft_config(tiny.TARGET)
  for changed, said in (
      ({'model_dim': 64}, 'model_dim is 64, but layers of the target have 16'),
      ({'from_layers': (2,)}, 'has 2; the target has layers 0 to 1'),
  ):
    config = dataclasses.replace(_GOOD, **from_target | changed)
    with pytest.raises(UserError, match=said):
      config.draft_config(tiny.TARGET)
