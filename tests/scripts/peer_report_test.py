"""What turns come to, on numbers that can be checked by hand."""

import pytest


def _entry(peers, name, dtype, turns):
  """Returns an entry of (token ids, counted, prefill, decode, passes)."""
  side, setting = name.split(':')
  contestant = peers.contestants.Contestant(side, setting, dtype)
  found = [
      peers.turns.Turn(
          str(contestant),
          prompt,
          1,
          ids,
          counted,
          prefill_s,
          decode_s,
          passes,
          idle_share=0.0,
          foreign_share=0.25,
      )
      for prompt, (ids, counted, prefill_s, decode_s, passes) in enumerate(
          turns
      )
  ]
  ready = {'dtype': dtype, side: '1'}
  return peers.report.Entry(contestant, ready, found)


@pytest.fixture
def rows(peers):
  """Of five contestants over two prompts of four tokens."""
  a, b = [1, 2, 3, 4], [5, 6, 7, 8]
  entries = [
      _entry(
          peers,
          'ours:plain',
          'float32',
          [(a, 4, 1.0, 1.0, 4), (b, 4, 1.0, 3.0, 4)],
      ),
      _entry(
          peers,
          'ours:lookup',
          'float32',
          [(a, 4, 1.0, 0.5, 2), (b, 4, 1.0, 0.5, 2)],
      ),
      _entry(
          peers,
          'transformers:plain',
          'bfloat16',
          [(a, 3, 1.0, 3.0, 3), ([5, 6, 0, 8], 3, 1.0, 3.0, 3)],
      ),
      # Two tokens came with the prompt, and one more than asked for.
      _entry(
          peers,
          'transformers:lookup',
          'bfloat16',
          [([*a, 9], 3, 1.0, 1.0, 1), ([5, 0, 0, 8, 9], 3, 1.0, 1.0, 1)],
      ),
      _entry(
          peers,
          'llama.cpp:plain',
          'Q4_1',
          [(a, 3, 0.5, 0.5, None), (b, 3, 0.5, 0.5, None)],
      ),
  ]
  return peers.report.rows_of(entries, 4)


def test_rates_are_tokens_after_the_prompt_over_their_time(rows):
  plain, lookup, peer, peer_lookup, llama = rows
  assert [row['decode/tokens_per_s_all'] for row in rows] == [2, 8, 1, 3, 6]
  assert plain['decode/tokens_per_s'] == pytest.approx((4 + 4 / 3) / 2)
  assert plain['decode/tokens_per_s_max'] == 4
  assert plain['decode/tokens_per_s_with_prefill'] == 8 / 6
  assert peer_lookup['decode/tokens_per_s_with_prefill'] == 10 / 4
  assert lookup['decode/tokens_per_round'] == 2
  assert peer_lookup['decode/tokens_per_round'] == 3
  assert 'decode/tokens_per_round' not in llama
  assert (lookup['speedup/vs_own_plain'], peer['speedup/vs_own_plain']) == (
      4,
      1,
  )
  assert peer_lookup['speedup/vs_own_plain'] == 3
  assert plain['speedup/vs_transformers'] == 2 / 3
  assert llama['env/llama.cpp'] == '1'


def test_outputs_are_compared_with_our_plain_of_the_same_dtype(rows):
  plain, lookup, peer, peer_lookup, _ = rows
  assert lookup['tokens/equal_prompts'] == 2
  assert lookup['tokens/first_difference'] is None
  assert lookup['tokens/reference'] == 'plain float32'
  assert peer['tokens/first_differences'] == [None, 2]
  assert peer['tokens/agreement'] == 6 / 8
  assert peer_lookup['tokens/equal_prompts'] == 1
  assert peer_lookup['tokens/first_difference'] == 1
  assert peer_lookup['tokens/equal_own_plain'] == 1


def test_of_two_dtypes_each_has_its_own_reference(peers):
  turns = [([1, 2], 2, 1.0, 1.0, 2)]
  entries = [
      _entry(peers, f'{side}:plain', dtype, turns)
      for dtype in ('bfloat16', 'float32')
      for side in ('ours', 'transformers')
  ]
  other = _entry(peers, 'llama.cpp:plain', 'Q4_1', turns)
  found = [peers.report.reference_of(e, entries) for e in (*entries, other)]
  assert [e.dtype for e in found] == ['bfloat16'] * 2 + ['float32'] * 2 + [
      'bfloat16'
  ]
  assert peers.report.reference_of(other, [other]) is None
  lone = peers.report.rows_of([other], 2)
  assert 'tokens/reference' not in lone[0]
  assert 'speedup/vs_transformers' not in lone[0]
  assert peers.report.ratios(lone) == {}


def test_the_table_ends_with_our_best_over_transformers_best(peers, rows):
  found = {
      'model': 'x.gguf',
      'draft': '',
      'num_prompts': 2,
      'max_new_tokens': 4,
      'repeats': 1,
      'env/hardware': 'a CPU',
      'env/threads': 2,
      'env/date': '2000-01-01',
  }
  table, _, below = peers.report.markdown(rows, found).partition('\n\n')
  lines = [
      [cell.strip() for cell in line.strip('|').split('|')]
      for line in table.splitlines()
  ]
  assert lines[3] == (
      ['ours lookup', 'float32', '8.0', '8.0 (8.0 – 8.0)', '2.7', '2.00']
      + ['4.00', '2.67', '2 of 2', '']
  )
  assert lines[5][-2:] == ['1 of 2 (plain float32)', '1']
  assert [line[0] for line in lines[-2:]] == [
      '**our best ÷ best of llama.cpp**',
      '**our best ÷ best of transformers**',
  ]
  assert lines[-2][2:5] == ['**1.33**', '', '**0.67**']
  assert lines[-1][2:5] == ['**2.67**', '', '**1.07**']
  assert 'draft' not in below
  assert 'llama.cpp 1, ours 1, transformers 1' in below
  assert 'by the rest of the machine: 25%' in below
