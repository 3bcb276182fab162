"""Prefill and the loop, called without the host's engine around them."""

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding import loop
from speculative.decoding import state as state_lib
from speculative.decoding.autoregressive import Autoregressive
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.drafting.given import Given
from speculative.drafting.lm import Lm
from speculative.drafting.lookup import Lookup
from speculative.models.precision import Precision
from speculative.models.transformer import Transformer
from speculative.testing import table_model
from speculative.testing import tiny
from speculative.testing.table_model import Script
from speculative.testing.table_model import TableModel

_TEXT = [(3 * i + 1) % 31 for i in range(32)]
_STEP = Speculative(TableModel(), Script(3))


@pytest.fixture
def weights() -> Weights:
  """A text by heart, and a drafter that knows it."""
  return Weights(
      target=table_model.certain(_TEXT[1:], 31),
      drafter=jnp.asarray([_TEXT] * 2, jnp.int32),
  )


def _prefill(
    weights,
    prompts,
    *,
    sampling,
    limits,
    step=_STEP,
    width=8,
    max_seq_len=32,
    pad=17,
):
  padded = np.full((len(prompts), width), pad, np.int32)
  for row, prompt in enumerate(prompts):
    padded[row, : len(prompt)] = prompt
  return loop.prefill(
      weights,
      jnp.asarray(padded),
      jnp.asarray([len(prompt) for prompt in prompts], jnp.int32),
      jnp.asarray(limits, jnp.int32),
      jnp.full((len(prompts), 1), -1, jnp.int32),
      sampling,
      step=step,
      max_seq_len=max_seq_len,
      log_probs='none',
  )


def _run(weights, carry, num_rounds, step=_STEP):
  return loop.run(
      weights=weights,
      carry=carry,
      num_rounds=jnp.int32(num_rounds),
      step=step,
  )


def _texts(carry) -> list[list[int]]:
  tokens, lens = jax.device_get((carry.state.tokens_BS, carry.state.seq_len_B))
  return [row[:n].tolist() for row, n in zip(tokens, lens, strict=True)]


def test_prefill_leaves_the_last_token_of_each_prompt_to_the_first_round(
    weights, make_sampling
):
  prompts = [_TEXT[:1], _TEXT[:5]]
  carry = _prefill(weights, prompts, sampling=make_sampling(2), limits=[20, 20])
  assert table_model.cached_tokens(carry.state.cache) == [[], _TEXT[:4]]
  assert _texts(carry) == prompts
  np.testing.assert_array_equal(carry.state.done_B, [False, False])


def test_a_prompt_that_fills_its_limit_is_done_before_the_first_round(
    weights, make_sampling
):
  carry = _prefill(
      weights,
      [_TEXT[:4], _TEXT[:5]],
      sampling=make_sampling(2),
      limits=[4, 12],
  )
  np.testing.assert_array_equal(carry.state.done_B, [True, False])
  carry = _run(weights, carry, 100)
  assert _texts(carry) == [_TEXT[:4], _TEXT[:12]]
  np.testing.assert_array_equal(carry.state.reason_B, [state_lib.LENGTH] * 2)
  # Row 1's seven tokens came in two rounds.
  np.testing.assert_array_equal(
      carry.state.origins.place_BT[1, 5:12], [0, 1, 2, 3, 0, 1, 2]
  )


def test_run_stops_after_the_rounds_asked_for_and_goes_on_from_there(
    weights, make_sampling
):
  carry = _prefill(
      weights,
      [_TEXT[:1], _TEXT[:5]],
      sampling=make_sampling(2),
      limits=[20, 20],
  )
  # Each round brings three drafted tokens and one of the target's own.
  for num_rounds, total in ((0, 0), (1, 1), (2, 3)):
    carry = _run(weights, carry, num_rounds)
    assert int(carry.state.num_rounds) == total
    assert _texts(carry) == [_TEXT[: 1 + 4 * total], _TEXT[: 5 + 4 * total]]
  carry = _run(weights, carry, 100)
  assert int(carry.state.num_rounds) == 5
  # Nothing is left to do.
  carry = _run(weights, carry, 100)
  assert int(carry.state.num_rounds) == 5
  assert _texts(carry) == [_TEXT[:20], _TEXT[:20]]


_VOCAB = tiny.TARGET.vocab_size
_PADDED = Transformer(tiny.TARGET, Precision(min_rows=2))
_PLAIN = Transformer(tiny.TARGET)


_LOOKUP = Speculative(_PLAIN, Lookup(num_draft_tokens=4))
_LM = Speculative(_PADDED, Lm(_PADDED, 3, _VOCAB))


@pytest.fixture(scope='module')
def pair(target_params) -> Weights:
  """tiny.TARGET and a draft that agrees with it mostly."""
  draft_params = tiny.perturb(jax.random.key(1), target_params, scale=0.15)
  return Weights(target=target_params, drafter=draft_params)


def _decode(pair, make_sampling, step, *, max_seq_len, pad=17):
  # The longest row is done after one round; the rounds of the other one must
  # not write over its last tokens.
  carry = _prefill(
      pair,
      [[5, 1, 2, 1, 2, 1, 2, 0, 4, 1, 2, 1], [3, 4, 5]],
      sampling=make_sampling(2),
      limits=[13, 12],
      step=step,
      width=12,
      max_seq_len=max_seq_len,
      pad=pad,
  )
  return _texts(_run(pair, carry, 100, step))


@pytest.mark.slow
@pytest.mark.parametrize(
    'step', [_LOOKUP, _LM], ids=['lookup', 'lm, padded rows']
)
def test_no_pass_writes_beyond_a_buffer_with_just_the_slack_it_asks_for(
    step, pair, make_sampling
):
  """A write past the end would be moved back over the row's own slots."""
  plain = Autoregressive(_PADDED)
  roomy = _decode(pair, make_sampling, plain, max_seq_len=40)
  assert [len(text) for text in roomy] == [13, 12]
  for tight in (plain, step):
    texts = _decode(
        pair, make_sampling, tight, max_seq_len=13 + loop.slack(tight)
    )
    assert texts == roomy


def test_paths_deeper_than_there_are_nodes_need_slack_too():
  given = Given(num_draft_tokens=3, depth=5, shape='tree')
  assert loop.slack(Speculative(_PLAIN, given)) == 5 + 1
  assert loop.slack(Speculative(_PADDED, given)) == 5 + 1 + 1
  assert loop.slack(_LOOKUP) == 4 + 1


def test_what_pads_a_prompt_changes_nothing(pair, make_sampling):
  texts = [
      _decode(pair, make_sampling, _LOOKUP, max_seq_len=18, pad=pad)
      for pad in (0, 2, 12)
  ]
  assert texts[0] == texts[1] == texts[2]
