"""Whose answers a benchmark scores, and how often."""

import json

import pytest

from speculative.bench import quality
from speculative.errors import UserError

# So long that their tokens tell them apart.
_SUMS = [
    {'question': letter * (i + 1), 'answer': f'so #### {i}'}
    for i, letter in enumerate('abc')
]


@pytest.mark.slow
@pytest.mark.parametrize('batch_size', [1, 2])
def test_every_answer_is_scored_once_beside_its_own_row(
    run_benchmark, tmp_path, monkeypatch, batch_size
):
  scored = []

  def record(task_set, rows, texts, *, run_code):
    scored.append((task_set, run_code, list(zip(rows, texts, strict=True))))
    return {'quality/exact_match': len(scored)}

  monkeypatch.setattr(quality, 'score', record)
  path = tmp_path / 'sums.jsonl'
  path.write_text(''.join(json.dumps(row) + '\n' for row in _SUMS))
  fields = {
      'data.prompts': str(path),
      'data.task_set': 'gsm8k',
      'decode.batch_size': batch_size,
      'bench.calibration_prompts': 0,
      'bench.repeats': 1,
      'bench.plot': 'no',
  }
  found = run_benchmark(fields).results
  lines = (tmp_path / 'run/prompts.jsonl').read_text().split('\n')[:-1]
  records = [json.loads(line) for line in lines]
  least = min(r['prompt_tokens'] for r in records)
  assert len(scored) == 2
  for name, (task_set, run_code, pairs) in zip(
      ('plain', 'lookup 4'), scored, strict=True
  ):
    assert (task_set, run_code) == ('gsm8k', 'no')
    expected = {
        r['prompt_tokens'] - least + 1: r['text']
        for r in records
        if r['setting'] == name
    }
    assert len(set(expected.values())) == 3
    assert {len(row['question']): text for row, text in pairs} == expected
  scores = [row['quality/exact_match'] for row in found['rows']]
  assert scores == [1, 2]

  # Code of answers would not run again; other references are other scores.
  assert run_benchmark(fields).results == found
  assert len(scored) == 2
  again = run_benchmark(fields | {'bench.run_code': 'yes'}).results['rows']
  assert [row['quality/exact_match'] for row in again] == [3, 4]
  changed = [row | {'answer': '#### 9'} for row in _SUMS]
  path.write_text(''.join(json.dumps(row) + '\n' for row in changed))
  again = run_benchmark(fields).results['rows']
  assert [row['quality/exact_match'] for row in again] == [5, 6]


def test_what_cannot_be_scored_is_refused_before_anything_is_read(
    run_benchmark,
):
  with pytest.raises(UserError, match="run_code is 'maybe'"):
    run_benchmark({'bench.run_code': 'maybe'})
