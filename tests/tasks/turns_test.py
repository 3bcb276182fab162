import types

import pytest

from speculative.bench.prompts import Prompt
from speculative.decoding.config import DecodeConfig
from speculative.errors import UserError
from speculative.tasks import common
from speculative.tasks import turns


class _Echo:
  """Answers with what it was asked, shorter by a letter, and its seed."""

  def __init__(self):
    self.batches = []

  def encode(self, said, *, chat_template):
    assert chat_template == 'no'
    return [said] if isinstance(said, str) else list(said)

  def generate(self, ids, *, drafter, rows, temperature, **decode):
    assert (drafter, temperature) == ('plain', 0.5)
    self.batches.append(len(ids))
    texts = [
        f'{said[-1][1:]}{row["seed"]}'
        for said, row in zip(ids, rows, strict=True)
    ]
    return types.SimpleNamespace(texts=texts)


def test_earlier_turns_are_answered_in_batches_and_in_place():
  prompts = [
      Prompt('ab', 'no', next_turns=('cd', 'ef')),
      Prompt('one', 'no'),
      Prompt('gh', 'no', next_turns=('ij',)),
      Prompt('kl', 'no', next_turns=('mn',)),
  ]
  model = _Echo()
  found = turns.answer_first(
      model,
      prompts,
      DecodeConfig(seed=7, temperature=0.5),
      drafter='plain',
      batch_size=2,
  )
  assert [p.said for p in found] == [
      ('ab', 'b7', 'cd', 'd7', 'ef'),
      'one',
      ('gh', 'h9', 'ij'),
      ('kl', 'l10', 'mn'),
  ]
  assert not any(p.next_turns for p in found)
  assert model.batches == [2, 1, 1]


_FIELDS = {
    'target.dtype': 'float32',
    'drafter.kind': 'lookup',
    'data.task_set': 'mt_bench',
    'data.turn': 'second',
    'data.num_prompts': 2,
    'decode.max_new_tokens': 4,
}


def test_the_second_turn_follows_what_the_model_itself_said(
    tmp_path, get_config
):
  config = get_config(_FIELDS)
  prepared = common.prepare(
      config, tmp_path, common.config_lib.load_prompts(config)
  )
  for prompt, batch in zip(prepared.prompts, prepared.batches, strict=True):
    first, answer, second = prompt.said
    alone = prepared.model.generate(first, max_new_tokens=4).texts[0]
    assert answer == alone
    assert batch == [prepared.model.encode((first, answer, second))]


def test_a_second_turn_that_does_not_fit_leaves_no_workdir(
    tmp_path, get_config
):
  config = get_config(_FIELDS | {'decode.max_seq_len': 24})
  with pytest.raises(UserError, match='at most 23 fit'):
    common.prepare(
        config, tmp_path / 'new', common.config_lib.load_prompts(config)
    )
  assert not (tmp_path / 'new').exists()
