"""Bigram tables of the inputs of a datastore, and tasks that use them."""

import collections
import importlib
import itertools
import json
import pathlib

import numpy as np
import pytest

import speculative
from speculative.errors import UserError
from speculative.retrieval import bigram_table
from speculative.tasks import build_bigram
from speculative.tasks import build_datastore
from speculative.tasks import verify
from speculative.tokenizer import byte_level
from speculative.train import store as store_lib

_ROOT = pathlib.Path(__file__).parents[2]
_PLANTED = 'assert area(3, 4) == 12  # a solution that no draft shall find'


def _file(name):
  return f'def {name}():\n  return 1\n' * 3


@pytest.fixture
def run(tmp_path, monkeypatch):
  """Runs the task on a few files; returns its results."""
  monkeypatch.syspath_prepend(str(_ROOT))
  for name in 'abc':
    (tmp_path / f'{name}.py').write_text(_file(name))

  def call(workdir='run', **fields):
    config = importlib.import_module('configs.bigram').get_config('tiny')
    config.update_from_flattened_dict(
        {'datastore.texts': (f'{tmp_path}/*.py',)}
        | {
            name if '.' in name else f'datastore.{name}': value
            for name, value in fields.items()
        }
    )
    return build_datastore.run(config, tmp_path / workdir).results

  return call


def _check(path, texts):
  """Holds a table to the pairs of texts."""
  counted = bigram_table.open_table(path).counted
  pairs = collections.Counter()
  for text in texts:
    pairs.update(itertools.pairwise(text.encode()))
  assert counted.num_pairs == pairs.total()
  assert counted.num_distinct == len(pairs)
  for first, *_ in pairs:
    found = {b: n for (a, b), n in pairs.items() if a == first}
    best = sorted(found, key=lambda b: (-found[b], b))[:4]
    best += [-1] * (4 - len(best))
    assert counted.successors_VW[first].tolist() == best


def test_a_place_that_cannot_be_written_is_refused_before_counting(
    run, tmp_path, monkeypatch
):
  monkeypatch.setattr(
      build_bigram.datastore_feed.os, 'access', lambda *args: False
  )
  with pytest.raises(UserError, match=f'{tmp_path}.* is not writable; name'):
    run()
  assert not (tmp_path / 'run').exists()


def test_the_pairs_of_files_are_counted(run, tmp_path):
  found = run(shard_tokens=50)
  _check(tmp_path / 'run/bigram.table', map(_file, 'abc'))
  num = len(_file('a'))
  assert found['datastore/documents'] == 3
  assert found['datastore/tokens'] == found['datastore/new_tokens'] == 3 * num
  assert found['datastore/pairs'] == 3 * (num - 1)
  assert found['datastore/followed_tokens'] == len(set(_file('abc')))
  shares = found['datastore/first_frac'], found['datastore/successors_frac']
  assert 0 < shares[0] < shares[1] <= 1
  assert found['datastore/build_tokens_per_s'] > 0
  assert found['datastore/encode_tokens_per_s'] > 0
  assert json.loads((tmp_path / 'run/results.json').read_text()) == found
  metrics = (tmp_path / 'run/metrics.jsonl').read_text().splitlines()
  assert len(metrics) == -(-3 * (num - 1) // 50) + 1
  report = (tmp_path / 'run/datastore.md').read_text()
  assert report.startswith('# Bigram table\n')
  assert f'| {tmp_path}/*.py | 3 | {3 * num} |' in report


def test_binary_files_are_left_out_and_counted(run, tmp_path):
  (tmp_path / 'b.py').write_bytes(b'x = 1\0')
  assert run()['datastore/binary_files'] == 1
  _check(tmp_path / 'run/bigram.table', map(_file, 'ac'))


def test_rows_and_what_the_model_wrote_are_counted_too(run, tmp_path):
  rows = tmp_path / 'rows.jsonl'
  rows.write_text('{"text": "hi"}\n{"text": "you"}\n')
  writer = store_lib.Writer(
      tmp_path / 'collected', tokenizer=byte_level.ByteTokenizer().fingerprint
  )
  writer.add([store_lib.Document(np.array(list(b'once'))) for _ in range(2)])
  writer.close()
  found = run(texts=(), rows=(str(rows),), stores=(f'{tmp_path}/collected',))
  path = tmp_path / 'run/bigram.table'
  _check(path, ['hi', 'you', 'once', 'once'])
  sources = bigram_table.open_table(path).header.sources
  assert [s.num_documents for s in sources] == [2, 2]
  assert [s.num_tokens for s in sources] == [5, 8]
  assert found['datastore/tokens'] == 13


def test_evaluated_text_is_left_out_and_nothing_joins_around_it(run, tmp_path):
  lines = [f'line {number}\n' * 100 for number in range(100, 120)]
  lines[10] = f'{_PLANTED}\n'
  (tmp_path / 'b.py').write_text(''.join(lines))
  held = tmp_path / 'held.jsonl'
  held.write_text(json.dumps({'prompt': 'p', 'test': _PLANTED}))
  whole = run('whole')
  found = run(held_out=(str(held),))
  assert found['datastore/left_out_documents'] == 1
  left_out = found['datastore/left_out_tokens']
  assert len(_PLANTED) < left_out < len(''.join(lines)) / 2
  assert found['datastore/tokens'] == whole['datastore/tokens'] - left_out
  # One document became two.
  assert found['datastore/documents'] == 4
  assert found['datastore/pairs'] == found['datastore/tokens'] - 4
  assert 'held.jsonl:1' in (tmp_path / 'run/datastore.md').read_text()


@pytest.mark.parametrize(
    ('fields', 'said'),
    [
        ({'held_out': ()}, 'held_out is empty'),
        ({'texts': ()}, 'texts, .rows and .stores are empty'),
        ({'successors': 0}, 'successors needs to be >= 1 and <= 64, got 0'),
        ({'successors': 65}, 'successors needs to be >= 1 and <= 64, got 65'),
        ({'store': 'a.py'}, 'a.py is no bigram table: it begins otherwise'),
        ({'store': '.'}, 'store is ., which is a directory'),
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


def test_a_datastore_is_not_written_over_and_a_table_is_no_input(run, tmp_path):
  store = f'{tmp_path}/new/x'
  run(mode='build', store=store)
  with pytest.raises(UserError, match='x is no bigram table'):
    run(store=store)
  again = dict(store=f'{tmp_path}/other/y.py', texts=(f'{tmp_path}/**/*.py',))
  first, second = run(**again), run(**again)
  for name in ('documents', 'tokens', 'binary_files'):
    assert second[f'datastore/{name}'] == first[f'datastore/{name}']


_TREE = 'shape=tree,levels=2,num_draft_tokens=6'
_TEXTS = ('abc ' * 10, 'xyz ' * 9, 'aab ' * 10)


@pytest.fixture
def drafting(run, tmp_path) -> dict[str, object]:
  """Returns fields of a drafter with a table of what the model itself says."""
  model = speculative.load('random://tiny', dtype='float32')
  said = model.generate(
      [*_TEXTS, *_TEXTS],
      rows=[{'temperature': t} for t in (0.0, 0.0, 0.0, 0.7, 0.7, 0.7)],
      max_new_tokens=16,
  )
  writer = store_lib.Writer(
      tmp_path / 'said', tokenizer=model.tokenizer.fingerprint
  )
  writer.add(
      [
          store_lib.Document(np.array([*text.encode()[-1:], *new]))
          for text, new in zip(
              [*_TEXTS, *_TEXTS], said.generation.token_ids, strict=True
          )
      ]
  )
  writer.close()
  run('table', texts=(), stores=(f'{tmp_path}/said',))
  return {
      'drafter.kind': 'bigram',
      'drafter.table': f'{tmp_path}/table/bigram.table',
  }


@pytest.mark.slow
def test_chains_and_trees_are_verified_by_tokens_and_by_law(
    drafting, get_config, write_prompts, tmp_path
):
  fields = drafting | {
      'data.prompts': write_prompts(_TEXTS),
      'decode.batch_size': 3,
      'verify.drafters': ('config', _TREE),
      'verify.samplers': ('T0.7_p0.9',),
  }
  result = verify.run(get_config(fields), tmp_path / 'verified')
  assert result.exit_status == 0
  rows = result.results['rows']
  assert len(rows) == 2
  assert all(row['verify/passed'] for row in rows)
  assert [row['verify/rows_equal'] for row in rows] == [3] * 2
  assert all('verify/p_value' in row for row in rows)
  assert result.results['decode/tokens_per_round'] > 1


@pytest.mark.slow
def test_a_benchmark_of_another_kind_measures_and_predicts_them(
    drafting, run_benchmark, check_prediction
):
  settings = (
      'name=chain,kind=bigram,num_draft_tokens=2',
      f'name=tree,kind=bigram,{_TREE},table_fallback=none',
  )
  fields = drafting | {'drafter.kind': 'lookup', 'bench.settings': settings}
  rows = run_benchmark(fields).results['rows'][1:]
  assert [r['row/drafter'] for r in rows] == ['bigram', 'bigram']
  assert [r['row/shape'] for r in rows] == ['chain', 'tree']
  for row in rows:
    assert row['lossless/greedy_equal'] is True
    check_prediction(row)
