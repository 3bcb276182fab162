"""The law of what several rounds over a draft model's trees have brought."""

import itertools

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding import config as config_lib
from speculative.decoding import loop
from speculative.decoding.config import DecodeConfig
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.drafting.tree_lm import TreeLm
from speculative.testing import chi_square
from speculative.testing import faults
from speculative.testing import oracles
from speculative.testing.table_model import TableModel

pytestmark = [pytest.mark.statistical, pytest.mark.slow]

_V, _ROWS, _NUM_TESTED = 4, 50_000, 3
# Of each of these tests; their seeds are fixed.
_FALSE_ALARM = 1e-6
# Target and draft disagree about every token.
_P = np.array(
    [[5, 3, 1, 1], [1, 5, 3, 1], [3, 1, 1, 5], [4, 1, 4, 1]], np.float64
)
_Q = np.array(
    [[1, 3, 5, 1], [5, 1, 1, 3], [1, 5, 3, 1], [1, 1, 1, 7]], np.float64
)
_SAMPLERS = {
    'everything': dict(temperature=1.0, top_k=0, top_p=1.0),
    'warped': dict(temperature=0.8, top_k=3, top_p=0.95),
}


def _p_value(widths, sampler, fault='') -> float:
  """Decodes with many seeds; compares the first three tokens with p."""
  model = TableModel()
  step = Speculative(model, TreeLm(model, widths, _V))
  if fault:
    step = faults.inject(step, fault)
  weights = Weights(
      *(jnp.log(jnp.asarray(x, jnp.float32))[None] for x in (_P, _Q))
  )
  # Room enough that the budget shortens no path.
  room = _NUM_TESTED + len(widths) + 1
  row = DecodeConfig(max_new_tokens=room, **sampler)
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
      max_seq_len=1 + room + step.num_draft_tokens + 1,
      log_probs='none',
  )
  carry = loop.run(
      weights=weights,
      carry=carry,
      num_rounds=jnp.int32(_NUM_TESTED),
      step=step,
  )
  texts = np.asarray(carry.state.tokens_BS)[:, 1 : 1 + _NUM_TESTED]
  counts, law = (np.zeros((_V,) * _NUM_TESTED) for _ in range(2))
  np.add.at(counts, tuple(texts.T), 1)
  p = [oracles.warp(np.log(row_V), **sampler) for row_V in _P]
  for text in itertools.product(range(_V), repeat=_NUM_TESTED):
    before = (2, *text[:-1])
    law[text] = np.prod([p[b][t] for b, t in zip(before, text, strict=True)])
  return chi_square.p_value(counts, law)


@pytest.mark.parametrize('sampler', _SAMPLERS.values(), ids=_SAMPLERS)
@pytest.mark.parametrize('widths', [(2, 2), (3,), (1, 2)], ids=str)
def test_rounds_over_trees_keep_the_law(widths, sampler):
  assert _p_value(widths, sampler) > _FALSE_ALARM


def test_a_draw_of_its_own_for_every_node_is_told_apart():
  sampler = _SAMPLERS['everything']
  p_value = _p_value((2, 2), sampler, 'independent_node_draws')
  assert p_value < 1e-12
