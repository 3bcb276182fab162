import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.train import losses
from speculative.train.losses import Mix
from speculative.train.losses import Teacher

_K, _B, _T, _D, _W, _V = 2, 2, 6, 8, 5, 11
_IDS = [0, 2, 3, 7, 10]


def _case():
  """Returns a target's head over V tokens, of which a draft has W."""
  rng = np.random.default_rng(0)
  whole_VD = rng.normal(size=(_V, _D)).astype(np.float32)
  after_BTD = rng.normal(size=(_B, _T, _D)).astype(np.float32)
  logits_BTV = after_BTD @ whole_VD.T
  log_norm_BT = np.log(np.exp(logits_BTV).sum(-1))
  hidden_KBTD = rng.normal(size=(_K, _B, _T, _D)).astype(np.float32)
  head_WD = rng.normal(size=(_W, _D)).astype(np.float32)
  label_BT = rng.integers(-1, _W, (_B, _T)).astype(np.int32)
  weight_KBT = rng.uniform(size=(_K, _B, _T)).astype(np.float32)
  weight_KBT[0, 0, 1] = 0
  return (
      whole_VD,
      after_BTD,
      log_norm_BT,
      hidden_KBTD,
      head_WD,
      label_BT,
      weight_KBT,
  )


def _logits(head, hidden_BTD):
  return jnp.einsum('BTD,WD->BTW', hidden_BTD, head, precision='highest')


def _compare(mix, chunks=1, gradients='both', head_logits=_logits):
  whole, after, log_norm, hidden, head, label, weight = _case()
  return losses.compare(
      head_logits,
      jnp.asarray(head),
      jnp.asarray(hidden),
      target_head_WD=jnp.asarray(whole[_IDS]),
      teacher=Teacher(
          jnp.asarray(after), jnp.asarray(log_norm), jnp.asarray(label)
      ),
      weight_KBT=jnp.asarray(weight),
      mix=mix,
      chunks=chunks,
      gradients=gradients,
      agreement='yes',
  )


def _oracle():
  """Returns each loss in float64 from whole laws, by loops over tokens."""
  whole, after, _, hidden, head, label, _ = (
      x.astype(np.float64) if x.dtype == np.float32 else x for x in _case()
  )
  shape = (_K, _B, _T)
  found = {n: np.zeros(shape) for n in ('ce', 'kl', 'tv', 'in_head', 'agrees')}
  for k, b, t in np.ndindex(shape):
    p_V = np.exp(whole @ after[b, t])
    p_V /= p_V.sum()
    q_V = np.zeros(_V)
    q_V[_IDS] = np.exp(head @ hidden[k, b, t])
    q_V /= q_V.sum()
    p_W, q_W = p_V[_IDS], q_V[_IDS]
    i = label[b, t]
    found['ce'][k, b, t] = -np.log(q_W[i]) if i >= 0 else 0
    given_W = p_W / p_W.sum()
    found['kl'][k, b, t] = p_W.sum() * (given_W * np.log(given_W / q_W)).sum()
    # Over the whole vocabulary, where q may be 0.
    found['tv'][k, b, t] = np.abs(p_V - q_V).sum() / 2
    found['in_head'][k, b, t] = p_W.sum()
    # Only what p has in the head is known.
    certain = p_W.max() >= 1 - p_W.sum()
    found['agrees'][k, b, t] = certain and p_W.argmax() == q_W.argmax()
    assert p_V.argmax() == q_V.argmax() or not found['agrees'][k, b, t]
  return found


def test_every_loss_equals_its_definition_in_float64():
  found, wanted = _compare(Mix()).terms, _oracle()
  close = {'rtol': 1e-4, 'atol': 1e-6}
  np.testing.assert_allclose(found.cross_entropy, wanted['ce'], **close)
  np.testing.assert_allclose(found.kl, wanted['kl'], **close)
  np.testing.assert_allclose(1 - found.acceptance, wanted['tv'], **close)
  np.testing.assert_allclose(found.in_head, wanted['in_head'], **close)
  np.testing.assert_array_equal(found.agrees, wanted['agrees'])
  assert 0 < wanted['agrees'].mean() < 1


def test_the_divergence_is_zero_where_the_draft_has_the_targets_law():
  log_p_BTW = jnp.log(jnp.array([[[0.5, 0.2, 0.1]]]))
  log_q_BTW = jnp.log(jnp.array([[[0.625, 0.25, 0.125]]]))
  found = losses.terms(log_p_BTW, log_q_BTW, jnp.array([[0]]))
  np.testing.assert_allclose(found.kl, 0, atol=1e-7)
  np.testing.assert_allclose(found.acceptance, 0.8, rtol=1e-6)


def test_what_may_be_likelier_outside_of_the_head_is_no_agreement():
  p_1TW = jnp.array([[[0.3, 0.1], [0.4, 0.15], [0.5, 0.3], [0.3, 0.5]]])
  log_q_1TW = jnp.log(jnp.array([[[0.7, 0.3]] * 4]))
  found = losses.terms(
      jnp.log(p_1TW), log_q_1TW, jnp.zeros((1, 4), int), agreement='yes'
  )
  assert found.agrees.tolist() == [[0, 0, 1, 0]]


def test_a_head_without_any_mass_has_no_divergence():
  log_q_BTW = jnp.log(jnp.array([[[0.5, 0.5]]]))
  log_p_BTW = jnp.full((1, 1, 2), -200.0)
  found = losses.terms(log_p_BTW, log_q_BTW, jnp.array([[-1]]))
  assert (found.kl.item(), found.in_head.item()) == (0, 0)


def test_what_is_no_token_counts_nothing_and_has_a_finite_gradient():
  log_p_BTW = jnp.log(jnp.array([[[0.5, 0.3, 0.2]]]))

  def loss(logits_BTW):
    masked_BTW = jnp.where(jnp.arange(3) < 2, logits_BTW[0, 0], -jnp.inf)
    log_q_BTW = jax.nn.log_softmax(masked_BTW)[None, None]
    found = losses.terms(log_p_BTW, log_q_BTW, jnp.array([[1]]))
    return losses.mixed(Mix(1.0, 1.0, 1.0), found).sum(), found

  gradient, found = jax.grad(loss, has_aux=True)(jnp.zeros((1, 1, 3)))
  np.testing.assert_allclose(found.in_head, 0.8, rtol=1e-6)
  np.testing.assert_allclose(found.acceptance, 0.8, rtol=1e-6)
  assert np.isfinite(gradient).all()
  assert gradient[0, 0, 2] == 0


@pytest.mark.parametrize(
    'mix',
    [
        Mix(1.0, 0.0, 0.0),
        Mix(0.0, 1.0, 0.0),
        Mix(0.0, 0.0, 1.0),
        Mix(0.3, 2, 1),
    ],
    ids=['cross-entropy', 'divergence', 'total variation', 'all'],
)
def test_chunks_change_neither_the_loss_nor_its_gradient(mix):
  whole, after, log_norm, hidden, head, label, weight = map(
      jnp.asarray, _case()
  )

  def plain(hidden_KBTD, head_WD):
    log_p_BTW = losses.target_log_probs(whole[jnp.array(_IDS)], after, log_norm)
    total = 0.0
    for k in range(_K):
      log_q_BTW = jax.nn.log_softmax(_logits(head_WD, hidden_KBTD[k]))
      found = losses.terms(log_p_BTW, log_q_BTW, label)
      total += (losses.mixed(mix, found) * weight[k]).sum()
    return total

  wanted, (by_hidden, by_head) = jax.jit(jax.value_and_grad(plain, (0, 1)))(
      hidden, head
  )
  for chunks in (1, 3):
    found = _compare(mix, chunks)
    np.testing.assert_allclose(found.loss, wanted, rtol=1e-5)
    np.testing.assert_allclose(found.hidden_KBTD, by_hidden, atol=1e-6)
    np.testing.assert_allclose(found.head, by_head, atol=2e-6)


def test_logits_of_no_more_positions_exist_than_was_said():
  shapes = []

  def head_logits(head, hidden_BTD):
    logits_BTW = _logits(head, hidden_BTD)
    shapes.append(logits_BTW.shape)
    return logits_BTW

  chunks = losses.num_chunks(_B, _T, _W, limit=2 * _B * _W)
  assert chunks == 3
  _compare(Mix(), chunks, head_logits=head_logits)
  assert set(shapes) == {(_B, 2, _W)}


def test_a_limit_below_one_position_takes_one_at_a_time():
  assert losses.num_chunks(4, 6, 100, limit=1) == 6
  assert losses.num_chunks(4, 6, 100, limit=10**6) == 1
  # Five positions would fit, but six are not divided by five.
  assert losses.num_chunks(1, 6, 10, limit=50) == 2


def test_log_norm_is_that_of_all_logits_at_once():
  whole, after, log_norm, *_ = _case()
  found = losses.log_norm(
      lambda x: _logits(jnp.asarray(whole), x), jnp.asarray(after), chunks=2
  )
  np.testing.assert_allclose(found, log_norm, rtol=1e-5)


def test_nothing_is_differentiated_where_nothing_is_trained():
  found = _compare(Mix(), gradients='none')
  assert found.hidden_KBTD is None and found.head is None
  assert _compare(Mix(), gradients='hidden').head is None
