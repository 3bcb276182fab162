"""What a benchmark predicts, and from which prompts."""

import pytest

from speculative.bench import predict
from speculative.decoding.engine import Engine
from speculative.errors import UserError
from speculative.tasks import measure


@pytest.mark.slow
@pytest.mark.parametrize('source', ['lookup', 'retrieval'])
def test_a_hybrid_is_predicted_from_both_kinds_of_rounds(
    run_benchmark, monkeypatch, source, check_prediction
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
  _, row = run_benchmark(
      fields, texts=('abcab', 'abc ' * 10, 'abcdefg', 'xyxyxy')
  ).results['rows']
  check_prediction(row)
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
def test_a_cascade_is_measured_and_not_predicted(
    run_benchmark, check_prediction, prediction_keys
):
  fields = {
      'drafter.kind': 'cascade',
      'drafter.model': 'target',
      'drafter.num_layers': 1,
      'drafter.hybrid_source': 'retrieval',
      'drafter.retrieval.sources': 'context',
      'bench.settings': ('kind=cascade', 'name=look-up,kind=lookup'),
  }
  _, cascade, lookup = run_benchmark(fields).results['rows']
  assert cascade['row/name'] == 'kind=cascade'
  assert cascade['lossless/greedy_equal'] is True
  assert not prediction_keys & set(cascade)
  assert cascade['retrieval/query_ms'] > 0
  assert 'retrieval/share_of_round' not in cascade
  assert lookup['row/name'] == 'look-up'
  check_prediction(lookup)


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
def test_trees_of_fewer_levels_than_nodes_are_predicted(
    run_benchmark, fields, check_prediction
):
  found = run_benchmark({'drafter.shape': 'tree'} | fields).results
  row = found['rows'][1]
  assert row['row/name'] == f'{fields["drafter.kind"]} tree 5'
  assert len(row['decode/acceptance_by_position']) == 2
  assert len(row['decode/verify_costs']) == 6
  check_prediction(row)


@pytest.mark.slow
def test_drafts_of_the_host_are_timed_and_predicted(
    run_benchmark, store_on_host, check_prediction
):
  _, row = run_benchmark(store_on_host).results['rows']
  assert row['row/name'] == 'retrieval tree 5'
  assert row['lossless/greedy_equal'] is True
  assert row['compile/count_after_warm_up'] == 0
  assert row['decode/draft_yield'] > 0
  assert row['time/draft_frac'] > 0
  check_prediction(row)


@pytest.mark.slow
def test_prompts_that_are_timed_are_not_those_predicted_from(
    run_benchmark, monkeypatch
):
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
  run_benchmark({'decode.num_draft_tokens': 3, 'bench.repeats': 1}, texts=texts)
  assert {ids[-4:] for ids in seen['timed']} == {b'bcab', b'xyxy'}
  assert {ids[-4:] for ids in seen['calibration']} == {b'bacb', b'yxyx'}


@pytest.mark.parametrize('num', [-1, 4])
def test_a_prediction_needs_prompts_before_anything_is_loaded(
    run_benchmark, tmp_path, num
):
  with pytest.raises(UserError, match='bench.calibration_prompts'):
    run_benchmark({'bench.calibration_prompts': num}, texts=('abcab',))
  assert not (tmp_path / 'run').exists()
