"""Trees of a draft model: which tokens, by which law, in rounds."""

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
from speculative.drafting import tree_lm
from speculative.drafting.tree_lm import TreeLm
from speculative.errors import UserError
from speculative.models.precision import Precision
from speculative.models.transformer import Transformer
from speculative.testing import oracles
from speculative.testing import samplers
from speculative.testing import tiny

# Float32 laws of cached passes against those of one pass over the text.
_ATOL = 1e-5
_V = tiny.TARGET.vocab_size
_TARGET = Transformer(tiny.TARGET)
_TREE = TreeLm(Transformer(tiny.DRAFT), (3, 2, 1), _V)
_TEXTS = [[3], [5, 0], [1, 2, 3, 4, 1], [9, 8, 7, 6, 5, 4, 3, 2]]
_GREEDY = DecodeConfig(max_new_tokens=40)
_PENALTIES = dict(repetition_penalty=1.3, frequency_penalty=0.4)


@functools.partial(jax.jit, static_argnames='drafter')
def _fresh(drafter, params, state):
  """Returns the Proposal of a drafter that has just read the texts."""
  drafter_state = drafter.init(params, state, {}, prompt_width=8)
  return drafter.propose(params, drafter_state, state)[0]


@pytest.fixture(scope='module')
def params() -> dict:
  return tiny.init(jax.random.key(3), tiny.DRAFT)


@pytest.fixture(scope='module')
def target_params() -> dict:
  return tiny.init(jax.random.key(7), tiny.TARGET)


def _laws(params, text, prompt_len, *, temperature=1.0, **penalties):
  """Returns the draft's logits and law after a text."""
  as_float64 = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  logits_V = oracles.transformer(tiny.DRAFT, as_float64, text)[0][-1]
  logits_V = oracles.adjust(logits_V, text, prompt_len, **penalties)
  law_V = oracles.warp(logits_V, temperature=temperature, top_k=0, top_p=1.0)
  return logits_V, law_V


def _nodes(proposal, row):
  """Yields a node's index, its parent, and the drafted tokens above it."""
  tokens = np.asarray(proposal.tokens_BM[row]).tolist()
  parents = np.asarray(proposal.parent_BM[row]).tolist()
  for m, parent in enumerate(parents):
    above, node = [], parent
    while node >= 0:
      above.insert(0, tokens[node])
      node = parents[node]
    yield m, parent, above


def test_the_shape_of_a_tree_by_hand():
  parents, sizes = tree_lm.shape_of((3, 2, 1))
  assert parents == [-1, -1, -1, 0, 0, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8]
  assert sizes == [3, 6, 6]
  assert _TREE.num_draft_tokens == 15
  assert _TREE.max_depth == 3


@pytest.mark.parametrize(
    'min_rows', [1, pytest.param(2, marks=pytest.mark.slow)]
)
def test_greedy_rows_get_the_likeliest_tokens_after_every_node(
    params, make_state, min_rows
):
  model = Transformer(tiny.DRAFT, Precision(min_rows=min_rows))
  drafter = dataclasses.replace(_TREE, model=model)
  state = make_state(_TEXTS, rubbish=7, **_PENALTIES)
  proposal = _fresh(drafter, params, state)
  assert np.asarray(proposal.valid_BM).all()
  for row, text in enumerate(_TEXTS):
    nth = {}
    for m, parent, above in _nodes(proposal, row):
      logits_V, _ = _laws(params, text + above, len(text), **_PENALTIES)
      nth[parent] = nth.get(parent, -1) + 1
      expected = np.argsort(-logits_V, kind='stable')[nth[parent]]
      assert proposal.tokens_BM[row, m] == expected


def test_q_is_the_law_of_every_node_and_siblings_differ(params, make_state):
  state = make_state(_TEXTS, temperature=0.8, **_PENALTIES)
  proposal = _fresh(_TREE, params, state)
  assert proposal.probs_BPV.shape == (4, 1 + 3 + 6, _V)
  for row, text in enumerate(_TEXTS):
    children = {}
    for m, parent, above in _nodes(proposal, row):
      _, law_V = _laws(
          params, text + above, len(text), temperature=0.8, **_PENALTIES
      )
      np.testing.assert_allclose(
          proposal.probs_BPV[row, parent + 1], law_V, atol=_ATOL
      )
      children.setdefault(parent, []).append(int(proposal.tokens_BM[row, m]))
    assert all(len(set(c)) == len(c) for c in children.values())


def test_nodes_beyond_a_budget_are_invalid(params, make_state):
  state = make_state(_TEXTS, room=[3, 2, 1, 9])
  proposal = _fresh(_TREE, params, state)
  room = np.array([[2], [1], [0], [8]])
  np.testing.assert_array_equal(
      proposal.valid_BM, np.asarray(proposal.depth_BM) <= room
  )


def test_draws_without_replacement_follow_their_law():
  """Pairs of tokens: q(x) q(y) / (1 - q(x)); a law of two ends after two."""
  num, V = 20_000, 4
  logits_V = jnp.log(jnp.asarray([0.5, 0.3, 0.0, 0.2]))
  draw = jax.jit(tree_lm.draw_without_replacement, static_argnames='width')
  # One row of many positions.
  tokens_BTW, there_BTW, law_BTV = draw(
      samplers.sampling(1, temperature=1.0),
      jnp.broadcast_to(logits_V, (1, num, V)),
      jax.random.split(jax.random.key(0), num)[None],
      width=4,
  )
  assert np.asarray(there_BTW[0]).all(axis=0).tolist() == [
      True,
      True,
      True,
      False,
  ]
  q = np.asarray(law_BTV[0, 0], np.float64)
  counts = np.zeros((V, V))
  np.add.at(counts, tuple(np.asarray(tokens_BTW[0, :, :2]).T), 1)
  expected = q[:, None] * q[None, :] / (1 - q[:, None])
  np.fill_diagonal(expected, 0)
  # Five standard deviations.
  margin = 5 * np.sqrt(expected * (1 - expected) / num)
  assert (abs(counts / num - expected) <= margin).all()


@pytest.fixture(scope='module')
def engines(target_params):
  """Plain decoding, a relative's trees, and the target's own."""
  drafter = TreeLm(_TARGET, (3, 2), _V)
  relative = tiny.perturb(jax.random.key(1), target_params, scale=0.15)
  step = Speculative(_TARGET, drafter)
  return {
      'plain': Engine(Autoregressive(_TARGET), Weights(target_params)),
      'relative': Engine(step, Weights(target_params, relative)),
      'itself': Engine(step, Weights(target_params, target_params)),
  }


def test_greedy_rows_equal_plain_token_for_token(engines):
  mixed = [
      _GREEDY,
      dataclasses.replace(_GREEDY, **_PENALTIES),
      dataclasses.replace(_GREEDY, temperature=0.8, seed=3),
      dataclasses.replace(_GREEDY, stop_ids=(3, 4), min_new_tokens=5),
  ]
  for config in (_GREEDY, mixed):
    expected = engines['plain'].generate(_TEXTS, config)
    got = engines['relative'].generate(_TEXTS, config)
    for row in (0, 1, 3) if config is mixed else range(4):
      assert got.token_ids[row] == expected.token_ids[row]
      assert got.reasons[row] == expected.reasons[row]
    assert 0 < got.acceptance_rate < 1
    assert got.tokens_per_round > 1.5


def test_no_round_writes_over_a_text_that_fills_its_buffer(engines):
  """57 tokens and the slack of six nodes are all of 64 slots."""
  prompts = [[(3 * i + i // 5) % _V for i in range(32)], _TEXTS[3]]
  rows = [
      DecodeConfig(max_new_tokens=25, max_seq_len=57),
      DecodeConfig(max_new_tokens=49, max_seq_len=57),
  ]
  step = Speculative(_TARGET, TreeLm(_TARGET, (2, 1, 1), _V))
  fast = Engine(step, engines['relative'].weights)
  assert step.num_draft_tokens == 6
  assert fast.start(prompts, rows).state.tokens_BS.shape[1] == 64
  got = fast.generate(prompts, rows)
  assert got.token_ids == engines['plain'].generate(prompts, rows).token_ids
  # The first row was done while rounds went on.
  assert got.rounds[0] < got.rounds[1]


@pytest.mark.parametrize('temperature', [0.0, 0.9])
def test_a_target_that_drafts_for_itself_keeps_a_path_to_the_end(
    engines, temperature
):
  """A draft cache that lost or mixed up a token would decay with the rounds."""
  config = dataclasses.replace(
      _GREEDY, temperature=temperature, max_new_tokens=42, **_PENALTIES
  )
  got = engines['itself'].generate(_TEXTS, config)
  assert got.acceptance_rate == 1
  assert got.tokens_per_round == 3


@pytest.mark.slow
def test_a_row_says_the_same_alone(engines):
  config = dataclasses.replace(_GREEDY, temperature=0.9, seed=5)
  together = engines['relative'].generate(_TEXTS, config)
  for row in (1, 3):
    alone = engines['relative'].generate(
        [_TEXTS[row]], dataclasses.replace(config, seed=5 + row)
    )
    assert alone.token_ids[0] == together.token_ids[row]


@pytest.mark.parametrize(
    'widths, need',
    [((), 'widths >= 1'), ((2, 0), 'widths >= 1'), ((14,), 'has 13')],
)
def test_impossible_shapes_are_refused(widths, need):
  with pytest.raises(UserError, match=need):
    TreeLm(_TARGET, widths, _V)
