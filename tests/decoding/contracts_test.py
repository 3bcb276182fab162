"""What the device program promises: no host, no compilation, no copies."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
import re

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding import loop
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.decoding.loop import Carry
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.drafting.lookup import Lookup
from speculative.testing import table_model
from speculative.testing.table_model import TableModel

_CONFIG = DecodeConfig(max_new_tokens=56, log_probs='chosen')
_ENGINES = ('plain', 'with_lookup', 'with_itself', 'with_hybrid')
_HOST_OPS = ('infeed', 'outfeed', 'send', 'recv', 'send-done', 'recv-done')


@pytest.fixture(scope='module')
def compilations() -> Callable[[], contextlib.AbstractContextManager]:
  """Collects an entry for everything traced, lowered or compiled inside."""
  events = []

  def listen(event: str, seconds: float, **details: object) -> None:
    del seconds, details
    if event.startswith('/jax/core/compile/'):
      events.append(event)

  # Stays registered: older releases have no public way to take it back.
  jax.monitoring.register_event_duration_secs_listener(listen)

  @contextlib.contextmanager
  def collect() -> Iterator[list[str]]:
    events.clear()
    yield events

  return collect


def _host_calls(text: str) -> list[str]:
  """Returns the operations in a compiled text that ask the host something."""
  ops = '|'.join(_HOST_OPS)
  found = re.findall(rf' ({ops})\(', text)
  targets = re.findall(r'custom_call_target="([^"]*)"', text)
  return found + [target for target in targets if 'callback' in target]


@pytest.mark.slow
@pytest.mark.parametrize('engine', _ENGINES)
def test_the_compiled_loop_never_asks_the_host(request, prompts, engine):
  engine = request.getfixturevalue(engine)
  carry = engine.start(prompts, _CONFIG)
  compiled = loop.run.lower(
      weights=engine.weights,
      carry=carry,
      num_rounds=jnp.int32(1),
      step=engine.step,
  ).compile()
  text = compiled.as_text()
  assert ' while(' in text
  assert _host_calls(text) == []


def test_a_callback_in_a_loop_would_be_seen():
  def body(x):
    jax.debug.callback(lambda _: None, x)
    return jax.pure_callback(
        lambda y: y, jax.ShapeDtypeStruct((), jnp.float32), x + 1
    )

  def asks(x):
    return jax.lax.while_loop(lambda x: x < 3, body, x)

  text = jax.jit(asks).lower(jnp.float32(0)).compile().as_text()
  assert _host_calls(text)
  outfeed = '  %o = token[] outfeed(f32[] %x, token[] %t), outfeed_shape=f32[]'
  assert _host_calls(outfeed) == ['outfeed']


# Prompts of these lengths fall into the buckets 32, 48, ..., 512.
_LENGTHS = (5, 31, 32, 33, 48, 64, 70, 100, 128, 130, 200, 256, 300, 385, 400)


@pytest.mark.slow
def test_after_warm_up_prompts_of_5_to_400_tokens_compile_nothing(compilations):
  # What compiles depends on shapes alone, so a model without layers will do.
  engine = Engine(
      Speculative(TableModel(), Lookup(num_draft_tokens=2)),
      Weights(target=table_model.certain(range(1, 11), 11)),
  )
  rng = np.random.default_rng(0)

  def prompt(length: int) -> list[list[int]]:
    return [rng.integers(0, 11, length).tolist()]

  decode = DecodeConfig(max_new_tokens=6)
  with compilations() as events:
    for length in (32, 48, 64, 96, 128, 192, 256, 384, 512):
      engine.generate(prompt(length), decode)
  assert len(events) > 9
  with compilations() as events:
    for length in _LENGTHS:
      # `generate` itself forbids implicit transfers all along.
      got = engine.generate(prompt(length), decode)
      assert len(got.token_ids[0]) == 6
  assert events == []


@pytest.mark.parametrize('engine', _ENGINES)
def test_settings_of_decoding_compile_nothing(
    request, prompts, engine, compilations
):
  engine = request.getfixturevalue(engine)
  engine.generate(prompts, _CONFIG)
  changes = [
      {'temperature': 0.8},
      {'temperature': 0.3, 'top_p': 0.9},
      {'temperature': 1.7, 'top_k': 5, 'top_p': 0.5},
      {'temperature': 0.8, 'seed': 12345},
      {'stop_ids': (3,)},
      {'stop_ids': tuple(range(8))},
      # The whole of its bucket.
      {'stop_ids': (3,) * 16},
      {'temperature': 0.8, 'min_p': 0.1},
      {'repetition_penalty': 1.3},
      {'presence_penalty': 0.5, 'frequency_penalty': -0.5},
      {'temperature': 1.0, 'logit_bias': ((3, 1.0),)},
      {'logit_bias': tuple((i % 13, 0.5) for i in range(16))},
      {'min_new_tokens': 10, 'stop_ids': (3,)},
      {'max_new_tokens': 50},
      {'rounds_per_call': 2},
      {'max_seq_len': 64},
  ]
  with compilations() as events:
    for change in changes:
      engine.generate(prompts, dataclasses.replace(_CONFIG, **change))
    # All of them side by side.
    rows = [
        dataclasses.replace(_CONFIG, **(changes[i] | changes[-4 - i]))
        for i in range(len(prompts))
    ]
    engine.generate(prompts, rows)
    engine.generate(prompts[::-1], _CONFIG)
    engine.generate([p[:1] for p in prompts], _CONFIG)
  assert events == []


def test_warm_up_leaves_nothing_to_compile(prompts, plain, compilations):
  with compilations() as events:
    plain.warm_up(prompts[:2], DecodeConfig(max_new_tokens=56))
  assert events
  config = DecodeConfig(max_new_tokens=50, temperature=0.8, seed=3)
  with compilations() as events:
    got = plain.generate([[1, 2, 3], [4]], config)
  assert events == []
  assert got.num_tokens == 100


def test_the_count_sees_a_compilation(prompts, plain, compilations):
  with compilations() as events:
    # A cache of another bucket.
    plain.generate(prompts[:1], DecodeConfig(max_new_tokens=170))
  assert sum('backend_compile' in event for event in events) >= 2


def test_an_implicit_transfer_into_the_loop_would_be_refused(prompts, plain):
  carry = plain.start(prompts, _CONFIG)
  with jax.transfer_guard('disallow'):
    with pytest.raises(Exception, match='Disallowed host-to-device transfer'):
      loop.run(
          weights=plain.weights,
          carry=carry,
          num_rounds=np.int32(1),
          step=plain.step,
      )


def _leaves(tree: object) -> list[jax.Array]:
  return jax.tree.leaves(tree)


@pytest.mark.parametrize('engine', _ENGINES)
def test_the_loop_donates_what_it_carries_and_never_the_weights(
    request, prompts, engine
):
  engine = request.getfixturevalue(engine)
  carry = engine.start(prompts, _CONFIG)
  keys = [leaf.unsafe_buffer_pointer() for leaf in carry.state.cache.k]
  after: Carry = loop.run(
      weights=engine.weights,
      carry=carry,
      num_rounds=jax.device_put(np.int32(3)),
      step=engine.step,
  )
  assert all(leaf.is_deleted() for leaf in _leaves(carry))
  assert not any(leaf.is_deleted() for leaf in _leaves(after))
  assert not any(leaf.is_deleted() for leaf in _leaves(engine.weights))
  # The cache is the old memory, not a copy.
  assert [leaf.unsafe_buffer_pointer() for leaf in after.state.cache.k] == keys


def test_prefill_donates_nothing(prompts, with_itself):
  before = _leaves(with_itself.weights)
  with_itself.start(prompts, _CONFIG)
  assert not any(leaf.is_deleted() for leaf in before)


@pytest.mark.parametrize('engine', ['with_itself', 'with_hybrid'])
def test_prefill_gives_every_leaf_a_buffer_of_its_own(request, prompts, engine):
  """Two leaves of one buffer could not both be donated."""
  carry = request.getfixturevalue(engine).start(prompts, _CONFIG)
  pointers = [
      leaf.unsafe_buffer_pointer() for leaf in _leaves(carry) if leaf.size
  ]
  assert len(set(pointers)) == len(pointers)
