import gzip
import importlib
import json
import pathlib

import numpy as np
import pytest

from speculative.errors import UserError
from speculative.retrieval import build as build_lib
from speculative.retrieval import datastore
from speculative.retrieval import suffix_array
from speculative.tasks import build_datastore
from speculative.tasks import datastore_feed
from speculative.tokenizer import byte_level
from speculative.train import store as store_lib

_ROOT = pathlib.Path(__file__).parents[2]
_VOCAB = byte_level.VOCAB_SIZE
_PLANTED = 'assert area(3, 4) == 12  # a solution that no draft shall find'


@pytest.fixture
def run(tmp_path, monkeypatch):
  """Runs the task on a few files; returns its results."""
  monkeypatch.syspath_prepend(str(_ROOT))
  for name in 'abc':
    (tmp_path / f'{name}.py').write_text(f'def {name}():\n  return 1\n' * 3)

  def call(workdir='run', **fields):
    config = importlib.import_module('configs.rest_code').get_config('tiny')
    config.update_from_flattened_dict(
        {'datastore.texts': (f'{tmp_path}/*.py',)}
        | {
            name if '.' in name else f'datastore.{name}': value
            for name, value in fields.items()
        }
    )
    return build_datastore.run(config, tmp_path / workdir).results

  return call


def _texts(path):
  store = datastore.open_store(path, verify='all')
  return [
      bytes(tokens.tolist()).decode()
      for shard in store.shards
      for tokens in build_lib.split(shard, separator=_VOCAB)
  ]


def _file(name):
  return f'def {name}():\n  return 1\n' * 3


def test_files_are_documents_in_their_order(run, tmp_path):
  found = run(shard_tokens=150)
  path = tmp_path / 'run/datastore.store'
  assert _texts(path) == [_file(name) for name in 'abc']
  assert found['datastore/documents'] == 3
  assert found['datastore/shards'] == 2
  assert found['datastore/tokens'] == found['datastore/new_tokens']
  assert found['datastore/tokens'] == 3 * (len(_file('a')) + 1)
  assert found['datastore/build_tokens_per_s'] > 0
  assert found['datastore/encode_tokens_per_s'] > 0
  assert json.loads((tmp_path / 'run/results.json').read_text()) == found
  metrics = (tmp_path / 'run/metrics.jsonl').read_text().splitlines()
  assert 'datastore/tokens_per_s' in json.loads(metrics[0])
  assert '3 documents' in (tmp_path / 'run/datastore.md').read_text()


def test_binary_files_are_left_out_and_counted(run, tmp_path):
  (tmp_path / 'b.py').write_bytes(b'x = 1\0')
  found = run()
  assert found['datastore/binary_files'] == 1
  assert _texts(tmp_path / 'run/datastore.store') == [_file('a'), _file('c')]
  assert (
      'hold NUL bytes, which text does not: 1.'
      in (tmp_path / 'run/datastore.md').read_text()
  )


def test_rows_and_collected_text_are_documents_too(run, tmp_path):
  rows = [{'turns': ['hi', {'x': 'you'}]}, {'turns': '\udc00 end'}]
  with gzip.open(tmp_path / 'rows.jsonl.gz', 'wt') as file:
    file.write('\n'.join([json.dumps(rows[0]), '', json.dumps(rows[1])]))
  writer = store_lib.Writer(
      tmp_path / 'collected', tokenizer=byte_level.ByteTokenizer().fingerprint
  )
  writer.add([store_lib.Document(np.array(list(b'once'))) for _ in range(2)])
  writer.close()
  found = run(
      texts=(),
      rows=(f'{tmp_path}/rows.jsonl.gz',),
      row_field='turns',
      stores=(f'{tmp_path}/collected',),
  )
  texts = _texts(tmp_path / 'run/datastore.store')
  assert texts == ['hi\nyou', '? end', 'once', 'once']
  sources = datastore.open_store(tmp_path / 'run/datastore.store').facts.sources
  assert [s.num_documents for s in sources] == [2, 2]
  assert found['datastore/documents'] == 4


def test_evaluated_text_is_left_out_whatever_it_comes_from(run, tmp_path):
  (tmp_path / 'b.py').write_text('x = 1\n' * 20 + _PLANTED + '\n')
  held = tmp_path / 'held.jsonl'
  held.write_text(json.dumps({'prompt': 'p', 'test': _PLANTED}))
  writer = store_lib.Writer(
      tmp_path / 'collected', tokenizer=byte_level.ByteTokenizer().fingerprint
  )
  planted = list(f'I say: {_PLANTED}'.encode())
  writer.add([store_lib.Document(np.array(planted))])
  writer.close()
  found = run(held_out=(str(held),), stores=(f'{tmp_path}/collected',))
  texts = _texts(tmp_path / 'run/datastore.store')
  assert texts == [_file('a'), _file('c')]
  assert found['datastore/left_out_documents'] == 2
  num_file = (tmp_path / 'b.py').stat().st_size
  assert found['datastore/left_out_tokens'] == num_file + len(planted)
  report = (tmp_path / 'run/datastore.md').read_text()
  assert 'b.py |' in report
  assert 'held.jsonl:1' in report


@pytest.mark.slow
def test_processes_change_nothing(run, tmp_path):
  for number in range(150):
    (tmp_path / f'd{number:03}.py').write_text(f'x = {number}\n')
  (tmp_path / 'b.py').write_text(_PLANTED)
  held = tmp_path / 'held.jsonl'
  held.write_text(json.dumps({'test': _PLANTED}))
  for number in (1, 2):
    run(f'{number}', num_processes=number, held_out=(str(held),))
  one, two = ((tmp_path / f'{n}/datastore.store').read_bytes() for n in (1, 2))
  assert one == two


def test_a_build_that_was_killed_goes_on_to_the_same_file(
    run, tmp_path, monkeypatch
):
  run('whole', shard_tokens=150)

  class Killed(Exception):
    pass

  def die(*unused):
    raise Killed

  with monkeypatch.context() as patch:
    patch.setattr(datastore_feed.Feed, 'on_shard', die)
    with pytest.raises(Killed):
      run(shard_tokens=150)
  assert not (tmp_path / 'run/datastore.store').exists()
  found = run(shard_tokens=150)
  assert 0 < found['datastore/new_tokens'] < found['datastore/tokens']
  path = 'datastore.store'
  whole = (tmp_path / 'whole' / path).read_bytes()
  assert (tmp_path / 'run' / path).read_bytes() == whole
  # A file that changed in between would make another one.
  with monkeypatch.context() as patch:
    patch.setattr(datastore_feed.Feed, 'on_shard', die)
    with pytest.raises(Killed):
      run(shard_tokens=150)
  (tmp_path / 'c.py').write_text('another one')
  with pytest.raises(UserError, match='holds an unfinished datastore'):
    run(shard_tokens=150)


def test_append_gives_the_shards_of_a_build_of_both(run, tmp_path):
  both = tmp_path / 'run/datastore.store'
  run(shard_tokens=150)
  store = f'{tmp_path}/x.store'
  run('x', shard_tokens=150, texts=(f'{tmp_path}/a.py',), store=store)
  more = (f'{tmp_path}/[bc].py',)
  found = run('x', mode='append', shard_tokens=150, texts=more, store=store)
  assert _texts(store) == _texts(both)
  assert found['datastore/documents'] == 3
  shards = [datastore.open_store(path).shards for path in (both, store)]
  for one, other in zip(*shards, strict=True):
    np.testing.assert_array_equal(one.suffixes, other.suffixes)
  assert not (tmp_path / 'x.store.partial').exists()


def test_inspect_reads_everything_and_changes_nothing(run, tmp_path):
  run()
  store = tmp_path / 'run/datastore.store'
  before = store.read_bytes()
  found = run('look', mode='inspect', store=str(store), texts=(), held_out=())
  assert found['datastore/is_of_target'] is True
  assert found['datastore/documents'] == 3
  assert store.read_bytes() == before
  store.write_bytes(before[:70] + b'?' + before[71:])
  with pytest.raises(UserError, match='checksum of low of shard 0'):
    run('again', mode='inspect', store=str(store))
  assert not (tmp_path / 'again').exists()


def test_reduce_drops_repeats_and_says_how_many(run, tmp_path):
  text = ''.join(f'line {i}\n' for i in range(20))
  (tmp_path / 'd.py').write_text(text)
  (tmp_path / 'e.py').write_text(text)
  (tmp_path / 'f.py').write_text(_PLANTED)
  run()
  store = f'{tmp_path}/run/datastore.store'
  found = run('less', mode='reduce', from_store=store)
  dropped = found['datastore/dropped_repeat_tokens']
  assert dropped == 135 - 8
  assert found['datastore/dropped_rare_tokens'] == 0
  before = found['datastore/tokens_before']
  # A separator stands for the repeat.
  assert found['datastore/tokens'] == before - dropped + 1
  # The repeat begins with the newline and the separator before both copies.
  texts = [*map(_file, 'abc'), text, text[:8], text[135:], _PLANTED]
  assert _texts(tmp_path / 'less/datastore.store') == texts


@pytest.mark.parametrize(
    ('fields', 'said'),
    [
        ({'mode': 'make'}, "mode is 'make'; .*build, append, inspect, reduce"),
        ({'held_out': ()}, 'held_out is empty'),
        ({'held_out': ('absent.jsonl',)}, 'absent.jsonl cannot be read'),
        ({'texts': ()}, 'texts, .rows and .stores are empty'),
        ({'texts': ('absent/*',)}, "datastore.texts names 'absent/"),
        ({'rows': ('absent.jsonl',)}, "datastore.rows names 'absent.jsonl'"),
        ({'stores': ('absent',)}, 'absent is no token store'),
        ({'depth': 31}, 'depth needs to be >= 1 and <= 30, got 31'),
        ({'depth': 0}, 'depth needs to be >= 1 and <= 30, got 0'),
        ({'store': '.'}, 'store is ., which is a directory'),
        ({'store': 'a.py'}, 'a.py is no datastore: it begins otherwise'),
        ({'store': 'a.py/b'}, 'a.py/b cannot be read'),
        ({'shard_tokens': 1}, 'shard_tokens needs to be >= 2'),
        (
            {'shard_tokens': suffix_array.MOST_TOKENS + 1},
            f'shard_tokens needs to be >= 2 and <= {suffix_array.MOST_TOKENS}',
        ),
        ({'num_processes': -1}, 'num_processes needs to be >= 0'),
        ({'mode': 'append'}, 'there is no datastore'),
        ({'mode': 'inspect'}, 'there is no datastore'),
        ({'mode': 'reduce'}, 'from_store is empty'),
        ({'target.model': ''}, 'config.target.model is empty'),
    ],
)
def test_mistakes_are_found_before_anything_is_written(
    run, tmp_path, monkeypatch, fields, said
):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(UserError, match=said):
    run(**fields)
  assert not (tmp_path / 'run').exists()


def test_rows_without_the_field_are_named(run, tmp_path):
  rows = tmp_path / 'rows.jsonl'
  rows.write_text('{"text": "a"}\n')
  with pytest.raises(UserError, match="rows.jsonl:1 has no field 'prompt'"):
    run(texts=(), rows=(str(rows),), row_field='prompt')
  assert not (tmp_path / 'run').exists()
  rows.write_text('{"text": "a"}\nnonsense\n')
  with pytest.raises(UserError, match='rows.jsonl:2 is not JSON'):
    run(texts=(), rows=(str(rows),))


def test_a_file_cannot_be_evaluated_and_found(run, tmp_path):
  with pytest.raises(UserError, match='in config.datastore.held_out too'):
    run(held_out=(f'{tmp_path}/a.py',))


def test_a_store_of_another_tokenizer_is_not_appended_to(run, tmp_path):
  datastore.write(tmp_path / 'x', datastore.Facts('aaaa', 9), [])
  with pytest.raises(UserError, match='holds ids of the tokenizer aaaa'):
    run(mode='append', store=f'{tmp_path}/x')
