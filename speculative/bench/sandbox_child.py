"""The process that a program runs in; started by `sandbox`, by its path.

It imports nothing of the package. What it may do is taken from it for good
before the program starts, in layers, so that one that a machine does not grant
leaves the others:

  limits     of CPU time, memory, file sizes, open files and, without seccomp,
             processes
  namespace  a network of its own, with nothing in it
  landlock   no writing but in its own directory
  seccomp    no new process, socket or signal, no change of owners or modes
  guards     the same, refused by Python itself: stops accidents on machines
             without the others, but no program that is written to get out

namespace, landlock and seccomp are Linux's.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import json
import os
import platform
import struct
import sys
import types

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_DIE_WITH_PARENT, _NO_NEW_PRIVILEGES, _SET_SECCOMP = 1, 38, 22
_SIGKILL, _EPERM, _ENOSYS = 9, 1, 38
_O_PATH = 0o10000000

# Numbers of system calls that have one on every architecture.
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_CLONE3 = 435
# pidfd_send_signal, io_uring_setup (which opens sockets too), pidfd_getfd,
# process_madvise, fchmodat2.
_NEVER = (424, 425, 438, 440, 452)
# By machine: its name to the kernel's audit, capset, clone, prlimit64, and what
# is refused: fork, vfork, execve, kill, chmod, fchmod, chown, fchown, lchown,
# ptrace, rt_sigqueueinfo, tkill, tgkill, fchownat, fchmodat, rt_tgsigqueueinfo,
# process_vm_readv, process_vm_writev, execveat, socket; where they exist.
_MACHINES = {
    'x86_64': (
        0xC000003E,
        126,
        56,
        302,
        (57, 58, 59, 62, 90, 91, 92, 93, 94, 101, 129, 200, 234, 260, 268, 297)
        + (310, 311, 322, 41),
    ),
    'aarch64': (
        0xC00000B7,
        91,
        220,
        261,
        (221, 129, 52, 53, 54, 55, 117, 130, 131, 138, 240, 270, 271, 281, 198),
    ),
}

# What guards refuse, by the beginnings of Python's names of events.
_EVENTS = ('ctypes.', 'os.exec', 'os.fork', 'os.kill', 'os.posix_spawn')
_EVENTS += ('os.spawn', 'os.startfile', 'os.system', 'os.chmod', 'os.chown')
_EVENTS += ('os.chflags', 'pty.spawn', 'socket.', 'subprocess.', 'syslog.')
_EVENTS += ('os.setxattr', 'os.removexattr', 'signal.pthread_kill')
# Which arguments are paths that change, and which name the directories that
# paths count from, where they do not from the current one.
_CHANGES = {
    'os.link': ((0, 1), (2, 3)),
    'os.mkdir': ((0,), (2,)),
    'os.remove': ((0,), (1,)),
    'os.rename': ((0, 1), (2, 3)),
    'os.rmdir': ((0,), (1,)),
    'os.symlink': ((1,), (2,)),
    'os.truncate': ((0,), ()),
    'os.utime': ((0,), (3,)),
}
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _set_limits(limits: dict[str, int]) -> None:
  """Sets limits by the names that the module resource has for them."""
  import resource

  for name, value in limits.items():
    which = getattr(resource, name, None)
    if which is None:
      continue
    hard = resource.getrlimit(which)[1]
    if hard != resource.RLIM_INFINITY:
      value = min(value, hard)
    try:
      resource.setrlimit(which, (value, value))
    except (OSError, ValueError):
      # macOS has limits that it does not let anyone set.
      continue


def _enter_namespace(libc: object) -> bool:
  """Leaves the network; needs no rights where users may have namespaces."""
  return (
      libc.unshare(_NEW_USER | _NEW_NETWORK) == 0
      or libc.unshare(_NEW_NETWORK) == 0
  )


def _lock_writes(libc: object, directory: str) -> bool:
  """Lets files change in one directory only, by Landlock."""
  version = libc.syscall(_LANDLOCK_CREATE, None, 0, 1)
  if version < 1:
    return False
  write = 1 << 1
  # Removing and making directory entries of any kind.
  rights = write | sum(1 << bit for bit in range(4, 13))
  if version >= 2:
    rights |= 1 << 13
  if version >= 3:
    write |= 1 << 14
    rights |= 1 << 14
  rules = libc.syscall(_LANDLOCK_CREATE, struct.pack('Q', rights), 8, 0)
  if rules < 0:
    return False
  for path, allowed in ((directory, rights), (os.devnull, write)):
    fd = os.open(path, _O_PATH | os.O_CLOEXEC)
    rule = struct.pack('=Qi', allowed, fd)
    if libc.syscall(_LANDLOCK_ADD, rules, 1, rule, 0):
      return False
    os.close(fd)
  done = libc.syscall(_LANDLOCK_RESTRICT, rules, 0) == 0
  os.close(rules)
  return done


def _filter_calls(libc: object) -> bool:
  """Gives up capabilities and takes system calls away, by seccomp."""
  import ctypes

  if platform.machine() not in _MACHINES or struct.calcsize('P') != 8:
    return False
  audit, capset, clone, prlimit, refused = _MACHINES[platform.machine()]
  libc.syscall(capset, struct.pack('Ii', 0x20080522, 0), bytes(24))
  allow, deny = 0x7FFF0000, 0x00050000 | _EPERM
  load, equal, any_bit, at_least, give = 0x20, 0x15, 0x45, 0x35, 0x06
  # Code, steps to go on where it holds and where not, and a value.
  code = [
      (load, 0, 0, 4),
      (equal, 1, 0, audit),
      (give, 0, 0, 0x80000000),
      (load, 0, 0, 0),
      # The calls of x32, which have numbers of their own.
      (at_least, 0, 1, 0x40000000),
      (give, 0, 0, deny),
  ]
  for number in (*refused, *_NEVER):
    code += [(equal, 0, 1, number), (give, 0, 0, deny)]
  # Not there, so that threads are made by clone, whose flags can be read.
  code += [(equal, 0, 1, _CLONE3), (give, 0, 0, 0x00050000 | _ENOSYS)]
  # Of clone the flag for a thread, of prlimit64 the process: only its own.
  code += [(equal, 0, 4, clone), (load, 0, 0, 16)]
  code += [(any_bit, 0, 1, 0x10000), (give, 0, 0, allow), (give, 0, 0, deny)]
  code += [(equal, 0, 4, prlimit), (load, 0, 0, 16)]
  code += [(equal, 0, 1, 0), (give, 0, 0, allow), (give, 0, 0, deny)]
  code += [(give, 0, 0, allow)]
  text = b''.join(struct.pack('HBBI', *one) for one in code)
  buffer = ctypes.create_string_buffer(text, len(text))
  program = struct.pack('HxxxxxxP', len(code), ctypes.addressof(buffer))
  return libc.prctl(_SET_SECCOMP, 2, program, 0, 0) == 0


def _guard(directory: str, num_files: int) -> bool:
  """Refuses in Python what lower layers should refuse, with better words."""
  root = os.path.join(os.path.realpath(directory), '')
  realpath, fspath, fsdecode = os.path.realpath, os.fspath, os.fsdecode
  changes, unix_family = dict(_CHANGES), 1
  written = []

  def inside(path: object) -> bool:
    if isinstance(path, int):
      return True
    path = fsdecode(fspath(path))
    return path == os.devnull or realpath(path).startswith(root)

  def check(event: str, args: tuple) -> None:
    if event == 'open':
      path, _, flags = args
      if not (isinstance(flags, int) and flags & _WRITE_FLAGS):
        return
      if not inside(path):
        raise PermissionError(f'writing {path!r} is not allowed here')
      written.append(1)
      if len(written) > num_files:
        raise PermissionError(f'more than {num_files} files are not allowed')
    elif event in changes:
      paths, directories = changes[event]
      if any(args[i] not in (None, -1) for i in directories) or not all(
          inside(args[i]) for i in paths
      ):
        raise PermissionError(f'{event} is not allowed here')
    elif event.startswith(_EVENTS):
      # Event loops talk to themselves over a pair of local sockets.
      if event == 'socket.__new__' and args[1] == unix_family:
        return
      raise PermissionError(f'{event} is not allowed here')

  sys.addaudithook(check)
  return True


def _isolate(directory: str, wanted: Sequence[str], num_files: int) -> list:
  """Takes rights away and returns the names of the layers that hold."""
  held = []

  def attempt(layer: str, call: Callable[..., bool], *args: object) -> None:
    try:
      if layer in wanted and call(*args):
        held.append(layer)
    except (OSError, AttributeError):
      return

  try:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
  except (ImportError, OSError):
    libc = None
  if sys.platform == 'linux' and libc is not None:
    libc.prctl(_DIE_WITH_PARENT, _SIGKILL, 0, 0, 0)
    attempt('namespace', _enter_namespace, libc)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    attempt('landlock', _lock_writes, libc, directory)
    attempt('seccomp', _filter_calls, libc)
  attempt('guards', _guard, directory, num_files)
  return held


def _failure(parts: Iterable[str]) -> str | None:
  """Runs a program; returns what it raised, None where it reached its end."""
  module = types.ModuleType('answer')
  sys.modules['answer'] = module
  # The program can put others in the place of names, of Python's too: whatever
  # decides whether its tests run is made, or bound, before any of it runs.
  execute, names = exec, module.__dict__
  try:
    codes = [
        compile(part, '<answer>', 'exec', dont_inherit=True) for part in parts
    ]
    for code in codes:
      execute(code, names)
  except BaseException as error:
    try:
      return f'{type(error).__name__}: {error}'
    except BaseException:
      return type(error).__name__
  return None


def main() -> None:
  """Reads a job, runs it and says what came of it, with the job's token."""
  job = json.load(sys.stdin)
  verdicts = int(sys.argv[1])
  os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

  # As in _failure, bound before the program runs, and the verdicts written out.
  write, leave, dumps = os.write, os._exit, json.dumps

  def line(words: dict) -> bytes:
    return f'{dumps(words)}\n'.encode()

  token = job['token']
  passed = line({'token': token, 'verdict': 'passed'})
  failed = line({'token': token, 'verdict': 'failed'})
  held = _isolate(job['directory'], job['layers'], job['num_files'])
  limits = job['limits']
  if 'seccomp' in held:
    # It counts all threads of the user, others' too, and is not needed.
    limits.pop('RLIMIT_NPROC', None)
  _set_limits(limits)
  write(verdicts, line({'layers': held}))
  reason = _failure(job['parts'])
  if reason is None:
    write(verdicts, passed)
  else:
    write(verdicts, line({'reason': ' '.join(reason.split())[:300]}))
    write(verdicts, failed)
  # Threads and exit handlers of the program have no say any more.
  leave(0)


if __name__ == '__main__':
  main()
