"""Speculation against plain decoding: the same tokens, in fewer passes."""

import dataclasses

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding import speculative as speculative_lib
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.decoding.loop import Weights
from speculative.decoding.verify import Verdict
from speculative.models import transformer

# Float32 logits of passes of different widths.
_ATOL = 1e-4

_GREEDY = DecodeConfig(max_new_tokens=56, log_probs='chosen')
_SAMPLED = dataclasses.replace(_GREEDY, temperature=0.8, top_p=0.95)


def test_emitted_puts_the_next_token_behind_the_accepted_ones():
  verdict = Verdict(
      num_accepted_B=jnp.asarray([1, 0, 3]),
      num_tested_B=jnp.asarray([2, 1, 3]),
      next_token_B=jnp.asarray([4, 5, 6]),
  )
  drafted = jnp.asarray([[7, 2, 9]] * 3)
  got = np.asarray(speculative_lib.emitted(drafted, verdict))
  np.testing.assert_array_equal(got[0, :2], [7, 4])
  np.testing.assert_array_equal(got[1, :1], [5])
  np.testing.assert_array_equal(got[2], [7, 2, 9, 6])


@pytest.mark.parametrize('seed', [0, 1, 2**32 - 2])
def test_sampled_output_with_lookup_equals_plain_token_for_token(
    plain, with_lookup, prompts, seed
):
  config = dataclasses.replace(_SAMPLED, seed=seed)
  expected = plain.generate(prompts, config)
  got = with_lookup.generate(prompts, config)
  assert got.token_ids == expected.token_ids
  for row in range(len(prompts)):
    np.testing.assert_allclose(
        got.log_probs[row], expected.log_probs[row], atol=_ATOL
    )
  # Both outcomes of a test occurred.
  assert 0 < got.acceptance_rate < 1


@pytest.mark.parametrize('engine', ['with_lookup', 'with_relative'])
def test_greedy_output_equals_plain_token_for_token(
    request, plain, prompts, engine
):
  expected = plain.generate(prompts, _GREEDY)
  got = request.getfixturevalue(engine).generate(prompts, _GREEDY)
  assert got.token_ids == expected.token_ids
  assert got.reasons == expected.reasons
  for row in range(len(prompts)):
    np.testing.assert_allclose(
        got.log_probs[row], expected.log_probs[row], atol=_ATOL
    )
  assert 0 < got.acceptance_rate < 1
  assert got.tokens_per_round > 1.2


@pytest.mark.parametrize(
    'config', [_GREEDY, _SAMPLED], ids=['greedy', 'sampled']
)
def test_a_target_that_drafts_for_itself_accepts_everything(
    plain, with_itself, prompts, config
):
  got = with_itself.generate(prompts, config)
  assert got.acceptance_rate == 1
  assert got.draft_yield == 1
  # 56 tokens are 14 rounds of three drafted ones and the target's own. A draft
  # cache that lost or kept a token would decay with the rounds.
  assert got.tokens_per_round == 4
  assert got.num_rounds == 14
  np.testing.assert_array_equal(got.accepted, [[14, 14, 14]] * 4)
  np.testing.assert_array_equal(got.tested, got.accepted)
  if config.temperature == 0:
    assert got.token_ids == plain.generate(prompts, config).token_ids


@pytest.mark.slow
@pytest.mark.parametrize(
    'config', [_GREEDY, _SAMPLED], ids=['greedy', 'sampled']
)
@pytest.mark.parametrize('engine', ['with_lookup', 'with_relative'])
def test_a_row_says_the_same_alone_and_in_a_batch(
    request, prompts, engine, config
):
  engine = request.getfixturevalue(engine)
  together = engine.generate(prompts, config)
  for row, prompt in enumerate(prompts):
    alone = engine.generate(
        [prompt], dataclasses.replace(config, seed=config.seed + row)
    )
    assert alone.token_ids[0] == together.token_ids[row]
    np.testing.assert_array_equal(alone.accepted[0], together.accepted[row])
    np.testing.assert_array_equal(alone.tested[0], together.tested[row])


@pytest.mark.parametrize('engine', ['with_lookup', 'with_relative'])
def test_a_row_says_the_same_in_another_order(request, prompts, engine):
  engine = request.getfixturevalue(engine)
  forward = engine.generate(prompts, _GREEDY)
  backward = engine.generate(prompts[::-1], _GREEDY)
  assert backward.token_ids == forward.token_ids[::-1]
  np.testing.assert_array_equal(backward.accepted, forward.accepted[::-1])


@pytest.mark.slow
def test_scanned_layers_say_the_same_as_unrolled_ones(with_lookup, prompts):
  model = dataclasses.replace(with_lookup.step.model, layout='scanned')
  scanned = Engine(
      dataclasses.replace(with_lookup.step, model=model),
      Weights(
          target=transformer.stack_layers(
              jax.tree.map(lambda x: x, with_lookup.weights.target)
          )
      ),
  )
  got = scanned.generate(prompts, _GREEDY)
  assert got.token_ids == with_lookup.generate(prompts, _GREEDY).token_ids


def test_rows_of_one_prompt_and_different_seeds_differ(with_lookup, prompts):
  got = with_lookup.generate([prompts[2]] * 4, _SAMPLED)
  assert len({tuple(ids) for ids in got.token_ids}) == 4
