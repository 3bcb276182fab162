"""Text that drafts for the draft, which drafts as it does alone."""

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
from speculative.drafting.cascade import Cascade
from speculative.drafting.lm import Lm
from speculative.drafting.lookup import Lookup
from speculative.drafting.retrieval import Retrieval
from speculative.drafting.retrieval_config import RetrievalConfig
from speculative.drafting.text import StoreAndModel
from speculative.models import draft as draft_lib
from speculative.models.draft import DraftConfig
from speculative.models.draft import DraftModel
from speculative.models.transformer import Transformer
from speculative.retrieval import oracle
from speculative.testing import stores
from speculative.testing import tiny

_V, _J = tiny.TARGET.vocab_size, 5
# Float32 laws of passes of different width.
_ATOL = 2e-5
_TARGET = Transformer(tiny.TARGET)
_HEAD_DRAFT = DraftConfig(
    tiny.HIDDEN_DRAFT.layers,
    target_dim=16,
    head_size=9,
    inputs='tokens',
    head='own',
)
_LMS = {
    'model': Lm(Transformer(tiny.DRAFT), _J, vocab_size=_V),
    'part of a head': Lm(DraftModel(_HEAD_DRAFT), _J, vocab_size=_V),
}
_STORE = Retrieval(4, RetrievalConfig(sources='store', num_rows=6))
_TEXTERS = {
    'lookup': Lookup(3, max_ngram=3),
    'one token': Lookup(1),
    'context': Retrieval(2, RetrievalConfig(sources='context')),
    'store': _STORE,
}
# Of one token, and three that repeat nothing, something and much.
_TEXTS = [[3], [5, 0, 2], [1, 2, 3, 4, 1], [5, 6, 5, 6, 5, 6, 5, 6]]
_SAMPLERS = {
    'greedy': {},
    'sampled': {'temperature': 0.8, 'top_p': 0.9},
    # Tokens of a guess count where it comes before.
    'adjusted': {
        'temperature': [0.0, 0.9, 0.9, 0.5],
        'frequency_penalty': [1.0, 0.8, 0.0, 2.0],
        'repetition_penalty': 1.3,
        'min_new_tokens': 3,
    },
}


@functools.cache
def _target() -> dict:
  return tiny.init(jax.random.key(7), tiny.TARGET)


@functools.cache
def _model(name: str) -> dict:
  if name == 'model':
    return tiny.init(jax.random.key(3), tiny.DRAFT)
  own = tiny.init_draft(jax.random.key(5), _HEAD_DRAFT)
  ids = jnp.asarray(tiny.HEAD_IDS, jnp.int32)
  return draft_lib.attach(_HEAD_DRAFT, own, ids, _target())


def _store(documents):
  tokens = np.array([t for text in documents for t in [*text, _V]])
  suffixes = np.asarray(oracle.sort_suffixes(tokens.tolist(), separator=_V))
  return jax.device_put(stores.of_tokens([(tokens, suffixes)], separator=_V))


@functools.partial(jax.jit, static_argnames='drafter')
def _propose(drafter, params, state):
  drafter_state = drafter.init(
      params, state, {}, prompt_width=max(map(len, _TEXTS))
  )
  return drafter.propose(params, drafter_state, state)


def _state(make_state, sampler: str, **rows):
  """Where a row may not stop at once, with stop ids that the draft likes."""
  settings = _SAMPLERS[sampler]
  if 'min_new_tokens' in settings:
    free = make_state(_TEXTS, **(settings | {'min_new_tokens': 0}))
    drafted, _ = _propose(_LMS['model'], _model('model'), free)
    liked = np.unique(drafted.tokens_BM[:, :2])
    rows = {'stop_ids': liked} | rows
  return make_state(_TEXTS, **settings, **rows)


def _written(name: str, state) -> list[list[int]]:
  """Documents in which the draft's own tokens are all, partly or not right."""
  alone, _ = _propose(_LMS[name], _model(name), state)
  drafted = np.asarray(alone.tokens_BM).tolist()
  half = [*drafted[2][:2], (drafted[2][2] + 1) % _V, *drafted[2][3:]]
  return [_TEXTS[3] + drafted[3], _TEXTS[2] + half, _TEXTS[1] + [11, 11, 11]]


@pytest.mark.parametrize('sampler', _SAMPLERS)
@pytest.mark.parametrize(
    'name, text',
    [
        *(('model', text) for text in _TEXTERS),
        ('part of a head', 'lookup'),
    ],
)
def test_it_drafts_what_the_model_drafts_alone(make_state, name, text, sampler):
  state = _state(make_state, sampler)
  expected, _ = _propose(_LMS[name], _model(name), state)
  params = _model(name)
  if text == 'store':
    params = StoreAndModel(_store(_written(name, state)), params)
  got, _ = _propose(Cascade(_TEXTERS[text], _LMS[name]), params, state)
  np.testing.assert_array_equal(got.tokens_BM, expected.tokens_BM)
  np.testing.assert_array_equal(got.valid_BM, expected.valid_BM)
  np.testing.assert_allclose(got.probs_BPV, expected.probs_BPV, atol=_ATOL)


@pytest.mark.parametrize('sampler', _SAMPLERS)
def test_a_pass_keeps_what_is_right_and_one_token_more(make_state, sampler):
  name = 'model'
  state = _state(make_state, sampler)
  store = _store(_written(name, state))
  params = StoreAndModel(store, _model(name))

  def num_passes(rows: list[int]) -> int:
    # Others are done, and nothing waits for them.
    done = [row not in rows for row in range(len(_TEXTS))]
    some = _state(make_state, sampler, done=done)
    return int(
        _propose(Cascade(_STORE, _LMS[name]), params, some)[1].num_passes
    )

  assert num_passes([3]) == 1
  # Two right, the one that is drawn instead of the third, and then the rest.
  assert 2 <= num_passes([2]) <= 3
  assert num_passes([2, 3]) == num_passes([2])
  assert num_passes([]) == 1


def test_a_row_near_its_end_asks_for_no_more_than_it_has_room_for(make_state):
  state = make_state(_TEXTS, room=[3, 1, 100, 4], temperature=0.8)
  expected, _ = _propose(_LMS['model'], _model('model'), state)
  got, _ = _propose(
      Cascade(_TEXTERS['lookup'], _LMS['model']), _model('model'), state
  )
  valid = np.asarray(expected.valid_BM)
  assert valid.sum(axis=1).tolist() == [2, 0, _J, 3]
  np.testing.assert_array_equal(got.valid_BM, valid)
  np.testing.assert_array_equal(
      np.asarray(got.tokens_BM)[valid], np.asarray(expected.tokens_BM)[valid]
  )


def _engine(drafter, params, **step) -> Engine:
  return Engine(
      Speculative(_TARGET, drafter, **step), Weights(_target(), params)
  )


_ROWS = [
    DecodeConfig(max_new_tokens=30, stop_ids=(11,), seed=seed, **sampler)
    for seed, sampler in enumerate(
        (
            {},
            {'temperature': 1.0},
            {'temperature': 0.8, 'top_p': 0.9},
            {'temperature': 0.7, 'frequency_penalty': 0.4},
        )
    )
]


@pytest.mark.parametrize('rule', ['token', 'block'])
def test_whole_texts_are_those_of_the_model_alone(rule):
  """Whatever earlier rounds left in the draft's cache."""
  params = _model('model')
  alone = _engine(_LMS['model'], params, rule=rule).generate(_TEXTS, _ROWS)
  cascade = Cascade(_TEXTERS['lookup'], _LMS['model'])
  engine = _engine(cascade, params, rule=rule)
  got = engine.generate(_TEXTS, _ROWS)
  assert got.token_ids == alone.token_ids
  for mine, theirs in zip(got.accepted, alone.accepted, strict=True):
    np.testing.assert_array_equal(mine, theirs)
  plain = Engine(Autoregressive(_TARGET), Weights(_target()))
  expected = plain.generate(_TEXTS[:1], _ROWS[:1])
  assert got.token_ids[0] == expected.token_ids[0]


def test_it_takes_fewer_passes_than_the_model_alone():
  text = _TEXTS[3]
  engine = _engine(Cascade(_TEXTERS['lookup'], _LMS['model']), _model('model'))
  carry = engine.start([text], DecodeConfig(max_new_tokens=30))
  one_round = jax.jit(engine.step)
  for _ in range(5):
    carry = one_round(engine.weights, carry)
  assert 5 <= int(carry.drafter_state.num_passes) < 5 * _J


@pytest.mark.parametrize('num_drafted, num_guessed', [(5, 4), (2, 24)])
def test_no_round_writes_over_a_text_that_fills_its_buffer(
    num_drafted, num_guessed
):
  """Of the draft's cache either, by guesses far beyond what is drafted."""
  prompts = [[(3 * i + i // 5) % _V for i in range(32)], [9, 8, 7, 6, 5]]
  # Without a slot to spare.
  slots = 64
  longest = slots - num_drafted - 1
  rows = [
      DecodeConfig(
          max_new_tokens=longest - len(prompt),
          max_seq_len=longest,
          temperature=temperature,
      )
      for prompt, temperature in zip(prompts, (0.0, 0.8), strict=True)
  ]
  params = _model('model')
  lm = dataclasses.replace(_LMS['model'], num_draft_tokens=num_drafted)
  alone = _engine(lm, params).generate(prompts, rows)
  engine = _engine(Cascade(Lookup(num_guessed), lm), params)
  assert engine.start(prompts, rows).state.tokens_BS.shape[1] == slots
  got = engine.generate(prompts, rows)
  assert got.token_ids == alone.token_ids
  np.testing.assert_array_equal(got.accepted, alone.accepted)
  np.testing.assert_array_equal(got.drafted, alone.drafted)
