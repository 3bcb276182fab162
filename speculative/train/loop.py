"""The loop over updates: resumes exactly, and stops where a number is wrong.

What an uninterrupted run computes is a function of the config and the store
alone. A checkpoint holds the weights, the optimiser's state and the Position in
the order of the data, so that a run that was killed goes on with the very same
numbers.
"""

from collections.abc import Callable
from collections.abc import Mapping
import contextlib
import dataclasses
import math
import pathlib
import signal
import threading
import time
from typing import Any

from absl import logging
import jax
from jax.experimental import multihost_utils
import numpy as np

from speculative import watchdog
from speculative.errors import UserError
from speculative.models.params import Params
from speculative.sharding import Placement
from speculative.train import checkpoint
from speculative.train import data
from speculative.train import evaluate
from speculative.train.config import TrainConfig
from speculative.train.data import Packer
from speculative.train.data import Position
from speculative.train.start import Frozen
from speculative.train.step import Program
from speculative.train.step import State


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
  """What a training run works with.

  Attributes:
    config: its settings.
    identity: JSON of what a checkpoint belongs to: another run's is refused.
    program: the compiled programs.
    frozen: what is not trained.
    train: makes batches to train on.
    held_out: makes batches that are never trained on.
    domains: of the store.
    placement: of batches.
    checkpoints: their directory.
    on_metrics: called with numbers of a step.
    on_checkpoint: called with the draft's weights after every checkpoint, and
      with those of the checkpoint that a run goes on from.
  """

  config: TrainConfig
  identity: Mapping[str, Any]
  program: Program
  frozen: Frozen
  train: Packer
  held_out: Packer
  domains: tuple[str, ...]
  placement: Placement
  checkpoints: pathlib.Path
  on_metrics: Callable[[dict[str, float]], None]
  on_checkpoint: Callable[[Params], None]


@dataclasses.dataclass(frozen=True, eq=False)
class Finished:
  """How a run ended.

  Attributes:
    reason: 'done', or 'stopped' by SIGTERM.
    state: at the end.
    metrics: the last of everything.
  """

  reason: str
  state: State
  metrics: dict[str, float]


@contextlib.contextmanager
def _sigterm(flag: threading.Event):
  """Sets the flag at SIGTERM, for as long as the block runs."""
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  before = signal.signal(signal.SIGTERM, lambda *_: flag.set())
  try:
    yield
  finally:
    signal.signal(signal.SIGTERM, before)


def last_step(
    checkpoints: pathlib.Path, identity: Mapping[str, Any]
) -> int | None:
  """Returns the step to go on from, None for a run that is new.

  Args:
    checkpoints: their directory.
    identity: of this run.

  Returns:
    The last complete checkpoint's step.

  Raises:
    UserError: If the checkpoint is one of another run; names what differs.
  """
  found = checkpoint.steps(checkpoints)
  if not found:
    return None
  saved = checkpoint.read_progress(checkpoints, found[-1])['identity']
  for name in sorted({*saved, *identity}):
    if saved.get(name) != identity.get(name):
      raise UserError(
          f'{checkpoints} holds a run with {name}={saved.get(name)!r}, this '
          f'one has {identity.get(name)!r}; set it back, or name another '
          '--workdir.'
      )
  return found[-1]


class _Loop:
  """The state of `run`, apart so that its parts stay short."""

  def __init__(self, run: Run, params: Params) -> None:
    self.run, self.config = run, run.config
    self.state = run.program.init(params)
    self.step, self.position = 0, Position()
    self.metrics: dict[str, float] = {}
    self.stop = threading.Event()
    step = last_step(run.checkpoints, run.identity)
    self.resumed = step is not None
    if step is not None:
      saved = checkpoint.read_progress(run.checkpoints, step)
      self.state = checkpoint.load(run.checkpoints, step, self.state)
      self.step, self.position = step, Position(**saved['position'])
      self.metrics = saved['metrics']
      logging.info('Going on from step %d.', step)
    self.next: tuple[data.Batch, Position]
    self.prepare()
    self._saved_at = time.monotonic()
    # Tokens and time since the last line, without compilation.
    self._since: tuple[int, float] | None = None

  def prepare(self) -> None:
    """Brings the next batch [A, B, T] to the devices."""
    batches, position = [], self.position
    for _ in range(self.config.accumulate):
      batch, position = self.run.train.batch(position)
      batches.append(batch)
    stacked = self.run.placement.put(data.stack(batches), (None, 'batch'))
    self.next = stacked, position

  def update(self) -> dict[str, float]:
    """Makes a step and returns its numbers."""
    batch, self.position = self.next
    self.state, found = self.run.program.update(
        self.state, self.run.frozen, batch
    )
    self.step += 1
    # Text is read while the devices work.
    self.prepare()
    numbers = {k: float(v) for k, v in jax.device_get(found).items()}
    self.check({f'train/{name}': value for name, value in numbers.items()})
    return numbers

  def check(self, found: Mapping[str, float]) -> None:
    """Stops the run where a metric is not finite."""
    for name, value in found.items():
      if not math.isfinite(value):
        kept = checkpoint.steps(self.run.checkpoints)
        last = f'step {kept[-1]}' if kept else 'none'
        fix = 'Lower config.train.learning_rate or config.train.clip_norm.'
        if self.step == 0:
          fix = (
              'Nothing was trained yet: look at the target, the scores of '
              'config.train.store and config.train.from_draft.'
          )
        raise UserError(
            f'{name} is {value} at step {self.step}; the last good checkpoint '
            f'is {last}. {fix}'
        )

  def save(self) -> None:
    """Writes a checkpoint and hands the draft out."""
    progress = {
        'identity': dict(self.run.identity),
        'position': dataclasses.asdict(self.position),
        'metrics': self.metrics,
    }
    checkpoint.save(
        self.run.checkpoints,
        self.step,
        self.state,
        progress,
        keep=self.config.keep,
    )
    self.run.on_checkpoint(self.state.params)
    self._saved_at = time.monotonic()
    self._start_clock()
    logging.info('Checkpoint of step %d written.', self.step)

  def wants(self) -> tuple[bool, bool]:
    """Returns whether to stop and whether to save, agreed among hosts."""
    late = time.monotonic() - self._saved_at
    wants = (self.stop.is_set(), late > 60 * self.config.checkpoint_minutes)
    if jax.process_count() == 1:
      return wants
    if self.step % self.config.log_every:
      return False, False
    of_all = multihost_utils.process_allgather(np.array(wants))
    return tuple(map(bool, of_all.reshape(-1, 2).any(0)))

  def evaluate(self) -> None:
    """Measures the draft on held-out text."""
    measured = evaluate.measure(
        self.run.program,
        self.state.params,
        self.run.frozen,
        (
            self.run.placement.put(batch, ('batch',))
            for batch in self.run.held_out.once(self.config.eval_batches)
        ),
        self.run.domains,
    )
    found = {}
    for domain, row in measured.items():
      found |= row.metrics(f'train/{domain}/' if domain else 'train/')
    self.check(found)
    self.metrics |= found
    self.run.on_metrics({'train/step': self.step} | found)
    self._start_clock()

  def _start_clock(self) -> None:
    """Begins anew after what is no part of the speed of training."""
    # The first update is yet to be compiled.
    self._since = (self.step, time.monotonic()) if self.step else None

  def report(self, numbers: dict[str, float]) -> None:
    """Writes the numbers of the last step, and a line of progress."""
    now = time.monotonic()
    found = {f'train/{name}': value for name, value in numbers.items()}
    eta = 'ETA unknown'
    if self._since is not None:
      done, start = self._since
      passed = self.step - done
      per_step = (now - start) / passed
      tokens = self.config.batch_size * self.config.seq_len
      rate = tokens * self.config.accumulate / per_step
      found['train/tokens_per_s'] = rate
      left = (self.config.num_steps - self.step) * per_step
      eta = f'{rate:.0f} tokens/s  ETA {left / 60:.1f} min'
    self._since = self.step, now
    self.metrics |= found
    self.run.on_metrics({'train/step': self.step} | found)
    alpha = self.metrics.get('train/alpha_heldout', math.nan)
    logging.info(
        'step %d/%d  loss %.4f  alpha %.3f  held-out alpha %.3f  %s',
        self.step,
        self.config.num_steps,
        numbers['loss'],
        numbers['alpha_1'],
        alpha,
        eta,
    )


def run(run: Run, params: Params) -> Finished:
  """Trains until the last step, or until SIGTERM.

  Args:
    run: what to work with; a run whose checkpoints are there goes on.
    params: the draft's own, to start from.

  Returns:
    The Finished; a checkpoint of it has been written.

  Raises:
    UserError: If a metric is not finite: names it and the step. The last
      checkpoint is from before it then.
  """
  loop, config = _Loop(run, params), run.config
  with _sigterm(loop.stop):
    if loop.resumed:
      # Whoever was killed may have written the checkpoint and nothing else.
      run.on_checkpoint(loop.state.params)
    else:
      loop.evaluate()
    while loop.step < config.num_steps:
      numbers = loop.update()
      watchdog.beat()
      if loop.step % config.log_every == 0:
        loop.report(numbers)
      if loop.step % config.eval_every == 0 or loop.step == config.num_steps:
        loop.evaluate()
      stop, save = loop.wants()
      if loop.step == config.num_steps:
        stop = save = True
      if stop or save:
        loop.save()
      if stop:
        break
  reason = 'done' if loop.step == config.num_steps else 'stopped'
  return Finished(reason, loop.state, loop.metrics)
