"""Says where a process stands when its device programs stop returning.

On several hosts every program waits for the others, and a host that hangs or
takes another path makes all of them wait without a word.
"""

from collections.abc import Iterator
import contextlib
import contextvars
import faulthandler
import sys
import threading
import time

_WATCH: contextvars.ContextVar['_Watch | None'] = contextvars.ContextVar(
    'watch', default=None
)


def beat() -> None:
  """Tells the watchdog, if there is one, that a program has returned."""
  if (watch := _WATCH.get()) is not None:
    watch.last_s = time.monotonic()


def is_watching() -> bool:
  """Whether a beat is waited for."""
  return _WATCH.get() is not None


@contextlib.contextmanager
def watching(
    timeout_s: float, *, where: str = 'this process'
) -> Iterator[None]:
  """Dumps the stacks of all threads to stderr when nothing beats for long.

  Args:
    timeout_s: how long; 0 watches nothing.
    where: who is watched, for the message.

  Yields:
    Nothing; watches as long as the context is open, and only dumps.
  """
  if not timeout_s:
    yield
    return
  watch = _Watch(timeout_s, where)
  token = _WATCH.set(watch)
  try:
    yield
  finally:
    _WATCH.reset(token)
    watch.stop()


class _Watch:
  """A thread that wakes when a beat is overdue."""

  def __init__(self, timeout_s: float, where: str) -> None:
    self.last_s = time.monotonic()
    self._timeout_s, self._where = timeout_s, where
    self._stopped = threading.Event()
    self._thread = threading.Thread(target=self._run, daemon=True)
    self._thread.start()

  def stop(self) -> None:
    self._stopped.set()
    self._thread.join()

  def _run(self) -> None:
    due_s = self._timeout_s
    while not self._stopped.wait(due_s):
      silent_s = time.monotonic() - self.last_s
      due_s = self._timeout_s - silent_s
      if due_s <= 0:
        self._dump(silent_s)
        self.last_s, due_s = time.monotonic(), self._timeout_s

  def _dump(self, silent_s: float) -> None:
    print(
        f'watchdog: {self._where} has waited {silent_s:.3g} s for a round to '
        'end; unless it still reads weights or compiles, another host has '
        'likely stopped or taken another path:',
        file=sys.stderr,
        flush=True,
    )
    faulthandler.dump_traceback(all_threads=True)
