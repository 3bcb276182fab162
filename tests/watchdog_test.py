import threading
import time

from speculative import watchdog


def test_silence_dumps_the_stacks_and_names_the_likely_reason(capfd):
  said = ''
  with watchdog.watching(0.1, where='host 1 of 2'):
    deadline = time.monotonic() + 20
    while 'test_silence_dumps' not in said and time.monotonic() < deadline:
      time.sleep(0.05)
      said += capfd.readouterr().err
  assert 'watchdog: host 1 of 2 has waited 0.1' in said
  assert 'another host' in said
  # The stack of this thread.
  assert 'test_silence_dumps' in said


def test_beats_keep_it_quiet(capfd):
  with watchdog.watching(2.0):
    until = time.monotonic() + 2.5
    while time.monotonic() < until:
      time.sleep(0.1)
      watchdog.beat()
  assert capfd.readouterr().err == ''


def test_off_starts_no_thread():
  before = threading.active_count()
  with watchdog.watching(0.0):
    assert threading.active_count() == before
    watchdog.beat()


def test_its_thread_ends_with_the_run():
  before = threading.active_count()
  with watchdog.watching(100.0):
    assert threading.active_count() == before + 1
  assert threading.active_count() == before
  watchdog.beat()
