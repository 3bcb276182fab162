"""Hosts that find each other before a run, and end together.

One process runs on every host, and all of them run the same programs in step.
Left alone, jax aborts with a stack trace when a host does not come, and where
one host ends by a mistake the others wait for it in a collective. So hosts meet
at the coordinator's address before jax does, and keep these connections for as
long as they run: host 0 knows who is there, and a host that ends tells the
others why.

Messages are lines: a hello in JSON from each host, then `go` from host 0, and
at the end `done`, or `end` and the reason. A connection that closes without
either is a host that died.
"""

from collections.abc import Callable
import dataclasses
import json
import os
import select
import socket
import sys
import threading
import time

from speculative.errors import UserError

_RETRY_S = 0.2
# What the other hosts get to end before this one does.
_FAREWELL_S = 5.0
_LONGEST_HELLO = 1024
_HINT = 'was the command started on every host (gcloud: --worker=all)?'


@dataclasses.dataclass(frozen=True)
class Place:
  """Where a process stands among all of them.

  Attributes:
    coordinator: HOST:PORT of host 0, as the other hosts reach it.
    num_hosts: of all.
    host: the number of this one.
  """

  coordinator: str
  num_hosts: int
  host: int

  def __post_init__(self) -> None:
    name, _, port = self.coordinator.rpartition(':')
    if not name or not port.isdecimal() or not 0 < int(port) < 2**16:
      raise UserError(
          f'--coordinator is {self.coordinator!r}; it needs to be HOST:PORT of '
          'host 0, for instance 10.0.0.1:8476.'
      )
    if self.num_hosts < 1:
      raise UserError(f'--num_hosts needs to be >= 1, got {self.num_hosts}.')
    if not 0 <= self.host < self.num_hosts:
      raise UserError(
          f'--host is {self.host}; with --num_hosts={self.num_hosts} it needs '
          f'to be one of 0 to {self.num_hosts - 1}, another on every host.'
      )

  @property
  def name(self) -> str:
    """For messages, 'host 1 of 4'."""
    return f'host {self.host} of {self.num_hosts}'

  @property
  def address(self) -> tuple[str, int]:
    """Name and port of the coordinator."""
    name, _, port = self.coordinator.rpartition(':')
    return name.strip('[]'), int(port)


def leave(reason: str) -> None:
  """Ends the process at once: its main thread may wait for a host that left.

  Args:
    reason: for stderr.
  """
  print('error:', reason, file=sys.stderr, flush=True)
  sys.stdout.flush()
  os._exit(1)


class Party:
  """Hosts that have met."""

  def __init__(
      self,
      place: Place,
      links: dict[int, socket.socket],
      on_end: Callable[[str], None] = leave,
  ) -> None:
    """Listens until another host ends; `meet` is the way to call this.

    Args:
      place: of this host.
      links: connections by host; a host but the first has one, to host 0.
      on_end: called with the reason, in another thread, when another host
        ended too early.
    """
    self._place, self._links, self._on_end = place, links, on_end
    self._lock = threading.Lock()
    self._is_ending = False
    self._threads = [
        threading.Thread(target=self._listen, args=(host, link), daemon=True)
        for host, link in links.items()
    ]
    for thread in self._threads:
      thread.start()

  def close(self) -> None:
    """Waits until all hosts are done."""
    if self._place.host:
      self._tell('done')
    for thread in self._threads:
      thread.join()
    if not self._place.host:
      self._tell('done')
    self._hang_up()

  def fail(self, reason: str) -> None:
    """Says why this host ends, here and on the others, and waits for them.

    Args:
      reason: for stderr, and in one line for the other hosts.
    """
    reason = ' '.join(reason.split())
    if self._begin_to_end():
      print('error:', reason, file=sys.stderr, flush=True)
      self._tell(f'end {self._place.name} ended: {reason}')
    self._wait()
    self._hang_up()

  def _begin_to_end(self) -> bool:
    """Returns whether this is the first reason to end."""
    with self._lock:
      is_first, self._is_ending = not self._is_ending, True
    return is_first

  def _tell(self, message: str) -> None:
    for link in self._links.values():
      _send(link, message)

  def _hang_up(self) -> None:
    for link in self._links.values():
      link.close()

  def _wait(self) -> None:
    """Waits until the others have left: jax's own service is in host 0."""
    until = time.monotonic() + _FAREWELL_S
    for thread in self._threads:
      if thread is not threading.current_thread():
        thread.join(max(until - time.monotonic(), 0))

  def _listen(self, host: int, link: socket.socket) -> None:
    try:
      with link.makefile(encoding='utf-8', errors='replace') as lines:
        message = lines.readline().strip()
    except OSError:
      message = ''
    if message == 'done':
      return
    reason = message.removeprefix('end ') or (
        f'host {host} of {self._place.num_hosts} is gone; its own output may '
        'say why.'
    )
    if self._begin_to_end():
      self._tell(f'end {reason}')
      self._wait()
      self._on_end(reason)


def meet(
    place: Place,
    *,
    timeout_s: float,
    same: str = '',
    on_end: Callable[[str], None] = leave,
) -> Party:
  """Waits for all hosts.

  Args:
    place: of this host.
    timeout_s: how long.
    same: what has to be equal on all hosts, such as a digest of the config.
    on_end: see `Party`.

  Returns:
    The Party; the coordinator's port is free again.

  Raises:
    UserError: On every host that came, if one did not, if two have the same
      number, or if they were not started alike.
  """
  until = time.monotonic() + timeout_s
  if place.host:
    return Party(place, {0: _join(place, until, timeout_s, same)}, on_end)
  with _listener(place) as server:
    gathering = _Gathering(place, server, same)
    try:
      links = gathering.run(until, timeout_s)
    except BaseException as error:
      reason = str(error) or 'host 0 was interrupted.'
      gathering.tell_all(f'end {reason}')
      raise
  for link in links.values():
    _send(link, 'go')
  return Party(place, links, on_end)


class _Gathering:
  """Host 0 while it waits; a host that goes away meanwhile can come again."""

  def __init__(self, place: Place, server: socket.socket, same: str) -> None:
    self._place, self._server, self._same = place, server, same
    self._here: dict[int, socket.socket] = {}
    # Connections that have not said a whole line yet: any program can connect.
    self._unknown: dict[socket.socket, bytes] = {}

  def run(self, until: float, timeout_s: float) -> dict[int, socket.socket]:
    while len(self._here) < self._place.num_hosts - 1:
      waiting = [self._server, *self._unknown, *self._here.values()]
      left = until - time.monotonic()
      ready = select.select(waiting, [], [], left)[0] if left > 0 else []
      if not ready and time.monotonic() >= until:
        raise UserError(self._absent(timeout_s))
      for link in ready:
        if link is self._server:
          self._unknown[link.accept()[0]] = b''
        elif link in self._unknown:
          self._read(link)
        else:
          # Hosts that are here have nothing to say: this one has left.
          self._here = {h: s for h, s in self._here.items() if s is not link}
          link.close()
    for link in self._unknown:
      link.close()
    return self._here

  def tell_all(self, message: str) -> None:
    for link in (*self._here.values(), *self._unknown):
      _send(link, message)
      link.close()

  def _absent(self, timeout_s: float) -> str:
    num_hosts = self._place.num_hosts
    absent = [h for h in range(1, num_hosts) if h not in self._here]
    return (
        f'{len(self._here) + 1} of {num_hosts} hosts came within '
        f'{timeout_s:g} s, absent: {", ".join(map(str, absent))}; {_HINT}'
    )

  def _read(self, link: socket.socket) -> None:
    try:
      data = link.recv(_LONGEST_HELLO)
    except OSError:
      data = b''
    said = self._unknown.pop(link) + data
    if not data or len(said) > _LONGEST_HELLO:
      link.close()
    elif not said.endswith(b'\n'):
      self._unknown[link] = said
    elif (hello := _parse(said)) is None:
      link.close()
    else:
      self._unknown[link] = said
      self._check(*hello)
      self._here[hello[0]] = link
      del self._unknown[link]

  def _check(self, host: int, num_hosts: int, same: str) -> None:
    if num_hosts != self._place.num_hosts or not 0 < host < num_hosts:
      raise UserError(
          f'host {host} was started with --num_hosts={num_hosts}, host 0 with '
          f'{self._place.num_hosts}; all need the same number.'
      )
    if host in self._here:
      raise UserError(
          f'two hosts have --host={host}; each needs a number of its own, from '
          f'0 to {num_hosts - 1}.'
      )
    if same != self._same:
      raise UserError(
          f'host {host} was started with another config than host 0; all '
          'hosts need the same command and the same files.'
      )


def _parse(said: bytes) -> tuple[int, int, str] | None:
  """Returns host, num_hosts and `same` of a hello; None for anything else."""
  try:
    hello = json.loads(said)
    return int(hello['host']), int(hello['num_hosts']), str(hello['same'])
  except (ValueError, TypeError, KeyError):
    return None


def _join(
    place: Place, until: float, timeout_s: float, same: str
) -> socket.socket:
  """Returns the connection to host 0, once all hosts are there."""
  hello = json.dumps(
      {'host': place.host, 'num_hosts': place.num_hosts, 'same': same}
  )
  while True:
    try:
      left = max(until - time.monotonic(), _RETRY_S)
      link = socket.create_connection(place.address, timeout=left)
      # Host 0 was there before, so its patience ends first.
      answer = _ask(link, hello, timeout_s + _FAREWELL_S)
      if answer == 'go':
        return link
      link.close()
      if answer:
        raise UserError(answer.removeprefix('end '))
      problem = 'it was interrupted'
    except OSError as error:
      problem = error.strerror or str(error)
    if time.monotonic() + _RETRY_S >= until:
      raise UserError(
          f'{place.name} waited {timeout_s:g} s for host 0 at '
          f'{place.coordinator} ({problem}); {_HINT}'
      )
    time.sleep(_RETRY_S)


def _ask(link: socket.socket, question: str, timeout_s: float) -> str:
  """Returns the answer, and reads not a byte more; '' when none came."""
  _send(link, question)
  link.settimeout(timeout_s)
  said = b''
  while not said.endswith(b'\n'):
    try:
      byte = link.recv(1)
    except OSError:
      byte = b''
    if not byte:
      return ''
    said += byte
  link.settimeout(None)
  return said.decode(errors='replace').strip()


def _send(link: socket.socket, message: str) -> None:
  try:
    link.sendall(f'{message}\n'.encode())
  except OSError:
    # The other side has left; whoever listens to it says so.
    pass


def _listener(place: Place) -> socket.socket:
  """Opens the coordinator's port on every interface, as jax will."""
  port = place.address[1]
  try:
    if socket.has_dualstack_ipv6():
      return socket.create_server(
          ('::', port), family=socket.AF_INET6, dualstack_ipv6=True
      )
    return socket.create_server(('', port))
  except OSError as error:
    raise UserError(
        f'host 0 cannot listen on port {port} of --coordinator='
        f'{place.coordinator} ({error.strerror or error}); choose another '
        'port, the same on every host.'
    ) from error
