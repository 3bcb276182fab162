"""What chains and trees of a draft model share."""

import inspect

from jax import numpy as jnp
import numpy as np
import pytest

from speculative.drafting.drawing import ChainDrafter
from speculative.drafting.drawing import Head
from speculative.drafting.hidden_lm import HiddenLm
from speculative.drafting.lm import Lm
from speculative.testing.table_model import TableModel


@pytest.mark.parametrize('size', [3, 5, 7])
def test_logits_are_cut_or_padded_to_the_targets_vocabulary(size):
  own = np.arange(5, dtype=np.float32)
  # The model's hidden states are its logits.
  logits = Head(TableModel(), size).raw_logits(
      None, jnp.asarray(own)[None, None]
  )
  expected = np.full(size, -np.inf, np.float32)
  expected[:5] = own[:size]
  np.testing.assert_array_equal(logits[0, 0], expected)


@pytest.mark.parametrize('drafter', [Lm, HiddenLm])
@pytest.mark.parametrize('name', ['init', 'catch_up', 'forward', 'commit'])
def test_drafters_are_called_as_their_protocol_says(drafter, name):
  said = inspect.signature(getattr(ChainDrafter, name)).parameters.values()
  found = inspect.signature(getattr(drafter, name)).parameters.values()
  assert [(p.name, p.kind, p.default) for p in found] == [
      (p.name, p.kind, p.default) for p in said
  ]
