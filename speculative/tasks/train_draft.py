"""Task `train_draft`: a draft that leans on its target, from stored text."""

import dataclasses
import hashlib
import json
import pathlib
import tempfile
from typing import Any

from absl import logging
import jax
from ml_collections import config_dict
import numpy as np

from speculative import config as config_lib
from speculative import sharding
from speculative.bench import prompts
from speculative.checkpoints import draft_dir
from speculative.checkpoints import pretrained
from speculative.checkpoints import sources
from speculative.checkpoints.draft_dir import DraftCheckpoint
from speculative.checkpoints.draft_dir import TargetIdentity
from speculative.checkpoints.pretrained import Pretrained
from speculative.errors import UserError
from speculative.models import precision as precision_lib
from speculative.models.draft import DraftConfig
from speculative.models.draft import DraftModel
from speculative.models.params import Params
from speculative.models.transformer import Transformer
from speculative.sharding import Placement
from speculative.tasks import results
from speculative.tasks import train_draft_report
from speculative.tasks.results import TaskResult
from speculative.tokenizer import base
from speculative.train import config as train_config
from speculative.train import data
from speculative.train import joined
from speculative.train import loop
from speculative.train import plot
from speculative.train import start
from speculative.train import step as step_lib
from speculative.train import store as store_lib
from speculative.train.config import TrainConfig
from speculative.train.data import Split
from speculative.train.joined import Joined

# What may change between a run and its continuation.
_FREE = (
    'store',
    'checkpoint_minutes',
    'eval_batches',
    'eval_every',
    'keep',
    'log_every',
    'plot',
)
# What a shell reports of a process that SIGTERM ended.
_STOPPED = 143


@dataclasses.dataclass(frozen=True, eq=False)
class _Setup:
  """A run whose mistakes, if any, have been found; no weights were read.

  Attributes:
    train: its settings.
    seed: of weights, order and split.
    target: that was found.
    of_target: what it is known by.
    dtype: of the target.
    draft: shapes of the draft.
    placement: of the target.
    draft_placement: of the draft and of batches.
    store: the text.
    split: of its documents.
    head_ids: tokens of the draft's head.
    earlier: draft to start from, if there is one.
  """

  train: TrainConfig
  seed: int
  target: Pretrained
  of_target: TargetIdentity
  dtype: str
  draft: DraftConfig
  placement: Placement
  draft_placement: Placement
  store: Joined
  split: Split
  head_ids: np.ndarray
  earlier: DraftCheckpoint | None


def run(config: config_dict.ConfigDict, path: pathlib.Path) -> TaskResult:
  """Trains a draft, or goes on with a run that the workdir holds.

  Args:
    config: of the run.
    path: of the workdir; `draft` in it is the draft, as of the last checkpoint.

  Returns:
    The TaskResult, with the train/* keys; after SIGTERM its status is not 0.

  Raises:
    UserError: Before anything is written, or when a metric is not finite.
  """
  with tempfile.TemporaryDirectory() as scratch:
    return _run(config, path, pathlib.Path(scratch))


def _run(
    config: config_dict.ConfigDict, path: pathlib.Path, scratch: pathlib.Path
) -> TaskResult:
  setup = _prepare(config, scratch)
  identity = _run_identity(setup)
  checkpoints = path / 'checkpoints'
  loop.last_step(checkpoints, identity)
  weights = setup.target.load_params(
      precision_lib.choose(setup.dtype).param_dtype, setup.placement
  )
  workdir = results.Workdir(
      path, config, metrics=train_draft_report.kept(path, checkpoints)
  )
  finished, model = _train(setup, weights, identity, workdir)
  found = finished.metrics | results.environment(model)
  train_draft_report.draw(setup.train.plot, path)
  if finished.reason == 'stopped':
    logging.info('Stopped; the same command goes on from here.')
    return TaskResult(found, _STOPPED)
  workdir.finish(found)
  results.say(
      train_draft_report.summary(found, setup.store.domains, path / 'draft')
  )
  return TaskResult(found)


def _prepare(config: config_dict.ConfigDict, scratch: pathlib.Path) -> _Setup:
  train = TrainConfig(**config.train.to_dict())
  plot.check(train.plot)
  parsed = config_lib.parse(config)
  if train.batch_size % parsed.mesh.data:
    raise UserError(
        f'config.train.batch_size={train.batch_size} needs to be a multiple of '
        f'config.mesh.data={parsed.mesh.data}.'
    )
  target = pretrained.open_pretrained(parsed.target, cache_dir=parsed.cache_dir)
  draft = train.draft_config(target.config)
  tokenizer = target.tokenizer
  of_target = target.identity
  paths = train.stores
  if train.store == train_config.BUILTIN:
    paths = (_write_builtin(scratch, tokenizer),)
  store = joined.open_stores(
      paths, tokenizer=tokenizer.fingerprint, mark=of_target.mark
  )
  earlier = _earlier(train, draft, of_target)
  split = _split(store, train, config.seed)
  mesh = sharding.make_mesh(parsed.mesh.data, parsed.mesh.model)
  indivisible = parsed.mesh.indivisible
  return _Setup(
      train=train,
      seed=config.seed,
      target=target,
      of_target=of_target,
      dtype=parsed.dtype,
      draft=draft,
      placement=sharding.place(
          mesh, target.config.axis_sizes, indivisible=indivisible
      ),
      draft_placement=sharding.place(
          mesh,
          draft.axis_sizes,
          name='draft',
          indivisible=indivisible,
          # Gathering a batch's logits would take longer than all the rest.
          logits='split',
      ),
      store=store,
      split=split,
      head_ids=earlier.head_ids()
      if earlier
      else _head_ids(store, split.train, draft, tokenizer),
      earlier=earlier,
  )


def _earlier(
    train: TrainConfig, draft: DraftConfig, of_target: TargetIdentity
) -> DraftCheckpoint | None:
  """Returns the draft to start from, if it is of this shape and target."""
  if train.init != 'draft':
    return None
  found = draft_dir.open_draft(
      sources.resolve(train.from_draft), reference=train.from_draft
  )
  found.check_target(of_target)
  for before, now in (
      (found.config, draft),
      (found.config.layers, draft.layers),
  ):
    for field in dataclasses.fields(now):
      old, new = getattr(before, field.name), getattr(now, field.name)
      if old != new and field.name != 'layers':
        raise UserError(
            f'the draft {train.from_draft} has {field.name}={old}, but '
            f'config.train makes one with {new}; make both the same.'
        )
  return found


def _write_builtin(
    path: pathlib.Path, tokenizer: base.Tokenizer
) -> pathlib.Path:
  """Writes a store of the package's own prompts and returns its path."""
  writer = store_lib.Writer(
      path, tokenizer=tokenizer.fingerprint, domains=('chat', 'code')
  )
  documents = []
  for text in prompts.BUILTIN:
    ids = [*base.encode_prompt(tokenizer, text), *tokenizer.eos_ids]
    domain = 'code' if 'Python' in text else 'chat'
    documents.append(store_lib.Document(np.array(ids), domain=domain))
  writer.add(documents)
  writer.close()
  return path


def _split(store: Joined, train: TrainConfig, seed: int) -> Split:
  split = data.split(data.groups(store), seed=seed, every=train.hold_out_every)
  lens = store.lens()
  for name, documents in (
      ('train on', split.train),
      ('hold out', split.held_out),
  ):
    if not (lens[documents] >= 2).any():
      raise UserError(
          f'{train.store} has {store.num_documents} documents, and none of two '
          f'tokens to {name} with config.train.hold_out_every='
          f'{train.hold_out_every}; add text.'
      )
  return split


def _head_ids(
    store: Joined,
    documents: np.ndarray,
    draft: DraftConfig,
    tokenizer: base.Tokenizer,
) -> np.ndarray:
  special = [
      i
      for i in range(tokenizer.vocab_size)
      if not tokenizer.token_bytes(i) and tokenizer.piece(i)
  ]
  size = draft.head_size
  if len(special) > size:
    raise UserError(
        f'config.train.head_size={size} is less than the {len(special)} '
        'special tokens, which a head always has; raise it.'
    )
  counts_V = data.count_tokens(store, documents, draft.vocab_size)
  ids = data.choose_head_ids(counts_V, size, special)
  logging.info(
      'The head has %d tokens, %.2f %% of the text.',
      size,
      100 * counts_V[ids].sum() / max(counts_V.sum(), 1),
  )
  return ids


def _run_identity(setup: _Setup) -> dict[str, Any]:
  """Returns what has to be the same for a run to go on, as JSON has it."""
  fields = dataclasses.asdict(setup.train)
  fields = {f'config.train.{k}': v for k, v in fields.items() if k not in _FREE}
  digest = hashlib.sha256(setup.head_ids.tobytes()).hexdigest()
  fields |= {
      'config.seed': setup.seed,
      'config.target.dtype': setup.dtype,
      'mark of the target': setup.of_target.mark,
      'documents of the store': setup.store.num_documents,
      'tokens of the store': setup.store.num_tokens,
      'scores of the store': 'yes' if setup.store.is_scored else 'no',
      'tokens of the head': digest[:16],
  }
  return json.loads(json.dumps(fields))


def _train(
    setup: _Setup,
    weights: Params,
    identity: dict[str, Any],
    workdir: results.Workdir,
) -> tuple[loop.Finished, DraftModel]:
  train, store = setup.train, setup.store
  num_tokens = setup.target.tokenizer.vocab_size
  model = DraftModel(
      setup.draft,
      precision_lib.for_training(train.dtype),
      num_tokens,
      setup.draft_placement,
  )
  # Where nobody has scored the text, the target does it in every step.
  target = None
  if not store.is_scored:
    target = Transformer(
        setup.target.config,
        precision_lib.choose(setup.dtype),
        num_tokens=num_tokens,
        placement=setup.placement,
    )
  ids_W = setup.draft_placement.put(setup.head_ids)
  if setup.earlier:
    params = setup.earlier.load_own(np.float32, setup.draft_placement)
  else:
    params = start.init_params(
        jax.random.key(setup.seed),
        model,
        target=weights,
        head_ids=ids_W,
        from_layers=train.from_layers if train.init == 'target' else (),
    )
  frozen = start.freeze(
      model, ids_W, weights, keep='all' if target else 'shared'
  )
  # The rest of the target is of no use from here on.
  weights.clear()
  run = loop.Run(
      config=train,
      identity=identity,
      program=step_lib.Program(
          train, model, num_domains=len(store.domains), target=target
      ),
      frozen=frozen,
      train=_packer(setup, setup.split.train, train.prompt_weight),
      held_out=_packer(setup, setup.split.held_out, 0.0),
      domains=store.domains,
      placement=setup.draft_placement,
      checkpoints=workdir.path / 'checkpoints',
      on_metrics=workdir.metric,
      on_checkpoint=lambda params: draft_dir.save(
          workdir.path / 'draft',
          params,
          setup.head_ids,
          setup.draft,
          setup.of_target,
          existing='replace',
      ),
  )
  return loop.run(run, params), model


def _packer(
    setup: _Setup, documents: np.ndarray, prompt_weight: float
) -> data.Packer:
  return data.Packer(
      setup.store,
      documents,
      batch_size=setup.train.batch_size,
      seq_len=setup.train.seq_len,
      seed=setup.seed,
      prompt_weight=prompt_weight,
      scores='yes' if setup.store.is_scored else 'no',
  )
