"""Building and searching datastores, on a few thousand tokens."""

import importlib
import itertools
import json
import pathlib
import types

import numpy as np
import pytest

from speculative.train import store as store_lib

_SCRIPTS = pathlib.Path(__file__).parents[2] / 'scripts'


@pytest.fixture
def script(monkeypatch) -> types.ModuleType:
  """The script as a module."""
  monkeypatch.syspath_prepend(str(_SCRIPTS))
  return importlib.import_module('bench_retrieval')


@pytest.fixture
def text_lib(script) -> types.ModuleType:
  """What makes its text."""
  return script.text_lib


@pytest.fixture
def corpus(text_lib):
  rng = np.random.default_rng(0)
  documents = [rng.integers(0, 40, size, np.uint32) for size in (300, 1, 200)]
  return text_lib.Corpus(documents, documents[:1], 1.0)


def test_pairs_of_drawn_tokens_are_pairs_of_the_text(text_lib):
  texts_DT = text_lib.drawn(
      [np.array([1, 2, 1, 3]), np.array([3, 4])],
      np.random.default_rng(0),
      num=3,
  )
  assert texts_DT.shape == (3, 1000)
  pairs = {
      pair for row in texts_DT for pair in itertools.pairwise(row.tolist())
  }
  # The last token is followed by the first.
  assert pairs == {(1, 2), (2, 1), (1, 3), (3, 3), (3, 4), (4, 1)}


@pytest.mark.parametrize('num_tokens', [100, 303, 504, 2600])
def test_a_text_has_as_many_tokens_as_asked_for(text_lib, corpus, num_tokens):
  rng = np.random.default_rng(0)
  documents, real = text_lib.texts_of(corpus, num_tokens, rng)
  documents = list(documents)
  assert sum(len(ids) + 1 for ids in documents) == num_tokens
  assert real == min(num_tokens, 504)
  joined = np.concatenate(documents)
  known = np.concatenate(corpus.documents)[: len(joined)]
  np.testing.assert_array_equal(joined[: len(known)], known)


def test_text_is_written_once(text_lib, corpus, tmp_path, monkeypatch):
  monkeypatch.setattr(text_lib, '_WRITTEN_TOKENS', 250)
  for _ in range(2):
    text_lib.write_text(tmp_path / 'text', corpus.documents, 'a' * 64)
  store = store_lib.open_store(tmp_path / 'text')
  assert len(store.index.shards) == 2
  assert [len(store.document(i).tokens) for i in range(3)] == [300, 1, 200]


def test_queries_end_at_places_of_the_held_out_text(script):
  held_out = [np.arange(1, 3), np.arange(1000, 2000)]
  queries = script.queries_of(held_out, np.random.default_rng(0), num=600)
  lasts = set()
  for text_1S, (length,) in queries:
    ids = text_1S[0, :length].tolist()
    assert not text_1S[0, length:].any()
    assert ids == list(range(ids[0], ids[0] + len(ids)))
    assert len(ids) == 500 or ids[0] in (1, 1000)
    lasts.add(ids[-1])
  assert len(lasts) > 300 and min(lasts) >= 1


def test_times_are_of_queries_that_were_made_before(script):
  calls = []
  times = script.times_ms(lambda *query: calls.append(query), [(1, 2), (3, 4)])
  assert len(times) == 2 and (times >= 0).all()
  assert calls == [(1, 2), (3, 4)] * 2


def test_the_tables_say_what_was_measured(script):
  found = {
      'queries': 9,
      'datastore/encode_tokens_per_s': 123456.0,
      'env/jax': '0',
      'env/device_kind': 'cpu',
      'env/cpus': 2,
      'env/date': '2000-01-01',
      'builds': [
          {
              'datastore/tokens': 2000,
              'datastore/real_tokens': 500,
              'datastore/build_tokens_per_s': 1_500_000,
              'datastore/peak_bytes_per_token': 21.5,
          }
      ],
      'rows': [
          {
              'row/path': 'host',
              'row/sources': 'both',
              'row/num_draft_tokens': 24,
              'datastore/tokens': 2000,
              'retrieval/query_ms': 0.5,
              'retrieval/query_p90_ms': 0.75,
              'retrieval/matched_len': 4.0,
          }
      ],
  }
  lines = script.markdown(found).splitlines()
  assert lines[2].split() == '| 2,000 | 25% | 1.50 M | 21.50 |'.split()
  assert (
      lines[6].split()
      == '| 2,000 | host | both | 24 | 0.50 | 0.75 | 4.00 |'.split()
  )
  assert lines[-1].startswith('9 places of held-out files, batch 1; encoding ')


@pytest.mark.parametrize(
    'flags, message',
    [
        ([], '--workdir'),
        (['--workdir=x', '--tokens=10'], '--tokens needs to be >= 1000, got'),
        (['--workdir=x', '--tokens=1e7'], 'invalid'),
        (['--workdir=x', '--queries=0'], '--queries needs to be >= 1, got 0'),
    ],
)
def test_flags_that_cannot_be_followed_are_refused(
    script, capsys, flags, message
):
  with pytest.raises(SystemExit):
    script.main(flags)
  assert message in capsys.readouterr().err


def test_too_few_files_are_refused(script, tmp_path):
  (tmp_path / 'a.py').write_text('a = 1\n')
  with pytest.raises(SystemExit, match='names 1 files, .* name more'):
    script.main(
        [
            f'--workdir={tmp_path}/run',
            '--model=random://tiny',
            f'--texts={tmp_path}/a.py',
            '--processes=1',
        ]
    )


@pytest.mark.slow
def test_stores_are_built_and_searched(script, tmp_path, capsys):
  for number in range(50):
    (tmp_path / f'{number}.py').write_text(f'def f{number}():\n  return 1\n')
  script.main(
      [
          f'--workdir={tmp_path}/run',
          '--model=random://tiny',
          f'--texts={tmp_path}/*.py',
          '--tokens=1000,3000',
          '--queries=3',
          '--nodes=4',
          '--processes=1',
      ]
  )
  found = json.loads((tmp_path / 'run/results.json').read_text())
  assert [row['datastore/tokens'] for row in found['builds']] == [1000, 3000]
  assert found['builds'][0]['datastore/real_tokens'] == 1000
  assert found['builds'][1]['datastore/real_tokens'] < 3000
  assert all(row['datastore/build_tokens_per_s'] for row in found['builds'])
  assert len(found['rows']) == 2 * 2 * 2
  for row in found['rows']:
    assert 0 < row['retrieval/query_ms'] <= row['retrieval/query_p90_ms']
    assert row['retrieval/matched_len'] > 1
  assert '| 3,000 ' in capsys.readouterr().out
