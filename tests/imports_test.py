"""Holds the direction of imports inside the package, and that they are lazy.

The table of levels is the design: a module imports what lies lower. Packages on
one level from `drafting` up may use one another as long as no circle comes of
it. A new package has to be given a level here.
"""

import ast
from collections.abc import Iterable
from collections.abc import Mapping
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

_ROOT = pathlib.Path(__file__).parent.parent
_PACKAGE = 'speculative'

# '' is speculative/__init__.py, the public API.
_LEVELS = {
    'errors': 0,
    'chips': 1,
    'hlo': 1,
    'rendezvous': 1,
    'retrieval': 1,
    'sharding': 1,
    'theory': 1,
    'tokenizer': 1,
    'topology': 1,
    'watchdog': 1,
    'models': 2,
    'decoding': 3,
    'latency': 3,
    'bench': 4,
    'calibration': 4,
    'calibration_report': 4,
    'checkpoints': 4,
    'drafting': 4,
    'train': 4,
    'planning': 5,
    'testing': 5,
    'api': 6,
    'config': 6,
    'language_model': 6,
    'tasks': 7,
    '': 7,
    'run': 8,
}
# Below this level, packages of one level know nothing of each other.
_FIRST_SHARED_LEVEL = 4

# What a module imports of the package: importer -> imported, dotted names.
Graph = Mapping[str, frozenset[str]]


def _read_graph(root: pathlib.Path) -> Graph:
  """Reads who imports whom, also inside functions, without importing."""
  sources = {}
  for path in sorted((root / _PACKAGE).rglob('*.py')):
    parts = path.relative_to(root).with_suffix('').parts
    if parts[-1] == '__init__':
      parts = parts[:-1]
    sources['.'.join(parts)] = path.read_text()
  return {
      name: frozenset(
          target
          for target in _imported(name, source, sources)
          if target != name
      )
      for name, source in sources.items()
  }


def _imported(
    importer: str, source: str, modules: Iterable[str]
) -> Iterable[str]:
  """Yields the package's modules that one source imports."""
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      if node.level:
        raise ValueError(f'{importer}:{node.lineno} is a relative import.')
      # The module itself when the name is no module: a class, a function.
      names = [f'{node.module}.{alias.name}' for alias in node.names]
      names = [name if name in modules else node.module for name in names]
    else:
      continue
    for name in names:
      if name == _PACKAGE or name.startswith(f'{_PACKAGE}.'):
        yield name


def _part(module: str) -> str:
  """Returns the part of the package a module lies in, '' for its root."""
  return module.split('.')[1] if '.' in module else ''


def _wrong_directions(graph: Graph) -> list[str]:
  """Returns a line for each import that does not point down."""
  wrong = []
  for importer, targets in sorted(graph.items()):
    above = _LEVELS[_part(importer)]
    for target in sorted(targets):
      below = _LEVELS[_part(target)]
      inside = _part(importer) == _part(target)
      peers = above == below >= _FIRST_SHARED_LEVEL
      if not (inside or peers or below < above):
        wrong.append(
            f'{importer} (level {above}) imports {target} (level {below})'
        )
  return wrong


def _find_cycle(graph: Graph) -> list[str]:
  """Returns the names along one circle of the graph, or an empty list."""
  finished = set()

  def visit(name: str, path: list[str]) -> list[str]:
    if name in path:
      return [*path[path.index(name) :], name]
    if name in finished:
      return []
    for target in sorted(graph.get(name, ())):
      if cycle := visit(target, [*path, name]):
        return cycle
    finished.add(name)
    return []

  for name in sorted(graph):
    if cycle := visit(name, []):
      return cycle
  return []


def _part_graph(graph: Graph) -> Graph:
  """Returns the graph with every module replaced by the part it lies in."""
  parts = {}
  for importer, targets in graph.items():
    parts.setdefault(_part(importer), set()).update(map(_part, targets))
  return {part: frozenset(targets - {part}) for part, targets in parts.items()}


def _write_package(root: pathlib.Path, **sources: str) -> Graph:
  """Writes modules named like `tasks__generate` and reads their graph."""
  for name, source in sources.items():
    path = root / _PACKAGE / f'{name.replace("__", "/")}.py'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
  return _read_graph(root)


def _run_python(source: str) -> subprocess.CompletedProcess:
  """Runs code where every start of a jax backend fails."""
  return subprocess.run(
      [sys.executable, '-c', textwrap.dedent(source)],
      env={**os.environ, 'JAX_PLATFORMS': 'no_such_platform'},
      cwd=_ROOT,
      capture_output=True,
      text=True,
      check=False,
  )


def test_every_part_of_the_package_has_a_level():
  parts = {_part(module) for module in _read_graph(_ROOT)}
  assert parts - set(_LEVELS) == set(), 'give it a level in _LEVELS'


def test_imports_point_downwards():
  assert _wrong_directions(_read_graph(_ROOT)) == []


def test_modules_import_in_no_circle():
  assert _find_cycle(_read_graph(_ROOT)) == []


def test_parts_of_the_package_import_in_no_circle():
  assert _find_cycle(_part_graph(_read_graph(_ROOT))) == []


@pytest.mark.slow
def test_importing_every_module_starts_no_backend():
  modules = sorted(_read_graph(_ROOT))
  result = _run_python(f"""
      import importlib
      for module in {modules!r}:
        importlib.import_module(module)
  """)
  assert result.returncode == 0, result.stderr


def test_starting_a_backend_fails_where_the_imports_are_tried():
  result = _run_python('import jax.numpy as jnp; jnp.zeros(())')
  assert 'no_such_platform' in result.stderr
  assert result.returncode != 0


@pytest.mark.parametrize(
    'line',
    [
        'import speculative.tasks.generate',
        'from speculative.tasks import generate',
        'from speculative.tasks.generate import run',
        'def f():\n  from speculative.tasks import generate',
    ],
    ids=['import', 'from', 'name from a module', 'inside a function'],
)
def test_an_upward_import_is_found_in_every_form(tmp_path, line):
  graph = _write_package(tmp_path, models__rope=line, tasks__generate='')
  assert _wrong_directions(graph) == [
      'speculative.models.rope (level 2) imports '
      'speculative.tasks.generate (level 7)'
  ]


def test_peers_may_import_one_another_only_from_drafting_up(tmp_path):
  graph = _write_package(
      tmp_path,
      bench__timing='from speculative.drafting import base',
      drafting__base='',
      tokenizer__base='from speculative import theory',
      theory='',
  )
  assert _wrong_directions(graph) == [
      'speculative.tokenizer.base (level 1) imports '
      'speculative.theory (level 1)'
  ]


def test_a_circle_is_found_between_modules(tmp_path):
  graph = _write_package(
      tmp_path,
      models__rope='from speculative.models import layers',
      models__layers='from speculative.models import attention',
      models__attention='from speculative.models import rope',
  )
  assert _find_cycle(graph) == [
      'speculative.models.attention',
      'speculative.models.rope',
      'speculative.models.layers',
      'speculative.models.attention',
  ]


def test_a_circle_is_found_between_parts_without_one_between_modules(tmp_path):
  graph = _write_package(
      tmp_path,
      bench__timing='from speculative.drafting import base',
      bench__report='',
      drafting__base='',
      drafting__lm='from speculative.bench import report',
  )
  assert _find_cycle(graph) == []
  assert _find_cycle(_part_graph(graph)) == ['bench', 'drafting', 'bench']


def test_a_relative_import_is_refused(tmp_path):
  with pytest.raises(ValueError, match='rope:1 is a relative import'):
    _write_package(tmp_path, models__rope='from . import layers')
