import pytest

from speculative.drafting.config import DrafterConfig
from speculative.drafting.retrieval_config import RetrievalConfig
from speculative.errors import UserError

_CONTEXT = RetrievalConfig(sources='context')


@pytest.mark.parametrize(
    'settings, message',
    [
        ({'kind': 'medusa'}, "'medusa'.*one of none, lookup, retrieval, lm"),
        ({'kind': 'retrieval'}, "'retrieval' and needs a datastore"),
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
        ({'kind': 'lm', 'model': 'x.gguf'}, False, False),
        ({'kind': 'hybrid', 'model': 'x.gguf'}, False, False),
        ({'kind': 'lm', 'model': 'x', 'shape': 'tree'}, False, True),
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
    'settings, message',
    [
        ({'sources': 'web'}, "retrieval.sources is 'web'; .* both, store"),
        ({'selection': 'best'}, "retrieval.selection is 'best'"),
        ({'placement': 'here'}, "retrieval.placement is 'here'"),
        ({'max_ngram': 31}, 'retrieval.max_ngram is 31; .* 1 to 30'),
        ({'buckets': (24, 8)}, r'buckets is \(24, 8\); .* ascending order'),
        ({'num_rows': 0}, 'retrieval.num_rows is 0; .* 1 to 4096'),
        ({'min_ngram': 5, 'max_ngram': 4}, 'min_ngram is 5; .* 1 to 4'),
        ({'length': 2.5}, 'length of the retrieval is 2.5'),
        ({'buckets': 8}, 'retrieval.buckets is 8; it needs to be numbers'),
        ({'buckets': '8'}, "retrieval.buckets is '8'; it needs to be numbers"),
        (
            {'context_rows': 1024, 'context_weight': 1000, 'length': 64},
            r'context_rows \* context_weight \+ num_rows is 1024128; .* length '
            '64 .* at most 29126',
        ),
    ],
    ids=str,
)
def test_retrieval_that_cannot_work_is_refused(settings, message):
  with pytest.raises(UserError, match=message):
    RetrievalConfig(**settings)


def test_buckets_of_a_list_are_those_of_a_tuple():
  of_list = RetrievalConfig(buckets=[4, 8])
  assert of_list == RetrievalConfig(buckets=(4, 8))
  assert hash(of_list) == hash(RetrievalConfig(buckets=(4, 8)))


def test_weights_of_a_source_that_is_not_used_do_not_count():
  heavy = {'context_rows': 1024, 'context_weight': 1000, 'length': 64}
  assert RetrievalConfig(sources='store', **heavy).context_weight == 1000
  with pytest.raises(UserError, match='context_weight'):
    RetrievalConfig(sources='both', **heavy)
