import dataclasses

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative import sharding
from speculative.models import draft as draft_lib
from speculative.models import params as params_lib
from speculative.models import precision
from speculative.models import transformer
from speculative.models.draft import DraftConfig
from speculative.models.draft import DraftModel
from speculative.sharding import Placement
from speculative.testing import tiny
from speculative.train import data
from speculative.train import start
from speculative.train import step as step_lib
from speculative.train.config import TrainConfig
from speculative.train.data import Batch
from speculative.train.step import Program

# Divided by 8, so that every mesh can split it.
_TARGET = dataclasses.replace(
    tiny.TARGET, vocab_size=24, num_heads=8, num_kv_heads=4, mlp_dim=32
)
_IDS = np.array([0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 13, 15, 18, 20, 21, 23])
_CONFIG = DraftConfig(
    dataclasses.replace(_TARGET, num_layers=1), target_dim=16, head_size=16
)
_TRAIN = TrainConfig(
    store='none',
    num_steps=40,
    warmup_steps=2,
    batch_size=8,
    seq_len=12,
    unroll=2,
    dtype='float32',
    cross_entropy=0.1,
    total_variation=0.5,
    chunk_logits=8 * 16 * 4,
    learning_rate=0.02,
    # So high that it would hide a gradient that is wrong by a factor.
    clip_norm=1e6,
)


@pytest.fixture(scope='module')
def params():
  return tiny.init(jax.random.key(0), _TARGET)


@pytest.fixture(scope='module')
def batch(params) -> Batch:
  """Two documents a row, each scored by the target alone."""
  rng = np.random.default_rng(0)
  tokens_BT = rng.integers(0, 24, (8, 12)).astype(np.int32)
  document_BT = np.array([[1] * 7 + [2] * 4 + [0]] * 8, np.int32)
  positions_BT = np.array([[*range(7), *range(4), 0]] * 8, np.int32)
  weight_BT = np.ones((8, 12), np.float32)
  weight_BT[:, [6, 10, 11]] = 0
  hidden_BTD = np.zeros((8, 12, 16), np.float32)
  log_norm_BT = np.zeros((8, 12), np.float32)
  model = transformer.Transformer(_TARGET)

  @jax.jit
  def score(tokens_BT):
    cache = model.init_cache(8, tokens_BT.shape[1])
    out_BTD = model.forward(params, tokens_BT, cache).hidden_BTD
    logits_BTV = model.logits(params, out_BTD)
    return out_BTD, jax.nn.logsumexp(logits_BTV, axis=-1)

  for begin, stop in ((0, 7), (7, 11)):
    out_BTD, log_norm_BT[:, begin:stop] = score(tokens_BT[:, begin:stop])
    hidden_BTD[:, begin + 1 : stop] = out_BTD[:, :-1]
  return Batch(
      tokens_BT,
      document_BT,
      positions_BT,
      domain_BT=np.array([[0]] * 6 + [[1]] * 2) + 0 * tokens_BT,
      weight_BT=weight_BT,
      hidden_BTD=hidden_BTD,
      log_norm_BT=log_norm_BT,
  )


@dataclasses.dataclass
class _Case:
  program: Program
  state: step_lib.State
  frozen: start.Frozen
  placement: Placement

  def update(self, batches: Batch) -> dict[str, float]:
    batches = self.placement.put(batches, (None, 'batch'))
    self.state, found = self.program.update(self.state, self.frozen, batches)
    return {name: float(x) for name, x in found.items()}


def _case(
    params,
    *,
    train=_TRAIN,
    config=_CONFIG,
    mesh=None,
    keep='shared',
    from_layers=(),
):
  placement = target_placement = Placement()
  if mesh:
    devices = sharding.make_mesh(*mesh)
    placement = sharding.place(devices, config.axis_sizes, logits='split')
    target_placement = sharding.place(devices, _TARGET.axis_sizes)
    params = params_lib.place(params, _TARGET, target_placement)
  model = DraftModel(
      config, precision.for_training(train.dtype), placement=placement
  )
  ids_W = placement.put(_IDS[: config.head_size].astype(np.int32))
  return _Case(
      Program(
          train,
          model,
          num_domains=2,
          target=transformer.Transformer(_TARGET, placement=target_placement)
          if keep == 'all'
          else None,
      ),
      None,
      start.freeze(model, ids_W, params, keep=keep),
      placement,
  ), start.init_params(
      jax.random.key(1),
      model,
      target=params,
      head_ids=ids_W,
      from_layers=from_layers,
  )


def _started(params, **changed) -> _Case:
  case, own = _case(params, **changed)
  case.state = case.program.init(own)
  return case


@pytest.fixture(scope='module')
def get_alone(params):
  """Starts anew on one device with programs that are compiled once."""
  case, own = _case(params, mesh=(1, 1))

  def get() -> _Case:
    case.state = case.program.init(own)
    return case

  return get


def _one(batch: Batch) -> Batch:
  return jax.tree.map(lambda x: x[None], batch)


@pytest.mark.slow
def test_losses_fall_and_alpha_rises(get_alone, batch):
  case = get_alone()
  found = [case.update(_one(batch)) for _ in range(40)]
  for name in ('loss', 'loss_1', 'loss_2'):
    assert found[-1][name] < 0.6 * found[0][name]
  for name in ('alpha_1', 'alpha_2'):
    assert found[-1][name] > found[0][name] + 0.1
  assert found[0]['tokens'] == 8 * 11
  assert int(case.state.step) == 40


@pytest.mark.slow
@pytest.mark.parametrize('mesh', [(2, 4), (8, 1)])
def test_losses_agree_between_meshes(get_alone, params, batch, mesh):
  alone, spread = get_alone(), _started(params, mesh=mesh)
  q_proj = spread.state.params['layers'][0]['q_proj']
  assert q_proj.sharding.shard_shape(q_proj.shape)[0] == 64 // mesh[1]
  for _ in range(4):
    wanted, found = alone.update(_one(batch)), spread.update(_one(batch))
    for name in wanted:
      np.testing.assert_allclose(found[name], wanted[name], rtol=2e-5)
  # Where a weight lies does not change from step to step.
  q_proj = spread.state.params['layers'][0]['q_proj']
  assert q_proj.sharding.shard_shape(q_proj.shape)[0] == 64 // mesh[1]
  assert spread.program.update._cache_size() == 1


@pytest.mark.slow
def test_gradients_are_summed_as_if_the_batches_were_one(get_alone, batch):
  # Unequal numbers of tokens that count in the parts.
  weight_BT = batch.weight_BT.copy()
  weight_BT[:4, :3] = 0
  batch = batch.replace(weight_BT=weight_BT)
  cut = jax.tree.map(lambda x: x.reshape(4, 2, *x.shape[1:]), batch)
  whole = get_alone()
  wanted = [whole.update(_one(batch)) for _ in range(3)]
  parts = get_alone()
  for row in wanted:
    found = parts.update(cut)
    for name in row:
      np.testing.assert_allclose(found[name], row[name], rtol=1e-5)


@pytest.mark.slow
def test_a_target_that_scores_the_text_now_says_what_a_store_would(
    get_alone, params, batch
):
  stored, live = get_alone(), _started(params, keep='all')
  unscored = batch.replace(hidden_BTD=None, log_norm_BT=None)
  for _ in range(2):
    wanted, found = stored.update(_one(batch)), live.update(_one(unscored))
    for name in wanted:
      np.testing.assert_allclose(found[name], wanted[name], rtol=1e-4)


def test_a_target_that_scores_now_has_read_a_document_from_its_start(
    make_store, target
):
  """Also of a document that is longer than a row."""
  store = make_store([29], scores='target', target=target)
  batch, _ = data.Packer(
      store, np.arange(1), batch_size=2, seq_len=12, seed=0, scores='no'
  ).batch(data.Position())
  config = DraftConfig(
      dataclasses.replace(tiny.TARGET, num_layers=1),
      target_dim=16,
      head_size=13,
  )
  model = DraftModel(config)
  program = Program(_TRAIN, model, num_domains=2, target=target.model)
  frozen = start.freeze(model, np.arange(13), target.params, keep='all')
  batch = jax.tree.map(jnp.asarray, batch)
  _, teacher = jax.jit(program._listen)(frozen, batch)
  counts_BT = batch.weight_BT > 0
  assert counts_BT.sum() >= 11
  wanted_N = store.document(0).log_norm
  np.testing.assert_allclose(
      teacher.log_norm_BT[counts_BT],
      wanted_N[np.asarray(batch.positions_BT[counts_BT])],
      rtol=1e-4,
  )


@pytest.mark.slow
def test_the_gradient_is_that_of_the_loss(params, batch):
  """By finite differences along the gradient itself."""
  train = dataclasses.replace(_TRAIN, chunk_logits=1)
  config = dataclasses.replace(_CONFIG, head='own', embedding='own')
  case, own = _case(params, train=train, config=config)
  scale_KBT = case.program._step_weights(batch) / 100

  @jax.jit
  def compare(own):
    return case.program._compare(
        own, case.frozen, batch, scale_KBT, 'hidden', 'no'
    )

  _, gradient = compare(own)
  squared = sum(float((g**2).sum()) for g in jax.tree.leaves(gradient))
  for leaf in ('embed', 'head', 'in_proj'):
    assert float(jnp.abs(gradient[leaf]).max()) > 0
  step = 3e-3 / squared**0.5
  there, back = (
      float(
          compare(
              jax.tree.map(lambda x, g, s=sign: x + s * step * g, own, gradient)
          )[0].loss
      )
      for sign in (1, -1)
  )
  np.testing.assert_allclose((there - back) / (2 * step), squared, rtol=0.01)


@pytest.mark.slow
def test_bfloat16_products_train_float32_weights(get_alone, params, batch):
  train = dataclasses.replace(_TRAIN, dtype='bfloat16')
  case = _started(params, train=train)
  assert {x.dtype for x in jax.tree.leaves(case.state.params)} == {
      jnp.dtype('float32')
  }
  assert case.frozen.shared['head'].dtype == jnp.bfloat16
  wide = get_alone()
  first = case.update(_one(batch))
  np.testing.assert_allclose(
      first['loss'], wide.update(_one(batch))['loss'], rtol=0.02
  )
  for _ in range(10):
    last = case.update(_one(batch))
  assert last['loss'] < first['loss']


def test_a_measurement_is_by_step_and_domain_and_leaves_prompts_out(
    get_alone, batch
):
  case = get_alone()
  found = jax.device_get(
      case.program.measure(case.state.params, case.frozen, batch)
  )
  # Of 7 and 4 tokens, 6 and 3 predict one; step 2 loses one more of both.
  counts = [(6 + 3), (5 + 2)]
  assert found['weight'].tolist() == [[6 * n, 2 * n] for n in counts]
  update = case.update(_one(batch))
  for k in range(2):
    alpha = found['acceptance'][k].sum() / found['weight'][k].sum()
    np.testing.assert_allclose(alpha, update[f'alpha_{k + 1}'], rtol=1e-5)
  np.testing.assert_allclose(found['chain'][0], found['acceptance'][0])
  assert (found['chain'][1] < found['acceptance'][1]).all()


def test_a_chain_is_the_product_of_what_leads_to_it():
  x_KBT = jnp.array([[[0.5, 0.4, 0.3]], [[0.9, 0.5, 0.2]], [[1.0, 1.0, 0.1]]])
  found = step_lib._chain(x_KBT)[:, 0]
  np.testing.assert_allclose(found[0], [0.5, 0.4, 0.3])
  np.testing.assert_allclose(found[1, 1:], [0.5 * 0.5, 0.4 * 0.2])
  np.testing.assert_allclose(found[2, 2], 0.5 * 0.5 * 0.1, rtol=1e-6)


def test_a_start_from_the_target_has_its_layer_and_passes_its_state_on(params):
  case, own = _case(params, from_layers=(1,))
  for name, x in own['layers'][0].items():
    np.testing.assert_array_equal(x, params['layers'][1][name])
  np.testing.assert_array_equal(own['final_norm'], params['final_norm'])
  np.testing.assert_array_equal(own['in_proj'][:, 16:], np.eye(16))
  assert 0 < float(jnp.abs(own['in_proj'][:, :16]).mean()) < 0.2
  # Donated with the state, while the target stays.
  case.state = case.program.init(own)
  assert {x.dtype for x in jax.tree.leaves(own)} == {jnp.dtype('float32')}
  np.testing.assert_array_equal(
      case.frozen.target_head_WD, params['head'][_IDS]
  )


def test_the_rate_warms_up_and_falls_and_matrices_alone_decay(params):
  train = dataclasses.replace(_TRAIN, learning_rate=1.0, weight_decay=0.1)
  specs = draft_lib.declare(_CONFIG)
  optimizer = step_lib.optimizer(train, specs)
  own = params_lib.init_tree(jax.random.key(0), specs)
  state = optimizer.init(own)
  zeros = jax.tree.map(jnp.zeros_like, own)
  rates = []
  for _ in range(40):
    updates, state = optimizer.update(zeros, state, own)
    assert not np.any(updates['final_norm'])
    rates.append(float(-(updates['in_proj'] / own['in_proj'])[0, 0]) / 0.1)
  assert rates[0] == pytest.approx(1 / 3, rel=1e-4)
  assert max(rates) == pytest.approx(rates[2]) == pytest.approx(1, rel=1e-4)
  assert 0.05 <= rates[-1] < 0.06
