"""Runs programs that a model wrote, apart from everything else.

Each runs in a process of its own: with limits, without a network, in a fresh
directory that alone can be written to, with an empty environment and against
the clock; `sandbox_child` says in which layers, and an Outcome which of them
held. Reading is not restricted.

That its tests have passed a program shows by reaching its end, upon which its
process sends a token back. Neither its exit status nor what it prints counts,
and no name that it puts something else in the place of decides whether its
tests run. Not guarded against is a program that is written to be taken for
right: it shares an interpreter with its tests, so it can change what they call
(`builtins.all`, the modules that both import), and it can search its process
for the token or trace the frames that run it. This is no place for programs of
people who mean harm.
"""

from collections.abc import Sequence
import concurrent.futures
import dataclasses
import importlib.util
import json
import os
import pathlib
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time

_CHILD = pathlib.Path(__file__).with_name('sandbox_child.py')
# In the order in which they are taken.
LAYERS = ('namespace', 'landlock', 'seccomp', 'guards')
# Of what a program's process sends; its own words are cut far below.
_MOST_BYTES = 1 << 16


@dataclasses.dataclass(frozen=True)
class Limits:
  """What a program may use.

  Attributes:
    wall_s: seconds until it is ended, a few times cpu_s, so that a busy machine
      changes no verdict.
    cpu_s: seconds of CPU time until it is ended.
    memory_bytes: of its address space.
    file_bytes: of each file.
    num_files: that it may have open, and that it may write.
    num_processes: of the user who runs it, with threads where the system counts
      them; none may be started beyond. Not limited under seccomp, which lets
      none start.
  """

  wall_s: float = 30.0
  cpu_s: int = 10
  memory_bytes: int = 1 << 30
  file_bytes: int = 1 << 20
  num_files: int = 32
  num_processes: int = 16


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What came of a program.

  Attributes:
    verdict: 'passed', 'failed', 'died' before its end, or 'timed out'.
    reason: in one line; '' where it passed.
    layers: what kept it apart, of LAYERS.
  """

  verdict: str
  reason: str
  layers: tuple[str, ...]


def unavailable() -> str:
  """Returns why programs cannot be run here, or ''."""
  if importlib.util.find_spec('resource') is None:
    return 'running programs needs the limits of Linux or macOS'
  return ''


def run(
    parts: Sequence[str],
    *,
    limits: Limits | None = None,
    layers: Sequence[str] = LAYERS,
) -> Outcome:
  """Runs a program.

  Args:
    parts: sources that are run one after another in one module, each compiled
      apart, so that an open quote at the end of one does not hide the next.
    limits: what it may use; the defaults when absent.
    layers: that are tried, of LAYERS.

  Returns:
    The Outcome.

  Raises:
    RuntimeError: If its process could not be started.
  """
  limits = limits or Limits()
  token = secrets.token_hex(16)
  with tempfile.TemporaryDirectory(
      prefix='answer_', ignore_cleanup_errors=True
  ) as directory:
    job = {
        'parts': list(parts),
        'token': token,
        'directory': directory,
        'layers': list(layers),
        'num_files': limits.num_files,
        'limits': {
            'RLIMIT_CPU': limits.cpu_s,
            'RLIMIT_AS': limits.memory_bytes,
            'RLIMIT_DATA': limits.memory_bytes,
            'RLIMIT_FSIZE': limits.file_bytes,
            'RLIMIT_NOFILE': limits.num_files,
            'RLIMIT_NPROC': limits.num_processes,
            'RLIMIT_CORE': 0,
        },
    }
    deadline = time.monotonic() + limits.wall_s
    lines, status = _communicate(json.dumps(job), directory, token, deadline)
  return _outcome(lines, status, token, limits)


def run_all(
    programs: Sequence[Sequence[str]],
    *,
    limits: Limits | None = None,
    num_parallel: int = 0,
) -> list[Outcome]:
  """Runs programs, several at once.

  Args:
    programs: parts of each, see `run`.
    limits: of each.
    num_parallel: how many at once; 0 is one a core.

  Returns:
    Their Outcomes, in order.
  """
  num_parallel = num_parallel or os.cpu_count() or 1
  with concurrent.futures.ThreadPoolExecutor(num_parallel) as pool:
    return list(pool.map(lambda parts: run(parts, limits=limits), programs))


def _communicate(
    job: str, directory: str, token: str, deadline: float
) -> tuple[list[dict], int | None]:
  """Returns what the process said, and its exit status; None if ended."""
  reader, writer = os.pipe()
  environment = {
      'HOME': directory,
      'LANG': 'C.UTF-8',
      'OMP_NUM_THREADS': '1',
      'OPENBLAS_NUM_THREADS': '1',
      # Sets of texts are in the same order in every run.
      'PYTHONHASHSEED': '0',
      'TMPDIR': directory,
  }
  try:
    process = subprocess.Popen(
        # Neither the user's packages nor this directory are imported from.
        [sys.executable, '-s', '-P', '-B', str(_CHILD), str(writer)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=directory,
        env=environment,
        pass_fds=(writer,),
        start_new_session=True,
    )
  except BaseException:
    os.close(reader)
    raise
  finally:
    os.close(writer)
  try:
    try:
      with process.stdin as stdin:
        stdin.write(job.encode())
    except BrokenPipeError:
      pass
    lines = _listen(reader, token, deadline)
    has_ended = _has_verdict(lines, token) or _await_end(process.pid, deadline)
  finally:
    os.close(reader)
    # Not waited for yet, so that no other group can have its number.
    try:
      os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
      pass
    status = process.wait()
  return lines, status if has_ended else None


def _has_verdict(lines: Sequence[dict], token: str) -> bool:
  return bool(lines) and lines[-1].get('token') == token


def _await_end(pid: int, deadline: float) -> bool:
  """Waits for a process, leaves it to be waited for; False if too late."""
  flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
  while os.waitid(os.P_PID, pid, flags) is None:
    if time.monotonic() >= deadline:
      return False
    time.sleep(0.005)
  return True


def _listen(reader: int, token: str, deadline: float) -> list[dict]:
  """Returns what comes until the token, the end or the deadline."""
  poll = select.poll()
  poll.register(reader, select.POLLIN)
  data, lines = b'', []
  while (left := deadline - time.monotonic()) > 0 and poll.poll(1000 * left):
    chunk = os.read(reader, _MOST_BYTES)
    data += chunk
    whole = data.split(b'\n')[:-1]
    lines = [line for line in map(_parse, whole) if line]
    if not chunk or len(data) > _MOST_BYTES or _has_verdict(lines, token):
      break
  return lines


def _parse(line: bytes) -> dict:
  """Returns what a line says; nothing where a program wrote it."""
  try:
    said = json.loads(line)
  except ValueError:
    return {}
  return said if isinstance(said, dict) else {}


def _outcome(
    lines: Sequence[dict], status: int | None, token: str, limits: Limits
) -> Outcome:
  layers = tuple(lines[0].get('layers', ())) if lines else ()
  if _has_verdict(lines, token):
    if lines[-1].get('verdict') == 'passed':
      return Outcome('passed', '', layers)
    said = str(lines[-2].get('reason', '')) if len(lines) > 1 else ''
    return Outcome('failed', said or 'it gave no reason', layers)
  if status is None:
    return Outcome('timed out', f'after {limits.wall_s:g} s', layers)
  if not lines:
    raise RuntimeError(
        f'the process of a program ended with status {status} before it '
        'started; raise the limits.'
    )
  if status < 0:
    name = signal.Signals(-status).name
    return Outcome('died', f'of {name} before its tests ended', layers)
  return Outcome('died', f'with status {status} before its end', layers)
