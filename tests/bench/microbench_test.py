import time

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.bench import microbench
from speculative.decoding.autoregressive import Autoregressive
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.decoding.host_engine import HostEngine
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.drafting import given
from speculative.drafting.lookup import Lookup
from speculative.models.transformer import Transformer
from speculative.testing import tiny

_PROMPT = [1, 2, 3, 1, 2]


@pytest.fixture
def engine(key):
  step = Speculative(Transformer(tiny.TARGET), Lookup(num_draft_tokens=2))
  return Engine(step, Weights(target=tiny.init(key, tiny.TARGET)))


@pytest.fixture
def start(engine):
  """Returns the arguments of a part."""

  def call():
    config = DecodeConfig(max_new_tokens=8, max_seq_len=64)
    return {
        'weights': engine.weights,
        'carry': engine.start([_PROMPT], config),
        'count': jax.device_put(np.int32(3)),
        'step': engine.step,
    }

  return call


def test_drafts_of_the_host_are_timed_on_the_host(engine):
  calls = []

  def draft(tokens_BS, seq_len_B):
    calls.append((seq_len_B.tolist(), tokens_BS[0, :5].tolist()))
    time.sleep(0.02)
    return jax.device_get(given.empty(1, 2, 'chain'))

  host = HostEngine(
      Speculative(Transformer(tiny.TARGET), given.Given(2, 2)),
      engine.weights,
      draft,
  )
  config = DecodeConfig(max_new_tokens=4, max_seq_len=64)
  plain = engine.with_step(Autoregressive(Transformer(tiny.TARGET)))
  (found,) = microbench.time_parts(plain, [host], [_PROMPT], config, repeats=1)
  assert found.shape == 'chain'
  assert found.propose_ms >= 20 and found.round_ms >= 20
  # Nine turns and one before: so often the same text, and four rounds.
  assert calls.count(([5], _PROMPT)) == 10 * (4 + 1)
  assert len(calls) == 10 * (4 + 4)


def test_parts_take_turns_and_the_first_does_not_count():
  order = []
  times = {'a': iter([90.0, 5.0, 1.0, 2.0]), 'b': iter([0.0, 7.0, 7.0, 8.0])}

  def part(name):
    def run():
      order.append(name)
      return next(times[name])

    return run

  parts = {'a': part('a'), 'b': part('b')}
  found = microbench.medians(parts, repeats=3)
  assert found == {'a': 2.0, 'b': 7.0}
  assert order == ['a', 'b'] * 4


def test_passes_run_the_target_and_leave_the_text_as_it_was(engine, start):
  before = jax.device_get(start()['carry'])
  after = jax.device_get(microbench.passes(**start(), num_positions=3))
  for name in ('tokens_BS', 'seq_len_B', 'num_rounds', 'done_B'):
    np.testing.assert_array_equal(
        getattr(after.state, name), getattr(before.state, name)
    )
  assert after.state.cache.len_B == before.state.cache.len_B == 4
  # The last token went in at the text's end and at the two places behind it.
  step = engine.step
  again = start()['carry'].state
  out = step.model.forward(
      engine.weights.target,
      jnp.full((1, 3), _PROMPT[-1], jnp.int32),
      again.cache,
  )
  np.testing.assert_allclose(
      after.state.cache.k[0][:, :, :7], out.cache.k[0][:, :, :7], atol=1e-5
  )


def test_proposals_are_the_drafters(start):
  carry, proposal = microbench.proposals(**start())
  # The text goes on as it did after the first 1 2.
  assert proposal.tokens_BM.tolist() == [[3, 1]]
  assert carry.state.seq_len_B.tolist() == [5]


def test_every_setting_gets_times_of_all_its_parts(engine):
  config = DecodeConfig(max_new_tokens=2, max_seq_len=64, stop_ids=(3,))
  (times,) = microbench.time_parts(
      engine, [engine], [_PROMPT], config, repeats=1
  )
  assert times.num_draft_tokens == 2
  assert len(times.pass_ms) == 3
  parts = [times.plain_ms, times.propose_ms, times.round_ms, *times.pass_ms]
  assert np.isfinite(parts).all()


def test_widths_of_large_trees_are_not_all_timed():
  chains = [('chain', 4), ('chain', 2)]
  assert microbench._widths(chains) == [1, 2, 3, 4, 5]
  trees = [('tree', 64), ('tree', 24), ('tree', 3)]
  assert microbench._widths(trees) == [1, 2, 4, 25, 65]
  assert microbench._widths(chains + trees) == [*range(1, 6), 25, 65]
  assert microbench._widths([('chain', 64)]) == [*range(1, 18), 65]
