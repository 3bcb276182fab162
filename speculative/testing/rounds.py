"""Rounds of decoding compiled for a mesh, to be read and never run."""

import dataclasses
import functools
from typing import Any

import jax
from jax import numpy as jnp
from jax.sharding import Mesh
import numpy as np

from speculative import hlo
from speculative import sharding
from speculative.decoding import loop
from speculative.decoding.autoregressive import Autoregressive
from speculative.decoding.loop import Carry
from speculative.decoding.loop import Step
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.drafting.cascade import Cascade
from speculative.drafting.hidden_lm import HiddenLm
from speculative.drafting.lm import Lm
from speculative.drafting.lookup import Lookup
from speculative.models.config import TransformerConfig
from speculative.models.draft import DraftConfig
from speculative.models.draft import DraftModel
from speculative.models.params import Params
from speculative.models.precision import Precision
from speculative.models.transformer import Transformer
from speculative.planning import abstract
from speculative.sharding import Placement
from speculative.testing.random_tree import RandomTree
from speculative.testing.random_tree import Script

_PROMPT_LEN = 8


@dataclasses.dataclass(frozen=True)
class Setting:
  """What a round is made of; hashable.

  Attributes:
    target: the target's shapes.
    draft: the draft's, of a model by itself or of one that reads the target's
      hidden states; None for prompt look-up.
    num_draft_tokens: J, or M; 0 is plain decoding.
    num_guessed: tokens that look-up hands a draft model at once, in a cascade;
      0 is none.
    max_depth: A of random trees, in the place of prompt look-up; 0 for chains.
    buckets: numbers of nodes of such trees, M last; none is M alone.
    logits: 'split' or 'gathered' while sampling.
    layout: of both models' layers.
    shards: devices the draft is split over; 0 is as many as the target.
    precision: of both models.
    batch: B.
    max_seq_len: S.
    log_probs: 'chosen' or 'none'.
  """

  target: TransformerConfig
  draft: TransformerConfig | DraftConfig | None = None
  num_draft_tokens: int = 2
  num_guessed: int = 0
  max_depth: int = 0
  buckets: tuple[int, ...] = ()
  logits: str = 'gathered'
  layout: str = 'unrolled'
  shards: int = 0
  precision: Precision = Precision()
  batch: int = 4
  max_seq_len: int = 96
  log_probs: str = 'none'


@dataclasses.dataclass(frozen=True)
class Round:
  """A compiled round.

  Attributes:
    setting: what it was made of.
    mesh: for which; None for nothing said about devices.
    weights: structs of what is not donated.
    carry: structs of what is donated.
    text: as the compiler prints it.
    argument_bytes: that one device holds.
  """

  setting: Setting
  mesh: Mesh | None
  weights: Weights
  carry: Carry
  text: str
  argument_bytes: int

  @functools.cached_property
  def collectives(self) -> tuple[hlo.Collective, ...]:
    """All of them."""
    return hlo.collectives(self.text)

  @property
  def rows(self) -> int:
    """Rows of the batch that one device computes."""
    return self.setting.batch // self.mesh.shape[sharding.DATA]

  def num_devices(self, scope: str) -> int:
    """Returns how many devices a layer is split over in 'draft' or another."""
    whole = self.mesh.shape[sharding.MODEL]
    return scope == 'draft' and self.setting.shards or whole

  def along(self, axis: str, num: int) -> tuple[hlo.Collective, ...]:
    """Returns the collectives among neighbours of one axis of the mesh.

    Args:
      axis: 'data' or 'model'.
      num: neighbours that stay among themselves.
    """
    shape = self.mesh.devices.shape
    places = np.arange(self.mesh.devices.size).reshape(shape)
    places = places.T if axis == sharding.DATA else places
    groups = {frozenset(row.tolist()) for row in places.reshape(-1, num)}
    return tuple(
        c for c in self.collectives if set(map(frozenset, c.groups)) == groups
    )

  def within(self, scope: str) -> tuple[hlo.Collective, ...]:
    """Returns what one part of the round sends between parts of a layer.

    Args:
      scope: 'draft', 'verify' or 'commit'.
    """
    found = self.along(sharding.MODEL, self.num_devices(scope))
    return tuple(c for c in found if c.within(scope))


def compile_round(setting: Setting, mesh: Mesh | None) -> Round:
  """Compiles one round for abstract arguments.

  Args:
    setting: what it is made of.
    mesh: of devices that need not be there; None to say nothing about devices.

  Returns:
    The Round.
  """
  step, draft = _step(setting, mesh)
  target_params = abstract.params(step.model)
  weights = Weights(target_params, _draft_params(draft, target_params))
  if setting.max_depth:
    script = Script(
        jax.ShapeDtypeStruct((setting.batch, setting.max_seq_len), jnp.int32),
        jax.ShapeDtypeStruct((), jnp.uint32),
    )
    script = abstract.everywhere(script, step.model.placement)
    weights = weights.replace(drafter=script)
  carry = abstract.carry(
      step,
      weights,
      batch=setting.batch,
      prompt_len=_PROMPT_LEN,
      max_seq_len=setting.max_seq_len,
      draft=draft,
      log_probs=setting.log_probs,
  )
  jitted = jax.jit(loop.one_round, static_argnums=0, donate_argnums=2)
  compiled = jitted.lower(step, weights, carry).compile(
      compiler_options=_options(mesh)
  )
  return Round(
      setting=setting,
      mesh=mesh,
      weights=weights,
      carry=carry,
      text=compiled.as_text(),
      argument_bytes=compiled.memory_analysis().argument_size_in_bytes,
  )


def _draft_params(
    draft: Transformer | DraftModel | None, target: Params
) -> Params | None:
  if isinstance(draft, DraftModel):
    return abstract.draft_params(draft, target)
  return abstract.params(draft) if draft else None


def _options(mesh: Mesh | None) -> dict[str, Any]:
  """Spares a CPU the machine code of a program that is not run."""
  platform = 'cpu' if mesh is None else mesh.devices.flat[0].platform
  return {'xla_backend_optimization_level': 0} if platform == 'cpu' else {}


def _model(
    setting: Setting,
    config: TransformerConfig | DraftConfig,
    mesh: Mesh | None,
    shards: int,
) -> Transformer | DraftModel:
  placement = Placement()
  if mesh is not None:
    placement = sharding.place(
        mesh, config.axis_sizes, shards=shards, logits=setting.logits
    )
  if isinstance(config, DraftConfig):
    return DraftModel(config, setting.precision, placement=placement)
  return Transformer(
      config,
      precision=setting.precision,
      layout=setting.layout,
      placement=placement,
  )


def _step(
    setting: Setting, mesh: Mesh | None
) -> tuple[Step, Transformer | DraftModel | None]:
  """Returns the step and the draft model, if there is one."""
  target = _model(setting, setting.target, mesh, 0)
  num = setting.num_draft_tokens
  if num == 0:
    return Autoregressive(target), None
  if setting.max_depth:
    tree = RandomTree(
        num,
        setting.max_depth,
        setting.target.vocab_size,
        sizes=setting.buckets,
    )
    return Speculative(target, tree), None
  if setting.draft is None:
    return Speculative(target, Lookup(num_draft_tokens=num)), None
  draft = _model(setting, setting.draft, mesh, setting.shards)
  kind = HiddenLm if isinstance(draft, DraftModel) else Lm
  lm = kind(draft, num_draft_tokens=num, vocab_size=setting.target.vocab_size)
  if setting.num_guessed:
    lm = Cascade(Lookup(setting.num_guessed), lm)
  return Speculative(target, lm), draft
