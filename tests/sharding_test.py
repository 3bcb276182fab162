import jax
from jax import numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np
import pytest

from speculative import sharding
from speculative.errors import UserError

_SIZES = {'vocab': 64, 'heads': 8, 'kv_heads': 4, 'mlp': 96}


def _place(data, model, sizes=_SIZES, **options):
  return sharding.place(sharding.make_mesh(data, model), sizes, **options)


def test_projections_are_split_as_megatron_does():
  placement = _place(2, 4)
  assert placement.spec(('heads', 'embed')) == PartitionSpec('model', None)
  assert placement.spec(('embed', 'mlp')) == PartitionSpec(None, 'model')
  assert placement.spec(('vocab', 'embed')) == PartitionSpec('model', None)
  assert placement.spec(('batch', 'heads', None, None)) == PartitionSpec(
      'data', 'model', None, None
  )


def test_every_device_gets_its_own_part_of_an_array():
  placement = _place(2, 4)
  x = np.arange(8 * 3, dtype=np.float32).reshape(8, 3)
  got = placement.put(x, ('heads', 'embed'))
  assert {s.data.shape for s in got.addressable_shards} == {(2, 3)}
  np.testing.assert_array_equal(got, x)
  whole = placement.put(np.float32(3))
  assert len(whole.sharding.device_set) == 8
  assert whole.is_fully_replicated


def test_a_value_is_put_where_a_guard_forbids_accidents():
  with jax.transfer_guard('disallow'):
    _place(1, 2).put({'a': np.zeros(2, np.float32)})


def test_without_a_mesh_nothing_is_said():
  placement = sharding.Placement()
  x = jnp.ones((2, 3))
  assert placement.constrain(x, ('heads', None)) is x
  assert placement.replicate(x) is x
  assert placement.sharding(('heads',)) is None
  assert placement.num_kv_copies(8, 2) == 1
  assert (placement.model_size, placement.data_size) == (1, 1)


@pytest.mark.parametrize(
    ('num_heads', 'num_kv_heads', 'model', 'copies'),
    [
        (8, 4, 4, 1),
        (8, 4, 2, 1),
        (8, 2, 4, 2),
        (8, 1, 8, 8),
        (8, 2, 8, 4),
        # Heads 0 to 2 and 3 to 5 share a key/value head across a border.
        (12, 3, 4, 4),
    ],
)
def test_key_value_heads_are_copied_until_they_divide(
    num_heads, num_kv_heads, model, copies
):
  sizes = _SIZES | {'heads': num_heads, 'kv_heads': num_kv_heads}
  placement = _place(1, model, sizes, indivisible='replicate')
  assert placement.num_kv_copies(num_heads, num_kv_heads) == copies
  assert ('kv_heads' in placement.whole) == (num_kv_heads % model != 0)


def test_sizes_that_do_not_divide_are_named_with_those_that_would():
  sizes = {'vocab': 49152, 'heads': 9, 'kv_heads': 3, 'mlp': 1536}
  with pytest.raises(
      UserError, match=r'heads=9 of the target .* 8 devices .* over 1, 3\.'
  ):
    _place(1, 8, sizes)
  _place(1, 3, sizes)
  with pytest.raises(UserError, match='mlp=100, vocab=50 of the draft'):
    _place(1, 8, {'mlp': 100, 'vocab': 50, 'heads': 8}, name='draft')


def test_what_does_not_divide_can_be_held_whole():
  sizes = {'vocab': 49152, 'heads': 9, 'kv_heads': 3, 'mlp': 1536}
  placement = _place(1, 8, sizes, indivisible='replicate')
  assert placement.whole == ('heads', 'kv_heads')
  assert placement.spec(('heads', 'embed')) == PartitionSpec(None, None)
  assert placement.spec(('mlp', 'embed')) == PartitionSpec('model', None)
  # The cache is whole too, with the heads it has.
  assert placement.num_kv_copies(9, 3) == 1


def test_a_draft_can_lie_over_fewer_neighbours():
  placement = _place(2, 4, name='draft', shards=2)
  got = placement.put(np.arange(8.0, dtype=np.float32), ('heads',))
  parts = {
      s.device: np.asarray(s.data).tolist() for s in got.addressable_shards
  }
  row = placement.mesh.devices[0].reshape(-1)
  assert [parts[d][0] for d in row] == [0, 4, 0, 4]
  whole = _place(2, 4, name='draft', shards=1)
  assert whole.put(np.zeros(8), ('heads',)).is_fully_replicated


def test_a_draft_over_a_number_that_does_not_divide_the_axis_is_refused():
  with pytest.raises(UserError, match=r'shards is 3, .*=4 allows 1, 2, 4'):
    _place(2, 4, shards=3)


def test_more_devices_than_there_are_is_refused():
  with pytest.raises(UserError, match='data=4 .*model=4 needs 16 .* are 8'):
    sharding.make_mesh(4, 4)


@pytest.mark.parametrize(
    ('field', 'value'),
    [('data', 0), ('model', -1), ('indivisible', 'maybe'), ('logits', 'cut')],
)
def test_a_wrong_field_of_the_mesh_is_named(field, value):
  with pytest.raises(UserError, match=f'config.mesh.{field}'):
    sharding.MeshConfig(**{field: value})


def test_logits_are_gathered_while_they_are_small():
  placement = _place(1, 8)
  assert placement.logits_axis(5, 32_000) is None
  assert placement.logits_axis(5 * 128, 128_256) == 'vocab'
  # With rows over the axis data every device gathers its own only.
  rows = int(sharding.GATHER_BELOW_BYTES / 4 / 32_000) + 1
  assert _place(1, 8).logits_axis(rows, 32_000) == 'vocab'
  assert _place(8, 1).logits_axis(rows, 32_000) is None
  assert _place(1, 8, logits='split').logits_axis(1, 64) == 'vocab'
  assert _place(1, 8, logits='gathered').logits_axis(10**6, 10**6) is None
