import dataclasses
import os
import signal
import types

import jax
import numpy as np
import pytest

from speculative.errors import UserError
from speculative.models.draft import DraftConfig
from speculative.models.draft import DraftModel
from speculative.sharding import Placement
from speculative.testing import tiny
from speculative.train import checkpoint
from speculative.train import loop
from speculative.train import start
from speculative.train.config import TrainConfig
from speculative.train.data import Packer
from speculative.train.step import Program

_TRAIN = TrainConfig(
    store='none',
    num_steps=4,
    warmup_steps=2,
    batch_size=2,
    seq_len=8,
    unroll=2,
    dtype='float32',
    log_every=1,
    eval_every=2,
    eval_batches=2,
    # After every step.
    checkpoint_minutes=1e-9,
)
_MODEL = DraftModel(
    DraftConfig(
        dataclasses.replace(tiny.TARGET, num_layers=1),
        target_dim=16,
        head_size=13,
    )
)


class _Killed(BaseException):
  """What a test ends a run with in the middle of a step."""


@pytest.fixture
def store(make_store, target):
  return make_store([9, 4, 12, 7, 5, 11], scores='target', target=target)


@pytest.fixture(scope='module')
def program():
  """Compiled once: what a run computes does not depend on the object."""
  return Program(_TRAIN, _MODEL, num_domains=2)


@pytest.fixture(scope='module')
def start_of(target):
  """What is frozen, and the weights to start from."""
  ids_W = np.arange(13, dtype=np.int32)
  params = start.init_params(
      jax.random.key(0), _MODEL, target=target.params, head_ids=ids_W
  )
  frozen = start.freeze(_MODEL, ids_W, target.params, keep='shared')
  return frozen, params


@pytest.fixture
def launch(store, start_of, program, tmp_path):
  """Starts a run, or goes on with it; returns its metrics and the Finished."""

  def call(directory, *, train=_TRAIN, on_step=None, identity=None, **changed):
    rows, drafts = [], []

    def on_metrics(row):
      rows.append(row)
      if on_step is not None and 'train/loss' in row:
        on_step(row['train/step'])

    frozen, params = start_of
    packer = {'batch_size': 2, 'seq_len': 8, 'seed': 0}
    hand_out = changed.pop('on_checkpoint', drafts.append)
    run = loop.Run(
        config=train,
        identity=identity or {'config.seed': 0},
        program=program,
        frozen=frozen,
        train=Packer(store, np.arange(4), **packer),
        held_out=Packer(store, np.arange(4, 6), **packer),
        domains=('text', 'code'),
        placement=Placement(),
        checkpoints=tmp_path / directory,
        on_metrics=on_metrics,
        on_checkpoint=hand_out,
    )
    try:
      finished = loop.run(dataclasses.replace(run, **changed), params)
    except _Killed:
      finished = None
    return rows, finished, drafts

  return call


def _losses(rows):
  return {r['train/step']: r['train/loss'] for r in rows if 'train/loss' in r}


def _kill_at(step):
  def on_step(now):
    if now == step:
      raise _Killed

  return on_step


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_with_the_same_numbers(launch, tmp_path):
  whole, finished, _ = launch('whole')
  wanted = _losses(whole)
  assert sorted(wanted) == [1, 2, 3, 4]
  assert len(set(wanted.values())) == 4
  # Before the checkpoint of step 3: step 3 is done a second time.
  first, none, _ = launch('cut', on_step=_kill_at(3))
  assert none is None and checkpoint.steps(tmp_path / 'cut')[-1] == 2
  second, again, _ = launch('cut')
  assert sorted(_losses(second)) == [3, 4]
  # Bit for bit, data order included: nothing here is allowed to be close.
  assert _losses(first) | _losses(second) == wanted
  jax.tree.map(np.testing.assert_array_equal, again.state, finished.state)


def test_sigterm_writes_a_checkpoint_and_ends_the_run(launch, tmp_path):
  before = signal.getsignal(signal.SIGTERM)
  late = dataclasses.replace(_TRAIN, checkpoint_minutes=60.0)

  def terminate(step):
    if step == 2:
      os.kill(os.getpid(), signal.SIGTERM)

  rows, finished, drafts = launch('stopped', train=late, on_step=terminate)
  assert finished.reason == 'stopped'
  assert max(_losses(rows)) == 2
  assert checkpoint.steps(tmp_path / 'stopped') == [2]
  assert len(drafts) == 1
  assert signal.getsignal(signal.SIGTERM) is before
  rows, finished, _ = launch('stopped', train=late)
  assert finished.reason == 'done'
  assert sorted(_losses(rows)) == [3, 4]


def test_a_number_that_is_not_finite_stops_the_run_and_is_named(
    launch, program, tmp_path
):
  def update(state, frozen, batch):
    state, found = program.update(state, frozen, batch)
    if int(state.step) == 3:
      found['gradient_norm'] = np.float32('inf')
    return state, found

  broken = types.SimpleNamespace(
      init=program.init, measure=program.measure, update=update
  )
  with pytest.raises(
      UserError, match=r'train/gradient_norm is inf at step 3; .* is step 2\.'
  ) as error:
    launch('broken', program=broken)
  assert '\n' not in str(error.value)
  assert checkpoint.steps(tmp_path / 'broken')[-1] == 2


def test_held_out_numbers_that_are_not_finite_stop_the_run(launch, program):
  def broken(at):
    def measure(*args):
      found = program.measure(*args)
      if len(updates) == at:
        found['loss'] = found['loss'] * np.nan
      return found

    def update(*args):
      updates.append(at)
      return program.update(*args)

    updates = []
    return types.SimpleNamespace(
        init=program.init, measure=measure, update=update
    )

  for at, directory, said in (
      (0, 'a', r'train/loss_heldout is nan at step 0; .* none\. Nothing was'),
      (2, 'b', r'train/loss_heldout is nan at step 2; .* is step 1\. Lower'),
  ):
    with pytest.raises(UserError, match=said):
      launch(directory, program=broken(at))


def test_a_draft_that_was_not_handed_out_is_when_the_run_goes_on(
    launch, tmp_path
):
  steps = iter(range(1, 9))

  def hand_out(_):
    if next(steps) == _TRAIN.num_steps:
      raise _Killed

  _, none, _ = launch('cut', on_checkpoint=hand_out)
  assert none is None and checkpoint.steps(tmp_path / 'cut')[-1] == 4
  rows, finished, drafts = launch('cut')
  assert not rows and len(drafts) == 1
  jax.tree.map(np.testing.assert_array_equal, drafts[0], finished.state.params)


def test_speed_is_that_of_updates_alone(launch, program, monkeypatch):
  now = [0.0]

  def passes(seconds, call):
    def after(*args):
      now[0] += seconds
      return call(*args)

    return after

  clock = types.SimpleNamespace(monotonic=lambda: now[0])
  monkeypatch.setattr(loop, 'time', clock)
  rows, _, _ = launch(
      'clock',
      train=dataclasses.replace(_TRAIN, log_every=2),
      on_checkpoint=passes(1000, lambda _: None),
      program=types.SimpleNamespace(
          init=program.init,
          measure=passes(500, program.measure),
          update=passes(2, program.update),
      ),
  )
  found = {
      r['train/step']: r['train/tokens_per_s']
      for r in rows
      if 'train/tokens_per_s' in r
  }
  # Two rows of eight tokens in two seconds.
  assert found == {2: 8, 4: 8}
  # Without checkpoints the first line has the compilation in it, and no speed.
  rows, _, _ = launch(
      'seldom',
      train=dataclasses.replace(_TRAIN, log_every=2, checkpoint_minutes=60.0),
      program=types.SimpleNamespace(
          init=program.init,
          measure=passes(500, program.measure),
          update=passes(2, program.update),
      ),
  )
  found = [
      (r['train/step'], r.get('train/tokens_per_s'))
      for r in rows
      if 'train/loss' in r
  ]
  assert found == [(2, None), (4, 8)]


def test_held_out_text_is_measured_before_between_and_after(launch):
  rows, finished, drafts = launch('measured')
  measured = [r for r in rows if 'train/alpha_heldout' in r]
  assert [r['train/step'] for r in measured] == [0, 2, 4]
  for name in (
      'train/alpha_heldout_1',
      'train/alpha_heldout_2',
      'train/text/alpha_heldout',
      'train/code/alpha_heldout_2',
  ):
    assert all(0 < r[name] < 1 for r in measured)
  assert finished.metrics['train/alpha_heldout'] == (
      measured[-1]['train/alpha_heldout']
  )
  assert finished.metrics['train/tokens_per_s'] > 0
  # One a step, and the last of them is what the run ended with.
  jax.tree.map(np.testing.assert_array_equal, drafts[-1], finished.state.params)


def test_another_run_is_not_gone_on_with(launch, tmp_path):
  launch('mine', on_step=_kill_at(2))
  with pytest.raises(UserError, match=r'config\.seed=0, this one has 1'):
    launch('mine', identity={'config.seed': 1})
  assert loop.last_step(tmp_path / 'nothing', {}) is None
