"""The coin: what it keeps, which work stays, and that nothing leads to it."""

import ast
import math
import pathlib

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding import config as config_lib
from speculative.decoding import tree as tree_lib
from speculative.decoding import verify
from speculative.decoding import verify_tree
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.drafting import tree_lm
from speculative.drafting.lm import Lm
from speculative.errors import UserError
from speculative.models.transformer import Transformer
from speculative.testing import set_acceptance
from speculative.testing import tiny

_PACKAGE = pathlib.Path(__file__).parents[2] / 'speculative'
_RATE = 0.7
_J = 4
# Of a normal law, so that a right coin fails once in two million runs.
_SIGMAS = 5
_V = 7
_WIDTHS = (2, 2, 1)
_ROWS = 8


def _sampling(num_rows: int, temperature: float = 1.0):
  rows = [
      DecodeConfig(temperature=temperature, seed=i) for i in range(num_rows)
  ]
  return config_lib.sampling_of(rows)


def _chain(num_rows: int, key: jax.Array, *, laws: bool) -> dict:
  keys = jax.random.split(key, 3)
  probs_BJV = jax.nn.softmax(jax.random.normal(keys[0], (num_rows, _J, _V)))
  return {
      'draft_tokens_BJ': jax.random.randint(keys[1], (num_rows, _J), 0, _V),
      'valid_BJ': jnp.ones((num_rows, _J), bool),
      'draft_probs_BJV': probs_BJV if laws else None,
  }


def _positions(num_rows: int, width: int, start: int = 3) -> jax.Array:
  return jnp.broadcast_to(start + jnp.arange(width), (num_rows, width))


def _is_near(kept: int, tested: int, rate: float = _RATE) -> bool:
  by = _SIGMAS * math.sqrt(rate * (1 - rate) * tested)
  return abs(kept - rate * tested) <= by


@pytest.mark.statistical
@pytest.mark.parametrize('laws', [True, False], ids=['drawn', 'given'])
def test_a_chain_is_kept_at_the_set_rate_and_goes_on_with_the_right_token(
    key, laws
):
  num_rows = 2000
  arguments = (
      _sampling(num_rows),
      jax.random.normal(key, (num_rows, _J + 1, _V)),
      _positions(num_rows, _J + 1),
  )
  drafted = _chain(num_rows, key, laws=laws)
  coin = jax.jit(set_acceptance.CoinChain(_RATE))(*arguments, **drafted)
  right = jax.jit(verify.verify_chain)(*arguments, **drafted)
  assert _is_near(int(coin.num_accepted_B.sum()), int(coin.num_tested_B.sum()))
  np.testing.assert_array_equal(coin.next_token_B, right.next_token_B)
  # All places are tried, and a kept one is followed by another trial.
  assert set(coin.num_accepted_B.tolist()) == set(range(_J + 1))
  np.testing.assert_array_equal(
      coin.num_tested_B, np.minimum(coin.num_accepted_B + 1, _J)
  )


@pytest.mark.parametrize('rate, kept', [(0.0, 0), (1.0, 2)])
def test_what_was_not_drafted_is_never_kept(key, rate, kept):
  drafted = _chain(1, key, laws=True)
  drafted['valid_BJ'] = jnp.array([[True, True, False, False]])
  verdict = set_acceptance.CoinChain(rate)(
      _sampling(1), jnp.zeros((1, _J + 1, _V)), _positions(1, _J + 1), **drafted
  )
  assert verdict.num_accepted_B.tolist() == [kept]


def test_a_coin_is_tossed_anew_by_another_round_and_by_another_row(key):
  num_rows = 64
  drafted = _chain(num_rows, key, laws=False)
  logits_BTV = jnp.zeros((num_rows, _J + 1, _V))
  coin = set_acceptance.CoinChain(_RATE)
  one, again, later = (
      coin(
          _sampling(num_rows),
          logits_BTV,
          _positions(num_rows, _J + 1, start),
          **drafted,
      ).num_accepted_B.tolist()
      for start in (3, 3, 4)
  )
  assert one == again and one != later
  assert len(set(one)) > 1


def _tree(num_rows: int) -> tree_lib.Tree:
  parents, _ = tree_lm.shape_of(_WIDTHS)
  M = len(parents)
  return tree_lib.make(
      jnp.zeros((num_rows, M), jnp.int32),
      jnp.broadcast_to(jnp.asarray(parents, jnp.int32), (num_rows, M)),
      jnp.ones((num_rows, M), bool),
      max_depth=len(_WIDTHS),
  )


@pytest.mark.statistical
@pytest.mark.parametrize('laws', [True, False], ids=['drawn', 'given'])
def test_a_tree_is_followed_at_the_set_rate_down_its_first_children(key, laws):
  num_rows = 2000
  tree = _tree(num_rows)
  M = tree.tokens_BM.shape[1]
  logits_BTV = jax.random.normal(key, (num_rows, M + 1, _V))
  probs_BPV = jax.nn.softmax(logits_BTV) if laws else None
  verdict = jax.jit(set_acceptance.CoinTree(_RATE))(
      _sampling(num_rows),
      logits_BTV,
      3 + tree.depth_BT,
      tree=tree,
      draft_probs_BPV=probs_BPV,
  )
  assert _is_near(
      int(verdict.num_accepted_B.sum()), int(verdict.num_tested_B.sum())
  )
  # Nodes 0, 2 and 6 are the first of their levels.
  first_A = np.array([0, 2, 6])
  depth_A = np.arange(3)
  expected_BA = np.where(
      depth_A[None, :] < np.asarray(verdict.num_accepted_B)[:, None],
      first_A[None, :],
      -1,
  )
  np.testing.assert_array_equal(verdict.path_BA, expected_BA)


def test_the_token_after_a_path_is_the_targets_draw_at_its_end(key):
  tree = _tree(_ROWS)
  M = tree.tokens_BM.shape[1]
  logits_BTV = jax.random.normal(key, (_ROWS, M + 1, _V))
  verdict = set_acceptance.CoinTree(_RATE)(
      _sampling(_ROWS, temperature=0.0),
      logits_BTV,
      3 + tree.depth_BT,
      tree=tree,
      draft_probs_BPV=None,
  )
  rows_BT = tree_lib.rows_of_path(tree, verdict)
  for b in range(_ROWS):
    row = int(rows_BT[b, int(verdict.num_accepted_B[b])])
    assert int(verdict.next_token_B[b]) == int(jnp.argmax(logits_BTV[b, row]))


@pytest.fixture(scope='module')
def engines() -> dict[str, Engine]:
  """A chain of a draft model, and a free tree, both at the set rate."""
  key = jax.random.key(0)
  target = Transformer(tiny.TARGET)
  params = tiny.init(key, tiny.TARGET)
  draft_params = tiny.init(key, tiny.DRAFT)
  lm = Lm(Transformer(tiny.DRAFT), _J, tiny.TARGET.vocab_size)
  free = set_acceptance.FixedTree(_WIDTHS, tiny.TARGET.vocab_size)
  return {
      'chain': Engine(
          set_acceptance.put(Speculative(target, lm), _RATE),
          Weights(params, draft_params),
      ),
      'tree': Engine(
          set_acceptance.put(Speculative(target, free), _RATE), Weights(params)
      ),
  }


@pytest.mark.statistical
@pytest.mark.parametrize('name', ['chain', 'tree'])
def test_texts_have_the_set_rate_and_one_seed_says_one_thing(engines, name):
  engine = engines[name]
  prompts = [[1 + b, 2, 3] for b in range(_ROWS)]
  config = DecodeConfig(max_new_tokens=200, max_seq_len=256, temperature=1.0)
  text = engine.generate(prompts, config)
  tested, accepted = int(text.tested.sum()), int(text.accepted.sum())
  assert tested > 500
  assert _is_near(accepted, tested)
  # The tokens themselves: one more than was accepted in every round.
  assert text.num_tokens == accepted + int(text.rounds.sum())
  again = engine.generate(prompts, config)
  assert again.token_ids == text.token_ids
  other = engine.generate(
      prompts, DecodeConfig(**(vars(config) | {'seed': 99}))
  )
  assert other.accepted.tolist() != text.accepted.tolist()


def test_a_free_tree_keeps_within_the_budget(engines):
  text = engines['tree'].generate(
      [[1, 2]], DecodeConfig(max_new_tokens=2, max_seq_len=256)
  )
  assert len(text.token_ids[0]) == 2


@pytest.mark.parametrize('rate', [-0.1, 1.5, float('nan')])
def test_a_rate_that_is_no_probability_is_refused(engines, rate):
  with pytest.raises(UserError, match='in 0 to 1, got'):
    set_acceptance.put(engines['chain'].step, rate)


def test_rounds_are_right_unless_a_coin_is_put():
  step = Speculative(None, None)
  assert step.verifier is verify.verify_chain
  assert step.tree_verifier is verify_tree.verify_tree
  coined = set_acceptance.put(step, _RATE)
  assert coined != step and coined == set_acceptance.put(step, _RATE)


def test_nothing_in_the_package_leads_to_the_coin():
  importers = set()
  for path in _PACKAGE.rglob('*.py'):
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.Import | ast.ImportFrom):
        names = {alias.name for alias in node.names}
        names.add(getattr(node, 'module', None) or '')
        if any('set_acceptance' in name for name in names):
          importers.add(path.name)
  assert not importers
