"""Checkpoints of drafts that lean on a target: what is theirs, and whose.

  DIR/config.json   {"format": "speculative-draft", "draft": {...},
                     "target": {...}}, written last
  DIR/params/       written by Orbax, one flat dict 'layers.0.q_proj' -> array,
                    and 'head_ids'

The tokenizer is the target's, and so are embedding and head where the draft
shares them. A draft is refused where it does not belong before its weights are
read: a target is known by its tokenizer, its shapes and a mark, the SHA-256 of
its final norm. Training the whole of a model changes that; a fine-tune that
leaves it alone passes for its base, which costs acceptance and nothing else.
"""

from collections.abc import Mapping
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
from typing import Any

import jax
from jax import numpy as jnp
import numpy as np

from speculative.checkpoints import orbax_dir
from speculative.checkpoints import reader as reader_lib
from speculative.errors import UserError
from speculative.models import draft as draft_lib
from speculative.models import params as params_lib
from speculative.models.config import TransformerConfig
from speculative.models.draft import DraftConfig
from speculative.models.params import Params
from speculative.sharding import Placement

FORMAT = 'speculative-draft'
EXISTING = ('refuse', 'replace')
DTYPES = ('bfloat16', 'float32')
_SHOWN = 12


@dataclasses.dataclass(frozen=True)
class TargetIdentity:
  """Which target a draft was made for.

  Attributes:
    tokenizer: its fingerprint.
    mark: as `mark` returns it.
    transformer: its shapes and settings.
    reference: what it was called by whoever trained the draft; for messages.
  """

  tokenizer: str
  mark: str
  transformer: TransformerConfig
  reference: str = ''


def mark(final_norm_D: Any) -> str:
  """Returns what a target is known by: hex SHA-256 of its final norm.

  Args:
    final_norm_D: the vector of that name among its params.
  """
  wide_D = np.ascontiguousarray(np.asarray(final_norm_D, np.float32))
  return hashlib.sha256(wide_D.tobytes()).hexdigest()


@dataclasses.dataclass(frozen=True, eq=False)
class DraftCheckpoint:
  """A draft that was found; its weights have not been read.

  Attributes:
    reference: the string it was opened by.
    config: the draft's.
    target: whom it was made for.
    tensors: where its weights are.
  """

  reference: str
  config: DraftConfig
  target: TargetIdentity
  tensors: reader_lib.TensorReader

  def check_target(self, target: TargetIdentity) -> None:
    """Refuses a target the draft was not made for.

    Args:
      target: the one at hand.

    Raises:
      UserError: If tokenizer, shapes or mark differ.
    """
    own = self.target
    if target.tokenizer != own.tokenizer:
      raise UserError(
          f'the draft {self.reference!r} was made for another tokenizer '
          f'({_short(own.tokenizer)}, of {own.reference!r}) than that of the '
          f'target {target.reference!r} ({_short(target.tokenizer)}); choose '
          'the draft of this target.'
      )
    for name in ('vocab_size', 'model_dim'):
      wanted = getattr(own.transformer, name)
      found = getattr(target.transformer, name)
      if wanted != found:
        raise UserError(
            f'the draft {self.reference!r} was made for a target with '
            f'{name}={wanted} ({own.reference!r}), but {target.reference!r} '
            f'has {found}; choose the draft of this target.'
        )
    if target.mark != own.mark:
      raise UserError(
          f'the draft {self.reference!r} was made for another target '
          f'({own.reference!r}, final norm {_short(own.mark)}) than '
          f'{target.reference!r} (final norm {_short(target.mark)}), though of '
          'the same shapes; choose the draft of this target.'
      )

  def load_params(
      self,
      dtype: jax.typing.DTypeLike,
      placement: Placement,
      target_params: Params,
  ) -> Params:
    """Reads the draft's own weights and adds what it shares.

    Args:
      dtype: of its matrices; vectors are float32.
      placement: its own.
      target_params: of the target, where they lie.

    Returns:
      Params that `DraftModel.forward` takes.

    Raises:
      UserError: If the head's tokens are not ids in ascending order.
    """
    own = self.load_own(dtype, placement)
    ids = self.head_ids()
    return attach(self.config, own, ids, target_params, dtype, placement)

  def load_own(
      self, dtype: jax.typing.DTypeLike, placement: Placement
  ) -> Params:
    """Reads the draft's own weights.

    Args:
      dtype: of its matrices; vectors are float32.
      placement: its own.

    Returns:
      Params in the tree that `models.draft.declare` describes.
    """

    def get(name: str, spec: params_lib.ParamSpec, dtype: Any) -> jax.Array:
      array = self.tensors.read(name).astype(jnp.dtype(dtype), copy=False)
      return jax.block_until_ready(placement.put(array, spec.axes))

    specs = draft_lib.declare(self.config)
    return params_lib.build_tree(specs, jnp.dtype(dtype), get)

  def head_ids(self) -> np.ndarray:
    """Returns the tokens of the head's rows, int32, ascending.

    Raises:
      UserError: If they are anything else.
    """
    ids = np.asarray(self.tensors.read(draft_lib.HEAD_IDS))
    _check_ids(self.reference, ids, self.config)
    return ids


def _short(digest: str) -> str:
  return digest[:_SHOWN] or 'none'


def _check_ids(where: str, ids: np.ndarray, config: DraftConfig) -> None:
  known = 0 <= ids.min() and ids.max() < config.vocab_size
  if not known or not (np.diff(ids) > 0).all():
    raise UserError(
        f'{where}: {draft_lib.HEAD_IDS} need to be token ids below '
        f'{config.vocab_size} in ascending order, each once.'
    )


def attach(
    config: DraftConfig,
    own: Params,
    head_ids: np.ndarray,
    target: Params,
    dtype: jax.typing.DTypeLike,
    placement: Placement,
) -> Params:
  """Returns the params a draft runs with, everything where it belongs.

  Args:
    config: the draft's.
    own: its weights, placed.
    head_ids: int32 [head_size].
    target: the target's params, where they lie.
    dtype: of what is copied from them: the rows of a partial head.
    placement: the draft's; a head of its own or of part of the tokens is split
      over the vocabulary as it says.
  """
  ids = placement.put(np.asarray(head_ids, np.int32))
  params = draft_lib.attach(config, own, ids, target)
  if config.head == 'shared' and config.head_size < config.vocab_size:
    params['head'] = jax.jit(
        lambda x: x.astype(jnp.dtype(dtype)),
        out_shardings=placement.sharding(('vocab', 'embed')),
    )(params['head'])
  return params


def save(
    path: str | os.PathLike[str],
    own_params: Params,
    head_ids: Any,
    config: DraftConfig,
    target: TargetIdentity,
    *,
    dtype: str = 'bfloat16',
    existing: str = 'refuse',
) -> None:
  """Writes a draft that `open_draft` reads back.

  With several processes, every one of them calls this with the same path.

  Args:
    path: directory to make.
    own_params: in the tree that `models.draft.declare(config)` describes.
    head_ids: int32 [head_size], ascending.
    config: the draft's.
    target: whom it was made for.
    dtype: of matrices, one of DTYPES; vectors are float32.
    existing: what becomes of a directory that is there: 'refuse', or 'replace'
      it once the new one is complete, putting back first what a replacement
      that was cut short had taken away.

  Raises:
    UserError: If there is one, or a name or shape is not the config's.
  """
  path = pathlib.Path(path).expanduser().resolve()
  for name, value, known in (
      ('existing', existing, EXISTING),
      ('dtype', dtype, DTYPES),
  ):
    if value not in known:
      raise UserError(
          f'{name} is {value!r}; it needs to be one of {", ".join(known)}.'
      )
  if existing == 'refuse' and path.exists():
    raise UserError(
        f'{path} is there already; choose another directory, remove it, or '
        "replace it (existing='replace')."
    )
  arrays = dict(params_lib.flatten(own_params))
  _check_shapes(
      path,
      {**{k: x.shape for k, x in arrays.items()}, **_ids_shape(head_ids)},
      config,
  )
  _check_ids(str(path), np.asarray(head_ids), config)
  specs = dict(params_lib.flatten(draft_lib.declare(config)))
  saved = {
      name: jnp.asarray(
          x, jnp.dtype(dtype) if specs[name].kind == 'matrix' else jnp.float32
      )
      for name, x in arrays.items()
  }
  saved[draft_lib.HEAD_IDS] = jnp.asarray(head_ids, jnp.int32)
  beside = path.with_name(f'.{path.name}.partial')
  old = path.with_name(f'.{path.name}.old')
  if jax.process_index() == 0:
    shutil.rmtree(beside, ignore_errors=True)
    if existing == 'replace' and old.exists() and not path.exists():
      # A process was killed between the two renames below.
      os.replace(old, path)
  orbax_dir.save_arrays(
      beside,
      saved,
      {
          'format': FORMAT,
          'draft': dataclasses.asdict(config),
          'target': dataclasses.asdict(target),
      },
  )
  if jax.process_index() == 0:
    _put_in_place(beside, path, old)


def _put_in_place(
    beside: pathlib.Path, path: pathlib.Path, old: pathlib.Path
) -> None:
  """Renames a complete directory; what was there is `old` in between."""
  # Names the directory before it was renamed; nobody reads it.
  for note in beside.rglob('commit_success.txt'):
    note.unlink()
  shutil.rmtree(old, ignore_errors=True)
  if path.exists():
    os.replace(path, old)
  os.replace(beside, path)
  shutil.rmtree(old, ignore_errors=True)


def _ids_shape(head_ids: Any) -> dict[str, tuple[int, ...]]:
  return {draft_lib.HEAD_IDS: tuple(np.shape(head_ids))}


def _check_shapes(
    where: pathlib.Path,
    found: Mapping[str, tuple[int, ...]],
    config: DraftConfig,
) -> None:
  """Compares all names and shapes; one error lists every difference."""
  wanted = {
      name: spec.shape
      for name, spec in params_lib.flatten(draft_lib.declare(config))
  }
  wanted[draft_lib.HEAD_IDS] = (config.head_size,)
  both = [name for name in wanted if name in found]
  problems = [
      f'{title} ({len(items)}): {reader_lib.listing(items)}'
      for title, items in (
          ('missing', [n for n in wanted if n not in found]),
          ('unknown', [n for n in found if n not in wanted]),
          (
              'mismatched shape there -> shape of the config',
              [
                  f'{n}: {list(found[n])} -> {list(wanted[n])}'
                  for n in both
                  if tuple(found[n]) != tuple(wanted[n])
              ],
          ),
      )
      if items
  ]
  if problems:
    raise UserError(
        f"{where}: the tensors are not those of the draft's config; "
        f'{"; ".join(problems)}. Use config and weights of one and the same '
        'draft.'
    )


def is_draft(path: pathlib.Path) -> bool:
  """Tells whether a directory holds a draft that is complete."""
  config = path / orbax_dir.CONFIG_NAME
  if not config.is_file():
    return False
  try:
    d = json.loads(config.read_text(encoding='utf-8'))
  except ValueError:
    return False
  return isinstance(d, dict) and d.get('format') == FORMAT


def open_draft(
    path: str | os.PathLike[str], *, reference: str | None = None
) -> DraftCheckpoint:
  """Reads all of a draft but its weights.

  Args:
    path: directory that `save` wrote.
    reference: what the user called it; the path when absent.

  Returns:
    The DraftCheckpoint.

  Raises:
    UserError: If it is no draft, not complete, or of other tensors than its
      config says.
  """
  reference = reference or os.fspath(path)
  path = pathlib.Path(path).expanduser().resolve()
  file = path / orbax_dir.CONFIG_NAME
  if not file.is_file():
    raise UserError(
        f'{path} has no {file.name}, which is written last: it is no draft, or '
        'writing it was cut short; train or copy it again.'
    )
  if not is_draft(path):
    raise UserError(
        f'{file} is not that of a draft ("format": "{FORMAT}"); name a '
        'directory that a draft was saved to.'
    )
  d = json.loads(file.read_text(encoding='utf-8'))
  try:
    draft, target = dict(d['draft']), dict(d['target'])
    layers = orbax_dir.config_from_json({'transformer': draft['layers']})
    config = DraftConfig(**draft | {'layers': layers})
    identity = TargetIdentity(
        **target | {'transformer': orbax_dir.config_from_json(target)}
    )
  except UserError as error:
    raise UserError(f'{file}: {error}') from error
  except (KeyError, TypeError, ValueError) as error:
    raise UserError(
        f'{file} is not one of this version ({type(error).__name__}: {error}); '
        'use the version that wrote it.'
    ) from error
  for name, own, wanted in (
      ('target_dim', config.target_dim, identity.transformer.model_dim),
      ('vocab_size', config.vocab_size, identity.transformer.vocab_size),
  ):
    if own != wanted:
      raise UserError(
          f'{file}: the draft has {name}={own}, but its own target {wanted}; '
          'train or copy it again.'
      )
  tensors = orbax_dir.OrbaxDirectory(path)
  _check_shapes(path, {n: t.shape for n, t in tensors.tensors.items()}, config)
  return DraftCheckpoint(reference, config, identity, tensors)
