"""Sizes of the drafters that configs name."""

import pytest

from speculative.decoding import drafter as drafter_lib
from speculative.drafting import build
from speculative.drafting.bigram import Bigram
from speculative.drafting.config import DrafterConfig
from speculative.drafting.hidden_lm import HiddenLm
from speculative.drafting.lm import Lm
from speculative.drafting.lookup import Lookup
from speculative.drafting.retrieval import Retrieval
from speculative.drafting.retrieval_config import RetrievalConfig
from speculative.models.draft import DraftModel
from speculative.models.transformer import Transformer
from speculative.testing import tiny

_V = tiny.TARGET.vocab_size
_MODEL = Transformer(tiny.DRAFT)
_LEVELS, _M = 3, 6
_CONTEXT = RetrievalConfig(sources='context', length=10, buckets=(8, 24))
_SOURCES = {
    'lookup': {},
    'retrieval': {'hybrid_source': 'retrieval', 'retrieval': _CONTEXT},
}


def _build(kind: str, *, model=_MODEL, **settings):
  config = DrafterConfig(kind, 'x', **settings)
  return build.build(config, model=model, vocab_size=_V)


@pytest.mark.parametrize(
    'source, hybrid_tokens, num_text, depth, buckets',
    [
        ('lookup', 0, 6, 6, (6,)),
        ('lookup', 2, 2, _LEVELS, (2, 6)),
        ('lookup', 9, 9, 9, (6, 9)),
        ('retrieval', 0, 6, 6, (6,)),
        ('retrieval', 2, 2, _LEVELS, (2, 6)),
        # No path is longer than what is read after a match.
        ('retrieval', 30, 30, 10, (6, 8, 24, 30)),
    ],
)
def test_a_hybrid_tree_is_as_large_and_deep_as_either_part(
    source, hybrid_tokens, num_text, depth, buckets
):
  settings = dict(
      shape='tree',
      num_draft_tokens=_M,
      levels=_LEVELS,
      width=2,
      hybrid_tokens=hybrid_tokens,
      **_SOURCES[source],
  )
  tree = _build('hybrid', **settings)
  assert isinstance(tree.text, Lookup if source == 'lookup' else Retrieval)
  assert tree.text.num_draft_tokens == num_text
  assert tree.draft.num_draft_tokens == _M
  assert tree.num_draft_tokens == buckets[-1]
  assert drafter_lib.buckets(tree) == buckets
  assert drafter_lib.max_depth(tree) == depth
  assert isinstance(tree.draft.draft, Lm)
  # The draft may lack all that a round keeps, and its last token.
  assert tree.draft.draft.num_behind == depth + 1
  hidden = _build('hybrid', model=DraftModel(tiny.HIDDEN_DRAFT), **settings)
  assert hidden.draft.draft == HiddenLm(
      DraftModel(tiny.HIDDEN_DRAFT), depth, vocab_size=_V
  )


@pytest.mark.parametrize('source', _SOURCES)
def test_a_hybrid_chain_takes_as_many_tokens_of_either_part(source):
  chain = _build('hybrid', num_draft_tokens=5, **_SOURCES[source])
  assert chain.text.num_draft_tokens == chain.num_draft_tokens == 5
  assert drafter_lib.max_depth(chain) == 5
  assert chain.draft.num_behind == 6
  settings = chain.text if source == 'lookup' else chain.text.settings
  assert settings.min_ngram == DrafterConfig().hybrid_ngram


@pytest.mark.parametrize('source', _SOURCES)
@pytest.mark.parametrize(
    'num_draft_tokens, num_guessed', [(1, 1), (2, 1), (5, 4), (9, 4)]
)
def test_a_cascade_guesses_all_but_the_last_token_at_most(
    source, num_draft_tokens, num_guessed
):
  cascade = _build(
      'cascade', num_draft_tokens=num_draft_tokens, **_SOURCES[source]
  )
  assert cascade.text.num_draft_tokens == num_guessed
  assert cascade.num_draft_tokens == num_draft_tokens
  assert drafter_lib.max_depth(cascade) == num_draft_tokens
  assert drafter_lib.buckets(cascade) == (num_draft_tokens,)
  assert cascade.draft.num_behind == 2


@pytest.mark.parametrize('shape, depth', [('chain', 5), ('tree', 3)])
def test_a_table_drafts_as_its_config_says(shape, depth):
  config = DrafterConfig(
      'bigram',
      table='x',
      num_draft_tokens=5,
      shape=shape,
      levels=3,
      table_fallback='none',
  )
  got = build.build(config, model=None, vocab_size=_V)
  assert got == Bigram(5, shape, levels=3, fallback='none')
  assert drafter_lib.max_depth(got) == depth
