"""Trees of a model's likeliest tokens."""

import dataclasses
import functools

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding.autoregressive import Autoregressive
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.drafting.beam import Beam
from speculative.drafting.hidden_lm import HiddenLm
from speculative.drafting.hybrid import HybridTree
from speculative.drafting.lm import Lm
from speculative.drafting.lookup import Lookup
from speculative.models import draft as draft_lib
from speculative.models.draft import DraftModel
from speculative.models.transformer import Transformer
from speculative.testing import tiny

_V, _M, _LEVELS, _W = tiny.TARGET.vocab_size, 6, 3, 2
_TARGET = Transformer(tiny.TARGET)
_DRAFTS = {
    'hidden': HiddenLm(DraftModel(tiny.HIDDEN_DRAFT), _M, vocab_size=_V),
    'model': Lm(Transformer(tiny.DRAFT), _M, vocab_size=_V, num_behind=_M + 1),
}
_PROMPTS = [[3], [9, 8, 7, 6, 5], [1, 2, 3, 4, 1, 2, 3], [5, 6, 5, 6, 5, 6]]


@functools.cache
def _target() -> dict:
  return tiny.init(jax.random.key(7), tiny.TARGET)


def _params(name: str) -> dict:
  if name == 'model':
    return tiny.init(jax.random.key(3), tiny.DRAFT)
  own = tiny.init_draft(jax.random.key(5), tiny.HIDDEN_DRAFT)
  ids = jnp.asarray(tiny.HEAD_IDS, jnp.int32)
  return draft_lib.attach(tiny.HIDDEN_DRAFT, own, ids, _target())


def _beam(name: str) -> Beam:
  return Beam(_DRAFTS[name], _M, levels=_LEVELS, width=_W)


def _engine(name: str, drafter, **step) -> Engine:
  return Engine(
      Speculative(_TARGET, drafter, **step), Weights(_target(), _params(name))
  )


def _law(name: str, text: list[int], drafted: list[int]) -> np.ndarray:
  """Log-probabilities of the token after a text and drafted tokens.

  The draft reads all of it anew, with the target's states of the text and its
  own outputs beyond.
  """
  draft, params = _DRAFTS[name], _params(name)
  tokens = jnp.asarray([[*text, *drafted]])
  T = tokens.shape[1]
  cache = draft.model.init_cache(1, T + 2)
  if name == 'model':
    out = draft.model.forward(params, tokens, cache).hidden_BTD
  else:
    hidden = _TARGET.forward(
        _target(), jnp.asarray([text]), _TARGET.init_cache(1, T + 2)
    ).hidden_BTD[:, :-1]
    hidden = jnp.pad(hidden, ((0, 0), (1, 0), (0, 0)))
    for end in range(len(text), T + 1):
      out = draft.model.forward(
          params, tokens[:, :end], cache, hidden_BTD=hidden
      ).hidden_BTD
      hidden = jnp.concatenate([hidden, out[:, -1:]], axis=1)
  log_q = np.asarray(draft.head.log_probs(params, out[:, -1:]))[0, 0]
  ids = np.asarray(draft.head.token_ids(params, jnp.arange(len(log_q))))
  whole = np.full(_V, -np.inf)
  whole[ids] = log_q
  return whole


def _expected(name: str, text: list[int]) -> set[tuple[int, ...]]:
  """Paths of the tree, grown in plain Python."""
  level, offered = [((), 0.0)], []
  for _ in range(_LEVELS):
    children = []
    for path, score in level:
      law = _law(name, text, list(path))
      best = np.argsort(-law, kind='stable')[:_W]
      children += [((*path, int(i)), score + law[i]) for i in best]
    offered += children
    level = sorted(children, key=lambda child: -child[1])[:_W]
  chosen = sorted(offered, key=lambda child: -child[1])[:_M]
  return {path for path, _ in chosen}


def _paths(proposal, row: int) -> list[tuple[int, ...]]:
  paths = []
  for token, parent, valid in zip(
      proposal.tokens_BM[row],
      proposal.parent_BM[row],
      proposal.valid_BM[row],
      strict=True,
  ):
    assert valid
    above = () if parent < 0 else paths[int(parent)]
    paths.append((*above, int(token)))
  return paths


@pytest.mark.parametrize('name', _DRAFTS)
def test_the_likeliest_paths_are_drafted_in_every_round(name):
  engine = _engine(name, _beam(name))
  carry = engine.start(_PROMPTS, DecodeConfig(max_new_tokens=40))
  propose = jax.jit(engine.step.drafter.propose)
  one_round = jax.jit(engine.step)
  for _ in range(3):
    proposal, _ = propose(
        engine.weights.drafter, carry.drafter_state, carry.state
    )
    depths = np.asarray(proposal.depth_BM)
    assert (np.diff(depths, axis=1) >= 0).all()
    for row in range(len(_PROMPTS)):
      length = int(carry.state.seq_len_B[row])
      text = np.asarray(carry.state.tokens_BS[row, :length]).tolist()
      paths = _paths(proposal, row)
      assert [len(path) for path in paths] == depths[row].tolist()
      assert set(paths) == _expected(name, text)
    carry = one_round(engine.weights, carry)


@pytest.mark.parametrize('kind', ['beam', 'hybrid'])
@pytest.mark.parametrize('name', _DRAFTS)
def test_every_row_has_the_tokens_of_plain_decoding(name, kind):
  """Sampled rows too: nothing is drawn by the drafter."""
  drafter = _beam(name)
  if kind == 'hybrid':
    drafter = HybridTree(Lookup(_M, max_ngram=4, min_ngram=2), drafter)
  plain = Engine(Autoregressive(_TARGET), Weights(_target()))
  fast = _engine(name, drafter)
  rows = [
      DecodeConfig(max_new_tokens=30, stop_ids=(11,), seed=seed, **sampler)
      for seed, sampler in enumerate(
          (
              {},
              {'temperature': 1.0},
              {'temperature': 0.8, 'top_p': 0.9},
              {'temperature': 1.2, 'frequency_penalty': 0.4},
          )
      )
  ]
  expected = plain.generate(_PROMPTS, rows)
  got = fast.generate(_PROMPTS, rows)
  assert got.token_ids == expected.token_ids
  assert got.reasons == expected.reasons
  assert got.drafted.sum() and got.acceptance_rate < 1


def _at_the_end() -> list[DecodeConfig]:
  """A row done early, of 32 + 25 tokens, and one that goes on beside it."""
  return [
      DecodeConfig(max_new_tokens=25, max_seq_len=57),
      DecodeConfig(max_new_tokens=52, max_seq_len=57, temperature=0.9, seed=3),
  ]


_LONG = [[(3 * i + i // 5) % _V for i in range(32)], [9, 8, 7, 6, 5]]


@pytest.mark.parametrize('kind', ['beam', 'hybrid', 'deeper than its nodes'])
@pytest.mark.parametrize('name', _DRAFTS)
def test_no_round_writes_over_a_text_that_fills_its_buffer(name, kind):
  drafter, slots = _beam(name), 64
  if kind == 'hybrid':
    drafter = HybridTree(Lookup(_M, max_ngram=4, min_ngram=2), drafter)
  if kind == 'deeper than its nodes':
    longer = {'num_behind': 11} if name == 'model' else {}
    draft = dataclasses.replace(_DRAFTS[name], num_draft_tokens=10, **longer)
    drafter, slots = Beam(draft, 4, levels=_LEVELS, width=_W), 96
  fast = _engine(name, drafter)
  # Without any slot to spare, but where 57 + 10 + 1 do not fit into 64.
  assert fast.start(_LONG, _at_the_end()).state.tokens_BS.shape[1] == slots
  plain = Engine(Autoregressive(_TARGET), Weights(_target()))
  got = fast.generate(_LONG, _at_the_end())
  assert got.token_ids == plain.generate(_LONG, _at_the_end()).token_ids
  assert [len(ids) for ids in got.token_ids] == [25, 52]
  # The first row was done while rounds went on.
  assert got.rounds[0] < got.rounds[1]


def test_a_target_that_drafts_for_itself_is_always_followed():
  draft = Lm(_TARGET, _M, vocab_size=_V, num_behind=_M + 1)
  step = Speculative(_TARGET, Beam(draft, _M, levels=_LEVELS, width=_W))
  engine = Engine(step, Weights(_target(), _target()))
  found = engine.generate(_PROMPTS, DecodeConfig(max_new_tokens=13))
  # The likeliest path is never cut off by less likely ones at this size.
  assert found.rounds.tolist() == [13 // (_LEVELS + 1) + 1] * len(_PROMPTS)


def test_shapes_that_do_not_fit_are_refused():
  draft = _DRAFTS['hidden']
  with pytest.raises(ValueError, match='2 levels of width 2 offer 6 nodes'):
    Beam(draft, 7, levels=2, width=2)
  with pytest.raises(ValueError, match='7 levels are more than the 6 tokens'):
    Beam(draft, 6, levels=7, width=2)
  with pytest.raises(ValueError, match='num_behind > 6'):
    Beam(Lm(_TARGET, 6, vocab_size=_V), 6, levels=2, width=2)
