"""Runs every config's `:tiny`, and reads every other variant."""

from collections.abc import Callable
import importlib
import json
import pathlib
import types

from ml_collections import config_dict
import pytest

from speculative import config as config_lib
from speculative import run
from speculative.bench import bandwidth
from speculative.bench import task_sets
from speculative.checkpoints import pretrained
from speculative.tasks import benchmark_settings
from speculative.tasks import plan

_ROOT = pathlib.Path(__file__).parent.parent
_NAMES = sorted(
    path.stem
    for path in (_ROOT / 'configs').glob('*.py')
    # What configs share; there is nothing in them to run.
    if path.stem not in ('common', 'benchmarks')
)
# Keys a task cannot do without; what else it writes is for its own tests.
_KEYS = {
    'generate': {'decode/tokens_per_s', 'decode/tokens_per_round'},
    'benchmark': {'rows'},
    'build_datastore': {'datastore/tokens', 'datastore/build_tokens_per_s'},
    'collect': {'collect/documents', 'collect/tokens'},
    'plan': {'plan/all_reduces_per_round', 'plan/hbm_per_chip_gib', 'rows'},
    'train_draft': {'train/loss', 'train/alpha_heldout'},
    'verify': {'verify/passed', 'verify/cases', 'lossless/greedy_equal'},
}
# Settings that only make a run longer.
_FASTER = {'verify_smollm2': {'verify.num_samples': 2040}}


def _module(name: str) -> types.ModuleType:
  return importlib.import_module(f'configs.{name}')


@pytest.fixture(autouse=True)
def _on_path(monkeypatch):
  """Lets configs import one another, as the command line does."""
  monkeypatch.syspath_prepend(str(_ROOT))


@pytest.fixture
def run_main(tmp_path, monkeypatch) -> Callable[..., int]:
  """Calls main with a config instead of flags."""

  def call(config: config_dict.ConfigDict) -> int:
    flag = types.SimpleNamespace
    monkeypatch.setattr(run.logging, 'set_verbosity', lambda level: None)
    monkeypatch.setattr(run, '_CONFIG', flag(value=config))
    monkeypatch.setattr(run, '_WORKDIR', flag(value=str(tmp_path / 'run')))
    monkeypatch.setattr(bandwidth, '_BYTES', 1 << 20)
    return run.main(['run'])

  return call


def _variants() -> list[tuple[str, str]]:
  """Returns every config with every variant its docstring names."""
  found = []
  for name in _NAMES:
    source = (_ROOT / 'configs' / f'{name}.py').read_text()
    for variant in _documented(source):
      found.append((name, variant))
  return found


def _documented(source: str) -> list[str]:
  docstring = source.split('"""')[1]
  words = [line.split()[0] for line in docstring.splitlines() if line.strip()]
  return ['full'] + [word[1:] for word in words if word.startswith(':')]


def test_there_are_configs_to_test():
  assert {'quickstart', 'qwen_coder', 'verify_smollm2'} <= set(_NAMES)


@pytest.mark.slow
@pytest.mark.parametrize('name', _NAMES)
def test_tiny_runs_and_what_it_wrote_reads_back(
    name, run_main, tmp_path, capsys
):
  config = _module(name).get_config('tiny')
  config.update_from_flattened_dict(_FASTER.get(name, {}))
  assert run_main(config) == 0
  path = tmp_path / 'run'
  written = json.loads((path / 'config.json').read_text())
  # By way of JSON, which turns tuples into lists.
  assert written == json.loads(json.dumps(config.to_dict()))
  results = json.loads((path / 'results.json').read_text())
  assert _KEYS[config.task] <= set(results)
  assert {'env/jax', 'env/device_kind', 'env/dtype'} <= set(results)
  assert results.get('lossless/greedy_equal', True) is True
  if config.task == 'verify':
    assert results['verify/passed'] is True
    names = {row['row/name'] for row in results['rows']}
    assert len(names) == results['verify/cases']
    assert len(names) >= (10 if name == 'verify_smollm2' else 1)
  lines = (path / 'metrics.jsonl').read_text().splitlines()
  assert lines
  assert all('time/elapsed_s' in json.loads(line) for line in lines)
  assert capsys.readouterr().out.strip()


@pytest.mark.parametrize('name, variant', _variants())
def test_every_variant_parses_without_opening_a_model(
    name, variant, monkeypatch
):
  monkeypatch.setattr(
      pretrained, 'open_pretrained', lambda *a, **k: pytest.fail('opened')
  )
  config = _module(name).get_config(variant)
  assert config.task in run._TASKS
  if config.task == 'plan':
    models = plan.shapes(config)
    assert models['draft'].num_layers < models['target'].num_layers
    return
  parsed = config_lib.parse(config)
  assert parsed.target
  # What a package has is there only where it is installed.
  if config.data.prompts != 'package':
    assert config_lib.load_prompts(config)
  if config.task == 'benchmark':
    assert benchmark_settings.settings_of(config, parsed.drafter)


@pytest.mark.parametrize('name', _NAMES)
def test_tiny_needs_no_download(name):
  config = _module(name).get_config('tiny')
  if config.task != 'plan':
    assert config.target.model.startswith('random://')
  assert not config.drafter.model or config.drafter.model.startswith('random:')


@pytest.mark.parametrize('name', _NAMES)
def test_the_docstring_names_the_command_and_every_variant(name):
  module = _module(name)
  command = f'python -m speculative.run --config=configs/{name}.py'
  assert command in module.__doc__
  assert module.__doc__.splitlines()[0].endswith('?'), 'the question it answers'
  assert set(_documented(f'"""{module.__doc__}"""')) == set(module._VARIANTS)


@pytest.mark.parametrize('name', _NAMES)
def test_an_unknown_variant_lists_the_known_ones(name):
  with pytest.raises(ValueError, match="'tinny' is not one of.*'tiny'"):
    _module(name).get_config('tinny')


@pytest.mark.parametrize('name', _NAMES)
def test_the_default_is_the_full_variant(name):
  module = _module(name)
  assert module.get_config().to_dict() == module.get_config('full').to_dict()


@pytest.mark.parametrize('name', ['common', *_NAMES])
def test_a_config_holds_plain_values_and_is_locked(name):
  config = _module(name).get_config()
  json.dumps(config.to_dict())
  with pytest.raises((AttributeError, KeyError), match='Did you mean'):
    config.decode.num_draft_token = 3


@pytest.mark.parametrize('name', ['common', 'benchmarks', *_NAMES])
def test_a_config_imports_nothing_of_the_package(name):
  source = (_ROOT / 'configs' / f'{name}.py').read_text()
  imports = [
      line.split()[1]
      for line in source.splitlines()
      if line.startswith(('import ', 'from '))
  ]
  assert {i.split('.')[0] for i in imports} <= {'ml_collections', 'configs'}


def test_every_task_set_has_a_benchmark_with_its_papers_settings():
  decoding = _module('benchmarks').DECODING
  assert set(decoding) == set(task_sets.TASK_SETS) - {'none'}
  for name, settings in decoding.items():
    config = _module(f'bench_{name}').get_config()
    assert config.data.task_set == name
    flat = config.to_dict()
    for field, value in settings.items():
      part, key = field.split('.')
      assert flat[part][key] == value
    stops = config.decode.stop_strings
    assert stops == (task_sets.STOPS.get(name, ()) if stops else ())


def test_defaults_are_the_plainest_behaviour():
  config = _module('common').get_config()
  assert config.drafter.kind == 'none'
  assert config.decode.temperature == 0
  assert config.decode.batch_size == 1
  assert config.target.dtype == 'auto'
