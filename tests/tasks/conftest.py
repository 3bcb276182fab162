"""Configs of tasks over a random model of a few thousand weights."""

from collections.abc import Callable
from collections.abc import Sequence
import importlib
import json
import pathlib

from ml_collections import config_dict
import pytest

_ROOT = pathlib.Path(__file__).parents[2]

# Float32, where equality holds; one shape, so that tests share programs.
_SMALL = {
    'target.dtype': 'float32',
    'decode.max_new_tokens': 16,
    'bench.repeats': 1,
}


@pytest.fixture
def get_config(monkeypatch) -> Callable[..., config_dict.ConfigDict]:
  """Returns quickstart:tiny with fields set by their dotted names."""
  monkeypatch.syspath_prepend(str(_ROOT))

  def get(fields: dict | None = None) -> config_dict.ConfigDict:
    module = importlib.import_module('configs.quickstart')
    config = module.get_config('tiny')
    config.update_from_flattened_dict(_SMALL | (fields or {}))
    return config

  return get


@pytest.fixture
def write_prompts(tmp_path) -> Callable[[Sequence[str]], str]:
  """Writes texts to go on from and returns the file's name."""

  def write(texts: Sequence[str]) -> str:
    path = tmp_path / 'some_prompts.jsonl'
    path.write_text(''.join(json.dumps({'prompt': t}) + '\n' for t in texts))
    return str(path)

  return write
