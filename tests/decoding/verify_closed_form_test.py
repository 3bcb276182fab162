"""Both acceptance rules in closed form: every draft is gone through.

No number is drawn. The chance to keep a prefix is found by bisection on the
uniform number that the package's own rule compares, and the law of the token
after it is what the package would draw it from.
"""

import functools
import itertools

import hypothesis
from hypothesis import strategies as st
import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding import sampling as sampling_lib
from speculative.decoding import verify
from speculative.testing import oracles
from speculative.testing import samplers

# Sums of float64 products.
_ATOL = 1e-12
# Neither kept nor refused by any law: outside [0, 1].
_KEEP, _REFUSE = -1.0, 2.0


@pytest.fixture(scope='module', autouse=True)
def _float64():
  """Rounding of float32 would hide a small bias."""
  jax.config.update('jax_enable_x64', True)
  yield
  jax.config.update('jax_enable_x64', False)


def _texts(V: int, length: int) -> list[tuple[int, ...]]:
  return list(itertools.product(range(V), repeat=length))


def _table(law: oracles.Law, V: int, length: int) -> list[np.ndarray]:
  """Returns arrays [V, ..., V]: the law after 0, 1, ... tokens."""
  return [
      np.array([law(text) for text in _texts(V, n)]).reshape((V,) * (n + 1))
      for n in range(length)
  ]


def _along(tables: list[np.ndarray], chains_BJ: np.ndarray) -> np.ndarray:
  """Returns [B, len(tables), V]: the laws along every chain."""
  return np.stack(
      [
          np.broadcast_to(
              table[tuple(chains_BJ[:, :n].T)],
              (len(chains_BJ), table.shape[-1]),
          )
          for n, table in enumerate(tables)
      ],
      axis=1,
  )


@functools.partial(jax.jit, static_argnames='rule')
def _num_kept(u_BJ, p_BTV, q_BJV, chains_BJ, valid_BJ, rule):
  """Counts the tokens kept for given uniform numbers."""
  tokens_BJ1 = chains_BJ[..., None]
  J = chains_BJ.shape[1]
  p_BJ = jnp.take_along_axis(p_BTV[:, :J], tokens_BJ1, axis=-1)[..., 0]
  q_BJ = jnp.take_along_axis(q_BJV, tokens_BJ1, axis=-1)[..., 0]
  if rule == 'token':
    return verify.token_acceptance(u_BJ, p_BJ, q_BJ, valid_BJ)
  weights_BT = verify.block_weights(p_BJ, q_BJ, valid_BJ)
  return verify.block_acceptance(u_BJ, weights_BT, valid_BJ, q_BJV, p_BTV)


def _chances(rule: str, *laws) -> np.ndarray:
  """Returns [B, J + 1]: the chance to keep exactly n tokens."""
  chains_BJ = laws[2]
  B, J = chains_BJ.shape
  # h[:, i]: the chance that the test of token i itself succeeds.
  h_BJ = np.zeros((B, J))
  for i in range(J):
    low_B, high_B = np.zeros(B), np.ones(B)
    for _ in range(60):
      middle_B = (low_B + high_B) / 2
      u_BJ = np.full((B, J), _REFUSE if rule == 'block' else _KEEP)
      u_BJ[:, i] = middle_B
      kept_B = np.asarray(_num_kept(u_BJ, *laws, rule)) > i
      low_B = np.where(kept_B, middle_B, low_B)
      high_B = np.where(kept_B, high_B, middle_B)
    h_BJ[:, i] = high_B
  # Below the last bit that 60 halvings leave.
  h_BJ[h_BJ < 1e-17] = 0
  chances_BT, rest_B = np.zeros((B, J + 1)), np.ones(B)
  if rule == 'block':
    # The longest prefix whose test succeeds.
    for n in range(J, 0, -1):
      chances_BT[:, n] = rest_B * h_BJ[:, n - 1]
      rest_B = rest_B * (1 - h_BJ[:, n - 1])
    chances_BT[:, 0] = rest_B
  else:
    # All tests up to the first that fails.
    for n in range(J):
      chances_BT[:, n] = rest_B * (1 - h_BJ[:, n])
      rest_B = rest_B * h_BJ[:, n]
    chances_BT[:, J] = rest_B
  return chances_BT


def _law_after(rule: str, n: int, p_BTV, q_BJV, chains_BJ, valid_BJ):
  """Returns the law [B, V] that the token after n kept ones is drawn from.

  The whole of reject_and_resample runs, with uniform numbers that keep n.
  """
  B, J = chains_BJ.shape
  u_BJ = np.full((B, J), _REFUSE)
  if rule == 'block' and n:
    u_BJ[:, n - 1] = _KEEP
  if rule == 'token':
    u_BJ[:, :n] = _KEEP
  taken = {}

  def uniform(keys_BT):
    return jnp.asarray(u_BJ) if keys_BT.shape[1] == J else keys_BT

  def categorical(keys_B1, law_B1V):
    taken['law_BV'] = np.asarray(law_B1V[:, 0])
    return jnp.zeros(keys_B1.shape[:2], jnp.int32)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(sampling_lib, 'uniform', uniform)
    patch.setattr(sampling_lib, 'categorical', categorical)
    verdict = verify.reject_and_resample(
        samplers.sampling(B, temperature=1.0),
        jnp.zeros((B, J + 1), jnp.int32),
        draft_tokens_BJ=jnp.asarray(chains_BJ),
        valid_BJ=jnp.asarray(valid_BJ),
        draft_probs_BJV=jnp.asarray(q_BJV),
        target_probs_BTV=jnp.asarray(p_BTV),
        rule=rule,
    )
  return taken['law_BV'], np.asarray(verdict.num_accepted_B)


def _enumerate(rule, p, q, V, J, num_valid=None) -> tuple[np.ndarray, float]:
  """Returns the law of the first J + 1 tokens and the mean number kept."""
  num_valid = J if num_valid is None else num_valid
  p_tables, q_tables = _table(p, V, J + 1), _table(q, V, J)
  chains_BJ = np.array(_texts(V, J), np.int32)
  valid_BJ = np.broadcast_to(np.arange(J) < num_valid, chains_BJ.shape)
  p_BTV, q_BJV = _along(p_tables, chains_BJ), _along(q_tables, chains_BJ)
  drafted_B = np.take_along_axis(q_BJV, chains_BJ[..., None], -1).prod(
      axis=(1, 2)
  )
  laws = (p_BTV, q_BJV, chains_BJ, valid_BJ)
  chances_BT = _chances(rule, *laws)
  law = np.zeros((V,) * (J + 1))
  for n in range(num_valid + 1):
    law_BV, kept_B = _law_after(rule, n, *laws)
    # A token that p excludes is refused whatever the number.
    reached_B = (drafted_B * chances_BT[:, n] > 0) | (kept_B == n)
    np.testing.assert_array_equal(kept_B[reached_B], n)
    weights_B = drafted_B * chances_BT[:, n]
    texts = np.zeros((V**n, V))
    # Chains are in order: those of one prefix stand side by side.
    prefix_B = np.arange(V**J) // V ** (J - n)
    np.add.at(texts, prefix_B, weights_B[:, None] * law_BV)
    texts = texts.reshape((V,) * (n + 1))
    for table in p_tables[n + 1 :]:
      texts = texts[..., None] * table
    law += texts
  return law, float((drafted_B @ chances_BT) @ np.arange(J + 1))


def _expected(p: oracles.Law, V: int, J: int) -> np.ndarray:
  law = oracles.text_law(p, V, J + 1)
  return np.array(list(law.values())).reshape((V,) * (J + 1))


def _random_law(seed: int, V: int, zeros: float) -> oracles.Law:
  """Returns a law that depends on the whole text before, some tokens zero."""

  def law(text: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng([seed, len(text), *text])
    weights = rng.random(V) ** 2 * (rng.random(V) >= zeros)
    weights[rng.integers(V)] += 0.1
    return weights / weights.sum()

  return law


_SIZES = [(2, 1), (4, 1), (6, 1), (4, 2), (3, 3), (2, 4), (4, 4)]


@pytest.mark.parametrize('zeros', [0.0, 0.4])
@pytest.mark.parametrize('V, J', _SIZES)
def test_both_rules_keep_the_law_and_the_block_keeps_no_fewer_tokens(
    V, J, zeros
):
  p, q = _random_law(1, V, zeros), _random_law(2, V, zeros)
  kept = {}
  for rule in verify.RULES:
    law, kept[rule] = _enumerate(rule, p, q, V, J)
    np.testing.assert_allclose(law, _expected(p, V, J), atol=_ATOL, rtol=0)
  if J == 1:
    assert kept['block'] == pytest.approx(kept['token'], abs=_ATOL)
  elif zeros == 0:
    assert kept['block'] > kept['token'] + 1e-4
  else:
    assert kept['block'] >= kept['token'] - _ATOL


@pytest.mark.parametrize('num_valid', [0, 1, 2])
@pytest.mark.parametrize('rule', verify.RULES)
def test_a_chain_that_ends_early_keeps_the_law(rule, num_valid):
  V, J = 3, 3
  p, q = _random_law(3, V, 0.2), _random_law(4, V, 0.2)
  law, kept = _enumerate(rule, p, q, V, J, num_valid)
  np.testing.assert_allclose(law, _expected(p, V, J), atol=_ATOL, rtol=0)
  # As if no more had been drafted at all.
  if num_valid:
    _, expected = _enumerate(rule, p, q, V, num_valid)
    assert kept == pytest.approx(expected, abs=_ATOL)
  else:
    assert kept == 0


@pytest.mark.parametrize('V, J', [(3, 2), (3, 3)])
def test_both_rules_are_one_for_a_draft_without_choice(V, J):
  p = _random_law(1, V, 0.2)

  def q(text: tuple[int, ...]) -> np.ndarray:
    return np.eye(V)[(sum(text) + len(text)) % V]

  laws, kept = zip(
      *(_enumerate(rule, p, q, V, J) for rule in verify.RULES), strict=True
  )
  for law in laws:
    np.testing.assert_allclose(law, _expected(p, V, J), atol=_ATOL, rtol=0)
  assert kept[0] == pytest.approx(kept[1], abs=_ATOL)
  # Drawing from p and comparing keeps as many.
  chain, chance, expected = (), 1.0, 0.0
  for _ in range(J):
    token = int(np.argmax(q(chain)))
    chance *= p(chain)[token]
    chain, expected = (*chain, token), expected + chance
  assert kept[0] == pytest.approx(expected, abs=_ATOL)


@pytest.mark.parametrize('rule', verify.RULES)
def test_a_draft_with_the_targets_own_law_is_kept_whole(rule):
  p = _random_law(1, 3, 0.3)
  law, kept = _enumerate(rule, p, p, 3, 3)
  np.testing.assert_allclose(law, _expected(p, 3, 3), atol=_ATOL, rtol=0)
  assert kept == pytest.approx(3, abs=_ATOL)


def _weights(V: int):
  """Laws as whole weights: zeros and ties are common, all zero is not."""
  return st.lists(st.integers(0, 3), min_size=V, max_size=V).filter(any)


def _law_from(tables: list[list[int]], V: int) -> oracles.Law:
  def law(text: tuple[int, ...]) -> np.ndarray:
    # One table for every text of up to two tokens, in order.
    index = int(sum((t + 1) * V**i for i, t in enumerate(reversed(text))))
    weights = np.array(tables[index], np.float64)
    return weights / weights.sum()

  return law


@hypothesis.settings(max_examples=25, deadline=None, derandomize=True)
@hypothesis.given(
    st.lists(_weights(3), min_size=13, max_size=13),
    st.lists(_weights(3), min_size=4, max_size=4),
)
def test_any_two_laws_with_zeros_and_ties(p_tables, q_tables):
  p, q = _law_from(p_tables, 3), _law_from(q_tables, 3)
  kept = {}
  for rule in verify.RULES:
    law, kept[rule] = _enumerate(rule, p, q, 3, 2)
    np.testing.assert_allclose(law, _expected(p, 3, 2), atol=_ATOL, rtol=0)
  assert kept['block'] >= kept['token'] - _ATOL


def test_the_enumeration_notices_a_wrong_weight(monkeypatch):
  p, q = _random_law(1, 3, 0.0), _random_law(2, 3, 0.0)
  right = verify.block_weights

  def unclipped(p_BJ, q_BJ, valid_BJ):
    del valid_BJ
    ratios_BJ = p_BJ / q_BJ
    return jnp.pad(
        jnp.cumprod(ratios_BJ, axis=1), ((0, 0), (1, 0)), constant_values=1.0
    )

  monkeypatch.setattr(verify, 'block_weights', unclipped)
  jax.clear_caches()
  law, _ = _enumerate('block', p, q, 3, 2)
  assert abs(law - _expected(p, 3, 2)).max() > 1e-3
  monkeypatch.setattr(verify, 'block_weights', right)
  jax.clear_caches()


def test_weights_by_hand():
  """w_i = min(1, w_(i-1) p_i / q_i)."""
  got = verify.block_weights(
      jnp.asarray([[0.1, 0.4, 0.3], [0.3, 0.2, 0.5], [0.2, 0.2, 0.2]]),
      jnp.asarray([[0.2, 0.2, 0.6], [0.1, 0.4, 0.0], [0.2, 0.2, 0.2]]),
      jnp.asarray([[True] * 3, [True] * 3, [True, False, False]]),
  )
  np.testing.assert_allclose(
      got, [[1, 0.5, 1, 0.5], [1, 1, 0.5, 0], [1, 1, 0, 0]], atol=_ATOL
  )


def test_a_block_is_kept_from_its_end_even_where_its_start_was_refused():
  """p = q at the end: the second token's test decides, not the first's."""
  u_BJ = jnp.asarray([[0.99, 0.4]])
  p_BTV = jnp.asarray([[[0.25, 0.75], [0.5, 0.5], [0.5, 0.5]]])
  q_BJV = jnp.asarray([[[0.5, 0.5], [0.5, 0.5]]])
  chains_BJ = jnp.zeros((1, 2), jnp.int32)
  valid_BJ = jnp.ones((1, 2), bool)
  laws = (p_BTV, q_BJV, chains_BJ, valid_BJ)
  assert _num_kept(u_BJ, *laws, 'block')[0] == 2
  assert _num_kept(u_BJ, *laws, 'token')[0] == 0


@pytest.mark.parametrize('rule', verify.RULES)
def test_u_of_zero_lets_no_token_of_probability_zero_pass(rule):
  """u <= p / q would: 0 <= 0."""
  p_BTV = jnp.asarray([[[0.0, 1.0], [0.0, 1.0], [0.5, 0.5]]])
  q_BJV = jnp.asarray([[[0.5, 0.5], [0.5, 0.5]]])
  valid_BJ = jnp.ones((1, 2), bool)
  for chain in ([0, 0], [0, 1]):
    laws = (p_BTV, q_BJV, jnp.asarray([chain]), valid_BJ)
    assert _num_kept(jnp.zeros((1, 2)), *laws, rule)[0] == 0
