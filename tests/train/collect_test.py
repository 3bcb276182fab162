import collections
import dataclasses

import numpy as np
import pytest

from speculative.decoding.config import DecodeConfig
from speculative.errors import UserError
from speculative.tokenizer import byte_level
from speculative.train import collect
from speculative.train import overlap
from speculative.train.overlap import Held
from speculative.train.prompt_text import Start
from speculative.train.rolling import Answer

_TOKENIZER = byte_level.ByteTokenizer()
_DECODE = DecodeConfig(max_new_tokens=8, max_seq_len=64)


def _start(name, text='some text', kind='prompt'):
  tokens = tuple(_TOKENIZER.encode(text))
  return Start(name, text, tokens, 'code', kind, name.partition(':')[0])


def _plan(num=5, *, temperatures=(0.0, 1.0), num_documents=0, plain=0, seed=0):
  starts = [_start(f'f:{i}', f'text {i}') for i in range(num)]
  starts += [_start(f'p#{i}', 'a text', 'plain') for i in range(plain)]
  return collect.make_plan(
      starts,
      _DECODE,
      temperatures=temperatures,
      num_documents=num_documents,
      seed=seed,
  )


def _drawn(plan):
  return [plan.draw(i) for i in range(plan.num_documents)]


def test_every_prompt_is_answered_once_at_every_temperature():
  drawn = _drawn(_plan())
  pairs = [(start.where, config.temperature) for start, config in drawn]
  assert len(pairs) == len(set(pairs)) == 10
  assert [start.where for start, _ in drawn[:5]] != [
      f'f:{i}' for i in range(5)
  ], 'in the order of the file'
  assert len({config.temperature for _, config in drawn[:5]}) == 2


def test_later_passes_leave_greedy_out_and_plain_texts_come_once():
  drawn = _drawn(_plan(plain=2, num_documents=7 + 4 * 5))
  counts = collections.Counter(
      start.where for start, config in drawn if config.temperature == 0
  )
  assert all(counts[f'f:{i}'] == 1 for i in range(5))
  total = collections.Counter(start.where for start, _ in drawn)
  assert {total[f'p#{i}'] for i in range(2)} == {1}
  assert {total[f'f:{i}'] for i in range(5)} == {5}


def test_a_document_follows_from_the_seed_and_its_number():
  assert _drawn(_plan(num_documents=10)) == _drawn(_plan(num_documents=30))[:10]
  seeds = {
      config.seed
      for seed in range(3)
      for _, config in _drawn(_plan(num_documents=40, seed=seed))
  }
  assert len(seeds) == 3 * 40


@pytest.mark.parametrize(
    ('settings', 'said'),
    [
        ({'num': 0}, 'nothing to begin with'),
        ({'temperatures': ()}, 'temperatures is empty'),
        ({'temperatures': (-1.0,)}, 'temperature'),
        ({'temperatures': (0.0,), 'num_documents': 6}, 'only 5 different'),
        ({'num': 0, 'plain': 2, 'num_documents': 3}, 'only 2 different'),
    ],
)
def test_plans_that_cannot_be_are_refused(settings, said):
  with pytest.raises(UserError, match=said):
    _plan(**settings)


def _overlap(*texts):
  held = [Held(f'held:{i}', (text,)) for i, text in enumerate(texts)]
  return overlap.Overlap(held, _TOKENIZER.encode, num_tokens=12)


def test_evaluated_prompts_are_dropped_one_by_one():
  starts = [
      _start(f'f:{i}', f'{i}: what is {"abcd"[i] * 6}?') for i in range(4)
  ]
  clean, dropped = collect.drop_evaluated(starts, _overlap('what is bbbbbb?'))
  assert [start.where for start in clean] == ['f:0', 'f:2', 'f:3']
  assert [(s.where, f.where) for s, f in dropped] == [('f:1', 'held:0')]


def test_a_file_that_is_evaluated_is_refused():
  starts = [_start('a:1', 'clean, this one'), _start('b:1', 'what is bbbbbb?')]
  with pytest.raises(UserError, match='b is evaluated: 1 of its 1 prompts'):
    collect.drop_evaluated(starts, _overlap('what is bbbbbb?'))


def test_a_piece_of_text_is_dropped_without_refusing_its_file():
  start = Start('t#0', 'what is bbbbbb?', (1,), 'code', 'prompt')
  clean, dropped = collect.drop_evaluated([start], _overlap('what is bbbbbb?'))
  assert (len(clean), len(dropped)) == (0, 1)


class _Roller:
  """Answers every prompt with a text."""

  def __init__(self, texts):
    self._texts = texts

  def generate(self, requests, *, on_look=None):
    del on_look
    assert len(requests) == len(self._texts)
    return [Answer(np.array(_TOKENIZER.encode(t))) for t in self._texts]


def test_documents_that_overlap_in_what_the_target_wrote_are_dropped():
  plan = _plan(3, plain=1, temperatures=(1.0,))
  batch = collect.collect(
      plan,
      range(4),
      _Roller([' is clean', ' and then the solution', ' is fine']),
      overlap=_overlap('then the solution'),
      decode_text=_TOKENIZER.decode,
  )
  assert len(batch.dropped) == 1
  assert len(batch.documents) == 3
  assert batch.num_new == len(' is clean and then the solution is fine')
  texts = {_TOKENIZER.decode(d.tokens.tolist()) for d in batch.documents}
  assert 'a text' in texts
  for document in batch.documents:
    text = _TOKENIZER.decode(document.tokens.tolist())
    wanted = 0 if text == 'a text' else len('text 0')
    assert document.prompt_len == wanted


def test_other_starts_have_another_digest():
  starts = _plan().starts
  changed = [dataclasses.replace(starts[0], domain='chat'), *starts[1:]]
  assert collect.digest(starts) == collect.digest(list(starts))
  assert collect.digest(starts) != collect.digest(changed)
