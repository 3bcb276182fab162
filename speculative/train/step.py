"""One update of a draft, and one measurement, as device programs.

The draft's own weights are float32 and are cast for the products; what it
shares with its target is frozen. The gradient of the losses by the draft's
output comes from `losses.compare`, chunk by chunk, and is pulled back through
the layers from there.
"""

from typing import Any

import flax.struct
import jax
from jax import numpy as jnp
import optax

from speculative.models import draft as draft_lib
from speculative.models.draft import DraftModel
from speculative.models.params import Params
from speculative.models.transformer import Transformer
from speculative.train import losses
from speculative.train import unroll as unroll_lib
from speculative.train.config import TrainConfig
from speculative.train.data import Batch
from speculative.train.losses import Mix
from speculative.train.losses import Teacher
from speculative.train.start import Frozen

Metrics = dict[str, jax.Array]


@flax.struct.dataclass
class State:
  """What training changes; donated to every update.

  Attributes:
    step: int32, updates so far.
    params: the draft's own, float32.
    opt_state: of the optimiser.
  """

  step: jax.Array
  params: Params
  opt_state: Any


def optimizer(config: TrainConfig, specs: Params):
  """Returns AdamW with warm-up, cosine and clipping.

  Args:
    config: of the run.
    specs: as `draft.declare` returns them; matrices alone decay.
  """
  rate = optax.warmup_cosine_decay_schedule(
      init_value=config.learning_rate / (config.warmup_steps + 1),
      peak_value=config.learning_rate,
      warmup_steps=config.warmup_steps,
      decay_steps=max(config.num_steps, config.warmup_steps + 1),
      end_value=config.learning_rate * config.final_rate,
  )
  decays = jax.tree.map(lambda spec: spec.kind == 'matrix', specs)
  return optax.chain(
      optax.clip_by_global_norm(config.clip_norm),
      optax.adamw(rate, b2=0.98, weight_decay=config.weight_decay, mask=decays),
  )


class Program:
  """The compiled programs of a run.

  Attributes:
    model: the draft.
    specs: of its own params.
  """

  def __init__(
      self,
      config: TrainConfig,
      model: DraftModel,
      *,
      num_domains: int,
      target: Transformer | None = None,
  ) -> None:
    """Compiles nothing yet.

    Args:
      config: of the run.
      model: the draft.
      num_domains: of the text.
      target: scores the text in the step; None where the store is scored.
    """
    self.model = model
    self.specs = draft_lib.declare(model.config)
    self._config, self._target = config, target
    self._num_domains = num_domains
    self._mix = Mix(config.cross_entropy, config.kl, config.total_variation)
    self._optimizer = optimizer(config, self.specs)
    self.init = jax.jit(self._init)
    self.update = jax.jit(self._update, donate_argnums=(0,))
    self.measure = jax.jit(self._measure)

  def _init(self, params: Params) -> State:
    return self._placed(
        State(jnp.zeros((), jnp.int32), params, self._optimizer.init(params))
    )

  def _placed(self, state: State) -> State:
    """Says where a state lies: as the params, whatever belongs to one."""
    placement = self.model.placement

    def like(x, spec):
      return placement.constrain(x, spec.axes)

    return State(
        placement.replicate(state.step),
        jax.tree.map(like, state.params, self.specs),
        optax.tree_map_params(
            self._optimizer,
            like,
            state.opt_state,
            self.specs,
            transform_non_params=placement.replicate,
        ),
    )

  def _step_weights(self, batch: Batch) -> jax.Array:
    """Returns [K, B, T], 0 where step k would lean on another document."""
    return jnp.stack(
        [
            jnp.where(
                unroll_lib.has_before(batch.document_BT, step),
                batch.weight_BT,
                0.0,
            )
            for step in range(self._config.unroll)
        ]
    )

  def _listen(self, frozen: Frozen, batch: Batch) -> tuple[jax.Array, Teacher]:
    """Returns the hidden state before each token, and the Teacher."""
    label_BT = frozen.rows_V[unroll_lib.shift(batch.tokens_BT, -1)]
    if batch.hidden_BTD is not None:
      after_BTD = unroll_lib.shift(batch.hidden_BTD, -1)
      return batch.hidden_BTD, Teacher(after_BTD, batch.log_norm_BT, label_BT)
    return self._score(frozen.target, batch, label_BT)

  def _score(self, params, batch, label_BT) -> tuple[jax.Array, Teacher]:
    """As `_listen`, of a text that the target reads now."""
    target = self._target
    B, T = batch.tokens_BT.shape
    after_BTD = target.forward(
        params,
        batch.tokens_BT,
        target.init_cache(B, T),
        positions_BT=batch.positions_BT,
        visible_BTS=unroll_lib.visible(batch.document_BT, 1),
    ).hidden_BTD
    has_BT = unroll_lib.has_before(batch.document_BT, 1)
    before_BTD = jnp.where(
        has_BT[:, :, None], unroll_lib.shift(after_BTD, 1), 0
    )
    log_norm_BT = losses.log_norm(
        lambda hidden: target.logits(params, hidden),
        after_BTD,
        chunks=self._chunks(B, T, target.config.vocab_size),
    )
    return before_BTD, Teacher(after_BTD, log_norm_BT, label_BT)

  def _chunks(self, B: int, T: int, width: int) -> int:
    rows = -(-B // self.model.placement.data_size)
    return losses.num_chunks(rows, T, width, self._config.chunk_logits)

  def _compute(self, params: Params) -> Params:
    """Returns the params in the dtypes of the products."""
    dtype = self.model.precision.param_dtype
    return jax.tree.map(
        lambda x, spec: x.astype(dtype) if spec.kind == 'matrix' else x,
        params,
        self.specs,
    )

  def _compare(self, params, frozen, batch, scale_KBT, gradients, agreement):
    """Returns the Result, and the gradient by the params or None."""
    batch = jax.tree.map(
        lambda x: self.model.placement.constrain(
            x, ('batch', *[None] * (x.ndim - 1))
        ),
        batch,
    )
    before_BTD, teacher = self._listen(frozen, batch)
    has_head = 'head' in params

    def forward(params):
      return unroll_lib.unroll(
          self.model,
          {**self._compute(params), **frozen.shared},
          tokens_BT=batch.tokens_BT,
          document_BT=batch.document_BT,
          positions_BT=batch.positions_BT,
          hidden_BTD=before_BTD,
          num_steps=self._config.unroll,
          remat=self._config.remat,
      )

    if gradients == 'none':
      hidden_KBTD, pull_back = forward(params), None
    else:
      hidden_KBTD, pull_back = jax.vjp(forward, params)
      gradients = 'both' if has_head else 'hidden'
    ids = {draft_lib.HEAD_IDS: frozen.shared[draft_lib.HEAD_IDS]}
    head = self._compute(params)['head'] if has_head else frozen.shared['head']
    result = losses.compare(
        lambda head, x: self.model.head_logits({'head': head, **ids}, x),
        head,
        hidden_KBTD,
        target_head_WD=frozen.target_head_WD,
        teacher=teacher,
        weight_KBT=scale_KBT,
        mix=self._mix,
        chunks=self._chunks(*batch.tokens_BT.shape, head.shape[0]),
        gradients=gradients,
        agreement=agreement,
    )
    if pull_back is None:
      return result, None
    (gradient,) = pull_back(result.hidden_KBTD.astype(hidden_KBTD.dtype))
    if has_head:
      gradient = gradient | {'head': gradient['head'] + result.head}
    return result, gradient

  def _scale(self) -> jax.Array:
    """Returns [K], the share of every step in the loss."""
    decay_K = self._config.step_decay ** jnp.arange(self._config.unroll)
    return decay_K / decay_K.sum()

  def _update(
      self, state: State, frozen: Frozen, batch: Batch
  ) -> tuple[State, Metrics]:
    """Makes one update of the batches [A, B, T], whose gradients are summed."""
    # Vmapped over A; the sum is over all of it, as if it were one batch.
    weight_AKBT = jax.vmap(self._step_weights)(batch)
    total_K = jnp.maximum(weight_AKBT.sum((0, 2, 3)), 1e-6)
    share_K = self._scale() / total_K

    def one(batch, weight_KBT):
      result, gradient = self._compare(
          state.params,
          frozen,
          batch,
          weight_KBT * share_K[:, None, None],
          'hidden',
          'no',
      )
      sums = _sums(self._mix, result, weight_KBT)
      return gradient, result.loss, sums

    def body(carry, slices):
      return jax.tree.map(jnp.add, carry, one(*slices)), None

    first, rest = (
        jax.tree.map(lambda x: x[0], (batch, weight_AKBT)),
        jax.tree.map(lambda x: x[1:], (batch, weight_AKBT)),
    )
    found = one(*first)
    if batch.tokens_BT.shape[0] > 1:
      found, _ = jax.lax.scan(body, found, rest)
    gradient, loss, sums = found
    updates, opt_state = self._optimizer.update(
        gradient, state.opt_state, state.params
    )
    metrics = {
        'loss': loss,
        'gradient_norm': _norm(gradient),
        'tokens': (batch.document_BT > 0).sum(),
    }
    for name, sum_K in sums.items():
      for k in range(self._config.unroll):
        metrics[f'{name}_{k + 1}'] = sum_K[k] / total_K[k]
    state = State(
        state.step + 1, optax.apply_updates(state.params, updates), opt_state
    )
    return self._placed(state), self.model.placement.replicate(metrics)

  def _measure(self, params: Params, frozen: Frozen, batch: Batch) -> Metrics:
    """Returns sums over one batch, by step and domain: [K, domains].

    'acceptance' of a position alone, 'chain' of it and the steps before, the
    same of greedy drafts as 'agrees' and 'greedy_chain', and 'weight'.
    """
    weight_KBT = self._step_weights(batch)
    result, _ = self._compare(params, frozen, batch, weight_KBT, 'none', 'yes')
    found = result.terms
    each = {
        'weight': jnp.ones_like(found.acceptance),
        'loss': losses.mixed(self._mix, found),
        'in_head': found.in_head,
        'acceptance': found.acceptance,
        'chain': _chain(found.acceptance),
        'agrees': found.agrees,
        'greedy_chain': _chain(found.agrees),
    }
    in_domain_BTd = jax.nn.one_hot(batch.domain_BT, self._num_domains)

    def add(x_KBT):
      x_KBT = jnp.where(weight_KBT > 0, x_KBT * weight_KBT, 0.0)
      return jnp.einsum(
          'KBT,BTd->Kd',
          x_KBT,
          in_domain_BTd,
          precision=jax.lax.Precision.HIGHEST,
      )

    return self.model.placement.replicate({k: add(x) for k, x in each.items()})


def _sums(mix: Mix, result: losses.Result, weight_KBT) -> Metrics:
  """Returns weighted sums by step, [K]."""
  found = result.terms
  each = {
      'loss': losses.mixed(mix, found),
      'alpha': found.acceptance,
      'in_head': found.in_head,
  }
  return {
      name: jnp.where(weight_KBT > 0, x_KBT * weight_KBT, 0.0).sum((1, 2))
      for name, x_KBT in each.items()
  }


def _norm(tree: Params) -> jax.Array:
  """Returns the Euclidean norm of all leaves together."""
  return jnp.sqrt(sum((x * x).sum() for x in jax.tree.leaves(tree)))


def _chain(x_KBT: jax.Array) -> jax.Array:
  """Returns the product of each step's number with those that led to it."""
  rows = [x_KBT[0]]
  for x_BT in x_KBT[1:]:
    rows.append(unroll_lib.shift(rows[-1], 1) * x_BT)
  return jnp.stack(rows)
