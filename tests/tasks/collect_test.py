import importlib
import json
import os
import pathlib
import signal

import numpy as np
import pytest

from speculative import language_model
from speculative.errors import UserError
from speculative.tasks import collect
from speculative.train import rolling
from speculative.train import store

_ROOT = pathlib.Path(__file__).parents[2]
_PLANTED = 'assert area(3, 4) == 12  # a solution nobody shall train on'


@pytest.fixture
def run(tmp_path, monkeypatch):
  """Runs the task on a few prompts; returns its results."""
  monkeypatch.syspath_prepend(str(_ROOT))
  prompts = [f'prompt number {i}, go on' for i in range(6)]
  _write(tmp_path / 'some.jsonl', [{'prompt': text} for text in prompts])

  def call(workdir='run', *, status=0, **fields):
    config = importlib.import_module('configs.collect_smollm2').get_config(
        'tiny'
    )
    config.update_from_flattened_dict(
        {
            'target.dtype': 'float32',
            'collect.texts': (),
            'collect.prompts': (f'{tmp_path}/some.jsonl',),
            'collect.temperatures': (0.0, 1.0),
            'collect.shard_documents': 5,
            'collect.score': 'no',
        }
        | {
            name if '.' in name else f'collect.{name}': value
            for name, value in fields.items()
        }
    )
    found = collect.run(config, tmp_path / workdir)
    assert found.exit_status == status
    return found.results

  return call


def _write(path, rows):
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))


def _tokens(path):
  found = store.open_store(path)
  return [found.document(i).tokens.tolist() for i in range(found.num_documents)]


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_to_the_same_text(
    run, tmp_path, monkeypatch
):
  whole = run('whole', score='yes')
  assert whole['collect/documents'] == whole['collect/made_documents'] == 12
  # What a kill in the middle of a shard leaves: the shards before it.
  generate = rolling.Roller.generate
  calls = []

  def interrupted(self, requests, **options):
    calls.append(len(requests))
    if len(calls) == 1:
      os.kill(os.getpid(), signal.SIGTERM)
    return generate(self, requests, **options)

  monkeypatch.setattr(rolling.Roller, 'generate', interrupted)
  stopped = run('parts', score='yes', status=143)
  assert not (tmp_path / 'parts/results.json').exists()
  assert calls == [5]
  assert stopped['collect/made_documents'] == 5
  assert stopped['collect/planned_documents'] == 12
  assert stopped['score/new_tokens'] == 0
  assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
  finished = run('parts', score='yes')
  assert (tmp_path / 'parts/results.json').exists()
  assert calls == [5, 5, 2]
  assert finished['collect/made_documents'] == 12
  assert _tokens(tmp_path / 'parts/store') == _tokens(tmp_path / 'whole/store')
  found = store.open_store(tmp_path / 'parts/store')
  assert found.is_scored
  np.testing.assert_array_equal(
      found.document(7).log_norm,
      store.open_store(tmp_path / 'whole/store').document(7).log_norm,
  )


@pytest.mark.slow
def test_text_that_was_not_scored_can_be_later(run, tmp_path):
  run(num_documents=5)
  assert not store.open_store(tmp_path / 'run/store').is_scored
  found = run(num_documents=5, score='yes')
  assert found['collect/new_tokens'] == 0
  assert found['score/new_tokens'] == found['collect/tokens']
  assert store.open_store(tmp_path / 'run/store').is_scored


@pytest.mark.slow
def test_evaluated_text_is_left_out_and_reported(run, tmp_path):
  (tmp_path / 'a.py').write_text('x = 1\n' * 200 + _PLANTED + '\n')
  _write(tmp_path / 'held.jsonl', [{'prompt': 'p', 'test': _PLANTED}])
  found = run(
      prompts=(),
      texts=(f'{tmp_path}/a.py',),
      text_use='plain',
      text_tokens=60,
      held_out=(f'{tmp_path}/held.jsonl',),
  )
  assert found['collect/contaminated_prompts'] == 1
  assert found['collect/contaminated_documents'] == 0
  assert found['collect/documents'] > 2
  report = (tmp_path / 'run/collect.md').read_text()
  assert 'held.jsonl:1' in report
  assert 'a.py#' in report


@pytest.mark.parametrize(
    ('fields', 'said'),
    [
        ({'held_out': ()}, 'held_out is empty'),
        ({'held_out': ('absent.jsonl',)}, 'absent.jsonl cannot be read'),
        ({'batch_size': 0}, 'batch_size needs to be >= 1'),
        ({'num_documents': -1}, 'num_documents needs to be >= 0'),
        ({'score': 'maybe'}, "score is 'maybe'"),
        ({'text_use': 'x'}, "text_use is 'x'"),
        ({'target.layers': 'scanned'}, "target.layers is 'scanned'"),
        ({'num_tokens': 5000}, 'was made for'),
        ({'prompts': ()}, 'nothing to begin with.*config.collect.answered'),
        ({'max_prompt_tokens': 2}, 'nothing to begin with'),
    ],
)
def test_mistakes_are_found_before_anything_is_written(
    run, tmp_path, fields, said
):
  with pytest.raises(UserError, match=said):
    run(**fields)
  assert not (tmp_path / 'run').exists()


def test_answered_prompts_that_are_too_long_are_counted(run, tmp_path):
  rows = [{'prompt': 'x' * n, 'answer': 'yes'} for n in (4, 20, 21)]
  _write(tmp_path / 'answered.jsonl', rows)
  found = run(
      prompts=(), answered=(f'{tmp_path}/answered.jsonl',), text_tokens=20
  )
  assert found['collect/documents'] == 1
  assert found['collect/too_long_prompts'] == 2


@pytest.fixture
def no_weights(monkeypatch):
  """Ends a run where it would read weights."""

  class Read(Exception):
    pass

  def read(self):
    raise Read

  monkeypatch.setattr(language_model.LanguageModel, 'load_weights', read)
  return Read


@pytest.mark.parametrize(
    ('fields', 'said'),
    [
        ({'held_out': ('a/held.jsonl',)}, "held_out 'none', not"),
        ({'target.dtype': 'bfloat16'}, "dtype 'float32', not 'bfloat16'"),
        ({'batch_size': 3}, "batch_size '4', not '3'"),
    ],
)
def test_a_store_of_another_run_is_refused_before_weights_are_read(
    run, tmp_path, monkeypatch, no_weights, fields, said
):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'a').mkdir()
  _write(tmp_path / 'a/held.jsonl', [{'prompt': 'none of the others'}])
  with pytest.raises(no_weights):
    run()
  before = (tmp_path / 'run/config.json').read_text()
  with pytest.raises(UserError, match=said):
    run(**fields)
  assert (tmp_path / 'run/config.json').read_text() == before


def test_held_out_files_are_known_by_what_they_hold(run, tmp_path, no_weights):
  held = tmp_path / 'held.jsonl'
  for text, error in (('one', no_weights), ('two', UserError)):
    _write(held, [{'prompt': f'{text}, unlike the others'}])
    with pytest.raises(error):
      run(held_out=(str(held),))


def test_a_workdir_that_cannot_be_leaves_no_store(run, tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(UserError, match='cannot be written'):
    run('file', store=f'{tmp_path}/store')
  assert not (tmp_path / 'store').exists()


def test_a_file_cannot_be_trained_and_evaluated_on(run, tmp_path):
  with pytest.raises(UserError, match='in config.collect.held_out too'):
    run(held_out=(f'{tmp_path}/some.jsonl',))
  copy = tmp_path / 'copy.jsonl'
  copy.write_text((tmp_path / 'some.jsonl').read_text())
  with pytest.raises(UserError, match='some.jsonl is evaluated: 6 of its 6'):
    run(held_out=(str(copy),))
