"""Drafts made on the host, between rounds."""

import dataclasses

import jax
import numpy as np
import pytest

from speculative.decoding.autoregressive import Autoregressive
from speculative.decoding.config import DecodeConfig
from speculative.decoding.drafter import Proposal
from speculative.decoding.engine import Engine
from speculative.decoding.host_engine import HostEngine
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.drafting.given import Given
from speculative.models.transformer import Transformer
from speculative.testing import tiny

_TARGET = Transformer(tiny.TARGET)
_PROMPTS = [[3], [9, 8, 7, 6, 5], [5, 6, 5, 6, 5, 6]]
_ROWS = [
    DecodeConfig(max_new_tokens=20, stop_ids=(11,), seed=seed, **sampler)
    for seed, sampler in enumerate(
        ({}, {'temperature': 1.0}, {'temperature': 0.8, 'top_p': 0.9})
    )
]
# Below the last token: the right token, and a wrong one before it; then a right
# one below the right one.
_PARENTS = [-1, -1, 1]


@pytest.fixture(scope='module')
def plain() -> Engine:
  params = tiny.init(jax.random.key(7), tiny.TARGET)
  return Engine(Autoregressive(_TARGET), Weights(target=params))


@pytest.mark.parametrize('shape', ['chain', 'tree'])
def test_what_the_host_knows_is_kept_and_what_it_guesses_wrong_is_not(
    plain, shape
):
  expected = plain.generate(_PROMPTS, _ROWS)
  texts = [
      prompt + new
      for prompt, new in zip(_PROMPTS, expected.token_ids, strict=True)
  ]
  calls = []

  def draft(tokens_BS: np.ndarray, seq_len_B: np.ndarray) -> Proposal:
    calls.append(seq_len_B.tolist())
    tokens, valid = [], []
    for row, text in enumerate(texts):
      end = int(seq_len_B[row])
      assert tokens_BS[row, :end].tolist() == text[:end]
      right = [*text[end : end + 3], 0, 0, 0][:3]
      if shape == 'tree':
        right = [(right[0] + 1) % 12, right[0], right[1]]
      tokens.append(right)
      # Every other time the host has nothing to say.
      valid.append([len(calls) % 2 == 1] * 3)
    size = (len(texts), 3)
    chain = shape == 'chain'
    return Proposal(
        tokens_BM=np.array(tokens, np.int32),
        parent_BM=np.broadcast_to(
            np.array([-1, 0, 1] if chain else _PARENTS, np.int32), size
        ),
        depth_BM=np.broadcast_to(
            np.array([1, 2, 3] if chain else [1, 1, 2], np.int32), size
        ),
        valid_BM=np.array(valid),
        shape=shape,
    )

  depth = 3 if shape == 'chain' else 2
  step = Speculative(_TARGET, Given(3, depth, shape))
  engine = HostEngine(step, plain.weights, draft)
  got = engine.generate(_PROMPTS, _ROWS)
  assert got.token_ids == expected.token_ids
  assert got.reasons == expected.reasons
  # Everything right was kept, in the rounds in which something was drafted.
  longest = max(len(ids) for ids in expected.token_ids)
  assert len(calls) == int(got.num_rounds) < longest
  calls.clear()
  rows = [dataclasses.replace(row, rounds_per_call=2) for row in _ROWS]
  assert engine.generate(_PROMPTS, rows).token_ids == expected.token_ids
  assert len(calls) == int(got.num_rounds)
  assert got.acceptance_rate > 0.8
