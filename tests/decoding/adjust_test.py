"""Bias, minimum length and penalties, against one text written as a list."""

import hypothesis
from hypothesis import strategies as st
import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding import adjust
from speculative.decoding import tree as tree_lib
from speculative.testing import oracles
from speculative.testing import samplers

# Float32 against float64, for logits of up to a hundred.
_ATOL = 1e-4
_V, _S, _J, _B = 6, 12, 3, 3
_STOP_IDS = (5, 2)

_adjust = jax.jit(adjust.adjust_logits)


def _text(texts, prompt_lens, stop_ids=_STOP_IDS) -> adjust.Text:
  # What lies behind a text is a token that would count if it were read.
  tokens = np.full((len(texts), _S), 1, np.int32)
  for row, text in enumerate(texts):
    tokens[row, : len(text)] = text
  return adjust.Text(
      tokens_BS=jnp.asarray(tokens),
      seq_len_B=jnp.asarray([len(text) for text in texts], jnp.int32),
      prompt_len_B=jnp.asarray(prompt_lens, jnp.int32),
      stop_ids_BE=jnp.asarray([[*stop_ids, -1]] * len(texts), jnp.int32),
  )


def _adjustment(rows: list[dict]) -> adjust.Adjustment:
  names = {name for row in rows for name in row}
  # What a row leaves out is off.
  off = {'repetition_penalty': 1.0, 'logit_bias': ()}
  return samplers.sampling(
      len(rows),
      **{
          name: [row.get(name, off.get(name, 0)) for row in rows]
          for name in names
      },
  ).adjustment


def _after(rows, texts, prompt_lens, logits_BTV, drafts_BJ) -> np.ndarray:
  """Adjusts the logits of a verify pass over drafted chains."""
  drafts = adjust.chain_drafts(jnp.asarray(drafts_BJ, jnp.int32))
  return np.asarray(
      _adjust(
          _adjustment(rows),
          _text(texts, prompt_lens),
          drafts,
          jnp.asarray(logits_BTV, jnp.float32),
      )
  )


def _plainly(rows, texts, prompt_lens, logits_BV) -> np.ndarray:
  """Adjusts the logits that follow the texts, with no drafts."""
  text = _text(texts, prompt_lens)
  return np.asarray(
      _adjust(
          _adjustment(rows),
          text,
          adjust.no_drafts(text.seq_len_B),
          jnp.asarray(logits_BV, jnp.float32)[:, None],
      )
  )[:, 0]


_EVERYTHING = {
    'repetition_penalty': 1.5,
    'presence_penalty': 0.5,
    'frequency_penalty': 0.25,
    'logit_bias': ((1, 2.0), (4, -3.0)),
    'min_new_tokens': 3,
}


@pytest.mark.parametrize(
    'settings, expected',
    [
        # The text is 0 0 1 | 1 4: prompt and output.
        ({'repetition_penalty': 2.0}, [1, -4, 3, -4, 2, 1]),
        ({'presence_penalty': 0.5}, [2, -2.5, 3, -4, 3.5, 1]),
        ({'frequency_penalty': 1.5}, [2, -3.5, 3, -4, 2.5, 1]),
        ({'logit_bias': ((3, 4.5), (0, -1.0))}, [1, -2, 3, 0.5, 4, 1]),
        ({'min_new_tokens': 3}, [2, -2, -np.inf, -4, 4, -np.inf]),
        ({'min_new_tokens': 2}, [2, -2, 3, -4, 4, 1]),
        # The bias comes before the penalty: 0 is 2 - 5, then doubled.
        (
            {'logit_bias': ((0, -5.0),), 'repetition_penalty': 2.0},
            [-6, -4, 3, -4, 2, 1],
        ),
    ],
    ids=str,
)
def test_one_row_by_hand(settings, expected):
  logits_V = [2, -2, 3, -4, 4, 1]
  got = _plainly([settings], [[0, 0, 1, 1, 4]], [3], [logits_V])
  np.testing.assert_allclose(got[0], expected, atol=1e-6)
  oracle = oracles.adjust(
      logits_V, [0, 0, 1, 1, 4], 3, stop_ids=_STOP_IDS, **settings
  )
  np.testing.assert_allclose(oracle, expected)


def test_a_drafted_token_counts_for_the_positions_after_it_alone():
  # Output 5 5, frequency 1, drafts 5 3: as the docstring has it.
  got = _after(
      [{'frequency_penalty': 1.0}],
      [[1, 5, 5]],
      [1],
      np.zeros((1, 3, 6)),
      [[5, 3]],
  )
  np.testing.assert_array_equal(got[0, :, 5], [-2, -3, -3])
  np.testing.assert_array_equal(got[0, :, 3], [0, 0, -1])
  np.testing.assert_array_equal(got[0][:, [0, 1, 2, 4]], np.zeros((3, 4)))


_token = st.integers(0, _V - 1)
_logit = st.one_of(st.integers(-40, 40).map(lambda n: n / 8), st.just(-np.inf))
_row_settings = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {},
        optional={
            'repetition_penalty': st.sampled_from([0.5, 0.9, 1.0, 1.3, 7.0]),
            'presence_penalty': st.sampled_from([-2.0, 0.0, 0.3, 2.0]),
            'frequency_penalty': st.sampled_from([-1.1, 0.0, 0.7, 2.0]),
            'logit_bias': st.lists(
                st.tuples(_token, st.sampled_from([-100.0, -1.5, 0.7])),
                max_size=4,
            ).map(tuple),
            'min_new_tokens': st.integers(0, 9),
        },
    ),
)


@st.composite
def _rows(draw):
  """One row: settings, text, length of its prompt, drafts, logits."""
  text = draw(st.lists(_token, min_size=1, max_size=_S - _J))
  return (
      draw(_row_settings),
      text,
      draw(st.integers(1, len(text))),
      # Of few tokens, so that drafts repeat themselves and the text.
      draw(st.lists(_token, min_size=_J, max_size=_J)),
      draw(
          st.lists(
              st.lists(_logit, min_size=_V, max_size=_V),
              min_size=_J + 1,
              max_size=_J + 1,
          )
      ),
  )


_batches = st.lists(_rows(), min_size=_B, max_size=_B)
_settings = hypothesis.settings(
    max_examples=100, deadline=None, derandomize=True
)


@_settings
@hypothesis.given(_batches)
def test_every_drafted_position_is_adjusted_by_all_tokens_before_it(batch):
  rows, texts, prompt_lens, drafts, logits = zip(*batch, strict=True)
  got = _after(rows, texts, prompt_lens, logits, drafts)
  for row, (settings, text, prompt_len, drafted, logits_TV) in enumerate(batch):
    for t in range(_J + 1):
      expected = oracles.adjust(
          logits_TV[t],
          [*text, *drafted[:t]],
          prompt_len,
          stop_ids=_STOP_IDS,
          **settings,
      )
      np.testing.assert_allclose(got[row, t], expected, atol=_ATOL)


@_settings
@hypothesis.given(_batches)
def test_a_drafted_position_is_bit_for_bit_that_of_plain_decoding(batch):
  rows, texts, prompt_lens, drafts, logits = zip(*batch, strict=True)
  got = _after(rows, texts, prompt_lens, logits, drafts)
  for t in range(_J + 1):
    committed = [
        [*text, *drafted[:t]]
        for text, drafted in zip(texts, drafts, strict=True)
    ]
    plain = _plainly(
        rows, committed, prompt_lens, [logits_TV[t] for logits_TV in logits]
    )
    np.testing.assert_array_equal(_bits(got[:, t]), _bits(plain))


def _bits(x: np.ndarray) -> np.ndarray:
  return np.ascontiguousarray(x).view(np.int32)


_LOGITS = np.array(
    [[[0.1, -0.0, 0.0, -np.inf, 3.3, -7.7]] * (_J + 1)] * _B, np.float32
)
_TEXTS, _PROMPT_LENS = [[0, 1, 1], [3, 4, 4, 5], [2]], [1, 2, 1]


def test_nothing_changes_where_no_row_asks_for_anything():
  got = _after([{}] * 3, _TEXTS, _PROMPT_LENS, _LOGITS, [[1, 1, 0]] * 3)
  np.testing.assert_array_equal(_bits(got), _bits(_LOGITS))


def test_a_row_that_asks_for_nothing_is_left_alone_by_its_neighbours():
  rows = [{}, _EVERYTHING, {}]
  drafts = [[1, 1, 0], [4, 0, 4], [2, 2, 2]]
  got = _after(rows, _TEXTS, _PROMPT_LENS, _LOGITS, drafts)
  for row in (0, 2):
    np.testing.assert_array_equal(_bits(got[row]), _bits(_LOGITS[row]))
  alone = _after([_EVERYTHING], _TEXTS[1:2], [2], _LOGITS[1:2], drafts[1:2])
  np.testing.assert_array_equal(_bits(got[1]), _bits(alone[0]))
  assert (got[1] != _LOGITS[1]).any()


def test_a_rejected_draft_leaves_nothing_in_the_counts():
  """The next round sees the text alone, whatever was drafted before."""
  first = _after(
      [_EVERYTHING], [[0, 1]], [1], np.ones((1, _J + 1, _V)), [[4, 4, 4]]
  )
  # All three drafts were refused and 0 came in their place.
  second = _after(
      [_EVERYTHING], [[0, 1, 0]], [1], np.ones((1, _J + 1, _V)), [[3, 3, 3]]
  )
  expected = oracles.adjust(
      np.ones(_V), [0, 1, 0], 1, stop_ids=_STOP_IDS, **_EVERYTHING
  )
  np.testing.assert_allclose(second[0, 0], expected, atol=_ATOL)
  assert first[0, 1, 4] < second[0, 0, 4]


def test_what_lies_behind_the_text_is_not_counted():
  # _text fills the buffer with token 1.
  got = _plainly([{'presence_penalty': 1.0}], [[0, 3]], [1], [[0.0] * _V])
  np.testing.assert_array_equal(got[0], [0, 0, 0, -1, 0, 0])


def test_min_new_tokens_counts_the_drafts_before_a_position():
  got = _after(
      [{'min_new_tokens': 3}],
      [[0, 1]],
      [1],
      np.zeros((1, _J + 1, _V)),
      [[1, 1, 1]],
  )
  # One new token in the text: positions 0 and 1 are the second and third.
  np.testing.assert_array_equal(
      np.isinf(got[0][:, list(_STOP_IDS)]).all(axis=1),
      [True, True, False, False],
  )


def test_a_stop_id_outside_the_vocabulary_forbids_nothing():
  text = _text([[0, 1]], [1], stop_ids=(_V, _V + 3))
  got = _adjust(
      _adjustment([{'min_new_tokens': 5}]),
      text,
      adjust.no_drafts(text.seq_len_B),
      jnp.zeros((1, 1, _V)),
  )
  np.testing.assert_array_equal(got, np.zeros((1, 1, _V)))


def test_a_node_of_a_tree_is_adjusted_by_what_lies_above_it_alone():
  paths = [[], [0], [1], [0, 2], [0, 3], [0, 3, 4]]
  tree = tree_lib.make(
      jnp.asarray([[3, 3, 5, 2, 3], [1, 4, 1, 1, 1], [2, 2, 2, 2, 2]]),
      jnp.broadcast_to(jnp.asarray([-1, -1, 0, 0, 3]), (_B, 5)),
      jnp.ones((_B, 5), bool),
      max_depth=3,
  )
  rows = [_EVERYTHING, {'frequency_penalty': 0.7}, _EVERYTHING]
  texts, prompt_lens = [[3, 1, 2], [4, 4, 0, 4], [2]], [1, 2, 1]
  rng = np.random.default_rng(4)
  logits_BTV = rng.normal(size=(_B, len(paths), _V)).astype(np.float32)
  got_BTV = _adjust(
      _adjustment(rows),
      _text(texts, prompt_lens),
      tree.drafts(),
      jnp.asarray(logits_BTV),
  )
  for row, path in enumerate(paths):
    expected_BTV = _after(
        rows,
        texts,
        prompt_lens,
        np.repeat(logits_BTV[:, row : row + 1], len(path) + 1, axis=1),
        np.asarray(tree.tokens_BM)[:, path],
    )
    np.testing.assert_array_equal(got_BTV[:, row], expected_BTV[:, -1])
