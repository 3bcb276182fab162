"""Hosts as threads of one process."""

import concurrent.futures
import contextlib
import queue
import re
import socket

import pytest

from speculative import rendezvous
from speculative.errors import UserError

_TIMEOUT_S = 20.0


@pytest.fixture
def coordinator() -> str:
  """An address that no one listens at."""
  with socket.create_server(('127.0.0.1', 0)) as server:
    return f'127.0.0.1:{server.getsockname()[1]}'


@pytest.fixture
def pool():
  """Threads for hosts."""
  with concurrent.futures.ThreadPoolExecutor(8) as threads:
    yield threads


@pytest.fixture
def ended() -> queue.Queue:
  """Gets what a host would end with."""
  return queue.Queue()


@pytest.fixture
def start(coordinator, pool, ended):
  """Starts a host; returns the future of its Party."""
  futures = []

  def call(host, num_hosts=3, *, same='', timeout_s=_TIMEOUT_S):
    futures.append(
        pool.submit(
            rendezvous.meet,
            rendezvous.Place(coordinator, num_hosts, host),
            timeout_s=timeout_s,
            same=same,
            on_end=lambda reason: ended.put((host, reason)),
        )
    )
    return futures[-1]

  yield call
  parties = [f.result() for f in futures if f.exception() is None]
  for party in parties:
    party._begin_to_end()
    for link in party._links.values():
      with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
  for party in parties:
    for thread in party._threads:
      thread.join()
    party._hang_up()


def _ends(ended: queue.Queue, count: int) -> dict[int, str]:
  return dict(ended.get(timeout=_TIMEOUT_S) for _ in range(count))


def test_hosts_meet_in_any_order_and_part_as_friends(start, pool, ended):
  hosts = [start(host) for host in (2, 0, 1)]
  parties = [host.result() for host in hosts]
  for done in [pool.submit(party.close) for party in parties]:
    done.result()
  assert ended.empty()


def test_one_host_alone_waits_for_no_one(start, ended):
  start(0, 1).result(timeout=_TIMEOUT_S).close()
  assert ended.empty()


def test_the_port_is_free_again_for_jax(start, coordinator):
  for host in [start(host, 2) for host in (0, 1)]:
    host.result()
  port = int(coordinator.split(':')[1])
  with socket.create_server(('', port)) as server:
    assert server.getsockname()[1] == port


def test_absent_hosts_are_counted_and_named_on_all_that_came(start):
  hosts = [start(host, 4, timeout_s=1) for host in (0, 2)]
  for host in hosts:
    with pytest.raises(UserError, match='2 of 4 hosts came .*absent: 1, 3;'):
      host.result()


def test_a_host_that_finds_no_coordinator_names_it(start, coordinator):
  with pytest.raises(UserError, match=f'host 1 of 2 .*{coordinator}'):
    start(1, 2, timeout_s=0.5).result()


@pytest.mark.parametrize(
    ('first', 'second', 'match'),
    [
        ((1, 3, ''), (1, 3, ''), 'two hosts have --host=1'),
        ((1, 3, ''), (2, 4, ''), '--num_hosts=4, host 0 with 3'),
        ((1, 3, ''), (2, 3, 'other'), 'host 2 .* another config than host 0'),
    ],
)
def test_hosts_that_were_started_otherwise_are_refused(
    start, first, second, match
):
  zero = start(0)
  others = [
      start(h, n, same=same, timeout_s=2.0) for h, n, same in (first, second)
  ]
  with pytest.raises(UserError, match=match):
    zero.result()
  # One of them may come when host 0 has left.
  said = [str(host.exception()) for host in others]
  assert any(re.search(match, text) for text in said)


def test_strangers_and_hosts_that_left_do_not_count(start, coordinator, ended):
  first = start(0, 2)
  address = ('127.0.0.1', int(coordinator.split(':')[1]))
  for said in ('GET / HTTP/1.1\n', '{"host": null}\n', '', 'x' * 5000):
    while True:
      try:
        stranger = socket.create_connection(address, timeout=5)
        break
      except ConnectionRefusedError:
        pass
    stranger.sendall(said.encode())
    stranger.close()
  # Says nothing for as long as the hosts meet.
  with socket.create_connection(address):
    assert not first.done()
    second = start(1, 2)
    first.result()
    second.result()
  assert ended.empty()


@pytest.mark.parametrize('failing', [0, 1])
def test_a_host_that_fails_ends_the_others_with_its_reason(
    start, pool, ended, capsys, failing
):
  parties = {h: host.result() for h, host in [(h, start(h)) for h in range(3)]}
  # Waits for the others, which in this test do not leave.
  pool.submit(parties[failing].fail, 'no such\n file.')
  others = {0, 1, 2} - {failing}
  reason = f'host {failing} of 3 ended: no such file.'
  assert _ends(ended, 2) == dict.fromkeys(others, reason)
  assert capsys.readouterr().err == 'error: no such file.\n'


@pytest.mark.parametrize('dying', [0, 1])
def test_a_host_that_dies_ends_the_others(start, ended, dying):
  parties = {h: host.result() for h, host in [(h, start(h)) for h in range(3)]}
  # The dead say nothing; their links close one after another.
  parties[dying]._begin_to_end()
  for link in parties[dying]._links.values():
    link.shutdown(socket.SHUT_RDWR)
  reason = f'host {dying} of 3 is gone; its own output may say why.'
  assert _ends(ended, 2) == dict.fromkeys({0, 1, 2} - {dying}, reason)


@pytest.mark.parametrize(
    ('place', 'match'),
    [
        (('10.0.0.1', 2, 0), "'10.0.0.1'.*HOST:PORT"),
        ((':80', 2, 0), 'HOST:PORT'),
        (('a:port', 2, 0), 'HOST:PORT'),
        (('a:70000', 2, 0), 'HOST:PORT'),
        (('a:80', 0, 0), 'num_hosts needs to be >= 1, got 0'),
        (('a:80', 2, 2), 'host is 2; .*one of 0 to 1'),
        (('a:80', 2, -1), 'host is -1'),
    ],
)
def test_a_wrong_place_is_refused(place, match):
  with pytest.raises(UserError, match=match):
    rendezvous.Place(*place)


def test_a_port_in_use_is_named(start, coordinator):
  with socket.create_server(('', int(coordinator.split(':')[1]))):
    with pytest.raises(UserError, match='cannot listen.*another port'):
      start(0, 2).result()
