"""A draft that may lack many tokens and mostly lacks few."""

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding import verify
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.decoding.verify import Verdict
from speculative.drafting import catching_up
from speculative.drafting.hidden_lm import HiddenLm
from speculative.drafting.hybrid import Hybrid
from speculative.drafting.lm import Lm
from speculative.drafting.lookup import Lookup
from speculative.models import draft as draft_lib
from speculative.models.draft import DraftModel
from speculative.models.transformer import Transformer
from speculative.testing import tiny

_V, _J = tiny.TARGET.vocab_size, 7
_ATOL = 2e-5
_TARGET = Transformer(tiny.TARGET)
_DRAFTS = {
    'hidden': HiddenLm(DraftModel(tiny.HIDDEN_DRAFT), _J, vocab_size=_V),
    'model': Lm(Transformer(tiny.DRAFT), _J, vocab_size=_V, num_behind=_J + 1),
}
_PROMPTS = [[9, 8, 7, 6, 5], [1, 2, 3, 4, 1]]


@pytest.mark.parametrize(
    'most, num_new, expected',
    [
        (3, [3], 3),
        (4, [1], 4),
        # Less than twice as wide: there is no narrow pass.
        (7, [1], 7),
        (8, [1], 4),
        (9, [2, 0, 4], 4),
        (9, [2, 5, 0], 9),
    ],
)
def test_the_narrow_pass_is_taken_where_it_reads_enough(
    most, num_new, expected
):
  width = jax.jit(
      lambda num_new_B: catching_up.read(num_new_B, most, jnp.int32)
  )
  assert width(jnp.asarray(num_new, jnp.int32)) == expected


# Few, as many as the narrow pass reads, one more, all, few.
_KEPT = (1, catching_up.FEW - 1, catching_up.FEW, _J, 0)


def _keeps(sampling, logits, positions_BT, **drafted) -> Verdict:
  """Keeps as many as the round should and goes on with a token of its own."""
  del sampling, logits
  starts_R = np.cumsum([len(_PROMPTS[0]), *(n + 1 for n in _KEPT)])[:-1]
  is_it_BR = positions_BT[:, :1] == jnp.asarray(starts_R)[None, :]
  kept_B = jnp.sum(jnp.where(is_it_BR, jnp.asarray(_KEPT)[None, :], 0), axis=1)
  return verify.verdict_of(
      kept_B, drafted['valid_BJ'], (5 * positions_BT[:, 0]) % _V
  )


def _params(name: str, target: dict) -> dict:
  if name == 'model':
    return tiny.init(jax.random.key(3), tiny.DRAFT)
  own = tiny.init_draft(jax.random.key(5), tiny.HIDDEN_DRAFT)
  ids = jnp.asarray(tiny.HEAD_IDS, jnp.int32)
  return draft_lib.attach(tiny.HIDDEN_DRAFT, own, ids, target)


@pytest.mark.parametrize('name', _DRAFTS)
def test_the_draft_knows_the_text_however_much_of_it_is_new(name):
  """As one that reads the same text anew, where it drafted none of it."""
  target = tiny.init(jax.random.key(7), tiny.TARGET)
  draft = _DRAFTS[name]
  lookup = Lookup(num_draft_tokens=_J, max_ngram=1, min_ngram=1)
  drafter = Hybrid(lookup, draft).always('text')
  config = DecodeConfig(max_new_tokens=40, temperature=0.7)
  weights = Weights(target, _params(name, target))

  @jax.jit
  def propose(drafter_state, state):
    return draft.propose(weights.drafter, drafter_state, state)[0]

  engine = Engine(Speculative(_TARGET, drafter, verifier=_keeps), weights)
  carry = engine.start(_PROMPTS, config)
  one_round = jax.jit(engine.step)
  for num_kept in _KEPT:
    before_B = carry.state.seq_len_B
    carry = one_round(weights, carry)
    state = carry.state
    num_new_B = state.seq_len_B - before_B
    np.testing.assert_array_equal(num_new_B, num_kept + 1)
    texts = [
        state.tokens_BS[row, : state.seq_len_B[row]].tolist()
        for row in range(len(_PROMPTS))
    ]
    fresh = engine.start(texts, config)
    got = propose(carry.drafter_state, state)
    expected = propose(fresh.drafter_state, state)
    np.testing.assert_allclose(got.probs_BPV, expected.probs_BPV, atol=_ATOL)
