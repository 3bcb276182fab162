"""Picks the kind of tokenizer that a checkpoint brings."""

from collections.abc import Mapping
import os
import pathlib
from typing import Any

from speculative.errors import UserError
from speculative.tokenizer import base
from speculative.tokenizer import bpe
from speculative.tokenizer import gguf_metadata
from speculative.tokenizer import spm

_GGUF_MODELS = {'gpt2': bpe.from_gguf, 'llama': spm.from_gguf}


def load(source: str | os.PathLike[str] | Mapping[str, Any]) -> base.Tokenizer:
  """Returns the tokenizer of a checkpoint.

  Args:
    source: a directory in the Hugging Face layout, or the metadata of a GGUF
      file as a dict.

  Returns:
    The tokenizer.

  Raises:
    UserError: See from_directory and from_gguf.
  """
  if isinstance(source, Mapping):
    return from_gguf(source)
  return from_directory(source)


def from_gguf(fields: Mapping[str, Any]) -> base.Tokenizer:
  """Returns the tokenizer described by a GGUF file's metadata.

  Args:
    fields: from a metadata name ('tokenizer.ggml.tokens') to a Python value.

  Returns:
    The tokenizer.

  Raises:
    UserError: If the kind of tokenizer or its split is not known, or fields
      are absent or do not fit each other.
  """
  kind = gguf_metadata.required(fields, 'model')
  if kind not in _GGUF_MODELS:
    raise UserError(
        f'The GGUF file has tokenizer.ggml.model = {kind!r}; known are'
        f' {sorted(_GGUF_MODELS)}. Use another model.'
    )
  return _GGUF_MODELS[kind](fields)


def from_directory(path: str | os.PathLike[str]) -> base.Tokenizer:
  """Returns the tokenizer in a directory of the Hugging Face layout.

  Args:
    path: of the directory. tokenizer.json is preferred to tokenizer.model,
      since fine-tuned checkpoints put their added tokens there.

  Returns:
    The tokenizer.

  Raises:
    UserError: If neither file is there, or one is damaged or not supported.
  """
  directory = pathlib.Path(path)
  if (directory / 'tokenizer.json').is_file():
    return bpe.from_directory(directory)
  if (directory / 'tokenizer.model').is_file():
    return spm.from_directory(directory)
  raise UserError(
      f'{directory} has neither tokenizer.json nor tokenizer.model; fetch one'
      ' of them from the checkpoint into that directory.'
  )
