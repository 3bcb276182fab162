import dataclasses
import json

import numpy as np

from speculative.bench import records
from speculative.decoding.generation import Generation


def _generation(decode_s: float = 2.0, num_places: int = 2) -> Generation:
  return Generation(
      token_ids=[[5, 6, 7, 8], [9]],
      reasons=['length', 'stop'],
      log_probs=None,
      num_rounds=3,
      round_starts=[np.array([0, 3]), np.array([0])],
      rounds=np.array([2, 1]),
      drafted=np.array([4, 2]),
      tested=np.array([[2, 1], [1, 0]], np.int32)[:, :num_places],
      accepted=np.array([[1, 1], [0, 0]], np.int32)[:, :num_places],
      prefill_s=0.1 + 0.2,
      decode_s=decode_s,
  )


def _records(generation, *, setting='a', repeat=0, batch=0):
  found = records.of_generation(
      generation,
      setting=setting,
      repeat=repeat,
      batch=batch,
      first_prompt=2 * batch,
      first_seed=7 + 2 * batch,
      prompt_lens=[3, 4],
      groups=[f'g{batch}', ''],
      texts=[f'{setting}{repeat}', 'é\u2028'],
  )
  return json.loads(json.dumps(found))


def test_a_record_says_what_a_row_brought():
  first, second = _records(_generation(), batch=1)
  assert (first['prompt'], second['prompt']) == (2, 3)
  assert (first['seed'], second['seed']) == (9, 10)
  assert (first['prompt_tokens'], first['new_tokens']) == (3, 4)
  assert first['round_tokens'] == [3, 1]
  assert second['round_tokens'] == [1]
  assert first['accepted'] == [1, 1]
  assert first['token_hash'] != second['token_hash']
  assert second['text'] == 'é\u2028'


def test_a_generation_comes_back_whole_from_json():
  for num_places in (0, 2):
    before = _generation(num_places=num_places)
    after = records.generation_of(_records(before))
    for field in dataclasses.fields(Generation):
      was, now = getattr(before, field.name), getattr(after, field.name)
      if field.name == 'round_starts':
        was, now = [x.tolist() for x in was], [x.tolist() for x in now]
      elif isinstance(was, np.ndarray):
        assert was.shape == now.shape
        was, now = was.tolist(), now.tolist()
      assert was == now, field.name


def test_a_row_without_tokens_has_no_rounds():
  blank = dataclasses.replace(
      _generation(),
      token_ids=[[], [9]],
      round_starts=[np.array([], int), np.array([0])],
  )
  found = _records(blank)
  assert found[0]['round_tokens'] == []
  assert records.generation_of(found).round_starts[0].tolist() == []


def test_runs_are_told_apart_by_setting_batch_and_repeat():
  found = []
  for batch in range(2):
    for repeat, decode_s in enumerate((5.0, 1.0, 3.0)):
      for setting in ('a', 'b'):
        found += _records(
            _generation(decode_s + batch + (setting == 'b')),
            setting=setting,
            repeat=repeat,
            batch=batch,
        )
  times = [
      [run.decode_s for run in runs] for runs in records.repeats_of(found, 'b')
  ]
  assert times == [[6.0, 2.0, 4.0], [7.0, 3.0, 5.0]]
  medians = records.medians_of(found, 'a')
  assert [run.decode_s for run in medians] == [3.0, 4.0]
  assert medians[0].token_ids == _generation().token_ids


def test_groups_are_those_of_every_row_of_every_batch():
  found = [
      *_records(_generation(), batch=1, setting='b'),
      *_records(_generation(), batch=0),
      *_records(_generation(), batch=0, repeat=1),
  ]
  assert records.groups_of(found) == [['g0', ''], ['g1', '']]


def test_answers_are_those_of_the_first_repeat_by_prompt():
  found = [
      *_records(_generation(), repeat=1),
      *_records(_generation()),
      *_records(_generation(), setting='b'),
  ]
  assert records.answers(found, 'a') == {0: 'a0', 1: 'é\u2028'}


def test_hashes_tell_texts_apart_and_stay():
  assert records.hash_of([1, 2]) != records.hash_of([2, 1])
  assert records.hash_of([]) == 'e3b0c44298fc1c14'
