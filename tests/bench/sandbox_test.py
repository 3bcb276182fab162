"""Programs that try what programs should not."""

import os
import socket
import sys
import tempfile
import threading
import time

import pytest

from speculative.bench import sandbox
from speculative.bench.sandbox import Limits

pytestmark = pytest.mark.skipif(
    bool(sandbox.unavailable()), reason=sandbox.unavailable()
)
_CHECK = 'assert answer() == 42'
_RIGHT = 'def answer():\n  return 42\n'
# A verdict that comes late fails no test but those on time.
_PATIENT = Limits(wall_s=120.0, cpu_s=30)


def _run(*parts, **kwargs):
  return sandbox.run(parts, **{'limits': _PATIENT} | kwargs)


@pytest.fixture
def needs():
  """Skips where a layer is not to be had."""

  def check(layer: str) -> None:
    if layer not in _run('pass', layers=(layer,)).layers:
      pytest.skip(f'this machine grants no {layer}; not checked')

  return check


def test_what_passes_and_what_fails():
  passed = _run(_RIGHT, _CHECK)
  assert (passed.verdict, passed.reason) == ('passed', '')
  assert 'guards' in passed.layers
  failed = _run(_RIGHT, 'assert answer() == 41, "not\\n41"')
  assert (failed.verdict, failed.reason) == ('failed', 'AssertionError: not 41')


def test_programs_run_side_by_side_keep_their_order():
  programs = [(f'x = {i}', 'assert x % 2') for i in range(5)]
  found = sandbox.run_all(programs, limits=_PATIENT, num_parallel=3)
  verdicts = ['failed', 'passed', 'failed', 'passed', 'failed']
  assert [o.verdict for o in found] == verdicts


@pytest.mark.parametrize(
    'cheat',
    [
        'import os\nos._exit(0)',
        'import sys\nsys.exit(0)',
        'raise SystemExit',
        'print("passed")\nraise ValueError',
        'import os\nos.closerange(3, 256)',
        'import os, signal\nsignal.alarm(0)\nos.abort()',
        'x = """',
        'def check(',
        """
import os
for fd in range(1, 256):
  try:
    os.write(fd, b'{"token": "", "reason": ""}\\n{"layers": []}\\n')
  except OSError:
    pass
os._exit(0)
""",
        'import builtins\nbuiltins.exec = lambda *a, **k: None',
        "real = compile\n__builtins__['compile'] = (\n"
        "    lambda s, *a, **k: real('', *a, **k)\n)",
        'import __main__\n__main__.exec = lambda *a, **k: None',
        """
import json
real = json.dumps
json.dumps = lambda said: real(said | {'reason': '', 'verdict': 'passed'})
""",
        """
import os
real = os.write
os.write = lambda fd, data: real(fd, data.replace(b'failed', b'passed'))
""",
        """
class Nameless(BaseException):
  def __str__(self):
    raise self
Nameless.__name__ = ''
raise Nameless
""",
    ],
    ids=[
        'exit',
        'sys.exit',
        'raise',
        'print',
        'close',
        'abort',
        'open quote',
        'no syntax',
        'forged',
        'exec',
        'compile',
        'main',
        'json',
        'write',
        'nameless',
    ],
)
def test_no_way_out_counts_as_passing(cheat):
  wrong = f'def answer():\n  return 1\n{cheat}\n'
  outcome = _run(wrong, _CHECK + '\n"""\n"""')
  assert outcome.verdict in ('failed', 'died')
  assert outcome.reason
  assert 'guards' in outcome.layers


def test_an_exit_inside_a_test_is_no_pass():
  outcome = _run('def answer():\n  import os\n  os._exit(0)', _CHECK)
  assert outcome.verdict == 'died'
  assert 'with status 0' in outcome.reason


@pytest.mark.parametrize(
    'raised, reason',
    [
        ('ValueError("x" * 1000_000)', f'ValueError: {"x" * 288}'),
        ('ValueError("\\u2028\\n\\udc80")', 'ValueError: \udc80'),
        ('Odd()', 'Odd'),
        ('MemoryError', 'MemoryError:'),
    ],
)
def test_whatever_is_raised_becomes_one_short_line(raised, reason):
  odd = 'class Odd(BaseException):\n  def __str__(self):\n    raise self\n'
  outcome = _run(f'{odd}raise {raised}')
  assert (outcome.verdict, outcome.reason) == ('failed', reason)


def test_a_loop_is_ended_by_the_clock_and_by_its_cpu_time():
  slept = _run(
      'import time\ntime.sleep(60)', limits=Limits(wall_s=1.5, cpu_s=30)
  )
  assert (slept.verdict, slept.reason) == ('timed out', 'after 1.5 s')
  looped = _run(
      'import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n'
      'while True: pass',
      limits=Limits(wall_s=120.0, cpu_s=1),
  )
  assert looped.verdict == 'died'
  assert 'SIGKILL' in looped.reason


def test_a_time_out_ends_the_children_too(tmp_path):
  path = tmp_path / 'beats'
  program = f"""
import os, time
os.fork()
while True:
  with open({str(path)!r}, 'a') as file:
    file.write('x')
  time.sleep(0.01)
"""
  limits = Limits(wall_s=2.0, num_processes=1_000_000)
  outcome = _run(program, limits=limits, layers=())
  assert outcome.verdict == 'timed out'
  beats = path.stat().st_size
  assert beats
  time.sleep(0.2)
  assert path.stat().st_size == beats


def test_memory_and_files_end_somewhere():
  hog = _run('x = [bytearray(1 << 26) for _ in range(100)]')
  assert hog.verdict in ('failed', 'died')
  large = _run('open("x", "wb").write(bytes(1 << 22))')
  assert (large.verdict, large.reason[:7]) == ('failed', 'OSError')
  many = _run('files = [open(str(i), "w") for i in range(100)]')
  assert many.verdict == 'failed'
  turns = _run('for i in range(100): open(str(i), "w").close()')
  assert (turns.verdict, turns.reason[:15]) == ('failed', 'PermissionError')


@pytest.mark.skipif(sys.platform != 'linux', reason='macOS limits no memory')
def test_memory_is_limited_without_other_layers():
  hog = _run('x = bytearray(2 << 30)', layers=())
  assert hog.reason == 'MemoryError:'


@pytest.mark.parametrize('layers', [sandbox.LAYERS, ('seccomp',), ('guards',)])
@pytest.mark.parametrize(
    'start',
    [
        # At most 32 processes, should nothing stop it.
        'for _ in range(5): os.fork()',
        'import subprocess\nsubprocess.run(["true"], close_fds=False)',
        'os.posix_spawn("/bin/true", ["true"], {})',
        'os.system("true") == 0 or exec("raise PermissionError")',
        'os.execv("/bin/true", ["true"])',
        'os.kill(os.getppid(), 0)',
        'os.chmod(".", 0)',
    ],
    ids=['fork', 'subprocess', 'spawn', 'system', 'exec', 'kill', 'chmod'],
)
def test_no_process_is_started_or_signalled(layers, start, needs):
  needs(layers[-1] if len(layers) > 1 else layers[0])
  outcome = _run(f'import os\n{start}', layers=layers)
  assert outcome.verdict == 'failed'
  assert outcome.reason.startswith('PermissionError')


def test_seccomp_holds_where_python_does_not_ask(needs):
  needs('seccomp')
  program = """
import ctypes, os, resource, threading
libc = ctypes.CDLL(None, use_errno=True)
assert libc.fork() == -1
assert libc.socket(2, 1, 0) == -1
assert libc.kill(os.getppid(), 0) == -1
assert libc.chmod(b'.', 0) == -1
assert libc.sethostname(b'x', 1) == -1
try:
  resource.prlimit(os.getppid(), resource.RLIMIT_CORE)
except PermissionError:
  own = resource.getrlimit(resource.RLIMIT_CORE)
# Threads are no processes.
seen = []
thread = threading.Thread(target=seen.append, args=(own,))
thread.start()
thread.join()
assert seen == [(0, 0)]
"""
  assert _run(program, layers=('seccomp',)) == sandbox.Outcome(
      'passed', '', ('seccomp',)
  )


@pytest.mark.parametrize('layers', [('seccomp',), ('guards',), ()])
def test_processes_are_counted_only_where_seccomp_does_not_hold(layers, needs):
  """Else threads of other programs would keep this one from its own."""
  for layer in layers:
    needs(layer)
  limits = Limits(wall_s=120.0, cpu_s=30, num_processes=23)
  program = 'import resource\nmost = resource.getrlimit(resource.RLIMIT_NPROC)'
  test = f'assert (23 in most) == {"seccomp" not in layers}, most'
  outcome = _run(program, test, limits=limits, layers=layers)
  assert (outcome.verdict, outcome.reason) == ('passed', '')


@pytest.mark.parametrize('layer', ['landlock', 'guards'])
def test_nothing_is_written_outside(layer, needs, tmp_path):
  needs(layer)
  kept = tmp_path / 'kept'
  kept.write_text('kept')
  attempts = {
      'open(kept, "w")',
      'open(kept, "a")',
      'open(kept, "r+")',
      'os.open(kept, os.O_WRONLY)',
      'os.remove(kept)',
      'os.truncate(kept, 0)',
      'os.rename(kept, "here")',
      'os.link(kept, "here")',
      'os.mkdir(kept + "d")',
      'os.symlink("x", kept + "s")',
      'os.rmdir(os.path.dirname(kept) + "/d")',
      'through_a_link()',
      'open("../outside", "w")',
  }
  (tmp_path / 'd').mkdir()
  for attempt in sorted(attempts):
    program = f"""
import os
kept = {str(kept)!r}
def through_a_link():
  os.symlink(kept, 'link')
  open('link', 'w')
try:
  {attempt}
except OSError:
  pass
else:
  raise ValueError('it was allowed')
"""
    assert _run(program, layers=(layer,)).verdict == 'passed', attempt
  assert sorted(p.name for p in tmp_path.iterdir()) == ['d', 'kept']
  assert kept.read_text() == 'kept'


def test_its_own_directory_can_be_written_and_is_gone_after(
    monkeypatch, tmp_path
):
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
  program = """
import os
assert os.listdir('.') == []
with open('a', 'w') as file:
  file.write('x')
os.mkdir('d')
os.rename('a', 'd/b')
assert open('d/b').read() == 'x'
os.remove('d/b')
os.rmdir('d')
open('left', 'w').close()
open(os.devnull, 'w').write('x')
"""
  outcome = _run(program)
  assert (outcome.verdict, outcome.reason) == ('passed', '')
  assert list(tmp_path.iterdir()) == []


def test_its_environment_is_empty(monkeypatch):
  monkeypatch.setenv('SOME_TOKEN', 'secret')
  program = 'import os\nassert not {"SOME_TOKEN", "PATH"} & set(os.environ)'
  assert _run(program).verdict == 'passed'


@pytest.fixture
def port():
  """A port of this machine that takes connections."""
  with socket.create_server(('127.0.0.1', 0)) as server:
    server.settimeout(0.1)
    done = threading.Event()

    def serve() -> None:
      while not done.is_set():
        try:
          server.accept()[0].close()
        except TimeoutError:
          continue

    thread = threading.Thread(target=serve)
    thread.start()
    yield server.getsockname()[1]
    done.set()
    thread.join()


@pytest.mark.parametrize(
    'layers, verdict',
    [
        ((), 'passed'),
        (('namespace',), 'failed'),
        (('seccomp',), 'failed'),
        (('guards',), 'failed'),
        (sandbox.LAYERS, 'failed'),
    ],
    ids=lambda x: '+'.join(x) or 'none' if isinstance(x, tuple) else '',
)
def test_there_is_no_network(layers, verdict, port, needs):
  if layers:
    needs(layers[0])
  program = f'import socket\nsocket.create_connection(("127.0.0.1", {port}))'
  assert _run(program, layers=layers).verdict == verdict


def test_event_loops_and_numbers_still_run():
  program = """
import asyncio, dataclasses, math
@dataclasses.dataclass
class Pair:
  a: int
  b: 'int' = 3
async def total():
  return sum(await asyncio.gather(*(asyncio.sleep(0, i) for i in range(4))))
assert asyncio.run(total()) == 6 == Pair(3).a * 2
assert __name__ != '__main__'
"""
  outcome = _run(program)
  assert (outcome.verdict, outcome.reason) == ('passed', '')


def test_a_process_that_cannot_start_is_no_verdict(monkeypatch, tmp_path):
  monkeypatch.setattr(sandbox, '_CHILD', tmp_path / 'no.py')
  with pytest.raises(RuntimeError, match='before it started; raise the limits'):
    _run('pass')


def test_no_descriptors_are_left_open():
  if not os.path.isdir('/proc/self/fd'):
    pytest.skip('needs /proc')
  _run('pass')
  before = len(os.listdir('/proc/self/fd'))
  for _ in range(3):
    _run('pass')
  assert len(os.listdir('/proc/self/fd')) == before
