"""The Python interface: load a model, generate text.

import speculative

model = speculative.load('path/or/reference', drafter='lookup')
result = model.generate('Once upon a time', max_new_tokens=64)
print(result.texts[0], result.generation.tokens_per_round)
"""

import os

import jax

from speculative import sharding
from speculative.checkpoints import pretrained
from speculative.checkpoints.draft_dir import DraftCheckpoint
from speculative.drafting import config as drafter_config
from speculative.drafting.config import DrafterConfig
from speculative.errors import UserError
from speculative.language_model import LanguageModel
from speculative.language_model import Result
from speculative.models import precision as precision_lib
from speculative.retrieval import bigram_table
from speculative.retrieval import datastore
from speculative.retrieval import device_store
from speculative.retrieval.device_store import DeviceStore
from speculative.sharding import MeshConfig
from speculative.sharding import Placement

__all__ = [
    'LAYOUTS',
    'LanguageModel',
    'MeshConfig',
    'Result',
    'load',
    'open_model',
]

LAYOUTS = ('unrolled', 'scanned')


def _check_draft(
    target: pretrained.Pretrained,
    draft: pretrained.Pretrained | DraftCheckpoint,
    drafter: DrafterConfig,
    layers: str,
) -> None:
  """Refuses a draft model that cannot draft for the target."""
  if isinstance(draft, DraftCheckpoint):
    draft.check_target(target.identity)
  elif draft.tokenizer.fingerprint != target.tokenizer.fingerprint:
    raise UserError(
        f'the draft {drafter.model!r} has another tokenizer '
        f'({draft.tokenizer.vocab_size} tokens) than the target '
        f'{target.reference!r} ({target.tokenizer.vocab_size} tokens); both '
        'need the same one, choose a draft of the same family.'
    )
  if drafter.num_layers and isinstance(draft, DraftCheckpoint):
    raise UserError(
        f'config.drafter.num_layers is {drafter.num_layers}, but '
        f'{draft.reference} was trained to be used whole; leave it at 0.'
    )
  if drafter.num_layers > draft.config.num_layers:
    raise UserError(
        f'config.drafter.num_layers is {drafter.num_layers}, but '
        f'{draft.reference} has {draft.config.num_layers} layers; lower it.'
    )
  if drafter.shares_target and layers != 'unrolled':
    raise UserError(
        "a draft made of the target's layers needs them unrolled; set "
        "config.target.layers to 'unrolled'."
    )


def _open_store(
    target: pretrained.Pretrained, drafter: DrafterConfig
) -> DeviceStore:
  """Opens the datastore and refuses what cannot draft for the target."""
  # All of it: nothing looks at ids and positions again, and a store that drafts
  # wrongly would only be slow. Block by block, so of any size.
  opened = datastore.open_store(
      drafter.store, tokenizer=target.tokenizer.fingerprint, verify='all'
  )
  depth = opened.header.depth
  drafter.check_depth(depth)
  return device_store.of_arrays(
      opened.shards, separator=opened.header.separator, depth=depth
  )


def _check_hosts(drafter: DrafterConfig) -> None:
  if drafter.asks_host and jax.process_count() > 1:
    raise UserError(
        "config.drafter.retrieval.placement is 'host', which drafts for one "
        f"process, but there are {jax.process_count()}; set it to 'whole' or "
        "'split'."
    )


def _check_int8(drafter: DrafterConfig, placement: Placement) -> None:
  if drafter.shares_target:
    raise UserError(
        "config.drafter.dtype is 'int8', but a draft made of the target's own "
        "layers has the target's; leave it at 'auto'."
    )
  # Rows are rounded by their largest entry: where they are split, finding it
  # would take one collective more a product.
  if drafter.uses_model and placement.model_size > 1:
    raise UserError(
        "config.drafter.dtype is 'int8', which needs the draft whole on every "
        f'device, but it is split over {placement.model_size}; set '
        'config.drafter.shards to 1.'
    )


def open_model(
    target: str,
    *,
    dtype: str = 'auto',
    layers: str = 'unrolled',
    drafter: str | DrafterConfig = 'none',
    mesh: MeshConfig | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> LanguageModel:
  """Finds a model and its drafter; the weights are read when first needed.

  Args:
    target: reference of the target.
    dtype: 'auto', 'float32' or 'bfloat16'.
    layers: 'unrolled' runs fastest, 'scanned' compiles fastest.
    drafter: a kind with default settings, or a DrafterConfig.
    mesh: devices to use and how; one device when absent.
    cache_dir: where fetched checkpoints are kept.

  Returns:
    The LanguageModel.

  Raises:
    UserError: If a reference cannot be resolved, a setting is wrong, or the
      draft model, the datastore or the bigram table has another tokenizer or
      was made for another target.
  """
  drafter = drafter_config.named(drafter)
  _check_hosts(drafter)
  if layers not in LAYOUTS:
    raise UserError(
        f'layers is {layers!r}; it needs to be one of {", ".join(LAYOUTS)}.'
    )
  precision_lib.choose(dtype)
  precision_lib.choose_draft(drafter.dtype)
  opened = pretrained.open_pretrained(target, cache_dir=cache_dir)
  draft = None
  if drafter.uses_model:
    draft = opened
    if not drafter.shares_target:
      draft = pretrained.open_draft(drafter.model, cache_dir=cache_dir)
    _check_draft(opened, draft, drafter, layers)
  mesh = mesh or MeshConfig()
  devices = sharding.make_mesh(mesh.data, mesh.model)
  options = {'indivisible': mesh.indivisible, 'logits': mesh.logits}
  placement = sharding.place(devices, opened.config.axis_sizes, **options)
  draft_placement = placement
  if draft is not None and not drafter.shares_target:
    draft_placement = sharding.place(
        devices,
        draft.config.axis_sizes,
        name='draft',
        shards=drafter.shards,
        **options,
    )
  if drafter.dtype == 'int8':
    _check_int8(drafter, draft_placement)
  store = table = None
  if drafter.uses_store:
    store = _open_store(opened, drafter)
  if drafter.table:
    table = bigram_table.for_device(
        bigram_table.open_table(
            drafter.table, tokenizer=opened.tokenizer.fingerprint
        ).counted
    )
  model = LanguageModel(
      opened,
      draft,
      dtype=dtype,
      layers=layers,
      drafter=drafter,
      placement=placement,
      draft_placement=draft_placement,
      store=store,
      table=table,
  )
  model.check_drafter()
  return model


def load(
    target: str,
    *,
    dtype: str = 'auto',
    layers: str = 'unrolled',
    drafter: str | DrafterConfig = 'none',
    mesh: MeshConfig | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> LanguageModel:
  """Finds a model and its drafter and reads their weights.

  Args:
    target: see `open_model`.
    dtype: see `open_model`.
    layers: see `open_model`.
    drafter: see `open_model`.
    mesh: see `open_model`.
    cache_dir: see `open_model`.

  Returns:
    The LanguageModel.

  Raises:
    UserError: As `open_model`, and if weights are missing or do not fit.
  """
  model = open_model(
      target,
      dtype=dtype,
      layers=layers,
      drafter=drafter,
      mesh=mesh,
      cache_dir=cache_dir,
  )
  model.load_weights()
  return model
