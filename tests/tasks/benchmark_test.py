import json

import numpy as np
import pytest

from speculative import api
from speculative.bench import bandwidth
from speculative.bench import predict
from speculative.bench import quality
from speculative.decoding.engine import Engine
from speculative.errors import UserError
from speculative.retrieval import datastore
from speculative.retrieval.datastore import Facts
from speculative.tasks import benchmark
from speculative.tasks import measure
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
_PREDICTION_KEYS = {
    'time/draft_frac',
    'time/target_frac',
    'time/other_frac',
    'time/round_ms',
    'time/plain_step_ms',
    'decode/draft_cost',
    'decode/verify_cost',
    'decode/verify_costs',
    'decode/overhead_cost',
    'decode/best_num_draft_tokens',
    'calibration/prompts',
    'calibration/acceptance_rate',
    'calibration/tokens_per_round',
    'speedup/predicted',
    'speedup/predicted_error',
    'speedup/predicted_noise',
    'speedup/predicted_iid',
    'speedup/predicted_iid_error',
    'speedup/best_predicted',
}
_EXPLAINED_KEYS = {'speedup/oracle', 'speedup/reason'}


@pytest.fixture
def run(tmp_path, get_config, write_prompts, monkeypatch):
  """Runs the task over a few prompts, with a quick look at the memory."""
  monkeypatch.setattr(bandwidth, '_BYTES', 1 << 20)

  def call(fields=None, texts=_TEXTS):
    config = get_config(
        {'data.prompts': write_prompts(texts), 'bench.repeats': 2}
        | (fields or {})
    )
    return benchmark.run(config, tmp_path / 'run')

  return call


@pytest.mark.slow
def test_rows_have_the_documented_keys_and_nothing_compiles_when_timed(
    run, tmp_path, capsys
):
  # Three drafted tokens: a program that no other test has compiled.
  found = run({'decode.num_draft_tokens': 3}).results
  plain, lookup = found['rows']
  assert set(plain) == _ROW_KEYS | {'decode/bandwidth_floor_ms'}
  assert set(lookup) == (
      _ROW_KEYS | _DRAFT_KEYS | _PREDICTION_KEYS | _EXPLAINED_KEYS
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
  _check_prediction(lookup)
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
  assert records[0]['text'] == records[1]['text'] != records[4]['text']
  for row in rows:
    of_row = [r for r in records if r['setting'] == row['row/name']]
    seconds = [r['decode_s'] for r in of_row]
    assert row['decode/sequence_p99_s'] == np.percentile(seconds, 99)
    assert row['decode/tokens'] == 2 * 16


@pytest.mark.slow
@pytest.mark.parametrize('source', ['lookup', 'retrieval'])
def test_a_hybrid_is_predicted_from_both_kinds_of_rounds(
    run, monkeypatch, source
):
  shares = []
  blend = predict.blend

  def record(asked, found, share):
    shares.append(share)
    return blend(asked, found, share)

  monkeypatch.setattr(predict, 'blend', record)
  fields = {
      'drafter.kind': 'hybrid',
      'drafter.model': 'target',
      'drafter.num_layers': 1,
      'drafter.hybrid_ngram': 2,
      'drafter.hybrid_source': source,
      'drafter.retrieval.sources': 'context',
      'decode.num_draft_tokens': 3,
  }
  _, row = run(fields, texts=(*_TEXTS[:2], 'abcdefg', 'xyxyxy')).results['rows']
  _check_prediction(row)
  retrieves = source == 'retrieval'
  assert ('retrieval/query_ms' in row) == retrieves
  if retrieves:
    # A match of one token leaves the round to the model.
    lengths = row['retrieval/matched_len_histogram']
    assert lengths[1] == 0 < sum(lengths[2:])
    assert row['retrieval/share_of_round'] > 0
  # One of the prompts set aside repeats itself from the start.
  assert len(shares) == 1 and 0 < shares[0] < 1


@pytest.mark.slow
def test_a_cascade_is_measured_and_not_predicted(run):
  fields = {
      'drafter.kind': 'cascade',
      'drafter.model': 'target',
      'drafter.num_layers': 1,
      'drafter.hybrid_source': 'retrieval',
      'drafter.retrieval.sources': 'context',
      'bench.settings': ('kind=cascade', 'name=look-up,kind=lookup'),
  }
  _, cascade, lookup = run(fields).results['rows']
  assert cascade['row/name'] == 'kind=cascade'
  assert cascade['lossless/greedy_equal'] is True
  assert not _PREDICTION_KEYS & set(cascade)
  assert cascade['retrieval/query_ms'] > 0
  assert 'retrieval/share_of_round' not in cascade
  assert lookup['row/name'] == 'look-up'
  _check_prediction(lookup)


@pytest.mark.slow
@pytest.mark.parametrize(
    'fields',
    [
        {
            'drafter.kind': 'retrieval',
            'drafter.retrieval.sources': 'context',
            'drafter.retrieval.length': 2,
            'decode.num_draft_tokens': 5,
        },
        {
            'drafter.kind': 'lm',
            'drafter.model': 'target',
            'drafter.num_layers': 1,
            'drafter.levels': 2,
            'drafter.width': 2,
            'decode.num_draft_tokens': 5,
        },
    ],
    ids=['retrieval', 'lm'],
)
def test_trees_of_fewer_levels_than_nodes_are_predicted(run, fields):
  found = run({'drafter.shape': 'tree'} | fields).results
  row = found['rows'][1]
  assert row['row/name'] == f'{fields["drafter.kind"]} tree 5'
  assert len(row['decode/acceptance_by_position']) == 2
  assert len(row['decode/verify_costs']) == 6
  _check_prediction(row)


@pytest.mark.slow
def test_drafts_of_the_host_are_timed_and_predicted(run, store_on_host):
  _, row = run(store_on_host).results['rows']
  assert row['row/name'] == 'retrieval tree 5'
  assert row['lossless/greedy_equal'] is True
  assert row['compile/count_after_warm_up'] == 0
  assert row['decode/draft_yield'] > 0
  assert row['time/draft_frac'] > 0
  _check_prediction(row)


def _check_prediction(row):
  values = [row[key] for key in _PREDICTION_KEYS]
  flat = np.concatenate([np.ravel(value) for value in values])
  assert np.isfinite(flat).all()
  parts = ('draft', 'target', 'other')
  assert sum(row[f'time/{p}_frac'] for p in parts) == pytest.approx(1.0)
  assert row['calibration/prompts'] == 2
  most = row['row/num_draft_tokens']
  assert 0 <= row['decode/best_num_draft_tokens'] <= most


@pytest.mark.slow
def test_settings_take_turns_over_every_prompt(run, monkeypatch):
  order = []
  generate = Engine.generate

  def record(self, prompts, config, **kwargs):
    order.append((self.step.num_draft_tokens, bytes(prompts[0][:2])))
    return generate(self, prompts, config, **kwargs)

  monkeypatch.setattr(Engine, 'generate', record)
  fields = {'bench.num_draft_tokens': (4, 0, 4), 'bench.calibration_prompts': 0}
  found = run(fields, texts=('abcab', 'xyxy')).results
  # Nothing was set aside, so nothing is predicted.
  assert not _PREDICTION_KEYS & set(found['rows'][1])
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
def test_settings_are_measured_over_what_was_loaded_once(run, write_store):
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
  plain, *rows = run(fields, texts=('abc', 'xyxyxy')).results['rows']
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
def test_prompts_that_are_timed_are_not_those_predicted_from(run, monkeypatch):
  seen = {'calibration': [], 'timed': []}
  part = 'calibration'
  generate, of_batch = Engine.generate, measure.of_batch

  def record(self, prompts, config, **kwargs):
    seen[part].extend(bytes(ids) for ids in prompts)
    return generate(self, prompts, config, **kwargs)

  def timed(*args, **kwargs):
    nonlocal part
    part = 'timed'
    return of_batch(*args, **kwargs)

  monkeypatch.setattr(Engine, 'generate', record)
  monkeypatch.setattr(measure, 'of_batch', timed)
  texts = ('abcab', 'xyxy', 'cbacb', 'yxyx')
  run({'decode.num_draft_tokens': 3, 'bench.repeats': 1}, texts=texts)
  assert {ids[-4:] for ids in seen['timed']} == {b'bcab', b'xyxy'}
  assert {ids[-4:] for ids in seen['calibration']} == {b'bacb', b'yxyx'}


@pytest.mark.parametrize('num', [-1, 4])
def test_a_prediction_needs_prompts_before_anything_is_loaded(
    run, tmp_path, num
):
  with pytest.raises(UserError, match='bench.calibration_prompts'):
    run({'bench.calibration_prompts': num}, texts=('abcab',))
  assert not (tmp_path / 'run').exists()


@pytest.mark.slow
def test_without_a_drafter_there_is_the_plain_row_only(run):
  (row,) = run({'drafter.kind': 'none'}, texts=('abcab',)).results['rows']
  assert row['row/name'] == 'plain'


@pytest.mark.slow
def test_answers_of_a_task_set_are_scored_alike(run, tmp_path):
  path = tmp_path / 'sums.jsonl'
  sums = [
      {'question': t, 'answer': f'so #### {i}'} for i, t in enumerate('abc')
  ]
  path.write_text(''.join(json.dumps(row) + '\n' for row in sums))
  found = run(
      {
          'data.prompts': str(path),
          'data.task_set': 'gsm8k',
          'bench.calibration_prompts': 0,
          'bench.repeats': 1,
      }
  ).results
  lines = (tmp_path / 'run/prompts.jsonl').read_text().split('\n')[:-1]
  records = [json.loads(line) for line in lines]
  for row in found['rows']:
    texts = [r['text'] for r in records if r['setting'] == row['row/name']]
    expected = quality.score('gsm8k', sums, texts)
    assert row['quality/prompts'] == 3
    assert {k: row[k] for k in expected} == expected
  assert 'exact_match' in (tmp_path / 'run/results.md').read_text()


def test_what_cannot_be_scored_is_refused_before_anything_is_read(run):
  with pytest.raises(UserError, match="run_code is 'maybe'"):
    run({'bench.run_code': 'maybe'})
