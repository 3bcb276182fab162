"""A verifier that is wrong on purpose fails the task; the right one passes.

One layer of a two-layer model drafts for it, at a temperature and top-p where
the two agree on some tokens and not on others, and every fault shows.
"""

import json

import pytest

from speculative.errors import UserError
from speculative.tasks import verify
from speculative.testing import faults

_FIELDS = {
    'drafter.kind': 'lm',
    'drafter.model': 'target',
    'drafter.num_layers': 1,
    'decode.num_draft_tokens': 2,
    'decode.temperature': 0.5,
    'decode.top_p': 0.7,
    # One shape for all that is decoded.
    'decode.max_new_tokens': 4,
    'verify.num_samples': 4096,
    'verify.num_rows': 2048,
}
_TEXTS = ('one two three one two three one two', 'abc ' * 10, 'xyz ' * 9)


@pytest.fixture
def run(tmp_path, get_config, write_prompts):
  """Runs the task with a fault, or '' for none."""

  def call(fault, **fields):
    fields = {name.replace('__', '.'): value for name, value in fields.items()}
    if 'data.prompts' not in fields:
      fields['data.prompts'] = write_prompts(_TEXTS[:1])
    config = get_config(_FIELDS | {'verify.fault': fault} | fields)
    return verify.run(config, tmp_path / 'run')

  return call


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize('rule', ['token', 'block'])
def test_the_right_verifier_passes_with_the_same_settings(run, rule):
  result = run('', decode__verification=rule)
  assert result.exit_status == 0
  assert result.results['verify/passed'] is True
  (row,) = result.results['rows']
  assert row['verify/p_value'] > 1e-4
  assert row['verify/impossible'] == 0


@pytest.mark.slow
@pytest.mark.statistical
def test_a_drawn_tree_keeps_the_law_and_a_fault_of_trees_is_caught(run):
  tree = {
      'drafter__shape': 'drawn_tree',
      'drafter__widths': (2, 1),
      'decode__num_draft_tokens': 4,
  }
  (row,) = run('', **tree).results['rows']
  assert row['verify/passed'] and row['verify/p_value'] > 1e-4
  assert row['row/name'].startswith('lm drawn_tree')
  result = run('independent_node_draws', **tree)
  (row,) = result.results['rows']
  assert result.exit_status == 1
  assert row['verify/p_value'] < 1e-9


def test_a_fault_of_trees_needs_a_tree_and_others_a_chain(run):
  with pytest.raises(UserError, match="is one of a tree, but .* 'chain'"):
    run('independent_node_draws')
  with pytest.raises(UserError, match="is one of a chain, but .* 'tree'"):
    run('reused_key', drafter__shape='tree', decode__num_draft_tokens=4)


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize('fault', faults.FAULTS)
def test_a_fault_is_caught_and_named(run, tmp_path, fault):
  result = run(fault)
  found = result.results
  assert result.exit_status == 1
  assert found['verify/passed'] is False
  assert found['verify/fault'] == fault
  assert found['verify/false_alarm_rate'] == 1e-4
  (row,) = found['rows']
  assert row['verify/passed'] is False
  # The statistic, not an equality of tokens, has shown it.
  assert row['verify/rows_differ'] == 0
  assert row['verify/p_value'] < 1e-9 or row['verify/impossible'] > 0
  assert json.loads((tmp_path / 'run/results.json').read_text()) == found
  assert 'FAILED' in (tmp_path / 'run/verify.md').read_text()


@pytest.mark.slow
@pytest.mark.statistical
def test_independent_draws_for_looked_up_tokens_are_caught(run, write_prompts):
  """Rows of a deterministic draft are no longer those of plain decoding."""
  result = run(
      'independent_row_draws',
      drafter__kind='lookup',
      drafter__model='',
      drafter__num_layers=0,
      decode__max_new_tokens=32,
      data__prompts=write_prompts(_TEXTS),
  )
  assert result.exit_status == 1
  assert result.results['lossless/unequal_prompts'] > 0
