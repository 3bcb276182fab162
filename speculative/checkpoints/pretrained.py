"""One way to a model and its tokenizer, whatever the reference names.

Beside the references of `sources`, `random://PRESET[?seed=N]` makes a small
model with random weights over a byte tokenizer: tests and the `:tiny` variant
of every config need no download.
"""

from collections.abc import Callable
import dataclasses
import os
import re

import jax
from jax import numpy as jnp
import numpy as np

from speculative import tokenizer as tokenizer_lib
from speculative.checkpoints import draft_dir
from speculative.checkpoints import load
from speculative.checkpoints import sources
from speculative.checkpoints.draft_dir import DraftCheckpoint
from speculative.checkpoints.draft_dir import TargetIdentity
from speculative.errors import UserError
from speculative.models import params as params_lib
from speculative.models.config import TransformerConfig
from speculative.models.params import Params
from speculative.sharding import Placement
from speculative.tokenizer import base
from speculative.tokenizer import byte_level

_RANDOM = 'random://'
# Nine digits stay below 2^32, where seeds end.
_PRESET = re.compile(
    re.escape(_RANDOM) + r'(\w+)(?:\?seed=(\d{1,9}))?', re.ASCII
)

PRESETS = {
    'tiny': TransformerConfig(
        vocab_size=byte_level.VOCAB_SIZE,
        num_layers=2,
        model_dim=32,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        mlp_dim=64,
    ),
    'tiny_draft': TransformerConfig(
        vocab_size=byte_level.VOCAB_SIZE,
        num_layers=1,
        model_dim=32,
        num_heads=2,
        num_kv_heads=2,
        head_dim=16,
        mlp_dim=64,
    ),
    # Can be split over eight devices; the last ids are no tokens.
    'tiny_mesh': TransformerConfig(
        vocab_size=264,
        num_layers=2,
        model_dim=32,
        num_heads=8,
        num_kv_heads=4,
        head_dim=8,
        mlp_dim=64,
        head='untied',
    ),
    'tiny_mesh_draft': TransformerConfig(
        vocab_size=264,
        num_layers=1,
        model_dim=32,
        num_heads=8,
        num_kv_heads=8,
        head_dim=8,
        mlp_dim=64,
        head='untied',
    ),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Pretrained:
  """A model that was found; its weights have not been read.

  Attributes:
    reference: the string it was opened by.
    config: of the model.
    tokenizer: its own.
    load_params: called with a dtype and a Placement, reads the weights and
      puts every one of them straight where it belongs.
    read_final_norm: reads that one parameter, float32 on the host.
  """

  reference: str
  config: TransformerConfig
  tokenizer: base.Tokenizer
  load_params: Callable[[jnp.dtype, Placement], Params]
  read_final_norm: Callable[[], np.ndarray]

  @property
  def identity(self) -> TargetIdentity:
    """What drafts know it by; reads one small tensor."""
    return TargetIdentity(
        tokenizer=self.tokenizer.fingerprint,
        mark=draft_dir.mark(self.read_final_norm()),
        transformer=self.config,
        reference=self.reference,
    )


def open_pretrained(
    reference: str, *, cache_dir: str | os.PathLike[str] | None = None
) -> Pretrained:
  """Finds a model, fetching it if need be, and reads all but its weights.

  Args:
    reference: as `sources.resolve` takes it, or random://PRESET[?seed=N].
    cache_dir: where fetched files are kept.

  Returns:
    The Pretrained.

  Raises:
    UserError: If it cannot be found or is not supported.
  """
  if reference.startswith(_RANDOM):
    return _open_random(reference)
  checkpoint = load.open_checkpoint(reference, cache_dir=cache_dir)
  with load.well_formed(checkpoint.path):
    tokenizer = tokenizer_lib.load(
        checkpoint.gguf_fields or checkpoint.directory
    )
  if tokenizer.vocab_size > checkpoint.config.vocab_size:
    raise UserError(
        f'{reference}: the tokenizer has {tokenizer.vocab_size} tokens, the '
        f'model only {checkpoint.config.vocab_size}; they do not belong '
        'together.'
    )
  return Pretrained(
      reference,
      checkpoint.config,
      tokenizer,
      lambda dtype, placement: load.load_params(
          checkpoint, dtype=dtype, placement=placement
      ),
      lambda: load.read_param(checkpoint, 'final_norm'),
  )


def open_draft(
    reference: str, *, cache_dir: str | os.PathLike[str] | None = None
) -> Pretrained | DraftCheckpoint:
  """Finds a draft: a model by itself, or one that leans on its target.

  Args:
    reference: as `open_pretrained` takes it, or a directory that
      `draft_dir.save` wrote.
    cache_dir: where fetched files are kept.

  Returns:
    What was found.

  Raises:
    UserError: As `open_pretrained` and `draft_dir.open_draft`.
  """
  if not reference.startswith(_RANDOM):
    path = sources.resolve(reference, cache_dir=cache_dir)
    if draft_dir.is_draft(path):
      return draft_dir.open_draft(path, reference=reference)
  return open_pretrained(reference, cache_dir=cache_dir)


def _open_random(reference: str) -> Pretrained:
  match = _PRESET.fullmatch(reference)
  if match is None or match[1] not in PRESETS:
    raise UserError(
        f'{reference!r} is not random://PRESET[?seed=N] with one of the '
        f'presets {", ".join(PRESETS)}.'
    )
  config, seed = PRESETS[match[1]], int(match[2] or 0)
  return Pretrained(
      reference,
      config,
      byte_level.ByteTokenizer(),
      lambda dtype, placement: params_lib.place(
          params_lib.init(jax.random.key(seed), config, dtype),
          config,
          placement,
      ),
      lambda: np.ones(config.model_dim, np.float32),
  )
