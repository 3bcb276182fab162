"""What is run on every mesh."""

import ast
import importlib
import pathlib
import re
import sys
import types

from absl import flags
import pytest

from speculative import config as config_lib

_ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch) -> types.ModuleType:
  """The script as a module whose flags have their defaults."""

  def define(name, default, help):  # noqa: A002
    del name, help
    return types.SimpleNamespace(value=default)

  # Flags of scripts would meet in one process.
  monkeypatch.setattr(flags, 'DEFINE_string', define)
  monkeypatch.setattr(flags, 'DEFINE_integer', define)
  monkeypatch.syspath_prepend(str(_ROOT))
  monkeypatch.syspath_prepend(str(_ROOT / 'scripts'))
  yield importlib.import_module('check_meshes')
  sys.modules.pop('check_meshes')


@pytest.mark.parametrize('drafter', ['lookup', 'lm'])
def test_a_run_has_the_drafter_it_names(script, tmp_path, drafter):
  command = script._command(
      tmp_path, data=2, model=4, drafter=drafter, temperature=0.8
  )
  (variant,) = (x for x in command if x.startswith('--config='))
  path, _, variant = variant.removeprefix('--config=').rpartition(':')
  module = importlib.import_module(f'configs.{pathlib.Path(path).stem}')
  config = module.get_config(variant)
  flat = {}
  for argument in command:
    if match := re.fullmatch(r'--config\.([\w.]+)=(.*)', argument, re.DOTALL):
      name, value = match.groups()
      like = config
      for part in name.split('.'):
        like = like[part]
      is_text = isinstance(like, str)
      flat[name] = value if is_text else ast.literal_eval(value)
  config.update_from_flattened_dict(flat)
  assert config.task == 'generate'
  got = config_lib.parse(config)
  assert (got.drafter.label, got.drafter.shape) == (drafter, 'chain')
  assert got.drafter.uses_model == (drafter == 'lm')
