import types

import numpy as np
import pytest

from speculative.decoding.config import DecodeConfig
from speculative.decoding.generation import Generation
from speculative.drafting.config import DrafterConfig
from speculative.tasks import common
from speculative.tasks import measure
from speculative.tokenizer import byte_level

_PLAIN = DrafterConfig('lookup', num_draft_tokens=0)
_LOOKUP = DrafterConfig('lookup', num_draft_tokens=2)
_LM = DrafterConfig('lm', model='x', num_draft_tokens=2)


def _generation(token_ids, decode_s, rounds=None, tested=0, accepted=0):
  rows = len(token_ids)
  has_draft = tested > 0
  return Generation(
      token_ids=token_ids,
      reasons=['length'] * rows,
      log_probs=None,
      num_rounds=1,
      round_starts=[np.arange(len(ids)) for ids in token_ids],
      rounds=np.array(rounds or [len(ids) for ids in token_ids]),
      drafted=np.full(rows, 2 * tested),
      tested=np.full((rows, 2 if has_draft else 0), tested),
      accepted=np.full((rows, 2 if has_draft else 0), accepted),
      prefill_s=0.0,
      decode_s=decode_s,
  )


def _prepared(generate, batches, **decode) -> common.Prepared:
  """Makes a run whose engines call generate(drafter, batch, config)."""

  def engine(drafter):
    return types.SimpleNamespace(
        generate=lambda *args, **kwargs: generate(drafter, *args, **kwargs)
    )

  return common.Prepared(
      model=types.SimpleNamespace(engine=engine),
      decode=DecodeConfig(rounds_per_call=1, **decode),
      prompts=[],
      batches=batches,
      workdir=None,
  )


def test_every_batch_goes_through_all_settings_before_the_next():
  order = []

  def generate(drafter, batch, config):
    order.append((drafter.num_draft_tokens, batch, config.seed))
    assert config.rounds_per_call == 0
    return _generation([[1]], 1.0)

  prepared = _prepared(generate, ['A', 'B'], seed=3)
  measure.interleaved(prepared, [_PLAIN, _LOOKUP], repeats=2)
  assert order == [
      (0, 'A', 3),
      (2, 'A', 3),
      (0, 'A', 3),
      (2, 'A', 3),
      (0, 'B', 4),
      (2, 'B', 4),
      (0, 'B', 4),
      (2, 'B', 4),
  ]


def test_the_median_repeat_of_every_batch_counts():
  times = {0: iter([5.0, 1.0, 2.0, 7.0, 9.0, 8.0]), 2: iter([3.0] * 6)}

  def generate(drafter, batch, config):
    del batch, config
    return _generation([[1]], next(times[drafter.num_draft_tokens]))

  runs = measure.interleaved(
      _prepared(generate, ['A', 'B']), [_PLAIN, _LOOKUP], repeats=3
  )
  assert [[g.decode_s for g in of_setting] for of_setting in runs] == [
      [2.0, 8.0],
      [3.0, 3.0],
  ]


def _row(drafter, plain, runs, **decode):
  prepared = _prepared(None, [], **decode)
  return measure.row_of(prepared, drafter, plain, runs)


def test_the_speed_up_is_a_ratio_of_sums():
  plain = [_generation([[1] * 10], 1.0), _generation([[1] * 2], 1.0)]
  runs = [
      _generation([[1] * 10], 0.25, rounds=[5], tested=4, accepted=3),
      _generation([[1] * 2], 0.75, rounds=[2], tested=4, accepted=0),
  ]
  row = _row(_LOOKUP, plain, runs)
  # Not the mean of 4 and 1.33.
  assert row['speedup/measured'] == pytest.approx(2.0)
  assert row['baseline/tokens_per_s'] == pytest.approx((10 + 2) / 2)
  assert row['decode/tokens_per_s'] == pytest.approx((40 + 2 / 0.75) / 2)
  assert row['decode/tokens_per_round'] == pytest.approx(12 / 7)
  assert row['decode/acceptance_rate'] == pytest.approx(3 / 8)
  assert row['decode/acceptance_by_position'] == [0.375, 0.375]


def test_plain_decoding_is_compared_with_nothing():
  plain = [_generation([[1, 2]], 1.0)]
  row = _row(_PLAIN, plain, plain)
  assert row['row/name'] == 'plain'
  assert row['row/drafter'] == 'none'
  assert row['row/num_draft_tokens'] == 0
  assert not {k for k in row if k.startswith(('speedup', 'lossless'))}


def test_unequal_prompts_are_counted():
  plain = [_generation([[1, 2], [3]], 1.0), _generation([[4]], 1.0)]
  runs = [
      _generation([[1, 2], [9]], 1.0, tested=1),
      _generation([[5]], 1.0, tested=1),
  ]
  row = _row(_LOOKUP, plain, runs)
  assert row['lossless/greedy_equal'] is False
  assert row['lossless/unequal_prompts'] == 2
  same = _row(_LOOKUP, runs, runs)
  assert same['lossless/greedy_equal'] is True
  assert same['lossless/unequal_prompts'] == 0


@pytest.mark.parametrize(
    'drafter, temperature, is_compared',
    [(_LM, 0.0, True), (_LM, 0.8, False), (_LOOKUP, 0.8, True)],
    ids=['greedy lm', 'sampled lm', 'sampled lookup'],
)
def test_tokens_are_compared_only_where_they_are_promised(
    drafter, temperature, is_compared
):
  runs = [_generation([[1]], 1.0, tested=1)]
  row = _row(drafter, runs, runs, temperature=temperature)
  assert ('lossless/greedy_equal' in row) == is_compared


def test_the_table_has_a_line_a_setting():
  plain = [_generation([[1, 2]], 1.0)]
  other = [_generation([[1, 3]], 0.5, rounds=[1], tested=1, accepted=1)]
  rows = [_row(_PLAIN, plain, plain), _row(_LOOKUP, plain, other)]
  lines = measure.table(rows).splitlines()
  cells = [[c.strip() for c in line.strip('|').split('|')] for line in lines]
  assert cells[0][:3] == ['setting', 'tokens/s', 'tokens/round']
  assert cells[2] == ['plain', '2.00', '1.00', '', '1.00', '']
  assert cells[3] == ['lookup 2', '4.00', '2.00', '1.00', '2.00', 'no']


@pytest.mark.parametrize(
    ('speedup', 'verdict'), [(1.6, 'faster.'), (0.8, 'suits this text better.')]
)
def test_reason_says_what_a_round_costs_and_brings(speedup, verdict):
  row = {
      'row/name': 'lookup 4',
      'decode/tokens_per_round': 2.0,
      'speedup/measured': speedup,
  }
  said = measure.reason(row)
  assert f'costs {2.0 / speedup:.2f} plain passes and brings 2.00' in said
  assert said.endswith(verdict)


def test_what_to_do_is_said_once():
  row = {
      'row/name': 'lookup 4',
      'decode/tokens_per_round': 2.0,
      'speedup/measured': 0.8,
      'speedup/reason': 'lookup 4: use K = 8.',
  }
  assert measure.reason(row).endswith('so it is slower.')


def test_an_interval_stands_beside_its_speed_up():
  plain = [_generation([[1, 2]], 1.0)]
  row = _row(_LOOKUP, plain, [_generation([[1, 2]], 0.5, tested=1)])
  row |= {'speedup/low': 1.5, 'speedup/high': 2.504}
  assert '2.00 (1.50-2.50)' in measure.table([row])
  row |= {'speedup/low': None, 'speedup/high': None}
  assert '(' not in measure.table([row])


def test_rows_end_at_stop_strings_and_texts_before_them():
  seen = []

  def generate(drafter, batch, config, on_tokens):
    del drafter, config
    for row in range(len(batch)):
      seen.append([on_tokens(row, list(b'ab')), on_tokens(row, list(b'c'))])
    return _generation([list(b'abc'), list(b'a')], 1.0)

  prepared = _prepared(generate, ['AB'], stop_strings=('bc',))
  prepared.model.tokenizer = byte_level.ByteTokenizer()
  ((generation,),) = measure.of_batch(prepared, [_LOOKUP], 0, repeats=1)
  # The third token completes it, in either row.
  assert seen == [[None, 3], [None, 3]]
  assert measure.texts_of(prepared, generation) == ['a', 'a']
