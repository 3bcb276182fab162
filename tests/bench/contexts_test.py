"""The text that is chosen is one at which mistakes show."""

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.bench import contexts
from speculative.decoding.autoregressive import Autoregressive
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.decoding.host_engine import HostEngine
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.drafting import given
from speculative.drafting.lookup import Lookup
from speculative.testing import table_model

# What follows a token: 0 is certain of 1; 1 is torn between 2 and 3; 2 and 3
# may be followed by anything.
_TABLE = np.log(
    np.array(
        [
            [1e-9, 1, 1e-9, 1e-9],
            [1e-9, 1e-9, 0.5, 0.5],
            [0.25, 0.25, 0.25, 0.25],
            [0.25, 0.25, 0.25, 0.25],
        ],
        np.float32,
    )
)[None]
_CONFIG = DecodeConfig(max_new_tokens=2, temperature=1.0, max_seq_len=64)


@pytest.fixture(scope='module')
def engines():
  """Plain decoding, and prompt look-up."""
  weights = Weights(target=jnp.asarray(_TABLE))
  return (
      Engine(Autoregressive(table_model.TableModel()), weights),
      Engine(
          Speculative(table_model.TableModel(), Lookup(num_draft_tokens=2)),
          weights,
      ),
  )


def test_what_the_host_drafts_is_scored(engines):
  plain, _ = engines

  def draft(tokens_BS, seq_len_B):
    del tokens_BS
    proposal = jax.device_get(given.empty(len(seq_len_B), 2, 'chain'))
    tokens_BM = np.full((len(seq_len_B), 2), 2, np.int32)
    return proposal.replace(
        tokens_BM=tokens_BM, valid_BM=np.ones(tokens_BM.shape, bool)
    )

  host = HostEngine(
      Speculative(plain.step.model, given.Given(2, 2)), plain.weights, draft
  )
  found = contexts.scores(plain, host, [[3, 1], [3, 0]], _CONFIG)
  np.testing.assert_allclose(found, [0.5**4, 0], atol=1e-6)


def test_scores_by_hand(engines):
  texts = [
      # After 1 look-up drafts 2, of probability a half: o = 0.5.
      [1, 2, 0, 1],
      # After 0 the target is certain, and drafted is what it is certain of.
      [0, 1, 2, 0],
      # Nothing like it is in the text.
      [1, 2, 3],
      # Drafted with probability a quarter.
      [2, 1, 1, 2],
  ]
  found = contexts.scores(*engines, texts, _CONFIG)
  np.testing.assert_allclose(
      found, [0.5**4, 0, 0, 0.25**2 * 0.75**2], atol=1e-6
  )


def test_a_drafter_that_sometimes_draws_is_tested_where_it_draws(
    engines, monkeypatch
):
  laws = jnp.array([[0, 0, 1, 0], [0, 0, 0, 0], [0, 0.5, 0.5, 0]], jnp.float32)
  monkeypatch.setattr(contexts, '_draft_laws', lambda *_, **__: laws)
  found = contexts.scores(*engines, [[1, 2, 0, 1], [1], [0, 1, 2]], _CONFIG)
  assert found[0] == found[1] == 0
  # After 2 all tokens have p = 1/4: o = 1/2, and q - sum q p is +-1/4.
  np.testing.assert_allclose(found[2], 0.5**2 * 0.25**2, atol=1e-6)


def test_the_text_with_the_largest_score_is_taken(engines):
  plain, engine = engines
  prompts = [[0, 1, 2, 0], [2, 1, 1, 2]]
  texts = contexts.candidates(plain, prompts, _CONFIG, room=4)
  assert texts[0] == prompts[0]
  assert all(t[:4] in prompts for t in texts)
  assert {len(t) for t in texts} == {4, 8, 12, 16}
  best = contexts.most_telling(prompts, _CONFIG, plain=plain, engine=engine)
  scores = contexts.scores(plain, engine, texts, _CONFIG)
  assert best == texts[int(np.argmax(scores))]
