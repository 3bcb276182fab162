import functools

import hypothesis
from hypothesis import strategies as st
import jax
import numpy as np
import pytest

from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.drafting.lookup import Lookup
from speculative.testing import oracles
from speculative.testing import table_model
from speculative.testing.table_model import TableModel


@functools.partial(jax.jit, static_argnames='lookup')
def _propose(lookup, state):
  return lookup.propose(None, None, state)[0]


def _drafts(lookup, state) -> list[list[int]]:
  """Returns what is drafted for every row: valid tokens only."""
  proposal = _propose(lookup, state)
  tokens, valid = np.asarray(proposal.tokens_BM), np.asarray(proposal.valid_BM)
  # Valid tokens come before invalid ones.
  assert (np.diff(valid.astype(int), axis=1) <= 0).all()
  return [t[v].tolist() for t, v in zip(tokens, valid, strict=True)]


@pytest.mark.parametrize(
    'text, drafted',
    [
        # What followed the only earlier match.
        ([1, 2, 3, 9, 8, 1, 2, 3], [9, 8, 1, 2]),
        # The longest match, though a shorter one is later.
        ([1, 2, 3, 9, 7, 3, 5, 6, 1, 2, 3], [9, 7, 3, 5]),
        # Of two equally long ones the later.
        ([2, 3, 9, 2, 3, 7, 2, 3], [7, 2, 3, 7]),
        # Round and round: period 3, period 1.
        ([4, 5, 6, 4, 5, 6], [4, 5, 6, 4]),
        ([4, 8, 8], [8, 8, 8, 8]),
        # No match.
        ([1, 2, 3, 4], []),
        ([7], []),
        # Token 0 is a token; the zeros behind the text are none.
        ([0, 5, 6, 0], [5, 6, 0, 5]),
        ([0, 0], [0, 0, 0, 0]),
        ([5, 6, 0], []),
        # Longer than max_ngram does not count: the later of both.
        ([1, 2, 3, 4, 5, 8, 9, 2, 3, 4, 5, 7, 1, 2, 3, 4, 5], [7, 1, 2, 3]),
    ],
)
def test_propose_by_hand(make_state, text, drafted):
  lookup = Lookup(num_draft_tokens=4, max_ngram=4)
  for rubbish in (0, 5):
    state = make_state([text], rubbish=rubbish)
    assert _drafts(lookup, state) == [drafted]


def test_short_matches_draft_nothing_below_min_ngram(make_state):
  text = [1, 2, 9, 5, 1, 2]
  for min_ngram, drafted in ((1, [9, 5]), (2, [9, 5]), (3, [])):
    lookup = Lookup(num_draft_tokens=2, max_ngram=4, min_ngram=min_ngram)
    assert _drafts(lookup, make_state([text])) == [drafted]


@pytest.mark.parametrize(
    'room, done, num_drafted',
    [
        (100, False, 4),
        (5, False, 4),
        (4, False, 3),
        (1, False, 0),
        (9, True, 0),
    ],
)
def test_no_more_is_drafted_than_the_row_has_room_for(
    make_state, room, done, num_drafted
):
  state = make_state([[1, 2, 1, 2]], room=room, done=[done])
  drafts = _drafts(Lookup(num_draft_tokens=4), state)
  assert drafts == [[1, 2, 1, 2][:num_drafted]]


_text = st.integers(1, 4).flatmap(
    lambda num_tokens: st.lists(
        st.integers(0, num_tokens), min_size=1, max_size=30
    )
)


@pytest.mark.parametrize('max_ngram, min_ngram', [(4, 1), (3, 2), (1, 1)])
@hypothesis.settings(max_examples=80, deadline=None, derandomize=True)
@hypothesis.given(
    texts=st.lists(_text, min_size=4, max_size=4),
    room=st.integers(1, 8),
    rubbish=st.integers(0, 4),
)
def test_propose_equals_a_linear_scan(
    make_state, max_ngram, min_ngram, texts, room, rubbish
):
  lookup = Lookup(5, max_ngram=max_ngram, min_ngram=min_ngram)
  state = make_state(texts, room=room, rubbish=rubbish)
  expected = [
      oracles.lookup(
          text,
          num_draft_tokens=min(5, room - 1),
          max_ngram=max_ngram,
          min_ngram=min_ngram,
      )
      for text in texts
  ]
  assert _drafts(lookup, state) == expected


def test_proposals_are_chains_of_a_one_hot_law(make_state):
  proposal = _propose(Lookup(num_draft_tokens=3), make_state([[1, 1], [2, 3]]))
  assert proposal.probs_BPV is None
  np.testing.assert_array_equal(proposal.parent_BM, [[-1, 0, 1]] * 2)
  np.testing.assert_array_equal(proposal.depth_BM, [[1, 2, 3]] * 2)


def test_zero_drafted_tokens_are_plain_decoding():
  text = [1, 2, 1, 2, 1, 2, 1, 2]
  engine = Engine(
      Speculative(TableModel(), Lookup(num_draft_tokens=0)),
      Weights(target=table_model.certain(text[1:], 4)),
  )
  got = engine.generate([text[:4]], DecodeConfig(max_new_tokens=4))
  assert got.token_ids == [text[4:]]
  assert got.num_rounds == 4


def test_a_text_that_repeats_is_decoded_in_few_rounds():
  text = [5, 1, 2, 3] * 6
  engine = Engine(
      Speculative(TableModel(), Lookup(num_draft_tokens=4)),
      Weights(target=table_model.certain(text[1:], 6)),
  )
  got = engine.generate([text[:8]], DecodeConfig(max_new_tokens=15))
  assert got.token_ids == [text[8:23]]
  assert got.num_rounds == 3
  np.testing.assert_array_equal(got.accepted, [[3, 3, 3, 3]])
