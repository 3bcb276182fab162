"""Settings of a training run, checked as soon as they are read."""

import dataclasses
import math

from speculative.errors import UserError
from speculative.models import draft as draft_lib
from speculative.models import precision
from speculative.models.config import TransformerConfig
from speculative.models.draft import DraftConfig

INITS = ('fresh', 'target', 'draft')
REMATS = ('none', 'steps')
PLOTS = ('auto', 'yes', 'no')
# A store of the prompts that come with the package, for tests.
BUILTIN = 'builtin'

_CHOICES = {
    'init': INITS,
    'remat': REMATS,
    'plot': PLOTS,
    'dtype': precision.DTYPES,
    'inputs': draft_lib.INPUTS,
    'embedding': draft_lib.SOURCES,
    'head': draft_lib.SOURCES,
}
_LEAST = {
    'num_layers': 1,
    'num_steps': 1,
    'batch_size': 1,
    'seq_len': 2,
    'unroll': 1,
    'accumulate': 1,
    'chunk_logits': 1,
    'hold_out_every': 2,
    'eval_every': 1,
    'eval_batches': 1,
    'log_every': 1,
    'keep': 1,
    'head_size': 0,
    'model_dim': 0,
    'num_heads': 0,
    'num_kv_heads': 0,
    'head_dim': 0,
    'mlp_dim': 0,
    'warmup_steps': 0,
}
_ABOVE_ZERO = ('learning_rate', 'clip_norm', 'checkpoint_minutes', 'step_decay')
_NOT_NEGATIVE = (
    'weight_decay',
    'final_rate',
    'prompt_weight',
    'cross_entropy',
    'kl',
    'total_variation',
)


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """One run.

  Attributes:
    store: directory of training text, or several with commas between them, or
      'builtin' for a few sentences.
    num_layers: of the draft.
    model_dim: width of the draft; 0, as with the next four, is the target's.
    num_heads: of the draft.
    num_kv_heads: of the draft.
    head_dim: of the draft.
    mlp_dim: of the draft.
    head_size: tokens it can draft, the most frequent ones; 0 is all.
    inputs: 'hidden' or 'tokens', see `models.draft`.
    embedding: 'shared' with the target, or its 'own'.
    head: 'shared' with the target, or its 'own'.
    init: 'fresh', 'target' for layers of the target, or 'draft' for a draft of
      the same shape that was saved before.
    from_layers: of the target, one for each of the draft's.
    from_draft: directory of that draft; its head's tokens stay.
    num_steps: updates.
    batch_size: rows of a pass.
    seq_len: tokens of a row.
    accumulate: passes an update sums over.
    unroll: how many tokens ahead the draft is trained on its own output.
    step_decay: what each of these counts, times that of the one before.
    cross_entropy: weight of the loss on the text itself.
    kl: weight of the divergence from the target's law.
    total_variation: weight of 1 - sum min(p, q), the chance of a rejection.
    prompt_weight: what a token of a prompt counts; others count 1.
    learning_rate: highest, after the warm-up.
    final_rate: share of it at the end of the cosine.
    warmup_steps: updates until the highest rate.
    weight_decay: of matrices.
    clip_norm: largest norm of a gradient.
    dtype: of products; weights are kept in float32.
    remat: 'steps' computes activations again instead of keeping them.
    chunk_logits: most float32 logits that exist at once on a device.
    hold_out_every: one in so many prompts, with all answers to it, is never
      trained on; of documents without a prompt one in so many.
    eval_every: updates between two measurements on those.
    eval_batches: passes of such a measurement.
    log_every: updates between two lines of metrics.
    checkpoint_minutes: between two checkpoints.
    keep: checkpoints that are kept.
    plot: 'auto' draws plot.png where matplotlib is installed.
  """

  store: str = ''
  num_layers: int = 1
  model_dim: int = 0
  num_heads: int = 0
  num_kv_heads: int = 0
  head_dim: int = 0
  mlp_dim: int = 0
  head_size: int = 8192
  inputs: str = 'hidden'
  embedding: str = 'shared'
  head: str = 'shared'
  init: str = 'fresh'
  from_layers: tuple[int, ...] = ()
  from_draft: str = ''
  num_steps: int = 10_000
  batch_size: int = 8
  seq_len: int = 256
  accumulate: int = 1
  unroll: int = 3
  step_decay: float = 0.8
  cross_entropy: float = 0.0
  kl: float = 1.0
  total_variation: float = 0.0
  prompt_weight: float = 0.0
  learning_rate: float = 1e-3
  final_rate: float = 0.05
  warmup_steps: int = 100
  weight_decay: float = 0.01
  clip_norm: float = 1.0
  dtype: str = 'auto'
  remat: str = 'none'
  chunk_logits: int = 2**23
  hold_out_every: int = 50
  eval_every: int = 500
  eval_batches: int = 16
  log_every: int = 10
  checkpoint_minutes: float = 10.0
  keep: int = 2
  plot: str = 'auto'

  def __post_init__(self) -> None:
    for name, known in _CHOICES.items():
      if getattr(self, name) not in known:
        raise UserError(
            f'config.train.{name} is {getattr(self, name)!r}; it needs to be '
            f'one of {", ".join(known)}.'
        )
    for name, least in _LEAST.items():
      if getattr(self, name) < least:
        raise UserError(
            f'config.train.{name} needs to be >= {least}, got '
            f'{getattr(self, name)}.'
        )
    for name in (*_ABOVE_ZERO, *_NOT_NEGATIVE):
      value = getattr(self, name)
      low = '>' if name in _ABOVE_ZERO else '>='
      if not math.isfinite(value) or value < 0 or (low == '>' and value == 0):
        raise UserError(
            f'config.train.{name} needs to be {low} 0 and finite, got {value}.'
        )
    self._check_together()

  def _check_together(self) -> None:
    if not all(self.stores):
      raise UserError(
          f'config.train.store is {self.store!r}; it needs a directory of '
          f'training text, or several with commas, or {BUILTIN!r} for a few '
          'sentences.'
      )
    if BUILTIN in self.stores and len(self.stores) > 1:
      raise UserError(
          f'config.train.store is {self.store!r}; {BUILTIN!r} is for tests and '
          'cannot be joined with others, leave it out.'
      )
    if not self.cross_entropy + self.kl + self.total_variation:
      raise UserError(
          'config.train.cross_entropy, kl and total_variation are all 0; at '
          'least one loss needs a weight.'
      )
    if self.unroll >= self.seq_len:
      raise UserError(
          f'config.train.unroll={self.unroll} needs to be smaller than '
          f'config.train.seq_len={self.seq_len}.'
      )
    if self.inputs == 'tokens' and self.unroll > 1:
      raise UserError(
          f'config.train.unroll={self.unroll} is of no use where inputs are '
          "'tokens', since every step would be the same; set it to 1."
      )
    if (self.init == 'draft') != bool(self.from_draft):
      raise UserError(
          f'config.train.from_draft is {self.from_draft!r} where config.train.'
          f"init is {self.init!r}; 'draft' needs the directory of one, and "
          'nothing else does.'
      )
    if self.init == 'target' and len(self.from_layers) != self.num_layers:
      raise UserError(
          f'config.train.from_layers is {self.from_layers}; it needs one layer '
          f"of the target for each of the draft's {self.num_layers}."
      )

  @property
  def stores(self) -> tuple[str, ...]:
    """Directories of training text."""
    return tuple(path.strip() for path in self.store.split(','))

  def draft_config(self, target: TransformerConfig) -> DraftConfig:
    """Returns the shapes of the draft.

    Args:
      target: the target's.

    Returns:
      The DraftConfig.

    Raises:
      UserError: If heads, widths or layers do not go together.
    """
    named = {
        name: getattr(self, name)
        for name in (
            'model_dim',
            'num_heads',
            'num_kv_heads',
            'head_dim',
            'mlp_dim',
        )
        if getattr(self, name)
    }
    layers = dataclasses.replace(target, num_layers=self.num_layers, **named)
    if self.init == 'target':
      self._check_layers(layers, target)
    return DraftConfig(
        layers,
        target_dim=target.model_dim,
        head_size=min(self.head_size or target.vocab_size, target.vocab_size),
        inputs=self.inputs,
        embedding=self.embedding,
        head=self.head,
    )

  def _check_layers(
      self, layers: TransformerConfig, target: TransformerConfig
  ) -> None:
    for name in (
        'model_dim',
        'num_heads',
        'num_kv_heads',
        'head_dim',
        'mlp_dim',
    ):
      if getattr(layers, name) != getattr(target, name):
        raise UserError(
            f'config.train.{name} is {getattr(layers, name)}, but layers of '
            f'the target have {getattr(target, name)}; leave it 0, or set '
            "config.train.init to 'fresh'."
        )
    wrong = [i for i in self.from_layers if not 0 <= i < target.num_layers]
    if wrong:
      raise UserError(
          f'config.train.from_layers has {wrong[0]}; the target has layers 0 '
          f'to {target.num_layers - 1}.'
      )
