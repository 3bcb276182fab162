import pytest

from speculative.drafting.retrieval_config import RetrievalConfig
from speculative.errors import UserError


@pytest.mark.parametrize(
    'settings, message',
    [
        ({'sources': 'web'}, "retrieval.sources is 'web'; .* both, store"),
        ({'selection': 'best'}, "retrieval.selection is 'best'"),
        ({'matches': 'all'}, "retrieval.matches is 'all'; .* backoff, longest"),
        ({'placement': 'here'}, "retrieval.placement is 'here'"),
        ({'max_ngram': 31}, 'retrieval.max_ngram is 31; .* 1 to 30'),
        ({'buckets': (24, 8)}, r'buckets is \(24, 8\); .* ascending order'),
        ({'num_rows': 0}, 'retrieval.num_rows is 0; .* 1 to 4096'),
        ({'min_ngram': 5, 'max_ngram': 4}, 'min_ngram is 5; .* 1 to 4'),
        ({'length': 2.5}, 'length of the retrieval is 2.5'),
        ({'buckets': 8}, 'retrieval.buckets is 8; it needs to be numbers'),
        ({'buckets': '8'}, "retrieval.buckets is '8'; it needs to be numbers"),
        (
            {
                'context_rows': 1024,
                'context_weight': 1000,
                'length': 64,
                'matches': 'longest',
            },
            r'context_rows \* context_weight \+ num_rows is 1024128; .* length '
            '64 .* at most 29126',
        ),
        (
            {'num_rows': 4096},
            r'context_rows \* context_weight \+ num_rows, times 64 for '
            'matches=backoff, is 294912; .* at most 52223',
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
