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
from speculative.errors import UserError

# New tokens behind a prompt after which its text is a candidate.
_AFTER = (0, 4, 8, 12)


def candidates(
    plain: Engine,
    prompts: Sequence[Sequence[int]],
    config: DecodeConfig,
    *,
    room: int,
) -> list[list[int]]:
  """Returns the prompts, each also with the beginning of its greedy answer.

  Args:
    plain: engine of plain decoding.
    prompts: token ids.
    config: its budget and stop ids are not looked at.
    room: tokens that have to fit behind a text.
  """
  greedy = dataclasses.replace(
      law.unending(config, num_tokens=max(_AFTER)), temperature=0.0
  )
  answers = plain.generate(prompts, greedy).token_ids
  # An answer may reach the longest text allowed, and a draft needs room.
  longest = config.max_seq_len - room
  return [
      [*prompt, *answer[:num]]
      for prompt, answer in zip(prompts, answers, strict=True)
      for num in _AFTER
      if num <= len(answer) and len(prompt) + num <= longest
  ]


@functools.partial(jax.jit, static_argnames=('step', 'vocab_size'))
def _draft_laws(
    weights: Any, carry: Any, *, step: Speculative, vocab_size: int
) -> jax.Array:
  """Returns q [B, V] of every row's first drafted token, or zeros."""
  proposal, _ = step.drafter.propose(
      weights.drafter, carry.drafter_state, carry.state
  )
  if proposal.probs_BPV is not None:
    return proposal.probs_BPV[:, 0]
  one_hot_BV = jax.nn.one_hot(proposal.tokens_BM[:, 0], vocab_size)
  return one_hot_BV * proposal.valid_BM[:, :1]


def scores(
    plain: Engine,
    engine: Engine,
    texts: Sequence[Sequence[int]],
    config: DecodeConfig,
) -> np.ndarray:
  """Returns how much a test could see after every text.

  That is o (1 - o) c with the overlap o = sum min(p, q), since both acceptance
  and refusal have to happen, and c = sum p (q - sum q p)^2, the chi-square a
  sample of a verifier that draws once more after a refusal: it is small where p
  or q spreads over so many tokens that none of them stands out. A one-hot q
  gives o^2 (1 - o)^2.

  Args:
    plain: engine of plain decoding.
    engine: with a drafter.
    texts: token ids.
    config: how tokens are drawn.

  Returns:
    float64, one a text.
  """
  room = law.room(engine)
  rows = [law.unending(config, num_tokens=room)] * len(texts)
  p_BV = law.first_laws(plain, texts, rows)
  carry = engine.drafted(engine.start(texts, rows))
  q_BV = np.asarray(
      _draft_laws(
          engine.weights, carry, step=engine.step, vocab_size=p_BV.shape[1]
      ),
      np.float64,
  )[: len(texts)]
  overlap_B = np.minimum(p_BV, q_BV).sum(axis=1)
  kept_B1 = (q_BV * p_BV).sum(axis=1, keepdims=True)
  drawn_again_B = (p_BV * (q_BV - kept_B1) ** 2).sum(axis=1)
  found_B = overlap_B * (1 - overlap_B) * drawn_again_B
  # A drafter that looks up after some texts and draws after others is tested
  # where it draws: there the law of the draft matters too.
  is_drawn_B = (q_BV.sum(axis=1) > 0) & (q_BV.max(axis=1) < 1)
  return np.where(is_drawn_B, found_B, 0.0) if is_drawn_B.any() else found_B


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

  Raises:
    UserError: If no prompt leaves room for it.
  """
  texts = candidates(plain, prompts, config, room=law.room(engine))
  if not texts:
    raise UserError(
        'every prompt is so long that the tests of the law have no room behind '
        f'it in {config.max_seq_len} tokens; raise config.decode.max_seq_len, '
        'or shorten the prompts.'
    )
  return texts[int(np.argmax(scores(plain, engine, texts, config)))]
