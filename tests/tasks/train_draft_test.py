import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from speculative.bench import prompts
from speculative.errors import UserError
from speculative.tasks import train_draft
from speculative.tokenizer import byte_level
from speculative.train import plot
from speculative.train import store as store_lib

_ROOT = pathlib.Path(__file__).parents[2]
_FASTER = {
    'train.num_steps': 2,
    'train.unroll': 2,
    'train.eval_every': 2,
    'train.plot': 'no',
}


@pytest.fixture
def get_config(monkeypatch):
  monkeypatch.syspath_prepend(str(_ROOT))

  def get(**fields):
    config = importlib.import_module('configs.draft_smollm2').get_config('tiny')
    fields = {name.replace('__', '.'): x for name, x in fields.items()}
    config.update_from_flattened_dict(_FASTER | fields)
    return config

  return get


def _store(path, *, tokenizer=None, documents=6, mark='', scored='no'):
  """Writes random bytes as a store of random://tiny."""
  tokenizer = tokenizer or byte_level.ByteTokenizer().fingerprint
  writer = store_lib.Writer(path, tokenizer=tokenizer, mark=mark)
  rng = np.random.default_rng(0)
  shard = writer.add(
      [store_lib.Document(rng.integers(0, 256, 40)) for _ in range(documents)]
  )
  writer.close()
  if scored == 'yes':
    store_lib.write_scores(
        path / shard.name,
        hidden=np.zeros((40 * documents, 32), store_lib.ml_dtypes.bfloat16),
        log_norm=np.zeros(40 * documents, np.float32),
    )
  return str(path)


def _rows(path):
  lines = (path / 'metrics.jsonl').read_text().splitlines()
  return [json.loads(line) for line in lines]


@pytest.mark.slow
def test_a_run_leaves_a_draft_metrics_and_results_and_is_not_run_twice(
    get_config, tmp_path, capsys
):
  config = get_config()
  found = train_draft.run(config, tmp_path / 'run')
  assert found.exit_status == 0
  results = json.loads((tmp_path / 'run/results.json').read_text())
  for name in ('train/loss', 'train/alpha_heldout', 'train/alpha_heldout_2'):
    assert results[name] == found.results[name] > 0
  assert 'alpha' in capsys.readouterr().out
  draft = json.loads((tmp_path / 'run/draft/config.json').read_text())
  assert draft['format'] == 'speculative-draft'
  assert draft['draft']['head_size'] == 64
  rows = _rows(tmp_path / 'run')
  assert [r['train/step'] for r in rows if 'train/loss' in r] == [1, 2]
  # What is done is not done again, and its history stays.
  again = train_draft.run(config, tmp_path / 'run')
  assert again.results['train/loss'] == found.results['train/loss']
  assert _rows(tmp_path / 'run') == rows


def test_a_head_always_has_what_ends_a_text(get_config, tmp_path):
  setup = train_draft._prepare(get_config(), tmp_path / 'store')
  assert byte_level.EOS_ID in setup.head_ids
  assert len(setup.head_ids) == 64
  assert setup.store.num_documents == len(prompts.BUILTIN)


@pytest.mark.parametrize(
    'fields, said',
    [
        ({'train__store': 'nowhere'}, 'nowhere'),
        ({'train__store': ''}, 'needs a directory of training text'),
        ({'train__from_layers': (7,)}, 'has 7; the target has layers 0 to 1'),
        ({'mesh__data': 4}, 'batch_size=2 needs to be a multiple'),
        ({'mesh__model': 8}, 'of the target cannot be split over 8'),
    ],
)
def test_a_mistake_is_named_and_leaves_nothing_behind(
    get_config, tmp_path, fields, said
):
  with pytest.raises(UserError, match=said) as error:
    train_draft.run(get_config(**fields), tmp_path / 'run')
  assert '\n' not in str(error.value)
  assert not (tmp_path / 'run').exists()


def test_a_plot_that_cannot_be_drawn_is_refused_first(
    get_config, tmp_path, monkeypatch
):
  monkeypatch.setattr(plot, 'is_available', lambda: False)
  with pytest.raises(UserError, match='matplotlib'):
    train_draft.run(get_config(train__plot='yes'), tmp_path / 'run')


def test_stores_of_another_tokenizer_or_target_are_refused(
    get_config, tmp_path
):
  other = _store(tmp_path / 'a', tokenizer='other')
  with pytest.raises(UserError, match='tokenizer'):
    train_draft.run(get_config(train__store=other), tmp_path / 'run')
  other = _store(tmp_path / 'b', mark='other', scored='yes')
  with pytest.raises(UserError, match='target'):
    train_draft.run(get_config(train__store=other), tmp_path / 'run')
  one = _store(tmp_path / 'c', documents=1)
  with pytest.raises(UserError, match='1 documents, and none'):
    train_draft.run(get_config(train__store=one), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def test_the_smallest_head_is_what_ends_a_text(get_config, tmp_path):
  setup = train_draft._prepare(get_config(train__head_size=1), tmp_path / 's')
  assert setup.head_ids.tolist() == [byte_level.EOS_ID]


def _start(path):
  return subprocess.Popen(
      [
          sys.executable,
          '-m',
          'speculative.run',
          '--config=configs/draft_smollm2.py:tiny',
          f'--workdir={path}',
          '--config.train.num_steps=12',
          '--config.train.unroll=2',
          '--config.train.eval_every=12',
          '--config.train.plot=no',
          '--config.train.checkpoint_minutes=1e-9',
      ],
      cwd=_ROOT,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.PIPE,
      text=True,
  )


def _losses(path):
  return {
      r['train/step']: r['train/loss'] for r in _rows(path) if 'train/loss' in r
  }


@pytest.mark.slow
def test_a_process_killed_in_the_middle_goes_on_with_the_same_losses(tmp_path):
  """Kill -9, at whatever step; what follows equals a run never killed."""
  whole = _start(tmp_path / 'whole')
  cut = _start(tmp_path / 'cut')
  metrics = tmp_path / 'cut' / 'metrics.jsonl'
  deadline = time.monotonic() + 120
  while not (metrics.exists() and len(metrics.read_text().split('\n')) > 5):
    assert cut.poll() is None, cut.stderr.read()
    assert time.monotonic() < deadline
    time.sleep(0.005)
  os.kill(cut.pid, signal.SIGKILL)
  cut.communicate()
  before = _losses(tmp_path / 'cut')
  assert 1 <= max(before) < 12
  again = _start(tmp_path / 'cut')
  for process in (whole, again):
    _, errors = process.communicate()
    assert process.returncode == 0, errors
  found, wanted = _losses(tmp_path / 'cut'), _losses(tmp_path / 'whole')
  assert sorted(found) == list(range(1, 13))
  assert found == wanted


@pytest.mark.slow
def test_a_draft_can_be_trained_on_where_its_shape_is_the_same(
    get_config, tmp_path
):
  train_draft.run(get_config(), tmp_path / 'first')
  again = {
      'train__init': 'draft',
      'train__from_draft': str(tmp_path / 'first' / 'draft'),
      'train__from_layers': (),
  }
  first = _rows(tmp_path / 'first')[-1]
  train_draft.run(get_config(**again), tmp_path / 'second')
  second = _rows(tmp_path / 'second')[0]
  # Drafts are saved in bfloat16.
  assert (first['train/step'], second['train/step']) == (2, 0)
  np.testing.assert_allclose(
      second['train/alpha_heldout'], first['train/alpha_heldout'], rtol=0.01
  )
  with pytest.raises(UserError, match='head_size=64, .* makes one with 32'):
    train_draft.run(
        get_config(**again, train__head_size=32), tmp_path / 'third'
    )
