"""The script that made tests/data/tiny_pair, as far as it takes no time."""

import dataclasses
import importlib
import pathlib

import numpy as np
import pytest

from speculative import tokenizer as tokenizer_lib
from speculative.testing import tiny
from speculative.train.config import TrainConfig

_ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch):
  """The script as a module."""
  monkeypatch.syspath_prepend(str(_ROOT / 'scripts'))
  return importlib.import_module('train_tiny_pair')


def test_the_tokenizer_is_the_one_in_the_repository(script, tmp_path):
  script.write_tokenizer(tmp_path)
  there = tokenizer_lib.load(_ROOT / 'tests/data/tiny_pair/target')
  assert tokenizer_lib.load(tmp_path).fingerprint == there.fingerprint


def test_files_are_tokens_with_an_end_each(script, tmp_path):
  script.write_tokenizer(tmp_path)
  (tmp_path / 'a.py').write_text('</s>')
  (tmp_path / 'b.py').write_text('x')
  tokens = script.read_text(tmp_path, [tmp_path / 'a.py', tmp_path / 'b.py'])
  # What only looks like an end is none.
  assert (tokens == 256).tolist() == [False] * 4 + [True, False, True]


def test_a_target_without_its_log_is_one_line_before_any_work(
    script, tmp_path, monkeypatch
):
  """A fresh checkout: its target cannot get a README.md."""

  def fail(*args, **kwargs):
    raise AssertionError('something is made')

  for name in ('_make_target', '_run'):
    monkeypatch.setattr(script, name, fail)
  out = _ROOT / 'tests/data/tiny_pair'
  with pytest.raises(SystemExit, match='remove --out') as stopped:
    script.make(out, tmp_path / 'workdir')
  assert '\n' not in stopped.value.code
  assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_training_learns_what_comes_next(script):
  text = np.tile(np.arange(10, dtype=np.int32), 30)
  config = TrainConfig(
      store='builtin',
      num_steps=40,
      batch_size=4,
      seq_len=8,
      learning_rate=0.02,
      warmup_steps=2,
      dtype='float32',
  )
  model = dataclasses.replace(tiny.TARGET, num_layers=1)
  _, history = script.train(text, text, model, config)
  ((step, loss, held_out),) = history
  assert step == 40
  # Not knowing costs log(10) = 2.3; the loss is the mean over all updates.
  assert held_out < min(loss, 0.5)
