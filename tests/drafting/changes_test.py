import dataclasses

import pytest

from speculative.drafting import changes
from speculative.drafting.config import DrafterConfig
from speculative.drafting.retrieval_config import RetrievalConfig
from speculative.errors import UserError

_REST = DrafterConfig(
    'retrieval', shape='tree', store='x', num_draft_tokens=24, rule='block'
)
_LM = DrafterConfig(
    'lm', model='y', dtype='int8', shape='drawn_tree', widths=(4,)
)
_BEAM = DrafterConfig('hybrid', model='y', shape='tree', num_draft_tokens=5)
_BIGRAM = dataclasses.replace(_BEAM, table='z')
_LONG = dataclasses.replace(_BEAM, hybrid_tokens=12)


def _retrieval(**fields) -> RetrievalConfig:
  return RetrievalConfig(**fields)


@pytest.mark.parametrize(
    'drafter, text, fields',
    [
        (_REST, 'num_draft_tokens=7', {'num_draft_tokens': 7}),
        (
            _REST,
            'retrieval.sources=store, retrieval.max_ngram=4',
            {'retrieval': _retrieval(sources='store', max_ngram=4)},
        ),
        (
            _REST,
            'retrieval.buckets=(2, 8),num_draft_tokens=9',
            {
                'retrieval': _retrieval(buckets=(2, 8)),
                'num_draft_tokens': 9,
            },
        ),
        (
            _REST,
            'retrieval.buckets=()',
            {'retrieval': _retrieval(buckets=())},
        ),
        # What they have no use for goes.
        (
            _REST,
            'kind=lookup',
            {'kind': 'lookup', 'store': '', 'shape': 'chain'},
        ),
        (
            _REST,
            'retrieval.sources=context',
            {'store': '', 'retrieval': _retrieval(sources='context')},
        ),
        (
            _LM,
            'kind=lookup',
            {
                'kind': 'lookup',
                'model': '',
                'dtype': 'auto',
                'shape': 'chain',
                'widths': (),
            },
        ),
        (_LM, 'shape=chain', {'shape': 'chain', 'widths': ()}),
        (
            _LM,
            'kind=hybrid',
            {'kind': 'hybrid', 'shape': 'chain', 'widths': ()},
        ),
        (_LONG, 'kind=lm', {'kind': 'lm', 'hybrid_tokens': 0}),
        (_LONG, 'shape=chain', {'shape': 'chain', 'hybrid_tokens': 0}),
        (_BIGRAM, 'kind=lm', {'kind': 'lm', 'table': ''}),
        (
            _LM,
            'kind=bigram,table=z',
            {
                'kind': 'bigram',
                'table': 'z',
                'model': '',
                'dtype': 'auto',
                'shape': 'chain',
                'widths': (),
            },
        ),
        # What they have use for stays.
        (_BIGRAM, 'kind=bigram', {'kind': 'bigram', 'model': ''}),
        (_LM, 'widths=(2,1)', {'widths': (2, 1)}),
        (_BEAM, 'kind=lm', {'kind': 'lm'}),
        (_LONG, 'num_draft_tokens=4', {'num_draft_tokens': 4}),
        (
            _BEAM,
            'kind=retrieval,retrieval.sources=context',
            {
                'kind': 'retrieval',
                'model': '',
                'retrieval': _retrieval(sources='context'),
            },
        ),
    ],
)
def test_a_setting_changes_its_fields_and_drops_what_has_no_use(
    drafter, text, fields
):
  name, got = changes.parse(text, drafter)
  assert got == dataclasses.replace(drafter, **fields)
  assert name == text


def test_a_setting_may_have_a_name():
  name, got = changes.parse('num_draft_tokens=7, name=REST = 7', _REST)
  assert name == 'REST = 7'
  assert got.num_draft_tokens == 7


@pytest.mark.parametrize(
    'text, message',
    [
        ('', "'' is no field with its value"),
        ('lookup', "'lookup' is no field with its value"),
        ('kind=lookup,', "'' is no field with its value"),
        ('num_draft_tokens=', 'is no field with its value'),
        ('knd=lookup', "no field 'knd'; did you mean 'kind'"),
        ('max_ngrams=4', "no field 'max_ngrams'; did you mean 'max_ngram'"),
        ('retrieval.sorces=store', "did you mean 'retrieval.sources'"),
        ('retrieval=store', "no field 'retrieval'"),
        ('rule=block', "no field 'rule'"),
        ('kind=lookup,kind=lookup', 'kind is given twice'),
        ('num_draft_tokens=four', "'four'; it needs to be a whole number"),
        ('num_draft_tokens=1.5', "'1.5'; it needs to be a whole number"),
        ('num_draft_tokens=True', "'True'; it needs to be a whole number"),
        ('num_draft_tokens={[]:1}', r"'{\[\]:1}'; it needs to be a whole"),
        ('retrieval.buckets=(8)', r'a tuple such as \(8, 24\)'),
        ("kind='lookup'", '"\'lookup\'"; it needs to be one of'),
        ('num_draft_tokens=300', '<= 256, got 300'),
        ('retrieval.max_ngram=0', 'max_ngram is 0'),
        ('kind=lm', 'needs a draft model'),
        ('kind=bigram', 'needs a table; set config.drafter.table'),
        ('name=a|b,kind=lookup', r"cannot be called 'a\|b'"),
        ('kind=lookup,\nnum_draft_tokens=4', 'leave .* line ends out'),
        # Typed, so not dropped.
        ('kind=lookup,store=x', "store is 'x', but the drafter uses none"),
    ],
)
def test_a_mistake_names_the_setting_in_one_line(text, message):
  with pytest.raises(UserError, match=message) as caught:
    changes.parse(text, _REST)
  said = str(caught.value)
  assert said.startswith(f'the setting {text!r}: ')
  assert '\n' not in said


@pytest.mark.parametrize(
    'drafter, text, hint',
    [
        (_REST, 'max_ngram=4', "did you mean 'retrieval.max_ngram'"),
        (_REST, 'min_ngram=1', "did you mean 'retrieval.min_ngram'"),
        (_REST, 'hybrid_ngram=2', 'leave it out'),
        (_REST, 'hybrid_source=lookup', 'leave it out'),
        (_REST, 'hybrid_tokens=0', 'leave it out'),
        (_REST, 'cascade_tokens=2', 'leave it out'),
        (_REST, 'levels=2', 'leave it out'),
        (_REST, 'width=2', 'leave it out'),
        (_REST, 'dtype=int8', 'leave it out'),
        (_REST, 'num_layers=1', 'leave it out'),
        (_REST, 'shards=1', 'leave it out'),
        (_REST, 'table=z', 'leave it out'),
        (_REST, 'table_fallback=none', 'leave it out'),
        (_BIGRAM, 'kind=bigram,width=2', 'leave it out'),
        (_BIGRAM, 'kind=bigram,shape=chain,levels=2', 'leave it out'),
        (_BEAM, 'min_ngram=2', "did you mean 'hybrid_ngram'"),
        (_BEAM, 'retrieval.max_ngram=4', "did you mean 'max_ngram'"),
        (_BEAM, 'retrieval.sources=context', 'leave it out'),
    ],
)
def test_a_field_that_makes_no_difference_is_refused(drafter, text, hint):
  field = text.rpartition(',')[2].partition('=')[0]
  with pytest.raises(UserError, match=f'{field} makes no difference.*{hint}'):
    changes.parse(text, drafter)


@pytest.mark.parametrize(
    'drafter, text',
    [
        (_REST, 'kind=lookup,max_ngram=8,min_ngram=2'),
        (_BEAM, 'max_ngram=8,hybrid_ngram=2,levels=3,hybrid_tokens=3'),
        (
            _BEAM,
            'hybrid_source=retrieval,retrieval.sources=context,shape=chain',
        ),
        (_BEAM, 'kind=cascade,shape=chain,cascade_tokens=2,min_ngram=2'),
        (_LM, 'num_layers=1,shards=1'),
        (_BIGRAM, 'kind=bigram,levels=2,table=y,table_fallback=none'),
    ],
)
def test_a_field_that_makes_a_difference_is_taken(drafter, text):
  _, got = changes.parse(text, drafter)
  for part in text.split(','):
    field, _, value = part.partition('=')
    found = got
    for name in field.split('.'):
      found = getattr(found, name)
    assert str(found) == value
