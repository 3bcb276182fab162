"""Drafters that cannot be: one line, nothing read or written."""

import importlib
import pathlib
import re
import types

import pytest

from speculative import api
from speculative import run
from speculative.drafting import config as drafter_config

_ROOT = pathlib.Path(__file__).parent.parent
_PAIR = _ROOT / 'tests/data/tiny_pair'
_LOG_LINE = re.compile(r'[IWEF]\d{4} |WARNING: Logging before flag parsing')
_TRAINED = {
    'target.model': str(_PAIR / 'target'),
    'drafter.kind': 'lm',
    'drafter.model': str(_PAIR / 'draft'),
}
_RANDOM = {'drafter.kind': 'lm', 'drafter.model': 'random://tiny_draft'}


def _drawn(*widths, num):
  return {
      'drafter.shape': 'drawn_tree',
      'drafter.widths': widths,
      'decode.num_draft_tokens': num,
  }


def _tree(width):
  return {
      'drafter.shape': 'tree',
      'drafter.levels': 1,
      'drafter.width': width,
      'decode.num_draft_tokens': width,
  }


@pytest.fixture
def call(monkeypatch, tmp_path, capsys):
  """Calls main with fields of quickstart:tiny; weights must not be read."""
  monkeypatch.syspath_prepend(str(_ROOT))
  monkeypatch.setattr(run.logging, 'set_verbosity', lambda level: None)

  def load(self):
    raise AssertionError('weights are read')

  monkeypatch.setattr(api.LanguageModel, 'load_weights', load)

  def call(fields):
    config = importlib.import_module('configs.quickstart').get_config('tiny')
    config.update_from_flattened_dict(fields)
    flag = types.SimpleNamespace
    monkeypatch.setattr(run, '_CONFIG', flag(value=config))
    monkeypatch.setattr(run, '_WORKDIR', flag(value=str(tmp_path / 'run')))
    status = run.main(['run'])
    return status, *capsys.readouterr()

  return call


@pytest.mark.parametrize('task', ['generate', 'benchmark', 'verify'])
@pytest.mark.parametrize(
    'fields, fragment',
    [
        (_TRAINED | _drawn(2, 1, num=4), 'leans on its target and draws no'),
        (_RANDOM | _drawn(300, num=300), 'the vocabulary has'),
        (_TRAINED | _tree(65), 'width is 65, but'),
        ({'drafter.kind': 'bigram'}, 'needs a table; set config.drafter.table'),
        (
            {'drafter.kind': 'bigram', 'drafter.table': 'no/such'},
            'there is no bigram table no/such; build it with',
        ),
    ],
    ids=[
        'trained',
        'wider than the vocabulary',
        'wider than the head',
        'no table named',
        'no table there',
    ],
)
def test_a_tree_that_cannot_be_drafted_is_one_line(
    call, monkeypatch, tmp_path, task, fields, fragment
):
  # The vocabulary of bytes is larger than the trees that are allowed.
  monkeypatch.setattr(drafter_config, 'MOST_DRAFT_TOKENS', 512)
  status, out, err = call(
      fields | {'task': task, 'bench.calibration_prompts': 0}
  )
  assert (status, out) == (1, '')
  (line,) = [x for x in err.splitlines() if not _LOG_LINE.match(x)]
  assert line.startswith('error: ')
  assert fragment in line
  assert not (tmp_path / 'run').exists()


def test_a_tree_as_wide_as_the_head_is_drafted(call):
  with pytest.raises(AssertionError, match='weights are read'):
    call(_TRAINED | _tree(64))
