import types

import numpy as np
import pytest

from speculative.train import evaluate

# Two batches, three steps, domains 'text' and 'code', and one that is absent.
_SUMS = (
    {
        'weight': [[4, 0, 2], [2, 0, 1], [1, 0, 0]],
        'acceptance': [[2, 0, 1], [0.5, 0, 0.5], [0.1, 0, 0]],
        'chain': [[2, 0, 1], [0.4, 0, 0.2], [0.05, 0, 0]],
        'agrees': [[3, 0, 1], [1, 0, 0], [1, 0, 0]],
        'greedy_chain': [[3, 0, 1], [1, 0, 0], [0, 0, 0]],
        'loss': [[8, 0, 1], [5, 0, 5], [5, 0, 5]],
        'in_head': [[4, 0, 1], [2, 0, 1], [1, 0, 0]],
    },
)


def _measure(sums):
  left = iter(sums)
  program = types.SimpleNamespace(
      measure=lambda *_: {k: np.array(v) for k, v in next(left).items()}
  )
  return evaluate.measure(
      program, None, None, [None] * len(sums), ('text', 'code', 'chat')
  )


def test_means_are_by_step_and_domain_and_over_all_batches():
  found = _measure(_SUMS * 2)
  assert set(found) == {'', 'text', 'chat'}
  assert found['text'].alpha_K == (0.5, 0.25, 0.1)
  assert found['text'].agreement_K == (0.75, 0.5, 1.0)
  assert found[''].alpha_K[0] == 0.5
  assert found['chat'].alpha_K == (0.5, 0.5, 0.0)
  assert found['text'].loss == 2
  assert found['text'].num_tokens == 8
  # One token is always emitted, a drafted one if all up to it are kept.
  assert found['text'].tokens_per_round == pytest.approx(1 + 0.5 + 0.2 + 0.05)
  assert found['text'].greedy_tokens_per_round == pytest.approx(1 + 0.75 + 0.5)


def test_names_are_flat_and_by_step():
  row = _measure(_SUMS)['text'].metrics('train/text/')
  assert row['train/text/alpha_heldout'] == row['train/text/alpha_heldout_1']
  assert row['train/text/alpha_heldout_3'] == pytest.approx(0.1)
  assert row['train/text/agreement_heldout_2'] == 0.5


def test_no_held_out_text_measures_nothing():
  assert _measure(()) == {}
