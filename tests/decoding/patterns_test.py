"""Every pattern of right, wrong and absent drafted tokens, written down."""

import itertools

import jax
from jax import numpy as jnp

from speculative.decoding import loop
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.testing import table_model
from speculative.testing.table_model import Script
from speculative.testing.table_model import TableModel

_V = 50
_J = 3
_NUM_NEW = 8
_TEXT = [(7 * i + 2) % _V for i in range(32)]
_PATTERNS = list(itertools.product(['right', 'wrong', 'absent'], repeat=5))
# Prompts of 1 to 4 tokens in turn, so that the batch is ragged.
_PROMPTS = [_TEXT[: 1 + row % 4] for row in range(len(_PATTERNS))]


def _script(prompt: list[int], pattern: tuple[str, ...]) -> list[int]:
  """Returns the drafted token of every index; beyond the pattern none."""
  script = [-1] * 32
  for index, kind in enumerate(pattern, start=len(prompt)):
    if kind != 'absent':
      script[index] = (_TEXT[index] + (kind == 'wrong')) % _V
  return script


def _simulate(pattern: tuple[str, ...]) -> tuple[int, int, list, list]:
  """Returns rounds, drafted, tested and accepted a place, for one row."""
  done, rounds, drafted = 0, 0, 0
  tested, accepted = [0] * _J, [0] * _J
  while done < _NUM_NEW:
    rounds += 1
    chain = list(pattern[done : done + _J])
    chain = chain[: _NUM_NEW - done - 1]
    if 'absent' in chain:
      chain = chain[: chain.index('absent')]
    drafted += len(chain)
    for place, kind in enumerate(chain):
      tested[place] += 1
      if kind == 'wrong':
        break
      accepted[place] += 1
      done += 1
    done += 1
  return rounds, drafted, tested, accepted


def _engine() -> Engine:
  scripts = [
      _script(prompt, pattern)
      for prompt, pattern in zip(_PROMPTS, _PATTERNS, strict=True)
  ]
  return Engine(
      Speculative(TableModel(), Script(_J)),
      Weights(
          target=table_model.certain(_TEXT[1:], _V),
          drafter=jnp.asarray(scripts, jnp.int32),
      ),
  )


def test_every_pattern_gives_the_text_of_plain_decoding_and_true_counts():
  got = _engine().generate(_PROMPTS, DecodeConfig(max_new_tokens=_NUM_NEW))
  for row, (prompt, pattern) in enumerate(
      zip(_PROMPTS, _PATTERNS, strict=True)
  ):
    end = len(prompt) + _NUM_NEW
    assert got.token_ids[row] == _TEXT[len(prompt) : end], pattern
    counts = (
        int(got.rounds[row]),
        int(got.drafted[row]),
        got.tested[row].tolist(),
        got.accepted[row].tolist(),
    )
    assert counts == _simulate(pattern), pattern
  assert got.num_rounds == max(got.rounds)


def test_the_cache_holds_the_text_but_its_last_token_after_every_round():
  engine = _engine()
  carry = engine.start(_PROMPTS, DecodeConfig(max_new_tokens=_NUM_NEW))
  num_texts = 0
  while True:
    cached = table_model.cached_tokens(carry.state.cache)
    tokens, lens = jax.device_get(
        (carry.state.tokens_BS, carry.state.seq_len_B)
    )
    for row, length in enumerate(lens):
      assert cached[row] == tokens[row, : length - 1].tolist()
      assert tokens[row, :length].tolist() == _TEXT[:length]
      num_texts += 1
    if carry.state.done_B.all():
      break
    carry = loop.run(
        weights=engine.weights,
        carry=carry,
        num_rounds=jnp.int32(1),
        step=engine.step,
    )
  # At the start and after each of up to eight rounds.
  assert num_texts == len(_PATTERNS) * 9
