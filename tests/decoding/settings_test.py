"""Every setting a row can have, through whole engines and mixed batches."""

import dataclasses

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding.autoregressive import Autoregressive
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.drafting.lm import Lm
from speculative.drafting.lookup import Lookup
from speculative.testing import oracles
from speculative.testing import table_model
from speculative.testing import tiny
from speculative.testing.table_model import Script
from speculative.testing.table_model import TableModel

# Float32 logits of passes of different widths.
_ATOL = 1e-4

_PENALTIES = dict(
    repetition_penalty=1.2,
    presence_penalty=0.4,
    frequency_penalty=0.3,
    logit_bias=((5, 1.5), (12, -3.0)),
)
# As other tests have it, so that they share programs.
_BASE = DecodeConfig(max_new_tokens=56, log_probs='chosen')
# One row of each kind; seeds are their own.
_ROWS = [
    dataclasses.replace(_BASE, seed=seed, **settings)
    for seed, settings in enumerate(
        [
            {},
            dict(temperature=1.0),
            dict(temperature=0.7, top_p=0.9),
            dict(temperature=0.8, top_k=5, min_p=0.05),
            dict(temperature=0.9, **_PENALTIES),
            dict(stop_ids=(3, 4), min_new_tokens=9, **_PENALTIES),
            dict(temperature=1.1, stop_ids=(2, 7), min_new_tokens=5),
            dict(temperature=0.9, frequency_penalty=-0.2, max_new_tokens=40),
        ]
    )
]
_DETERMINISTIC_ROWS = [row.temperature == 0 for row in _ROWS]


@pytest.fixture(scope='module')
def eight(prompts) -> list[list[int]]:
  """Eight prompts of one bucket."""
  return [*prompts, [1, 1, 1, 1], [9, 8, 9, 8, 9], prompts[2][1:], [12]]


@pytest.fixture(scope='module')
def with_block(with_relative) -> Engine:
  """The relative's drafts, verified as a block."""
  step = dataclasses.replace(with_relative.step, rule='block')
  return Engine(step, with_relative.weights)


def test_mixed_rows_with_lookup_equal_plain_token_for_token(
    plain, with_lookup, eight
):
  expected = plain.generate(eight, _ROWS)
  got = with_lookup.generate(eight, _ROWS)
  assert got.token_ids == expected.token_ids
  assert got.reasons == expected.reasons
  for row in range(8):
    np.testing.assert_allclose(
        got.log_probs[row], expected.log_probs[row], atol=_ATOL
    )
    assert 0 < got.accepted[row].sum() < got.tested[row].sum(), row
  # The stop ids were met, and not before they were allowed to be.
  assert 'stop' in (got.reasons[5], got.reasons[6])
  for row in (5, 6):
    assert len(got.token_ids[row]) > _ROWS[row].min_new_tokens
  assert len(got.token_ids[7]) == 40


@pytest.mark.parametrize('engine', ['with_relative', 'with_block'])
def test_greedy_rows_of_a_mixed_batch_equal_plain(
    request, plain, eight, engine
):
  expected = plain.generate(eight, _ROWS)
  got = request.getfixturevalue(engine).generate(eight, _ROWS)
  for row in np.flatnonzero(_DETERMINISTIC_ROWS):
    assert got.token_ids[row] == expected.token_ids[row]
    assert got.reasons[row] == expected.reasons[row]
  assert 0 < got.acceptance_rate < 1


@pytest.mark.parametrize('engine', ['with_relative', 'with_lookup'])
def test_greedy_batches_with_penalties_equal_plain(
    request, plain, prompts, engine
):
  config = dataclasses.replace(_BASE, **_PENALTIES)
  expected = plain.generate(prompts, config)
  got = request.getfixturevalue(engine).generate(prompts, config)
  assert got.token_ids == expected.token_ids
  assert 0 < got.acceptance_rate < 1
  # The penalties do something.
  assert plain.generate(prompts, _BASE).token_ids != expected.token_ids


def test_a_target_that_drafts_for_itself_is_adjusted_as_its_draft_is(
    with_itself, prompts
):
  """Penalties that missed the drafts before a position would part the two."""
  for temperature in (0.0, 0.9):
    got = with_itself.generate(
        prompts,
        dataclasses.replace(_BASE, temperature=temperature, **_PENALTIES),
    )
    assert got.acceptance_rate == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    'engine', ['plain', 'with_lookup', 'with_relative', 'with_block']
)
def test_a_row_says_the_same_alone_in_a_batch_of_8_and_in_another_order(
    request, eight, engine
):
  engine = request.getfixturevalue(engine)
  together = engine.generate(eight, _ROWS)
  order = [5, 2, 7, 0, 3, 6, 1, 4]
  shuffled = engine.generate(
      [eight[i] for i in order], [_ROWS[i] for i in order]
  )
  for place, row in enumerate(order):
    assert shuffled.token_ids[place] == together.token_ids[row]
    np.testing.assert_array_equal(
        shuffled.accepted[place], together.accepted[row]
    )
  for row in range(8):
    alone = engine.generate([eight[row]], [_ROWS[row]])
    assert alone.token_ids[0] == together.token_ids[row], row
    assert alone.reasons[0] == together.reasons[row]
    np.testing.assert_array_equal(alone.accepted[0], together.accepted[row])


def test_plain_decoding_is_the_argmax_of_the_oracles_logits():
  rng = np.random.default_rng(0)
  table = rng.normal(size=(1, 9, 9)).astype(np.float32)
  settings = dict(
      repetition_penalty=1.3,
      presence_penalty=0.6,
      frequency_penalty=0.2,
      logit_bias=((4, 0.5), (2, -1.0)),
      min_new_tokens=6,
  )
  stop_ids = (1, 7)
  config = DecodeConfig(max_new_tokens=24, stop_ids=stop_ids, **settings)
  prompts = [[3, 3, 8], [0], [5, 6, 5, 6]]
  engines = [
      Engine(Autoregressive(TableModel()), Weights(target=jnp.asarray(table))),
      Engine(
          Speculative(TableModel(), Lookup(num_draft_tokens=3)),
          Weights(target=jnp.asarray(table)),
      ),
  ]
  for engine in engines:
    got = engine.generate(prompts, config)
    for row, prompt in enumerate(prompts):
      text = list(prompt)
      while len(text) < len(prompt) + 24:
        logits_V = oracles.adjust(
            table[0, text[-1]], text, len(prompt), stop_ids=stop_ids, **settings
        )
        text.append(int(np.argmax(logits_V)))
        if text[-1] in stop_ids:
          break
      assert got.token_ids[row] == text[len(prompt) :]


def test_log_probs_are_of_the_raw_logits_whatever_adjusts_them(
    plain, prompts, full_logits
):
  config = dataclasses.replace(_BASE, temperature=0.9, **_PENALTIES)
  got = plain.generate(prompts, config)
  texts = [[*p, *ids] for p, ids in zip(prompts, got.token_ids, strict=True)]
  logits_BTV = full_logits(texts)
  for row, prompt in enumerate(prompts):
    rows_TV = logits_BTV[row, len(prompt) - 1 : len(texts[row]) - 1]
    log_probs_TV = jax.nn.log_softmax(rows_TV, axis=-1)
    expected = np.asarray(log_probs_TV)[np.arange(56), got.token_ids[row]]
    np.testing.assert_allclose(got.log_probs[row], expected, atol=_ATOL)


def test_a_stop_id_that_is_drafted_too_early_is_refused():
  """Id 0 is certain from the start, and drafted, but may end no row yet."""
  engine = Engine(
      Speculative(TableModel(), Script(3)),
      Weights(
          target=table_model.certain([0] * 8, 5),
          drafter=jnp.zeros((1, 32), jnp.int32),
      ),
  )
  got = engine.generate(
      [[3]],
      DecodeConfig(max_new_tokens=12, min_new_tokens=4, stop_ids=(0, 1)),
  )
  assert got.token_ids == [[2, 2, 2, 2, 0]]
  assert got.reasons == ['stop']


@pytest.mark.parametrize('temperature', [0.0, 1.0])
@pytest.mark.parametrize('rule', ['token', 'block'])
def test_an_end_that_a_draft_model_proposes_is_only_a_proposal(
    rule, temperature
):
  """The draft is certain of the stop id 4, which the target never says."""
  rng = np.random.default_rng(2)
  table = rng.normal(size=(1, 5, 5)).astype(np.float32)
  table[:, :, 4] = -200.0
  engine = Engine(
      Speculative(TableModel(), Lm(TableModel(), 3, vocab_size=5), rule=rule),
      Weights(
          target=jnp.asarray(table),
          drafter=table_model.certain([4] * 8, 5),
      ),
  )
  got = engine.generate(
      [[3], [1]],
      DecodeConfig(max_new_tokens=12, stop_ids=(4,), temperature=temperature),
  )
  assert got.reasons == ['length'] * 2
  assert [len(ids) for ids in got.token_ids] == [12, 12]
  assert 4 not in {i for ids in got.token_ids for i in ids}
  assert got.tested.sum() > 0
  assert got.accepted.sum() == 0


def test_a_bias_can_forbid_a_token_and_force_another(with_relative, prompts):
  for temperature in (0.0, 1.0):
    got = with_relative.generate(
        prompts,
        dataclasses.replace(
            _BASE,
            temperature=temperature,
            logit_bias=((5, -100.0), (6, -100.0)),
        ),
    )
    assert not {5, 6} & {i for ids in got.token_ids for i in ids}
    forced = with_relative.generate(
        prompts,
        dataclasses.replace(
            _BASE,
            temperature=temperature,
            logit_bias=((tiny.TARGET.vocab_size - 1, 100.0),),
        ),
    )
    assert {i for ids in forced.token_ids for i in ids} == {12}


def test_padding_of_a_draft_head_can_never_be_drawn(prompts):
  """The draft knows ids that the target does not, and likes them best."""
  rng = np.random.default_rng(3)
  target = jnp.asarray(rng.normal(size=(1, 13, 13)), jnp.float32)
  draft = jnp.asarray(rng.normal(size=(1, 16, 16)), jnp.float32)
  draft = draft.at[:, :, 13:].set(30.0)
  engine = Engine(
      Speculative(TableModel(), Lm(TableModel(), 3, vocab_size=13)),
      Weights(target=target, drafter=draft),
  )
  config = dataclasses.replace(_BASE, temperature=1.0, **_PENALTIES)
  got = engine.generate(prompts, config)
  assert max(i for ids in got.token_ids for i in ids) <= 12
  assert got.accepted.sum() > 0
