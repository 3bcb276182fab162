"""Budgets as a TPU compiler emits them, on a machine without a TPU."""

import functools

import jax
from jax import lax
from jax import numpy as jnp
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import pytest

from speculative import hlo
from speculative import topology

pytestmark = pytest.mark.tpu_compiler

_NUM_LAYERS = 8
_D, _F = 512, 1024


def _mesh(name):
  return Mesh(topology.devices(name).reshape(2, -1), ('data', 'model'))


def _layer(x, params, *, where):
  """The two matrix pairs of a Megatron layer, one all-reduce each."""
  for name in ('attention', 'mlp'):
    into, out = params[name]
    with jax.named_scope(name):
      y = lax.with_sharding_constraint(jax.nn.silu(x @ into) @ out, where)
    x += y
  return x


def _unrolled(x, params, *, where):
  for i in range(_NUM_LAYERS):
    x = _layer(x, jax.tree.map(lambda w, i=i: w[i], params), where=where)
  return x


def _scanned(x, params, *, where):
  def body(x, params):
    return _layer(x, params, where=where), None

  return lax.scan(body, x, params)[0]


def _compile(stack, mesh):
  def arg(shape, *spec):
    sharding = NamedSharding(mesh, P(*spec))
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding)

  into = arg((_NUM_LAYERS, _D, _F), None, None, 'model')
  out = arg((_NUM_LAYERS, _F, _D), None, 'model', None)
  function = functools.partial(stack, where=NamedSharding(mesh, P('data')))
  params = {'attention': (into, out), 'mlp': (into, out)}
  lowered = jax.jit(function).lower(arg((16, _D), 'data'), params)
  return lowered.compile().as_text()


@pytest.mark.parametrize(
    ('stack', 'in_text'), [(_unrolled, 2 * _NUM_LAYERS), (_scanned, 2)]
)
def test_a_megatron_layer_has_two_all_reduces_in_bfloat16(stack, in_text):
  text = _compile(stack, _mesh('v4:2x2x4'))
  found = hlo.collectives(text)
  assert hlo.summary(found) == {
      ('all-reduce', f'bf16[8,{_D}]', 8): (in_text, 2 * _NUM_LAYERS)
  }
  assert sum(c.within('attention') for c in found) == in_text // 2
  assert hlo.host_transfers(text) == ()


@pytest.mark.parametrize(
    'name', ['v5e:2x4', 'v5p:2x2x2', 'v6e:2x4', 'tpu7x:2x2x1']
)
def test_every_generation_has_the_same_budget(name):
  found = hlo.collectives(_compile(_scanned, _mesh(name)))
  assert list(hlo.summary(found).values()) == [(2, 2 * _NUM_LAYERS)]
  assert {c.dtypes for c in found} == {frozenset({'bf16'})}


def test_a_callback_is_a_pair_of_transfers():
  mesh = _mesh('v5e:2x2')

  def shout(x):
    jax.debug.print('{}', x.sum())
    return x

  x = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=NamedSharding(mesh, P()))
  found = hlo.host_transfers(jax.jit(shout).lower(x).compile().as_text())
  assert {transfer.kind for transfer in found} == {'send', 'recv'}
