import numpy as np
import pytest

from speculative.bench import queries
from speculative.drafting.retrieval import Retrieval
from speculative.drafting.retrieval_config import RetrievalConfig
from speculative.retrieval import oracle
from speculative.sharding import Placement
from speculative.testing import stores

_SEPARATOR = 9


def _store(tokens):
  tokens = np.array(tokens)
  suffixes = oracle.sort_suffixes(tokens, separator=_SEPARATOR)
  return stores.of_tokens([(tokens, suffixes)], separator=_SEPARATOR)


_STORE = _store([1, 2, 3, 4, _SEPARATOR, 5, 6, _SEPARATOR])
# The third round of the first text begins after 1 2 3, which the store has, the
# last after 1 2 3 1, of which the text repeats the end.
_TEXTS = (
    ([8, 1, 2, 3, 1, 7], [1, 2, 4, 5]),
    ([5, 6, 5, 6, 5], [1, 3, 4, 5]),
)


@pytest.mark.parametrize(
    'settings, lengths',
    [
        ({'sources': 'store'}, [0, 1, 3, 1, 1, 1, 2, 1]),
        ({'sources': 'context'}, [0, 0, 0, 1, 0, 1, 2, 3]),
        ({'sources': 'both'}, [0, 1, 3, 1, 1, 1, 2, 3]),
        ({'sources': 'both', 'max_ngram': 2}, [0, 1, 2, 1, 1, 1, 2, 2]),
        ({'sources': 'both', 'min_ngram': 2}, [0, 0, 3, 0, 0, 0, 2, 3]),
    ],
)
def test_the_longest_match_is_that_of_the_text_when_a_round_began(
    settings, lengths
):
  settings = RetrievalConfig(**settings)
  store = _STORE if settings.uses_store else None
  got = queries.matched_lengths(settings, store, _TEXTS)
  assert got.tolist() == lengths


def test_many_rounds_are_searched_in_parts():
  text = [1, 2, 3, 4, 1] * 30
  lens = list(range(1, len(text) + 1))
  settings = RetrievalConfig(sources='both', max_ngram=6)
  got = queries.matched_lengths(settings, _STORE, [(text, lens)])
  whole = [
      queries.matched_lengths(settings, _STORE, [(text[:n], [n])])[0]
      for n in (1, 64, 65, 150)
  ]
  assert got[[0, 63, 64, 149]].tolist() == whole
  assert len(got) == len(text)


def test_a_query_is_timed_in_the_buffers_its_round_had(monkeypatch):
  seen, now = [], 0.0

  def drafts(params, text_RS, len_R, *, drafter):
    nonlocal now
    del params, drafter
    seen.append((text_RS.shape, np.asarray(len_R).tolist()))
    # The first turn, which compiles, and one that was disturbed do not count.
    is_slow = len(seen) in (1, 7)
    now += 1000 if is_slow else text_RS.shape[0] * text_RS.shape[1] / 1e3

  monkeypatch.setattr(queries, '_drafts', drafts)
  monkeypatch.setattr(queries.time, 'perf_counter', lambda: now)
  found = queries.query_ms(
      Retrieval(4), None, _TEXTS, slots=(8, 16), placement=Placement()
  )
  # 64 of 8 rounds, evenly spaced; the last round is the end of them.
  assert [shape for shape, _ in seen] == [(36, 8), (28, 16)] * 10
  assert [sorted(set(lens)) for _, lens in seen[:2]] == [
      [1, 2, 4, 5],
      [1, 3, 4, 5],
  ]
  assert found == pytest.approx((36 * 8 + 28 * 16) / 64)


def test_a_query_takes_time():
  drafter = Retrieval(4, RetrievalConfig(num_rows=4, length=4), 'tree')
  found = queries.query_ms(
      drafter, _STORE, _TEXTS, slots=(8, 8), placement=Placement()
  )
  assert found > 0
