"""Plain decoding against one pass over the text it wrote."""

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding import sampling as sampling_lib
from speculative.decoding.config import DecodeConfig
from speculative.testing import oracles

# Float32 logits of cached passes against those of one pass over the text.
_ATOL = 1e-4

_GREEDY = DecodeConfig(max_new_tokens=56, log_probs='chosen')
_SAMPLED = DecodeConfig(
    max_new_tokens=56,
    log_probs='chosen',
    temperature=0.8,
    top_p=0.95,
    seed=11,
)


@pytest.fixture
def greedy(plain, prompts):
  return plain.generate(prompts, _GREEDY)


def test_greedy_tokens_are_the_likeliest_of_a_full_pass(
    greedy, prompts, full_logits
):
  texts = [p + ids for p, ids in zip(prompts, greedy.token_ids, strict=True)]
  best = full_logits(texts).argmax(-1)
  for row, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
    expected = best[row, len(prompt) - 1 : len(text) - 1]
    np.testing.assert_array_equal(text[len(prompt) :], expected)
  # Texts that only repeat one token would prove little.
  assert all(len(set(ids)) > 3 for ids in greedy.token_ids)


@pytest.mark.parametrize('config', [_GREEDY, _SAMPLED], ids=['greedy', 'drawn'])
def test_log_probs_are_those_of_a_full_pass_and_not_warped(
    plain, prompts, full_logits, config
):
  generation = plain.generate(prompts, config)
  texts = [
      p + ids for p, ids in zip(prompts, generation.token_ids, strict=True)
  ]
  log_laws = np.asarray(jax.nn.log_softmax(jnp.asarray(full_logits(texts))))
  for row, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
    at = np.arange(len(prompt), len(text))
    expected = log_laws[row, at - 1, np.array(text)[at]]
    np.testing.assert_allclose(generation.log_probs[row], expected, atol=_ATOL)


def test_sampled_tokens_are_drawn_with_the_key_of_seed_and_index(
    plain, prompts, full_logits
):
  generation = plain.generate(prompts, _SAMPLED)
  texts = [
      p + ids for p, ids in zip(prompts, generation.token_ids, strict=True)
  ]
  logits = full_logits(texts)
  for row, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
    index = np.arange(len(prompt), len(text), dtype=np.int32)
    seed = jnp.asarray([_SAMPLED.seed + row], jnp.uint32)
    keys = sampling_lib.keys(seed, index[None], sampling_lib.TARGET)
    draw = jax.vmap(lambda key: jax.random.uniform(key, (4,)))
    for i, u_i in zip(index, np.asarray(draw(keys[0])), strict=True):
      law = oracles.warp(
          logits[row, i - 1], temperature=0.8, top_k=0, top_p=0.95
      )
      num_blocks, _ = sampling_lib._grid(len(law))
      assert text[i] == oracles.inverse(u_i, law, num_blocks)


def test_a_round_is_one_token_and_nothing_is_drafted(greedy):
  assert greedy.num_rounds == 56
  np.testing.assert_array_equal(greedy.rounds, [56] * 4)
  assert greedy.tokens_per_round == 1
  assert not greedy.drafted.any()
  assert greedy.tested.shape == greedy.accepted.shape == (4, 0)
  assert greedy.acceptance_rate == greedy.draft_yield == 0
