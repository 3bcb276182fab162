import json

import numpy as np
import pytest

from speculative import api
from speculative.decoding.engine import Engine
from speculative.retrieval import datastore
from speculative.retrieval.datastore import Facts
from speculative.train import plot

# Prompts of two buckets; the last two are set aside.
_TEXTS = ('abcab', 'abc ' * 10, 'cab ' * 9, 'bac')

_ROW_KEYS = {
    'row/name',
    'row/drafter',
    'row/num_draft_tokens',
    'row/shape',
    'row/sampler',
    'row/prompts',
    'row/batch',
    'decode/tokens_per_s',
    'decode/ms_per_token',
    'decode/tokens_per_round',
    'decode/tokens',
    'time/prefill_s',
    'time/compile_s',
    'compile/count',
    'compile/count_after_warm_up',
    'decode/sequence_p50_s',
    'decode/sequence_p90_s',
    'decode/sequence_p99_s',
    'decode/tokens_128_s',
    'decode/tokens_128_deviation_s',
    'decode/round_ms',
    'decode/rounds_past_end',
    'decode/times_floor',
    'decode/beats_floor',
}
_DRAFT_KEYS = {
    'decode/acceptance_rate',
    'decode/draft_yield',
    'decode/acceptance_by_position',
    'baseline/tokens_per_s',
    'speedup/measured',
    'bench/num_loops',
    'speedup/measured_no_loops',
    'decode/tokens_per_round_no_loops',
    'lossless/greedy_equal',
    'lossless/unequal_prompts',
    'speedup/low',
    'speedup/high',
    'decode/acceptance_low',
    'decode/acceptance_high',
}
_EXPLAINED_KEYS = {'speedup/oracle', 'speedup/reason'}


@pytest.mark.slow
def test_rows_have_the_documented_keys_and_nothing_compiles_when_timed(
    run_benchmark, tmp_path, capsys, check_prediction, prediction_keys
):
  # Three drafted tokens: a program that no other test has compiled.
  found = run_benchmark({'decode.num_draft_tokens': 3}).results
  plain, lookup = found['rows']
  assert set(plain) == _ROW_KEYS | {'decode/bandwidth_floor_ms'}
  assert set(lookup) == (
      _ROW_KEYS | _DRAFT_KEYS | prediction_keys | _EXPLAINED_KEYS
  )
  assert lookup['speedup/low'] <= lookup['speedup/high']
  assert lookup['speedup/oracle'] >= lookup['speedup/measured']
  assert {k for k in found if not k.startswith('env/')} == {'rows'}
  assert (plain['row/name'], lookup['row/name']) == ('plain', 'lookup 3')
  for row in (plain, lookup):
    assert row['compile/count_after_warm_up'] == 0
    assert row['decode/tokens_per_round'] >= 1
    assert row['row/prompts'] == 'some_prompts'
    assert row['row/sampler'] == 'greedy'
  # Otherwise zero would prove nothing: prefill and loop of two buckets.
  assert plain['compile/count'] >= 2 * 2
  assert plain['decode/tokens_per_round'] == 1
  assert lookup['lossless/greedy_equal'] is True
  assert plain['decode/tokens'] == lookup['decode/tokens']

  path = tmp_path / 'run'
  assert json.loads((path / 'results.json').read_text()) == found
  lines = (path / 'metrics.jsonl').read_text().splitlines()
  assert [json.loads(line)['row/name'] for line in lines] == [
      'plain',
      'lookup 3',
  ]
  table = (path / 'results.md').read_text()
  assert capsys.readouterr().out.strip() == table.strip()
  assert table.splitlines()[-1].startswith('lookup 3, J = 3: predicted ')
  header, *csv = (path / 'results.csv').read_text().splitlines()
  assert set(header.split(',')) == set(plain) | set(lookup)
  assert len(csv) == 2
  assert (path / 'plot.png').exists() == plot.is_available()
  _check_records(path, found['rows'])
  check_prediction(lookup)
  assert len(lookup['decode/verify_costs']) == 4


def _check_records(path, rows):
  lines = (path / 'prompts.jsonl').read_text().split('\n')[:-1]
  records = [json.loads(line) for line in lines]
  # Two prompts, two runs of each with two settings, in turn.
  assert [(r['prompt'], r['repeat'], r['setting']) for r in records] == [
      (prompt, repeat, setting)
      for prompt in range(2)
      for repeat in range(2)
      for setting in ('plain', 'lookup 3')
  ]
  for record in records:
    assert sum(record['round_tokens']) == record['new_tokens'] == 16
    assert len(record['round_tokens']) == record['rounds']
    assert record['token_ids'] == records[4 * record['prompt']]['token_ids']
    assert record['seed'] == record['prompt']
    assert record['group'] == ''
  assert records[0]['text'] == records[1]['text'] != records[4]['text']
  for row in rows:
    of_row = [r for r in records if r['setting'] == row['row/name']]
    seconds = [r['decode_s'] for r in of_row]
    assert row['decode/sequence_p99_s'] == np.percentile(seconds, 99)
    assert row['decode/tokens'] == 2 * 16


@pytest.mark.slow
def test_settings_take_turns_over_every_prompt(
    run_benchmark, monkeypatch, prediction_keys
):
  order = []
  generate = Engine.generate

  def record(self, prompts, config, **kwargs):
    order.append((self.step.num_draft_tokens, bytes(prompts[0][:2])))
    return generate(self, prompts, config, **kwargs)

  monkeypatch.setattr(Engine, 'generate', record)
  fields = {'bench.num_draft_tokens': (4, 0, 4), 'bench.calibration_prompts': 0}
  found = run_benchmark(fields, texts=('abcab', 'xyxy')).results
  # Nothing was set aside, so nothing is predicted.
  assert not prediction_keys & set(found['rows'][1])
  assert order == [
      (0, b'ab'),
      (4, b'ab'),
      (0, b'ab'),
      (4, b'ab'),
      (0, b'xy'),
      (4, b'xy'),
      (0, b'xy'),
      (4, b'xy'),
  ]


@pytest.fixture
def write_store(tmp_path):
  """Writes a datastore of one text for the random model."""
  tokenizer = api.open_model('random://tiny').tokenizer
  separator = tokenizer.vocab_size

  def write(text):
    facts = Facts(tokenizer=tokenizer.fingerprint, vocab_size=separator)
    tokens = np.array([*tokenizer.encode(text), separator])
    shard = datastore.make_shard(tokens, separator=separator, num_threads=1)
    datastore.write(tmp_path / 'store', facts, [shard])
    return str(tmp_path / 'store')

  return write


@pytest.mark.slow
def test_settings_are_measured_over_what_was_loaded_once(
    run_benchmark, write_store
):
  fields = {
      'drafter.kind': 'retrieval',
      'drafter.shape': 'tree',
      'drafter.store': write_store('xyabcz'),
      'decode.num_draft_tokens': 5,
      'bench.calibration_prompts': 0,
      'bench.settings': (
          'name=REST,retrieval.sources=store,retrieval.max_ngram=4',
          'name=text,retrieval.sources=context',
          'kind=lookup,num_draft_tokens=4',
      ),
  }
  plain, *rows = run_benchmark(fields, texts=('abc', 'xyxyxy')).results['rows']
  assert [row['row/name'] for row in rows] == [
      'REST',
      'text',
      'kind=lookup,num_draft_tokens=4',
  ]
  kinds = ['retrieval', 'retrieval', 'lookup']
  assert [row['row/drafter'] for row in rows] == kinds
  assert [row['row/num_draft_tokens'] for row in rows] == [5, 5, 4]
  for row in rows:
    assert row['lossless/greedy_equal'] is True
    assert row['decode/tokens'] == plain['decode/tokens']
    assert row['compile/count_after_warm_up'] == 0
  rest, text, lookup = rows
  assert rest['datastore/tokens'] == 7
  assert 'datastore/tokens' not in text
  assert not [key for key in lookup if key.startswith('retrieval/')]
  for row, most in ((rest, 4), (text, 16)):
    shares = row['retrieval/matched_len_histogram']
    assert len(shares) == most + 1
    assert sum(shares) == pytest.approx(1, abs=1e-3)
    mean = np.dot(shares, range(most + 1))
    assert row['retrieval/matched_len'] == pytest.approx(mean, abs=1e-2)
    assert row['retrieval/query_ms'] > 0
    assert row['retrieval/share_of_round'] > 0
  # The first round of 'abc' finds all of it in the store and none in the text.
  assert rest['retrieval/matched_len_histogram'][3] > 0
  assert rest['retrieval/matched_len'] > 0


@pytest.mark.slow
def test_without_a_drafter_there_is_the_plain_row_only(run_benchmark):
  (row,) = run_benchmark({'drafter.kind': 'none'}, texts=('abcab',)).results[
      'rows'
  ]
  assert row['row/name'] == 'plain'
