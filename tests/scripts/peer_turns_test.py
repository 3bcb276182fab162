"""How contestants take turns, and how processes are talked to.

They are played by a small Python script: nothing here needs torch.
"""

import contextlib
import json
import os
import signal

import pytest

from speculative.errors import UserError


@pytest.fixture
def processes(peers, fake_peer):
  """Starts fake processes of ours and of a peer; returns them by group."""
  found = {}

  def start(*settings):
    for side in ('ours', 'transformers'):
      group = (side, 'float32')
      found[group] = peers.contestants.Process(
          side, fake_peer.command(*settings), verbose=True
      )
    return found

  yield start
  for process in found.values():
    process.close()


def test_fields_are_what_they_say(peers):
  fields = peers.protocol.fields
  assert fields('') == {}
  assert fields('a=4, b=constant,c=0.4,d=true') == {
      'a': 4,
      'b': 'constant',
      'c': 0.4,
      'd': True,
  }
  for wrong in ('a', 'a=', '=1', 'a=1,,b=2'):
    with pytest.raises(ValueError, match='no field with its value'):
      fields(wrong)
  with pytest.raises(ValueError, match='has y, z, which Llama does not know'):
    peers.protocol.refuse('x', {'z', 'y'}, 'Llama does not know')


def test_everyone_begins_in_turn(peers):
  order = peers.turns.order
  assert order(3, 4) == [1, 2, 0]
  assert [order(3, first)[0] for first in range(6)] == [0, 1, 2, 0, 1, 2]


def _contestants(peers, *names):
  found = [tuple(name.split(':')) for name in names]
  return [peers.contestants.Contestant(*x, 'float32') for x in found]


def _take(peers, processes, contestants, log, **others):
  peers.turns.take_turns(
      processes,
      contestants,
      [[1, 2], [5]],
      log,
      repeats=others.pop('repeats', 2),
      num_tokens=4,
      **others,
  )


def test_turns_rotate_and_only_their_tokens_count(peers, fake_peer, processes):
  contestants = _contestants(
      peers, 'ours:plain', 'ours:lookup', 'transformers:plain'
  )
  log = peers.turns.Log(None, {})
  seen = []
  _take(
      peers,
      processes('plain', 'lookup'),
      contestants,
      log,
      on_prompt=lambda done, total: seen.append((done, total)),
  )
  assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
  found = [(t.contestant, t.prompt, t.repeat) for t in log.turns]
  names = [str(c) for c in contestants]
  assert found == [
      (names[(step + prompt + repeat) % 3], prompt, repeat)
      for repeat in (1, 2)
      for prompt in (0, 1)
      for step in range(3)
  ]
  # A setting is warmed once a process, and no line of a library is an answer.
  asked = fake_peer.take_asked()
  assert len(asked) == len(found) + 3
  assert [setting for setting, _, _ in asked[:3]] == [
      c.setting for c in contestants
  ]
  assert [t.token_ids for t in log.of(contestants[0])] == [
      [3, 4, 5, 6],
      [5, 6, 7, 8],
  ] * 2
  assert log.of(contestants[1])[0].token_ids == [3, 4, 5, 6, 7]


def test_a_stopped_run_goes_on_where_it_was(
    peers, fake_peer, processes, tmp_path
):
  contestants = _contestants(peers, 'ours:plain', 'transformers:plain')
  of = {'model': 'x', 'contestants': {'a': ''}}
  path = tmp_path / 'new' / 'found.turns.jsonl'
  started = processes('plain')
  _take(peers, started, contestants, peers.turns.Log(path, of), repeats=1)
  whole = path.read_text()
  fake_peer.take_asked()
  # Killed in the middle of its last line, after three of four turns.
  path.write_text(whole[:-20])
  log = peers.turns.Log(path, of)
  assert len(log.turns) == 3
  assert path.read_text() == whole[: whole[:-20].rfind('\n') + 1]
  _take(peers, started, contestants, log, repeats=1)
  # Both are warm from before.
  assert fake_peer.take_asked() == [('plain', [5], 4)]
  assert [t.key for t in peers.turns.Log(path, of).turns] == [
      t.key for t in log.turns
  ]
  with pytest.raises(UserError, match='another .* in hardware, model;'):
    peers.turns.Log(path, of | {'model': 'y', 'hardware': 'z'})
  started['ours', 'float32'].ready = {'dtype': 'float32', 'fake': '8'}
  with pytest.raises(UserError, match='differs in ours float32; choose'):
    _take(peers, started, contestants, peers.turns.Log(path, of), repeats=1)
  log.remove()
  assert not list(path.parent.iterdir())


def test_a_whole_log_is_not_written_again(peers, tmp_path):
  path = tmp_path / 'found.turns.jsonl'
  peers.turns.Log(path, {'model': 'x'}).check_ready({'ours': {'jax': '1'}})
  before = path.stat().st_ino, path.read_text()
  peers.turns.Log(path, {'model': 'x'}).check_ready({'ours': {'jax': '1'}})
  assert (path.stat().st_ino, path.read_text()) == before
  # Killed in the middle of its first line.
  path.write_text(before[1][:10])
  assert peers.turns.Log(path, {'model': 'x'}).turns == []
  assert path.read_text() == json.dumps({'of': {'model': 'x'}}) + '\n'


@pytest.mark.parametrize(
    'content',
    [
        b'mine',
        b'mine\n',
        b'[1]\n',
        b'{"of": 3}\n',
        b'{"of": {}}\n{"a": 1}\n',
        b'{"of": {}}\n{"ready": {}}\n{"a": 1}\n',
        b'\xff\xfe\n',
    ],
)
def test_a_file_that_is_no_log_is_named_and_left_alone(
    peers, tmp_path, content
):
  path = tmp_path / 'found.turns.jsonl'
  path.write_bytes(content)
  with pytest.raises(UserError, match=r'found\.turns\.jsonl is no file of tur'):
    peers.turns.Log(path, {})
  assert path.read_bytes() == content


def test_a_log_that_cannot_be_written_is_named(peers, tmp_path):
  (tmp_path / 'file').touch()
  with pytest.raises(UserError, match='cannot be written .*another --out'):
    peers.turns.Log(tmp_path / 'file' / 'new' / 'found.turns.jsonl', {})


def test_a_process_killed_between_turns_is_named_in_one_line(peers, fake_peer):
  ended = []
  with pytest.raises(
      UserError, match=r'^x: ended early \(--verbose shows all it says\)$'
  ):
    with contextlib.ExitStack() as stack:
      stack.callback(lambda: ended.append(True))
      process = peers.contestants.Process('x', fake_peer.command('plain'))
      stack.callback(process.close)
      process.run('plain', [1], 2)
      os.kill(process.pid, signal.SIGKILL)
      os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
      process.run('plain', [1], 2)
  assert ended


@pytest.mark.parametrize(
    'setting, message',
    [
        ('broken', r'ours: no such thing \(--verbose'),
        ('short', r'ours:short:float32 gave 3 tokens to prompt 0, of 4'),
    ],
)
def test_a_turn_that_fails_says_why(peers, processes, setting, message):
  contestants = _contestants(peers, f'ours:{setting}')
  with pytest.raises(UserError, match=message):
    _take(peers, processes(setting), contestants, peers.turns.Log(None, {}))


@pytest.mark.parametrize(
    'setting, message',
    [('unready', 'x: cannot be loaded'), ('silent', 'x: ended early')],
)
def test_a_process_that_does_not_load_says_why(
    peers, fake_peer, setting, message
):
  with pytest.raises(UserError, match=message):
    peers.contestants.Process('x', fake_peer.command(setting))
