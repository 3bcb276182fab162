import pytest

from speculative.drafting.config import DrafterConfig
from speculative.drafting.retrieval_config import RetrievalConfig
from speculative.errors import UserError

_CONTEXT = RetrievalConfig(sources='context')
_BOTH = {'model': 'x', 'hybrid_source': 'retrieval', 'store': 'y'}


@pytest.mark.parametrize(
    'settings, message',
    [
        ({'kind': 'medusa'}, "'medusa'.*one of none, lookup, retrieval, lm"),
        ({'kind': 'retrieval'}, "'retrieval' and needs a datastore"),
        (
            {'kind': 'bigram'},
            "'bigram' and needs a table; set config",
        ),
        (
            {'kind': 'bigram', 'table': 'x', 'table_fallback': 'all'},
            "table_fallback is 'all'; it needs to be one of frequent, none",
        ),
        (
            {'kind': 'bigram', 'table': 'x', 'model': 'y'},
            "model is 'y', but kind 'bigram' uses none",
        ),
        (
            {'kind': 'bigram', 'table': 'x', 'store': 'y'},
            "store is 'y', but .* uses none",
        ),
        (
            {
                'kind': 'bigram',
                'table': 'x',
                'shape': 'drawn_tree',
                'widths': (4,),
            },
            "'drawn_tree', which kind 'bigram' does not draft",
        ),
        ({'shape': 'bush'}, "drafter.shape is 'bush'; .* chain, tree"),
        ({'kind': 'lookup', 'store': 'x'}, "store is 'x', but .* uses none"),
        (
            {'kind': 'retrieval', 'store': 'x', 'retrieval': _CONTEXT},
            "store is 'x', but .* uses none",
        ),
        (
            {'kind': 'retrieval', 'store': 'x', 'num_draft_tokens': 11},
            'only 10 tokens .* set config.drafter.retrieval.length',
        ),
        (
            {'kind': 'lookup', 'num_draft_tokens': -1},
            'num_draft_tokens needs to be >= 0 .*got -1',
        ),
        (
            {'kind': 'lookup', 'num_draft_tokens': 257},
            'num_draft_tokens needs to be .*<= 256, got 257',
        ),
        ({'kind': 'lm'}, "'lm' and needs a draft model"),
        ({'kind': 'hybrid'}, "'hybrid' and needs a draft model"),
        (
            {'kind': 'hybrid', 'model': 'x', 'hybrid_ngram': 5},
            'hybrid_ngram is 5; it needs to be in 1 to 4',
        ),
        (
            {'kind': 'hybrid', 'model': 'x', 'hybrid_source': 'retrieval'},
            "'hybrid' and needs a datastore",
        ),
        (
            {'kind': 'hybrid', 'model': 'x', 'store': 'y'},
            "store is 'y'.* set config.drafter.hybrid_source to 'retrieval'",
        ),
        (
            {
                'kind': 'hybrid',
                'model': 'x',
                'hybrid_source': 'retrieval',
                'hybrid_ngram': 17,
                'retrieval': _CONTEXT,
            },
            'hybrid_ngram is 17; .* 1 to 16, .*retrieval.max_ngram',
        ),
        (
            {
                'kind': 'hybrid',
                'model': 'x',
                'hybrid_source': 'retrieval',
                'num_draft_tokens': 11,
                'retrieval': _CONTEXT,
            },
            'num_draft_tokens is 11, but only 10 tokens',
        ),
        (
            {'kind': 'hybrid', 'model': 'x', 'hybrid_source': 'web'},
            "hybrid_source is 'web'; .* lookup, retrieval",
        ),
        (
            {
                'kind': 'hybrid',
                'model': 'x',
                'shape': 'tree',
                'hybrid_tokens': 257,
            },
            'hybrid_tokens is 257; it needs to be in 0 to 256',
        ),
        (
            {'kind': 'hybrid', 'model': 'x', 'hybrid_tokens': 8},
            "hybrid_tokens is 8, which only kind 'hybrid' of shape 'tree' has",
        ),
        ({'kind': 'cascade'}, "'cascade' and needs a draft model"),
        (
            {'kind': 'cascade', 'model': 'x', 'cascade_tokens': 0},
            'cascade_tokens is 0; it needs to be in 1 to 256',
        ),
        (
            {
                'kind': 'cascade',
                'model': 'x',
                'hybrid_source': 'retrieval',
                'num_draft_tokens': 12,
                'cascade_tokens': 20,
                'retrieval': _CONTEXT,
            },
            'cascade_tokens is 20, but only 10 tokens .* at least 11',
        ),
        (
            {'kind': 'cascade', 'model': 'x', 'shape': 'tree'},
            "'tree', but a cascade drafts chains; .* 'hybrid' for a tree",
        ),
        (
            {'kind': 'cascade', 'model': 'x', 'hybrid_source': 'retrieval'},
            "'cascade' and needs a datastore",
        ),
        ({'shape': 'ring'}, "shape is 'ring'.*one of chain, tree"),
        ({'kind': 'lm', 'model': 'x', 'widths': (2,)}, 'nothing else does'),
        (
            {'kind': 'lookup', 'shape': 'drawn_tree', 'widths': (2,)},
            "kind 'lookup' does not draft",
        ),
        (
            {
                'kind': 'lm',
                'model': 'x',
                'shape': 'drawn_tree',
                'widths': (3, 2),
            },
            r'widths \(3, 2\) make 9 nodes, got num_draft_tokens=4',
        ),
        ({'widths': ('a',)}, r"widths is \('a',\); .* numbers above 0"),
        ({'widths': (2.0,)}, r'widths is \(2.0,\); .* numbers above 0'),
        ({'widths': (2, 0)}, r'widths is \(2, 0\); .* numbers above 0'),
        ({'widths': 3}, 'widths is 3; .* numbers above 0'),
        ({'width': 0}, 'width is 0; it needs to be >= 1'),
        (
            {
                'kind': 'lm',
                'model': 'x',
                'shape': 'tree',
                'levels': 2,
                'width': 2,
                'num_draft_tokens': 7,
            },
            '2 levels and width 2 has 2 to 6 nodes, got num_draft_tokens=7',
        ),
        (
            {
                'kind': 'hybrid',
                'model': 'x',
                'shape': 'tree',
                'levels': 2,
                'width': 9,
                'num_draft_tokens': 8,
            },
            'drafter.width is 9, but the tree has 8 nodes',
        ),
        ({'kind': 'lookup', 'model': 'x.gguf'}, "'x.gguf', but kind 'lookup'"),
        ({'kind': 'lookup', 'min_ngram': 0}, '1 <= min_ngram <= max_ngram'),
        (
            {'kind': 'lookup', 'min_ngram': 5, 'max_ngram': 4},
            'min_ngram=5, max_ngram=4',
        ),
    ],
    ids=str,
)
def test_a_drafter_that_cannot_work_is_refused(settings, message):
  with pytest.raises(UserError, match=message):
    DrafterConfig(**settings)


@pytest.mark.parametrize(
    'settings, is_plain, is_deterministic',
    [
        ({}, True, True),
        ({'kind': 'lookup'}, False, True),
        ({'kind': 'lookup', 'num_draft_tokens': 0}, True, True),
        ({'kind': 'retrieval', 'store': 'x'}, False, True),
        ({'kind': 'retrieval', 'retrieval': _CONTEXT}, False, True),
        ({'kind': 'bigram', 'table': 'x'}, False, True),
        ({'kind': 'bigram', 'table': 'x', 'shape': 'tree'}, False, True),
        ({'kind': 'lm', 'model': 'x.gguf'}, False, False),
        ({'kind': 'hybrid', 'model': 'x.gguf'}, False, False),
        ({'kind': 'lm', 'model': 'x', 'shape': 'tree'}, False, True),
        (_BOTH | {'kind': 'hybrid'}, False, False),
        (_BOTH | {'kind': 'hybrid', 'shape': 'tree'}, False, True),
        (_BOTH | {'kind': 'cascade'}, False, False),
        (
            {'kind': 'lm', 'model': 'x.gguf', 'num_draft_tokens': 0},
            True,
            True,
        ),
    ],
    ids=str,
)
def test_which_drafters_are_plain_and_which_deterministic(
    settings, is_plain, is_deterministic
):
  config = DrafterConfig(**settings)
  assert config.is_plain == is_plain
  assert config.is_deterministic == is_deterministic


@pytest.mark.parametrize(
    'num_draft_tokens, num_guessed', [(0, 1), (1, 1), (2, 1), (4, 3), (9, 4)]
)
def test_a_cascade_reads_no_more_after_a_match_than_it_guesses(
    num_draft_tokens, num_guessed
):
  drafter = DrafterConfig(
      'cascade',
      'x',
      num_draft_tokens=num_draft_tokens,
      hybrid_source='retrieval',
      retrieval=RetrievalConfig(sources='context', length=num_guessed),
  )
  assert drafter.num_guessed == num_guessed


def test_widths_in_a_list_are_those_in_a_tuple():
  settings = dict(model='x', shape='drawn_tree', num_draft_tokens=9)
  drafter = DrafterConfig('lm', widths=[3, 2], **settings)
  assert hash(drafter) == hash(DrafterConfig('lm', widths=(3, 2), **settings))


@pytest.mark.parametrize('kind', ['hybrid', 'cascade'])
def test_a_store_beside_a_model_is_used_where_it_is_asked_for(kind):
  both = DrafterConfig(kind, **_BOTH)
  assert both.uses_store and both.uses_model
  assert both.label == f'{kind}(retrieval)'
  of_context = DrafterConfig(
      kind, **(_BOTH | {'store': ''}), retrieval=_CONTEXT
  )
  assert of_context.uses_retrieval and not of_context.uses_store
  looked_up = DrafterConfig(kind, 'x')
  assert not looked_up.uses_retrieval
  assert looked_up.label == kind


@pytest.mark.parametrize('kind', ['none', 'lookup', 'bigram'])
def test_any_kind_may_have_a_table_and_one_drafts_from_it(kind):
  drafter = DrafterConfig(kind, table='x')
  assert drafter.uses_table == (kind == 'bigram')
  assert not drafter.uses_store and not drafter.uses_model
  assert drafter.label == kind
