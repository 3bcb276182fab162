"""Where a test of the output's law can see most.

At many places of a text such a test is blind: where the target is nearly
certain every verifier is right, where the draft is always refused its law does
not matter, and where it is always kept the refusal does not. So the tests are
made after a text at which target and draft are both undecided and half agree.
"""

from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from speculative.bench import law
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.decoding.speculative import Speculative

# New tokens behind a prompt after which its text is a candidate.
_AFTER = (0, 4, 8, 12)


def candidates(
    plain: Engine, prompts: Sequence[Sequence[int]], config: DecodeConfig
) -> list[list[int]]:
  """Returns the prompts, each also with the beginning of its greedy answer.

  Args:
    plain: engine of plain decoding.
    prompts: token ids.
    config: its budget and stop ids are not looked at.
  """
  greedy = dataclasses.replace(
      law.unending(config, num_tokens=max(_AFTER)), temperature=0.0
  )
  answers = plain.generate(prompts, greedy).token_ids
  # An answer may reach the longest text allowed.
  return [
      [*prompt, *answer[:num]]
      for prompt, answer in zip(prompts, answers, strict=True)
      for num in _AFTER
      if num <= len(answer)
  ]


@functools.partial(jax.jit, static_argnames='step')
def _draft_laws(weights: Any, carry: Any, step: Speculative) -> jax.Array:
  """Returns q [B, V] of every row's first drafted token, or zeros."""
  proposal, _ = step.drafter.propose(
      weights.drafter, carry.drafter_state, carry.state
  )
  if proposal.probs_BPV is not None:
    return proposal.probs_BPV[:, 0]
  V = step.model.config.vocab_size
  one_hot_BV = jax.nn.one_hot(proposal.tokens_BM[:, 0], V)
  return one_hot_BV * proposal.valid_BM[:, :1]


def scores(
    plain: Engine,
    engine: Engine,
    texts: Sequence[Sequence[int]],
    config: DecodeConfig,
) -> np.ndarray:
  """Returns how much a test could see after every text.

  That is o (1 - o) (1 - max p) with the overlap o = sum min(p, q).

  Args:
    plain: engine of plain decoding.
    engine: with a drafter.
    texts: token ids.
    config: how tokens are drawn.

  Returns:
    float64, one a text.
  """
  # Room for a whole draft.
  room = 2 + engine.step.num_draft_tokens
  rows = [law.unending(config, num_tokens=room)] * len(texts)
  p_BV = law.first_laws(plain, texts, rows)
  carry = engine.start(texts, rows)
  q_BV = np.asarray(
      _draft_laws(engine.weights, carry, engine.step), np.float64
  )[: len(texts)]
  overlap_B = np.minimum(p_BV, q_BV).sum(axis=1)
  return overlap_B * (1 - overlap_B) * (1 - p_BV.max(axis=1))


def most_telling(
    prompts: Sequence[Sequence[int]],
    config: DecodeConfig,
    *,
    plain: Engine,
    engine: Engine,
) -> list[int]:
  """Returns the text after which a test of the law sees most.

  Args:
    prompts: token ids.
    config: how tokens are drawn.
    plain: engine of plain decoding.
    engine: with a drafter.
  """
  texts = candidates(plain, prompts, config)
  return texts[int(np.argmax(scores(plain, engine, texts, config)))]
