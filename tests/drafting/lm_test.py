import functools

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding import sampling as sampling_lib
from speculative.decoding.autoregressive import Autoregressive
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.drafting.lm import Lm
from speculative.errors import UserError
from speculative.models.precision import Precision
from speculative.models.transformer import Transformer
from speculative.testing import oracles
from speculative.testing import table_model
from speculative.testing import tiny
from speculative.testing.table_model import TableModel

# Float32 laws of cached passes against those of one pass over the text.
_ATOL = 1e-5
_V = tiny.DRAFT.vocab_size
_MODEL = Transformer(tiny.DRAFT)
_LM = Lm(_MODEL, num_draft_tokens=3, vocab_size=_V)
# Of one token, of two, and longer ones.
_TEXTS = [[3], [5, 0], [1, 2, 3, 4, 1], [9, 8, 7, 6, 5, 4, 3, 2]]
_WIDTH = 8


@functools.partial(jax.jit, static_argnames='drafter')
def _init(drafter, params, state):
  return drafter.init(params, state, {}, prompt_width=_WIDTH)


@functools.partial(jax.jit, static_argnames='drafter')
def _propose(drafter, params, drafter_state, state):
  return drafter.propose(params, drafter_state, state)


def _fresh(drafter, params, state):
  """Returns the Proposal of a drafter that has just read the texts."""
  return _propose(drafter, params, _init(drafter, params, state), state)[0]


@pytest.fixture(scope='module')
def params() -> dict:
  return tiny.init(jax.random.key(3), tiny.DRAFT)


@pytest.mark.parametrize('min_rows', [1, 2])
def test_greedy_drafts_are_what_the_draft_would_write_alone(
    params, make_state, min_rows
):
  model = Transformer(tiny.DRAFT, Precision(min_rows=min_rows))
  alone = Engine(Autoregressive(_MODEL), Weights(target=params)).generate(
      _TEXTS, DecodeConfig(max_new_tokens=3)
  )
  drafter = Lm(model, num_draft_tokens=3, vocab_size=_V)
  for rubbish in (0, 7):
    proposal = _fresh(drafter, params, make_state(_TEXTS, rubbish=rubbish))
    np.testing.assert_array_equal(proposal.tokens_BM, alone.token_ids)
    np.testing.assert_array_equal(
        proposal.probs_BPV, jax.nn.one_hot(proposal.tokens_BM, _V)
    )


def _full_logits(params, text: list[int]) -> np.ndarray:
  as_float64 = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  return oracles.transformer(tiny.DRAFT, as_float64, text)[0]


def test_q_is_the_law_each_token_was_drawn_from(params, make_state):
  state = make_state(_TEXTS, temperature=0.8, top_p=0.9)
  proposal = _fresh(_LM, params, state)
  index_BJ = np.array([[len(t), len(t) + 1, len(t) + 2] for t in _TEXTS])
  keys_BJ = sampling_lib.trial_keys(
      state.sampling.seed_B,
      state.seq_len_B,
      jnp.asarray(index_BJ, jnp.int32),
      sampling_lib.DRAFT,
  )
  drawn = sampling_lib.categorical(keys_BJ, proposal.probs_BPV)
  np.testing.assert_array_equal(proposal.tokens_BM, drawn)
  for row, text in enumerate(_TEXTS):
    drafted = np.asarray(proposal.tokens_BM[row]).tolist()
    logits = _full_logits(params, text + drafted)
    for j in range(3):
      law = oracles.warp(
          logits[len(text) - 1 + j], temperature=0.8, top_k=0, top_p=0.9
      )
      np.testing.assert_allclose(proposal.probs_BPV[row, j], law, atol=_ATOL)


@pytest.mark.slow
def test_q_of_a_bfloat16_draft_is_the_law_it_drew_from(params, make_state):
  drafter = Lm(
      Transformer(tiny.DRAFT, Precision('bfloat16', 'bfloat16')), 3, _V
  )
  as_bfloat16 = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
  texts = [[row % _V, row // _V] for row in range(64)]
  state = make_state(texts, temperature=0.8, top_p=0.9)
  proposal = _fresh(drafter, as_bfloat16, state)
  assert proposal.probs_BPV.dtype == jnp.float32
  np.testing.assert_allclose(proposal.probs_BPV.sum(axis=-1), 1, atol=_ATOL)
  keys_BJ = sampling_lib.trial_keys(
      state.sampling.seed_B,
      state.seq_len_B,
      2 + jnp.broadcast_to(jnp.arange(3, dtype=jnp.int32), (64, 3)),
      sampling_lib.DRAFT,
  )
  np.testing.assert_array_equal(
      proposal.tokens_BM, sampling_lib.categorical(keys_BJ, proposal.probs_BPV)
  )


@pytest.mark.parametrize(
    'rounds',
    [[3, 3, 3], [0, 0, 0, 0], [1, 3, 0, 2, 3, 1]],
    ids=['all accepted', 'all rejected', 'mixed'],
)
def test_the_cache_catches_up_whatever_was_accepted(params, make_state, rounds):
  """After every round the draft says what one that re-read the text would."""
  texts = [list(text) for text in _TEXTS]
  settings = dict(temperature=0.8, top_p=0.95)
  state = make_state(texts, **settings)
  drafter_state = _init(_LM, params, state)
  for num_accepted in rounds:
    proposal, drafter_state = _propose(_LM, params, drafter_state, state)
    drafted = np.asarray(proposal.tokens_BM)
    for row, text in enumerate(texts):
      # Another number in every row, and a token of the target's own.
      kept = (num_accepted + row) % 4 if len(set(rounds)) > 1 else num_accepted
      text += [*drafted[row, :kept].tolist(), (text[-1] + row + 1) % _V]
    state = make_state(texts, **settings)
    expected = _reread(params, state)
    got, _ = _propose(_LM, params, drafter_state, state)
    np.testing.assert_array_equal(got.tokens_BM, expected.tokens_BM)
    np.testing.assert_allclose(got.probs_BPV, expected.probs_BPV, atol=_ATOL)


@jax.jit
def _read_whole(params, state):
  return _LM.init(params, state, {}, prompt_width=state.tokens_BS.shape[1])


def _reread(params, state):
  return _propose(_LM, params, _read_whole(params, state), state)[0]


@pytest.mark.parametrize('room, num_drafted', [(9, 3), (3, 2), (1, 0)])
def test_no_more_is_drafted_than_the_row_has_room_for(
    params, make_state, room, num_drafted
):
  proposal = _fresh(_LM, params, make_state(_TEXTS, room=room))
  np.testing.assert_array_equal(
      proposal.valid_BM, [np.arange(3) < num_drafted] * 4
  )


def _table_drafter(draft_size: int, target_size: int) -> tuple:
  rng = np.random.default_rng(draft_size)
  table = rng.normal(size=(1, draft_size, draft_size)).astype(np.float32)
  return Lm(TableModel(), 2, vocab_size=target_size), jnp.asarray(table)


def test_a_smaller_draft_vocabulary_is_padded_with_zeros(make_state):
  drafter, table = _table_drafter(5, 8)
  texts = [[row % 5] for row in range(64)]
  proposal = _fresh(drafter, table, make_state(texts, temperature=1.0))
  q_BJV = np.asarray(proposal.probs_BPV)
  assert q_BJV.shape == (64, 2, 8)
  np.testing.assert_array_equal(q_BJV[:, :, 5:], 0)
  np.testing.assert_allclose(q_BJV.sum(-1), 1, atol=_ATOL)
  assert set(np.unique(proposal.tokens_BM)) == set(range(5))


def test_a_larger_draft_vocabulary_is_cut_and_renormalised(make_state):
  drafter, table = _table_drafter(12, 8)
  texts = [[row % 8] for row in range(64)]
  proposal = _fresh(drafter, table, make_state(texts, temperature=1.0))
  q_BJV = np.asarray(proposal.probs_BPV)
  assert q_BJV.shape == (64, 2, 8)
  for row, text in enumerate(texts):
    law = oracles.warp(
        np.asarray(table)[0, text[0], :8], temperature=1.0, top_k=0, top_p=1.0
    )
    np.testing.assert_allclose(q_BJV[row, 0], law, atol=_ATOL)
  assert np.asarray(proposal.tokens_BM).max() == 7


@pytest.mark.slow
@pytest.mark.parametrize('draft_size', [9, 20])
def test_vocabularies_of_different_size_leave_greedy_output_alone(draft_size):
  rng = np.random.default_rng(1)
  target = jnp.asarray(rng.normal(size=(1, 13, 13)), jnp.float32)
  # The draft is the target's table, cut or with a padded head of its own.
  size = min(draft_size, 13)
  draft = jnp.full((1, draft_size, draft_size), 50.0)
  draft = draft.at[:, :size, :13].set(-9.0)
  draft = draft.at[:, :size, :size].set(target[:, :size, :size])
  model, config = TableModel(), DecodeConfig(max_new_tokens=20)
  prompts = [[2], [5, 1], [12]]
  plain = Engine(Autoregressive(model), Weights(target=target))
  drafted = Engine(
      Speculative(model, Lm(model, 2, vocab_size=13)),
      Weights(target=target, drafter=draft),
  )
  got = drafted.generate(prompts, config)
  assert got.token_ids == plain.generate(prompts, config).token_ids
  assert got.acceptance_rate == 1 if draft_size == 20 else True
  assert got.accepted.sum() > 0


def test_drafts_of_a_table_follow_the_table(make_state):
  text = [4, 1, 3, 0, 2, 4, 1, 3, 0]
  drafter = Lm(TableModel(), num_draft_tokens=4, vocab_size=5)
  proposal = _fresh(
      drafter, table_model.certain(text[1:], 5), make_state([text[:3]])
  )
  np.testing.assert_array_equal(proposal.tokens_BM, [text[3:7]])
  np.testing.assert_array_equal(proposal.parent_BM, [[-1, 0, 1, 2]])


def test_an_lm_drafter_needs_a_token_to_draft():
  with pytest.raises(UserError, match='num_draft_tokens >= 1, got 0'):
    Lm(_MODEL, num_draft_tokens=0, vocab_size=_V)
