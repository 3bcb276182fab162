import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from speculative.errors import UserError
from speculative.tasks import datastore_encode
from speculative.tasks.datastore_encode import Settings
from speculative.tasks.datastore_inputs import Item

_HELD = 'a sentence that is evaluated and may not be in a corpus'


@pytest.fixture
def settings(tmp_path):
  """Returns settings of a byte tokenizer and one evaluated text."""
  path = tmp_path / 'held.jsonl'
  path.write_text(json.dumps({'x': _HELD}))
  return Settings('random://tiny', None, (str(path),), 13, 8)


def _encode(items, settings, num_processes=1):
  return list(
      datastore_encode.encode_all(items, settings, num_processes=num_processes)
  )


def test_special_tokens_are_text_and_line_ends_are_newlines(settings, tmp_path):
  path = tmp_path / 'a.txt'
  path.write_bytes(b'no </s> token\r\n\xff')
  (found,) = _encode([Item('a', 3, 9, path=str(path))], settings)
  assert bytes(found.parts[0].tolist()).decode() == 'no </s> token\n\ufffd'
  assert (found.item.source, found.found) == (3, None)


def test_a_file_with_nul_bytes_is_no_text(settings, tmp_path):
  path = tmp_path / 'a.bin'
  path.write_bytes(b'text\0more text')
  (found,) = _encode([Item('a', 3, 9, path=str(path))], settings)
  assert found.is_binary
  assert (found.parts, found.num_tokens, found.num_left_out) == ((), 0, 0)


def test_a_long_text_is_cut_at_line_ends_and_nothing_is_lost(
    settings, monkeypatch
):
  monkeypatch.setattr(datastore_encode, '_PIECE', 5)
  text = 'one\ntwo\n\nthree and more\n'
  (found,) = _encode([Item('a', 0, 1, text=text)], settings)
  assert bytes(found.parts[0].tolist()).decode() == text


def test_what_is_evaluated_is_found_in_text_and_in_tokens(settings):
  tokens = np.array(list(f'So: {_HELD}'.encode()))
  items = [
      Item('a', 0, 1, text='nothing to see'),
      Item('b', 0, 1, text=f'So: {_HELD}'),
      Item('c', 0, 1, tokens=tokens),
  ]
  found = _encode(items, settings)
  assert [bool(each.found) for each in found] == [False, True, True]
  assert [each.num_left_out for each in found] == [0, *[len(_HELD) + 4] * 2]
  assert found[1].parts == found[2].parts == ()
  assert found[1].item.text == ''


@pytest.mark.parametrize('planted', [1100, 1024 - 20])
def test_an_evaluated_line_of_a_long_text_is_cut_out(settings, planted):
  filler = ''.join(f'{i:07}\n' for i in range(2000))
  text = f'{filler[:planted]}\n{_HELD}\n{filler[planted:]}'
  (found,) = _encode([Item('a', 0, 1, text=text)], settings)
  parts = [bytes(part.tolist()).decode() for part in found.parts]
  assert 0 < found.num_left_out < 5 * 1024
  assert found.num_left_out == len(text) - sum(map(len, parts))
  assert all(part in text and 'evaluated' not in part for part in parts)
  assert text.endswith(parts[-1])
  assert parts[-1].startswith('0000')


def test_a_text_of_which_much_is_evaluated_is_left_out(settings):
  text = f'{"x = 1" * 200}\n{_HELD}\n' * 20
  (found,) = _encode([Item('a', 0, 1, text=text)], settings)
  assert found.parts == ()


@pytest.mark.slow
def test_processes_keep_the_order_and_pass_mistakes_on(settings):
  items = [Item('a', 0, 1 << 17, text=f'text {i}') for i in range(30)]
  found = _encode(items, settings, num_processes=2)
  texts = [bytes(each.parts[0].tolist()).decode() for each in found]
  assert texts == [item.text for item in items]
  items[20] = Item('b', 0, 1, path='absent.txt')
  with pytest.raises(UserError, match='absent.txt cannot be read'):
    _encode(items, settings, num_processes=2)


def _is_alive(process):
  try:
    stat = pathlib.Path(f'/proc/{process}/stat').read_text()
  except FileNotFoundError:
    return False
  # A zombie waits for a parent that may never ask.
  return stat.rpartition(')')[2].split()[0] != 'Z'


@pytest.mark.slow
@pytest.mark.skipif(
    not pathlib.Path('/proc/self/stat').exists(),
    reason='needs /proc to look for a process: not checked',
)
def test_processes_end_with_the_one_that_started_them(tmp_path):
  script = tmp_path / 'killed.py'
  script.write_text(
      'import multiprocessing, os, sys, time\n'
      'from speculative.tasks import datastore_encode\n'
      'def work():\n'
      '  datastore_encode._end_with_parent()\n'
      '  print(os.getpid(), flush=True)\n'
      '  time.sleep(300)\n'
      'if __name__ == "__main__":\n'
      '  context = multiprocessing.get_context("spawn")\n'
      '  context.Process(target=work).start()\n'
      '  time.sleep(300)\n'
  )
  with subprocess.Popen(
      [sys.executable, str(script)], stdout=subprocess.PIPE, text=True
  ) as parent:
    child = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    for _ in range(100):
      if not _is_alive(child):
        break
      time.sleep(0.1)
    alive = _is_alive(child)
    if alive:
      os.kill(child, signal.SIGKILL)
    assert not alive
