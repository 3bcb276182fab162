import jax
from jax import numpy as jnp

from speculative.bench import compiles


def test_only_new_programs_inside_the_block_are_counted():
  x = jnp.arange(7, dtype=jnp.float32)
  function = jax.jit(lambda x: x * 3 + 1)
  with compiles.counted() as first:
    function(x).block_until_ready()
  with compiles.counted() as second:
    function(x).block_until_ready()
  assert first.count == 1
  assert first.seconds > 0
  assert (second.count, second.seconds) == (0, 0)


def test_a_count_stands_still_after_its_block():
  x = jnp.arange(7, dtype=jnp.float32)
  with compiles.counted() as counted:
    jax.jit(lambda x: x - 5)(x).block_until_ready()
  jax.jit(lambda x: x - 6)(x).block_until_ready()
  assert counted.count == 1


def test_nested_blocks_count_each_for_itself():
  x = jnp.arange(7, dtype=jnp.float32)
  with compiles.counted() as outer:
    jax.jit(lambda x: x / 3)(x).block_until_ready()
    with compiles.counted() as inner:
      jax.jit(lambda x: x / 5)(x).block_until_ready()
  assert (outer.count, inner.count) == (2, 1)


def test_a_block_that_raises_is_forgotten():
  x = jnp.arange(7, dtype=jnp.float32)
  try:
    with compiles.counted() as counted:
      raise KeyError
  except KeyError:
    pass
  jax.jit(lambda x: x * 11)(x).block_until_ready()
  assert counted.count == 0
