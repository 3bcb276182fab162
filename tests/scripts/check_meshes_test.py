"""What is run on every mesh."""

import importlib
import pathlib
import sys
import types

from absl import flags
import pytest

from speculative import config as config_lib

_SCRIPTS = pathlib.Path(__file__).parents[2] / 'scripts'


@pytest.fixture
def script(monkeypatch) -> types.ModuleType:
  """The script as a module whose flags have their defaults."""

  def define(name, default, help):  # noqa: A002
    del name, help
    return types.SimpleNamespace(value=default)

  # Flags of scripts would meet in one process.
  monkeypatch.setattr(flags, 'DEFINE_string', define)
  monkeypatch.setattr(flags, 'DEFINE_integer', define)
  monkeypatch.syspath_prepend(str(_SCRIPTS))
  yield importlib.import_module('check_meshes')
  sys.modules.pop('check_meshes')


@pytest.mark.parametrize('drafter', ['lookup', 'lm'])
def test_a_run_has_the_drafter_it_names(script, tmp_path, config_of, drafter):
  command = script._command(
      tmp_path, data=2, model=4, drafter=drafter, temperature=0.8
  )
  config = config_of(' '.join(command))
  assert config.task == 'generate'
  got = config_lib.parse(config)
  assert (got.drafter.label, got.drafter.shape) == (drafter, 'chain')
  assert got.drafter.uses_model == (drafter == 'lm')
