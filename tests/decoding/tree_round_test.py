"""Rounds over trees against plain decoding: the same tokens token for token."""

import dataclasses

from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.testing import tiny
from speculative.testing.random_tree import RandomTree
from speculative.testing.random_tree import Script

# Float32 logits of passes of different widths.
_ATOL = 1e-4
_V = tiny.TARGET.vocab_size
_TREE = RandomTree(7, 4, _V, right=0.7)
_GREEDY = DecodeConfig(max_new_tokens=40, log_probs='chosen')
_SAMPLED = dataclasses.replace(_GREEDY, temperature=0.8, top_p=0.95)
_MIXED = [
    dataclasses.replace(_GREEDY, stop_ids=(3, 4), min_new_tokens=9),
    dataclasses.replace(_SAMPLED, seed=3, max_new_tokens=23),
    dataclasses.replace(
        _SAMPLED,
        seed=5,
        repetition_penalty=1.2,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        logit_bias=((5, 1.5), (12, -3.0)),
    ),
    dataclasses.replace(
        _GREEDY,
        frequency_penalty=0.5,
        stop_ids=(2, 7),
        min_new_tokens=5,
    ),
]
_CONFIGS = {'greedy': _GREEDY, 'sampled': _SAMPLED, 'mixed': _MIXED}


def _script(prompts, generation, seed=0) -> Script:
  """Expects what plain decoding wrote."""
  tokens = np.zeros((len(prompts), 96), np.int32)
  for row, ids in enumerate(generation.token_ids):
    text = [*prompts[row], *ids]
    tokens[row, : len(text)] = text
  return Script(jnp.asarray(tokens), jnp.uint32(seed))


@pytest.fixture(scope='module')
def check(plain, prompts, target_params):
  """Holds a drafter of trees against plain decoding."""

  def call(config, drafter=_TREE, model=plain.step.model, seed=0):
    expected = plain.generate(prompts, config)
    engine = Engine(
        Speculative(model, drafter),
        Weights(target_params, _script(prompts, expected, seed)),
    )
    got = engine.generate(prompts, config)
    assert got.token_ids == expected.token_ids
    assert got.reasons == expected.reasons
    for row in range(len(prompts)):
      np.testing.assert_allclose(
          got.log_probs[row], expected.log_probs[row], atol=_ATOL
      )
    return got

  return call


@pytest.mark.parametrize('name', _CONFIGS)
def test_trees_say_what_plain_decoding_says_token_for_token(check, name):
  got = check(_CONFIGS[name])
  assert got.accepted.shape == (4, 4)
  # Paths of all depths were kept, and some were not.
  assert (got.accepted.sum(axis=0) > 0).all()
  assert got.accepted.sum() < got.tested.sum() - 5
  assert got.tokens_per_round > 1.5


@pytest.mark.parametrize('seed', [1, 2])
def test_other_trees_say_the_same(check, seed):
  check(_MIXED, seed=seed)
