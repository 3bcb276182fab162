"""The law of tokens that several rounds have brought.

A round leaves random numbers behind that it tried and that decided nothing.
Block verification stops where it does because of them: drawn again at the same
positions, they would bend the law of the next round, and the law of a single
round would not show it.
"""

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding import config as config_lib
from speculative.decoding import loop
from speculative.decoding import sampling as sampling_lib
from speculative.decoding.config import DecodeConfig
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.drafting.lm import Lm
from speculative.testing import chi_square
from speculative.testing.table_model import TableModel

pytestmark = [pytest.mark.statistical, pytest.mark.slow]

_V, _ROWS, _NUM_TESTED = 3, 200_000, 3
# Of each of these tests; their seeds are fixed.
_FALSE_ALARM = 1e-6
# Target and draft disagree about every token.
_P = np.array([[0.6, 0.3, 0.1], [0.1, 0.6, 0.3], [0.3, 0.1, 0.6]])
_Q = np.array([[0.1, 0.3, 0.6], [0.6, 0.1, 0.3], [0.3, 0.6, 0.1]])


def _p_value(rule: str, num_draft_tokens: int) -> float:
  """Decodes with many seeds; compares the first three tokens' law with p."""
  model = TableModel()
  step = Speculative(model, Lm(model, num_draft_tokens, _V), rule=rule)
  weights = Weights(
      *(jnp.log(jnp.asarray(x, jnp.float32))[None] for x in (_P, _Q))
  )
  # Room enough that the budget shortens no chain.
  room = _NUM_TESTED + num_draft_tokens + 1
  row = DecodeConfig(max_new_tokens=room, temperature=1.0)
  sampling = jax.tree.map(
      lambda x: jnp.asarray(np.repeat(x, _ROWS, axis=0)),
      config_lib.sampling_of([row]),
  )
  ones = jnp.ones((_ROWS,), jnp.int32)
  carry = loop.prefill(
      weights,
      jnp.full((_ROWS, 1), 2, jnp.int32),
      ones,
      ones + room,
      jnp.asarray(np.repeat(config_lib.padded_ids([()]), _ROWS, axis=0)),
      sampling.replace(seed_B=jnp.arange(_ROWS, dtype=jnp.uint32)),
      step=step,
      max_seq_len=1 + room + num_draft_tokens + 1,
      log_probs='none',
  )
  carry = loop.run(
      weights=weights,
      carry=carry,
      num_rounds=jnp.int32(_NUM_TESTED),
      step=step,
  )
  new = np.asarray(carry.state.tokens_BS)[:, 1 : 1 + _NUM_TESTED]
  counts = np.zeros((_V,) * _NUM_TESTED)
  np.add.at(counts, tuple(new.T), 1)
  law = _P[2][:, None, None] * _P[:, :, None] * _P[None]
  return chi_square.p_value(counts, law)


@pytest.mark.parametrize('num_draft_tokens', [2, 3])
@pytest.mark.parametrize('rule', ['token', 'block'])
def test_tokens_of_several_rounds_follow_the_target(rule, num_draft_tokens):
  assert _p_value(rule, num_draft_tokens) > _FALSE_ALARM


def test_numbers_that_come_back_in_the_next_round_are_seen(monkeypatch):
  """With keys of seed and position alone, as they once were."""
  monkeypatch.setattr(
      sampling_lib,
      'trial_keys',
      lambda seed_B, start_B, positions_BT, use: sampling_lib.keys(
          seed_B, positions_BT, use
      ),
  )
  jax.clear_caches()
  assert _p_value('block', 2) < 1e-30
  monkeypatch.undo()
  # What was compiled with the wrong keys must not serve another test.
  jax.clear_caches()
