import json
import math
import pathlib

import jax
import pytest

from speculative import api
from speculative import config as config_lib
from speculative.decoding import verify as chain
from speculative.errors import UserError
from speculative.tasks import verify

# One bucket; their texts repeat themselves, so that something is drafted.
_TEXTS = ('abc ' * 10, 'xyz ' * 9, 'aab ' * 10)


@pytest.fixture
def run(tmp_path, get_config, write_prompts):
  """Runs the task over a few prompts."""

  def call(fields=None):
    fields = {'data.prompts': write_prompts(_TEXTS)} | (fields or {})
    return verify.run(get_config(fields), tmp_path / 'run')

  return call


@pytest.fixture
def accept_everything(monkeypatch):
  """Breaks the acceptance rule, in programs compiled from here on only."""

  def match_draws(draft_tokens_BJ, valid_BJ, draws_BT):
    del draft_tokens_BJ
    num_valid_B = chain.num_leading(valid_BJ)
    return chain.verdict_of(
        num_valid_B, valid_BJ, chain._take(draws_BT, num_valid_B)
    )

  jax.clear_caches()
  monkeypatch.setattr(chain, 'match_draws', match_draws)
  yield
  jax.clear_caches()


_KEYS = {
    'verify/passed',
    'verify/cases',
    'verify/fault',
    'verify/false_alarm_rate',
    'verify/laws',
    'verify/smallest_bias',
    'lossless/greedy_equal',
    'lossless/first_divergence',
    'lossless/unequal_prompts',
    'decode/tokens',
    'decode/tokens_per_round',
    'decode/acceptance_rate',
    'decode/draft_yield',
    'rows',
}
_ROW_KEYS = {
    'row/name',
    'verify/passed',
    'verify/rows_equal',
    'verify/rows_differ',
    'decode/tokens_per_round',
}
_LAW_KEYS = {
    'verify/statistic',
    'verify/degrees',
    'verify/p_value',
    'verify/impossible',
    'verify/samples',
    'verify/smallest_bias',
}
_SAMPLED = {'decode.temperature': 0.8, 'decode.top_p': 0.95, 'seed': 3}
_LM = {'drafter.kind': 'lm', 'drafter.model': 'random://tiny_draft'}
_HYBRID = _LM | {
    'drafter.kind': 'hybrid',
    'drafter.hybrid_source': 'retrieval',
    'drafter.retrieval.sources': 'context',
}
_TREE = {
    'drafter.shape': 'tree',
    'drafter.levels': 2,
    'drafter.width': 2,
    'decode.num_draft_tokens': 6,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    'fields, num_equal, row_keys',
    [
        ({}, 3, _ROW_KEYS),
        # Deterministic drafts promise tokens, and the law besides.
        (_SAMPLED, 3, _ROW_KEYS | _LAW_KEYS),
        # A sampled draft promises the law alone.
        (_SAMPLED | _LM, 0, _ROW_KEYS | _LAW_KEYS),
        (_SAMPLED | _HYBRID, 0, _ROW_KEYS | _LAW_KEYS),
        (_SAMPLED | _HYBRID | _TREE, 3, _ROW_KEYS | _LAW_KEYS),
        (
            _SAMPLED | _HYBRID | {'drafter.kind': 'cascade'},
            0,
            _ROW_KEYS | _LAW_KEYS,
        ),
    ],
    ids=[
        'greedy',
        'sampled',
        'sampled lm',
        'sampled hybrid',
        'sampled hybrid tree',
        'sampled cascade',
    ],
)
def test_a_lossless_drafter_passes(
    run, tmp_path, capsys, fields, num_equal, row_keys
):
  result = run(fields)
  found = result.results
  assert result.exit_status == 0
  assert {k for k in found if not k.startswith('env/')} == _KEYS
  assert found['verify/passed'] is True
  assert found['verify/cases'] == 1
  assert found['verify/fault'] == ''
  assert found['lossless/greedy_equal'] is True
  assert found['lossless/first_divergence'] is None
  assert found['lossless/unequal_prompts'] == 0
  assert found['decode/tokens_per_round'] >= 1
  (row,) = found['rows']
  assert set(row) == row_keys
  assert row['verify/passed'] is True
  assert row['verify/rows_equal'] == num_equal
  assert row['verify/rows_differ'] == 0
  if 'verify/p_value' in row:
    assert row['verify/samples'] == 1024
    assert row['verify/degrees'] > 10
    assert 0 < row['verify/smallest_bias'] < 0.5
    assert found['verify/smallest_bias'] == row['verify/smallest_bias']
  assert json.loads((tmp_path / 'run/results.json').read_text()) == found
  out = capsys.readouterr().out
  assert '\npassed: 1 cases' in out
  assert (tmp_path / 'run/verify.md').read_text() == out
  (line,) = (tmp_path / 'run/metrics.jsonl').read_text().splitlines()
  assert row.items() <= json.loads(line).items()


@pytest.mark.slow
@pytest.mark.parametrize('fault', ['', 'independent_node_draws'])
def test_drafts_of_the_host_are_verified(run, store_on_host, fault):
  result = run(_SAMPLED | store_on_host | {'verify.fault': fault})
  (row,) = result.results['rows']
  assert bool(row['verify/rows_differ']) is bool(fault)
  assert result.results['verify/passed'] is not bool(fault)
  assert row['verify/samples'] == 1024


@pytest.mark.slow
@pytest.mark.usefixtures('accept_everything')
def test_a_drafter_whose_tokens_all_pass_fails(run, tmp_path, capsys):
  result = run()
  found = result.results
  assert result.exit_status == 1
  assert found['verify/passed'] is False
  assert found['lossless/greedy_equal'] is False
  assert 1 <= found['lossless/unequal_prompts'] <= 3
  divergence = found['lossless/first_divergence']
  assert divergence['plain_token'] != divergence['other_token']
  # In float32 plain decoding took the largest logit.
  assert math.isfinite(divergence['logit_gap'])
  assert divergence['logit_gap'] > 0
  (row,) = found['rows']
  assert row['verify/rows_differ'] == found['lossless/unequal_prompts']
  assert row['verify/rows_equal'] == 3 - row['verify/rows_differ']
  assert json.loads((tmp_path / 'run/results.json').read_text()) == found
  assert '\nFAILED: 1 cases' in capsys.readouterr().out


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'drafter.kind': 'none'}, "set config.drafter.kind to 'lookup'"),
        ({'decode.num_draft_tokens': 0}, 'config.decode.num_draft_tokens'),
        (
            {'verify.drafters': ('lookup', 'lm')},
            "needs config.drafter.kind to be 'lm' and a model; it is 'lookup'",
        ),
        (
            {'verify.samplers': ('greedy', 'T2')},
            "samplers has 'T2'; known: config, greedy, T1,",
        ),
        ({'verify.num_samples': 63}, 'num_samples needs to be >= 64, got 63'),
        ({'verify.num_rows': 0}, 'num_rows needs to be >= 1, got 0'),
        ({'verify.false_alarm_rate': 1.0}, r'in \(0, 1\), got 1.0'),
        ({'target.layers': 'scanned'}, "is 'scanned'; verify needs 'unrolled'"),
        ({'verify.fault': 'none'}, "'none'; known: independent_row_draws,"),
        (
            {'verify.fault': 'reused_key', 'decode.temperature': 0.8},
            "'reused_key' needs a draft that samples, but 'lookup' does not",
        ),
        ({'verify.fault': 'reused_key'}, 'shows in rows that draw only'),
        (
            {'verify.fault': 'warp_order', 'decode.temperature': 0.8},
            "'warp_order' shows with top-k, top-p or min-p only",
        ),
    ],
    ids=lambda value: ','.join(value) if isinstance(value, dict) else '',
)
def test_what_cannot_be_verified_is_refused(run, tmp_path, fields, message):
  with pytest.raises(UserError, match=message):
    run(fields)
  assert not (tmp_path / 'run').exists()


def test_a_store_goes_to_the_drafters_that_search_it(get_config):
  config = get_config(
      _HYBRID
      | _TREE
      | {
          'drafter.retrieval.sources': 'both',
          'drafter.store': 'some.store',
          'drafter.hybrid_tokens': 9,
          'verify.drafters': ('config', 'lookup', 'retrieval', 'lm', 'cascade'),
      }
  )
  found = verify._drafters(config, config_lib.parse(config).drafter)
  assert [(d.label, d.shape, d.store, bool(d.model)) for d in found] == [
      ('hybrid(retrieval)', 'tree', 'some.store', True),
      ('lookup', 'chain', '', False),
      ('retrieval', 'tree', 'some.store', False),
      ('lm', 'tree', '', True),
      ('cascade(retrieval)', 'chain', 'some.store', True),
  ]


def test_drafters_are_changes_of_the_drafter_too(get_config):
  drawn = 'kind=lm,shape=drawn_tree,widths=(2, 1),num_draft_tokens=4'
  texts = ('kind=lookup', drawn, 'levels=3')
  config = get_config(_HYBRID | _TREE | {'verify.drafters': texts})
  found = verify._drafters(config, config_lib.parse(config).drafter)
  assert [(d.label, d.shape, d.levels) for d in found] == [
      ('lookup', 'chain', 2),
      ('lm', 'drawn_tree', 2),
      ('hybrid(retrieval)', 'tree', 3),
  ]


@pytest.mark.parametrize(
    'text, message',
    [
        (
            'kind=lookup,levels=2',
            "^config.verify.drafters: the setting 'kind=lookup,levels=2': lev",
        ),
        (
            'kind=lookup,name=short',
            "^config.verify.drafters: .*name=short' has a name.*leave name=",
        ),
    ],
)
def test_changes_that_make_no_case_are_refused(get_config, text, message):
  config = get_config(_HYBRID | _TREE | {'verify.drafters': (text,)})
  with pytest.raises(UserError, match=message) as caught:
    verify._drafters(config, config_lib.parse(config).drafter)
  assert '\n' not in str(caught.value)


def test_a_drafter_that_its_model_cannot_be_is_refused_unread(
    run, tmp_path, monkeypatch
):
  monkeypatch.setattr(
      api.LanguageModel, 'load_weights', lambda self: pytest.fail('was read')
  )
  pair = pathlib.Path(__file__).parents[1] / 'data/tiny_pair'
  fields = {
      'target.model': str(pair / 'target'),
      'drafter.kind': 'lm',
      'drafter.model': str(pair / 'draft'),
      'verify.drafters': ('config', 'cascade'),
  }
  with pytest.raises(UserError, match="token by token .*kind to 'hybrid'"):
    run(fields)
  assert not (tmp_path / 'run').exists()
