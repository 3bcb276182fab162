"""Programs compiled for eight CPU devices, counted by hand.

The CPU compiler sums bfloat16 in float32, so that dtypes are pinned in
`tpu_programs_test.py`.
"""

import functools

import jax
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest

from speculative import hlo

_NUM_LAYERS = 3


@pytest.fixture(scope='module')
def mesh():
  return jax.make_mesh(
      (2, 4), ('data', 'model'), axis_types=(AxisType.Auto,) * 2
  )


def _arg(mesh, shape, *spec, dtype=jnp.float32):
  return jax.ShapeDtypeStruct(
      shape, dtype, sharding=NamedSharding(mesh, P(*spec))
  )


def _text(function, *args, **options):
  return jax.jit(function, **options).lower(*args).compile().as_text()


def _layer(mesh, x, params):
  """Two column- and row-parallel pairs, one all-reduce each."""
  whole = NamedSharding(mesh, P('data'))
  for name in ('attention', 'mlp'):
    into, out = params[name]
    with jax.named_scope(name):
      x += lax.with_sharding_constraint(jnp.tanh(x @ into) @ out, whole)
  return x


def _params(mesh, *, stacked):
  lead, none = ((_NUM_LAYERS,), (None,)) if stacked else ((), ())
  into = _arg(mesh, (*lead, 16, 32), *none, None, 'model')
  out = _arg(mesh, (*lead, 32, 16), *none, 'model', None)
  return {'attention': (into, out), 'mlp': (into, out)}


def test_one_sum_of_two_arrays_is_one_collective(mesh):
  def sums(x, y):
    return lax.psum((x, y), 'model')

  function = jax.shard_map(
      sums, mesh=mesh, in_specs=P('data', 'model'), out_specs=P('data')
  )
  args = [_arg(mesh, (n, 8), 'data', 'model') for n in (4, 6)]
  (found,) = hlo.collectives(_text(function, *args))
  assert found.kind == 'all-reduce'
  assert found.results == (hlo.Array('f32', (2, 2)), hlo.Array('f32', (3, 2)))
  assert found.num_bytes == 4 * (4 + 6)
  assert found.groups == ((0, 1, 2, 3), (4, 5, 6, 7))
  assert (found.group_size, found.times) == (4, 1)


def test_a_sharded_contraction_is_one_all_reduce(mesh):
  text = _text(
      lambda x, w: x @ w,
      _arg(mesh, (4, 16), 'data', 'model'),
      _arg(mesh, (16, 8), 'model', None),
      out_shardings=NamedSharding(mesh, P('data')),
  )
  assert hlo.summary(hlo.collectives(text)) == {
      ('all-reduce', 'f32[2,8]', 4): (1, 1)
  }
  assert hlo.host_transfers(text) == ()


def test_a_scan_over_layers_runs_two_a_layer(mesh):
  def stack(x, params):
    body = lambda x, p: (_layer(mesh, x, p), None)  # noqa: E731
    return lax.scan(body, x, params)[0]

  args = (_arg(mesh, (4, 16), 'data'), _params(mesh, stacked=True))
  found = hlo.collectives(_text(stack, *args))
  assert hlo.summary(found) == {
      ('all-reduce', 'f32[2,16]', 4): (2, 2 * _NUM_LAYERS)
  }
  assert [c.within('attention') for c in found] == [True, False]
  assert [c.within('mlp') for c in found] == [False, True]


def test_loops_without_a_known_end_are_counted_an_iteration(mesh):
  def decode(x, params, limit):
    def rounds(carry):
      x, i = carry
      with jax.named_scope('draft'):
        x = lax.fori_loop(0, 5, lambda _, x: _layer(mesh, x, params), x)
      with jax.named_scope('verify'):
        x = _layer(mesh, x, params)
      with jax.named_scope('commit'):
        x = lax.cond(i > 2, lambda x: _layer(mesh, x, params), jnp.sin, x)
      return x, i + 1

    return lax.while_loop(lambda carry: carry[1] < limit, rounds, (x, 0))

  limit = jax.ShapeDtypeStruct((), jnp.int32)
  args = (_arg(mesh, (4, 16), 'data'), _params(mesh, stacked=False), limit)
  # Pins what the loop carries; the compiler may choose to share it out.
  where = NamedSharding(mesh, P('data')), NamedSharding(mesh, P())
  text = _text(decode, *args, out_shardings=where)
  found = hlo.collectives(text)
  assert {c.times for c in found} == {None}
  per_round = {
      scope: sum(
          c.times_below(1)
          for c in found
          if c.kind == 'all-reduce' and c.within(scope)
      )
      for scope in ('draft', 'verify', 'commit')
  }
  assert per_round == {'draft': 10, 'verify': 2, 'commit': 2}
  assert {bool(c.branches) for c in found if c.within('commit')} == {True}
  assert {c.branches for c in found if c.within('draft')} == {()}
  assert [c.times_below(2) for c in found if c.within('draft')] == [1, 1]


def _callback(kind, x):
  shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
  if kind == 'debug_print':
    jax.debug.print('{}', x)
    return x
  if kind == 'pure_callback':
    return jax.pure_callback(np.asarray, shape, x)
  return jax.experimental.io_callback(np.asarray, shape, x)


@pytest.mark.parametrize(
    'kind', ['debug_print', 'pure_callback', 'io_callback']
)
def test_a_callback_is_a_host_transfer(kind):
  function = functools.partial(_callback, kind)
  (found,) = hlo.host_transfers(
      _text(function, jax.ShapeDtypeStruct((2,), jnp.float32))
  )
  assert found.kind == 'custom-call'
  assert 'callback' in found.target
  assert kind in found.op_name


def test_donated_arguments_are_aliased(mesh):
  def update(cache, x):
    # `old` is donated too, but no output has its shape.
    return {'k': cache['k'].at[0].set(x)}, cache['old'].sum()

  cache = {
      'k': _arg(mesh, (6, 8), None, 'model'),
      'old': _arg(mesh, (3, 5)),
  }
  args = (cache, _arg(mesh, (8,), 'model'))
  (found,) = hlo.aliased(_text(update, *args, donate_argnums=0))
  assert found == hlo.Alias(
      output=(0,),
      parameter=0,
      parameter_index=(),
      name="cache['k']",
      num_bytes=6 * 2 * 4,
  )
  assert hlo.aliased(_text(update, *args)) == ()
