"""The draft that reads its target's hidden states, against a slow oracle."""

import dataclasses
import functools

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding import config as config_lib
from speculative.decoding import loop
from speculative.decoding import sampling as sampling_lib
from speculative.decoding import verify
from speculative.decoding.autoregressive import Autoregressive
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.decoding.verify import Verdict
from speculative.drafting.hidden_lm import HiddenLm
from speculative.drafting.lm import Lm
from speculative.errors import UserError
from speculative.models import draft as draft_lib
from speculative.models.draft import DraftConfig
from speculative.models.draft import DraftModel
from speculative.models.precision import Precision
from speculative.models.transformer import Transformer
from speculative.testing import chi_square
from speculative.testing import oracles
from speculative.testing import tiny

# Float32 laws of cached passes against float64 ones of whole texts.
_ATOL = 2e-5
_V = tiny.TARGET.vocab_size
_J = 3
_TARGET = Transformer(tiny.TARGET)
_IDS = np.array(tiny.HEAD_IDS, np.int32)
_HIDDEN = tiny.HIDDEN_DRAFT
_TOKENS = dataclasses.replace(_HIDDEN, inputs='tokens')
# Its head is the target's own, and it needs no projection to its width.
_WHOLE = DraftConfig(
    layers=dataclasses.replace(tiny.TARGET, num_layers=1),
    target_dim=16,
    head_size=_V,
    head='shared',
)
_CONFIGS = {'hidden': _HIDDEN, 'tokens': _TOKENS, 'whole': _WHOLE}
_PROMPTS = [[3], [5, 0], [1, 2, 3, 4, 1], [9, 8, 7, 6, 5, 4, 3, 2]]


def _attached(config: DraftConfig, target: dict, seed: int = 5) -> dict:
  own = tiny.init_draft(jax.random.key(seed), config)
  ids = _IDS if config.head_size < _V else np.arange(_V, dtype=np.int32)
  return draft_lib.attach(config, own, jnp.asarray(ids), target)


def _drafter(
    config: DraftConfig, num_draft_tokens: int = _J, min_rows: int = 1
) -> HiddenLm | Lm:
  model = DraftModel(config, Precision(min_rows=min_rows))
  kind = HiddenLm if config.inputs == 'hidden' else Lm
  return kind(model, num_draft_tokens, vocab_size=_V)


@pytest.fixture(scope='module')
def target() -> dict:
  return tiny.init(jax.random.key(7), tiny.TARGET)


def _verdict(num_kept_B, sampling, logits, positions_BT, **drafted) -> Verdict:
  """Keeps as many as it likes and goes on with a token of its own."""
  del sampling, logits
  valid_BJ = drafted['valid_BJ']
  num_kept_B = jnp.minimum(num_kept_B, verify.num_leading(valid_BJ))
  row_B = jnp.arange(valid_BJ.shape[0], dtype=jnp.int32)
  return verify.verdict_of(
      num_kept_B, valid_BJ, (5 * positions_BT[:, 0] + row_B) % _V
  )


def _all(sampling, logits, positions_BT, **drafted) -> Verdict:
  return _verdict(_J, sampling, logits, positions_BT, **drafted)


def _none(sampling, logits, positions_BT, **drafted) -> Verdict:
  return _verdict(0, sampling, logits, positions_BT, **drafted)


def _mixed(sampling, logits, positions_BT, **drafted) -> Verdict:
  row_B = jnp.arange(positions_BT.shape[0], dtype=jnp.int32)
  kept_B = (positions_BT[:, 0] + row_B) % (_J + 1)
  return _verdict(kept_B, sampling, logits, positions_BT, **drafted)


def _start(step, weights, config: DecodeConfig, limits) -> loop.Carry:
  lens = np.array([len(p) for p in _PROMPTS], np.int32)
  padded = np.full((len(lens), lens.max()), 11, np.int32)
  for row, prompt in enumerate(_PROMPTS):
    padded[row, : len(prompt)] = prompt
  rows = config_lib.rows_of(config, len(lens))
  return loop.prefill(
      weights,
      *map(jnp.asarray, (padded, lens, lens + np.array(limits, np.int32))),
      jnp.asarray(config_lib.padded_ids([()] * len(lens))),
      jax.tree.map(jnp.asarray, config_lib.sampling_of(rows)),
      step=step,
      max_seq_len=64,
      log_probs='none',
  )


_round = functools.partial(jax.jit, static_argnums=0)(loop.one_round)


@functools.partial(jax.jit, static_argnums=0)
def _propose(drafter, params, drafter_state, state):
  return drafter.propose(params, drafter_state, state)[0]


def _wide(params: dict) -> dict:
  return jax.tree.map(lambda x: np.asarray(x, np.float64), params)


def _hidden_of_target(target: dict, text: list[int]) -> np.ndarray:
  """Returns h of every token, in one pass over all of them."""
  config = dataclasses.replace(tiny.TARGET, head='untied')
  identity = {**_wide(target), 'head': np.eye(tiny.TARGET.model_dim)}
  return oracles.transformer(config, identity, text)[0]


def _oracle_laws(config, params, target, text, drafted, **warping):
  """Returns the law [J, W] after every prefix, each from nothing."""
  known_TD = _hidden_of_target(target, text)
  hidden = [np.zeros(config.target_dim), *known_TD[: len(text) - 1]]
  laws = []
  for j in range(len(drafted)):
    prefix = [*text, *drafted[:j]]
    logits_TW, g_TD = oracles.draft(config, params, prefix, np.stack(hidden))
    laws.append(oracles.warp(logits_TW[-1], top_k=0, **warping))
    hidden.append(g_TD[-1])
  return np.stack(laws)


@pytest.mark.slow
@pytest.mark.parametrize(
    'name, verifier, min_rows',
    [
        ('hidden', _mixed, 1),
        ('hidden', _mixed, 2),
        ('hidden', _all, 1),
        ('hidden', _none, 1),
        ('whole', _mixed, 1),
        ('tokens', _mixed, 1),
    ],
)
def test_every_law_is_that_of_a_draft_that_reads_it_all_anew(
    target, name, verifier, min_rows
):
  """Whatever was kept before, with the target's state for all it has seen."""
  config = _CONFIGS[name]
  params = _attached(config, target)
  drafter = _drafter(config, min_rows=min_rows)
  step = Speculative(_TARGET, drafter, verifier=verifier)
  weights = Weights(target=target, drafter=params)
  warping = dict(temperature=0.8, top_p=0.9)
  # The second row ends in the first round or two, the others go on.
  carry = _start(step, weights, DecodeConfig(**warping), [40, 3, 40, 40])
  ids = np.asarray(params[draft_lib.HEAD_IDS])
  for _ in range(5):
    state = carry.state
    proposal = _propose(drafter, weights.drafter, carry.drafter_state, state)
    keys_BJ = sampling_lib.trial_keys(
        state.sampling.seed_B,
        state.seq_len_B,
        state.seq_len_B[:, None] + jnp.arange(_J)[None],
        sampling_lib.DRAFT,
    )
    drawn = sampling_lib.categorical(keys_BJ, proposal.probs_BPV[..., ids])
    for row in np.flatnonzero(~np.asarray(state.done_B)):
      text = np.asarray(state.tokens_BS[row, : state.seq_len_B[row]]).tolist()
      drafted = np.asarray(proposal.tokens_BM[row]).tolist()
      laws = _oracle_laws(
          config, _wide(params), target, text, drafted, **warping
      )
      q_JV = np.asarray(proposal.probs_BPV[row])
      np.testing.assert_allclose(q_JV[:, ids], laws, atol=_ATOL)
      assert np.delete(q_JV, ids, axis=1).max(initial=0) == 0
      np.testing.assert_array_equal(drafted, ids[np.asarray(drawn[row])])
    carry = _round(step, weights, carry)
  assert np.asarray(carry.state.done_B).tolist() == [False, True, False, False]


def _engines(config, target, num_draft_tokens=_J, rule='token'):
  params = _attached(config, target)
  drafter = _drafter(config, num_draft_tokens)
  return (
      Engine(Autoregressive(_TARGET), Weights(target=target)),
      Engine(Speculative(_TARGET, drafter, rule=rule), Weights(target, params)),
  )


@pytest.mark.parametrize(
    'name, num_draft_tokens',
    [
        pytest.param('hidden', 1, marks=pytest.mark.slow),
        ('hidden', 4),
        pytest.param('tokens', 2, marks=pytest.mark.slow),
    ],
)
def test_greedy_output_equals_plain_token_for_token(
    target, name, num_draft_tokens
):
  plain, fast = _engines(_CONFIGS[name], target, num_draft_tokens)
  common = dict(max_new_tokens=40, stop_ids=(11,))
  rows = [
      DecodeConfig(**common),
      DecodeConfig(**common | {'max_new_tokens': 3}),
      DecodeConfig(repetition_penalty=1.3, min_new_tokens=9, **common),
      DecodeConfig(logit_bias=((5, 2.0), (4, -1.0)), **common),
  ]
  for configs in (DecodeConfig(max_new_tokens=40), rows):
    expected = plain.generate(_PROMPTS, configs)
    got = fast.generate(_PROMPTS, configs)
    assert got.token_ids == expected.token_ids
    assert got.reasons == expected.reasons
    assert 0 < got.acceptance_rate < 1


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize('rule', verify.RULES)
def test_two_tokens_follow_the_target_whatever_is_drafted(target, rule):
  _, fast = _engines(_HIDDEN, target, rule=rule)
  num_rows, num_batches, counts = 1024, 8, np.zeros((_V, _V))
  for batch in range(num_batches):
    config = DecodeConfig(
        max_new_tokens=6, temperature=1.0, seed=batch * num_rows
    )
    got = fast.generate([_PROMPTS[2]] * num_rows, config)
    np.add.at(counts, tuple(np.array(got.token_ids)[:, :2].T), 1)
  assert 0.1 < got.acceptance_rate < 0.9

  def next_law(new: tuple[int, ...]) -> np.ndarray:
    text = [*_PROMPTS[2], *new]
    logits_V = oracles.transformer(tiny.TARGET, _wide(target), text)[0][-1]
    return oracles.warp(logits_V, temperature=1.0, top_k=0, top_p=1.0)

  first_V = next_law(())
  law_VV = first_V[:, None] * np.stack([next_law((i,)) for i in range(_V)])
  assert chi_square.p_value(counts, law_VV) > 1e-6


@pytest.mark.slow
def test_a_row_says_the_same_alone_and_in_a_batch(target):
  _, fast = _engines(_HIDDEN, target)
  config = DecodeConfig(max_new_tokens=20, temperature=0.9, top_p=0.95)
  together = fast.generate(_PROMPTS, config)
  for row in (0, 3):
    alone = fast.generate(
        [_PROMPTS[row]], dataclasses.replace(config, seed=row)
    )
    assert alone.token_ids[0] == together.token_ids[row]
    np.testing.assert_array_equal(alone.accepted[0], together.accepted[row])


def test_a_draft_that_knows_all_its_target_does_is_kept_whole(target):
  """A target without attention says what follows from the last token alone."""
  target = jax.tree.map(lambda x: x, target)
  target['layers'] = [
      layer | {'o_proj': jnp.zeros_like(layer['o_proj'])}
      for layer in target['layers'][:1]
  ]
  model = Transformer(dataclasses.replace(tiny.TARGET, num_layers=1))
  own = {
      'in_proj': jnp.eye(16, 32),
      'layers': target['layers'],
      'final_norm': target['final_norm'],
  }
  config = dataclasses.replace(_WHOLE, layers=model.config)
  params = draft_lib.attach(config, own, jnp.arange(_V), target)
  engine = Engine(Speculative(model, _drafter(config)), Weights(target, params))
  for temperature in (0.0, 0.7):
    got = engine.generate(
        _PROMPTS, DecodeConfig(max_new_tokens=24, temperature=temperature)
    )
    assert got.acceptance_rate == 1
    assert got.num_rounds == 6


def test_a_mixed_batch_has_one_hot_laws_in_its_greedy_rows(target):
  params = _attached(_HIDDEN, target)
  drafter = _drafter(_HIDDEN)
  step = Speculative(_TARGET, drafter)
  weights = Weights(target, params)
  greedy = _start(step, weights, DecodeConfig(), [40] * 4)
  alone = _propose(drafter, params, greedy.drafter_state, greedy.state)
  rows = [DecodeConfig(temperature=t) for t in (0.0, 1.0, 0.0, 1.0)]
  mixed = _start(step, weights, rows, [40] * 4)
  got = _propose(drafter, params, mixed.drafter_state, mixed.state)
  np.testing.assert_array_equal(
      alone.probs_BPV, jax.nn.one_hot(alone.tokens_BM, _V)
  )
  for row in (0, 2):
    np.testing.assert_array_equal(got.tokens_BM[row], alone.tokens_BM[row])
    np.testing.assert_array_equal(got.probs_BPV[row], alone.probs_BPV[row])


def test_q_of_an_adjusted_row_is_adjusted_over_the_whole_vocabulary(target):
  params = _attached(_HIDDEN, target)
  drafter = _drafter(_HIDDEN, num_draft_tokens=1)
  step = Speculative(_TARGET, drafter)
  weights = Weights(target, params)
  settings = dict(
      temperature=0.9, repetition_penalty=1.4, logit_bias=((4, 1.0), (5, 3.0))
  )
  carry = _start(step, weights, DecodeConfig(**settings), [40] * 4)
  got = _propose(drafter, params, carry.drafter_state, carry.state)
  for row, text in enumerate(_PROMPTS):
    hidden = np.concatenate(
        [np.zeros((1, 16)), _hidden_of_target(target, text)[:-1]]
    )
    logits_V = np.full(_V, -np.inf)
    logits_V[_IDS] = oracles.draft(_HIDDEN, _wide(params), text, hidden)[0][-1]
    adjusted_V = oracles.adjust(
        logits_V,
        text,
        len(text),
        repetition_penalty=1.4,
        logit_bias=settings['logit_bias'],
    )
    law_V = oracles.warp(adjusted_V, temperature=0.9, top_k=0, top_p=1.0)
    np.testing.assert_allclose(got.probs_BPV[row, 0], law_V, atol=_ATOL)


def test_a_hidden_drafter_needs_a_token_to_draft():
  with pytest.raises(UserError, match='num_draft_tokens >= 1, got 0'):
    _drafter(_HIDDEN, num_draft_tokens=0)
