import types

import numpy as np
import pytest

from speculative.bench import groups


def _run(decode_s, rounds, tokens):
  return types.SimpleNamespace(
      decode_s=decode_s,
      rounds=np.array(rounds),
      token_ids=[[0] * num for num in tokens],
      num_tokens=sum(tokens),
  )


_PLAIN = [
    _run(4.0, [4], [4]),
    _run(2.0, [2], [2]),
    _run(6.0, [6], [6]),
]
_RUNS = [
    _run(1.0, [2], [4]),
    _run(4.0, [2], [2]),
    _run(2.0, [2], [6]),
]


def test_every_group_has_the_ratio_of_its_own_sums():
  found = groups.keys(_PLAIN, _RUNS, [['a'], ['b'], ['a']])
  assert found == {
      'group/a/prompts': 2,
      'group/a/speedup': pytest.approx(10 / 3),
      'group/a/tokens_per_round': 10 / 4,
      'group/b/prompts': 1,
      'group/b/speedup': pytest.approx(0.5),
      'group/b/tokens_per_round': 1.0,
  }


def test_batches_of_several_groups_have_rounds_and_no_time_of_one():
  plain = [_run(4.0, [4, 2], [4, 2]), _run(2.0, [2, 2], [2, 2])]
  runs = [_run(1.0, [2, 1], [4, 2]), _run(1.0, [2, 1], [2, 2])]
  found = groups.keys(plain, runs, [['a', 'b'], ['b', 'b']])
  assert found['group/a/speedup'] is None
  assert found['group/a/tokens_per_round'] == 2.0
  assert found['group/b/speedup'] == pytest.approx(2.0)
  assert found['group/b/tokens_per_round'] == pytest.approx(6 / 4)
  assert found['group/b/prompts'] == 3


def test_prompts_without_groups_have_no_keys_and_one_group_no_table():
  assert groups.keys(_PLAIN, _RUNS, [[''], [''], ['']]) == {}
  assert groups.table_cells([{'row/name': 'plain'}]) == ([], [])
  keys = groups.keys(_PLAIN, _RUNS, [['a'], ['a'], ['a']])
  assert groups.table_cells([{'row/name': 'x'} | keys])[1] == []


def test_the_table_has_a_line_a_group_and_a_column_a_setting():
  keys = groups.keys(_PLAIN, _RUNS, [['a'], ['b'], ['a']])
  rows = [
      {'row/name': 'plain'},
      {'row/name': 'x'} | keys,
      {'row/name': 'y'} | keys | {'group/b/speedup': None},
  ]
  header, cells = groups.table_cells(rows)
  assert header[:2] == ['group', 'prompts']
  assert [column.split(':')[0] for column in header[2:]] == ['x', 'y']
  assert cells == [
      ['a', '2', '3.33, 2.50', '3.33, 2.50'],
      ['b', '1', '0.50, 1.00', '-, 1.00'],
  ]
