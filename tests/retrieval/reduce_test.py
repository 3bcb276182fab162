import numpy as np
import pytest

from speculative.errors import UserError
from speculative.retrieval import datastore
from speculative.retrieval import reduce
from speculative.retrieval.datastore import Facts
from speculative.retrieval.reduce import Rules

_VOCAB = 100_000
_RULES = Rules(repeat_tokens=20, continuation=3)


def _store(tmp_path, *shards, depth=4):
  """Makes a store; a shard is a list of documents."""
  views = []
  for documents in shards:
    parts = [part for d in documents for part in (d, [_VOCAB])]
    tokens = np.concatenate(parts).astype(np.int64)
    views.append(datastore.make_shard(tokens, separator=_VOCAB, depth=depth))
  datastore.write(tmp_path / 'x', Facts('aaaa', _VOCAB, depth=depth), views)
  return datastore.open_store(tmp_path / 'x')


def _reduced(store, rules):
  found = reduce.reduction(store, rules)
  return [d.tolist() for d in reduce.documents(store, found)], found


def test_a_repeat_keeps_its_ends_and_a_separator_between_them(tmp_path):
  phrase = np.arange(1000, 1030)
  store = _store(
      tmp_path,
      [[1, 2, *phrase, 3], [*range(10, 20), *phrase, *range(20, 30)]],
  )
  documents, found = _reduced(store, _RULES)
  assert documents == [
      [1, 2, *phrase.tolist(), 3],
      [*range(10, 20), 1000, 1001, 1002],
      [1026, 1027, 1028, 1029, *range(20, 30)],
  ]
  assert (found.num_repeated, found.num_rare) == (30 - 7, 0)


def test_shorter_repeats_and_those_of_other_shards_stay(tmp_path):
  phrase, long = list(range(19)), list(range(50, 90))
  store = _store(tmp_path, [[1, *phrase, 2], [3, *phrase, 4], long], [long])
  documents, found = _reduced(store, _RULES)
  assert documents == [[1, *phrase, 2], [3, *phrase, 4], long, long]
  assert found.num_repeated == 0


def test_whole_documents_that_repeat_are_dropped_up_to_their_ends(tmp_path):
  document = list(range(200))
  store = _store(tmp_path, [document] * 4)
  documents, _ = _reduced(store, _RULES)
  # A window that reaches the last separator has no copy of what is behind it.
  assert documents[0] == document
  assert sum(map(len, documents[1:])) <= 2 * 20
  assert [0, 1, 2] in documents


def test_the_rarest_blocks_go_first_until_the_rest_fits(tmp_path):
  rng = np.random.default_rng(0)
  common = np.tile(np.arange(8), 64)
  rare = rng.permutation(_VOCAB - 8)[:512] + 8
  store = _store(tmp_path, [np.concatenate([common, rare]), common])
  documents, found = _reduced(store, Rules(repeat_tokens=0, max_tokens=1100))
  assert found.num_repeated == 0
  assert 1538 - 1100 <= found.num_rare <= 1538 - 1100 + 256
  kept = np.concatenate(documents)
  assert np.count_nonzero(kept < 8) == 1024
  assert len(kept) <= 1100


def test_a_store_that_fits_stays_as_it_is(tmp_path):
  store = _store(tmp_path, [list(range(300))])
  documents, found = _reduced(store, Rules(repeat_tokens=0, max_tokens=301))
  assert documents == [list(range(300))]
  assert found.num_rare == 0


@pytest.mark.parametrize(
    ('rules', 'said'),
    [
        (Rules(repeat_tokens=14), 'repeat_tokens is 14; .* >= 15'),
        (Rules(repeat_tokens=-1), 'repeat_tokens is -1'),
        (Rules(max_tokens=-1), 'max_tokens needs to be >= 0'),
        (Rules(repeat_tokens=0), 'both 0'),
    ],
)
def test_rules_that_make_no_sense_are_refused(tmp_path, rules, said):
  with pytest.raises(UserError, match=said):
    reduce.reduction(_store(tmp_path, [[1]]), rules)


@pytest.mark.parametrize('seed', range(5))
def test_every_short_match_still_finds_its_continuation(tmp_path, seed):
  """Windows of a match and its continuation, but for those across a seam."""
  rng = np.random.default_rng(seed)
  phrases = [rng.integers(0, 50, 40) for _ in range(3)]
  documents = [
      np.concatenate(
          [phrases[i] if i < 3 else rng.integers(0, 50, 9) for i in order]
      )
      for order in rng.integers(0, 6, (12, 5))
  ]
  depth = 4
  store = _store(tmp_path, documents, depth=depth)
  reduced, found = _reduced(store, _RULES)
  assert found.num_repeated > 100
  size = _RULES.continuation + 1

  def windows(texts):
    return {
        tuple(text[i : i + size])
        for text in map(list, texts)
        for i in range(len(text) - size + 1)
    }

  # The shortest match, one token, with its whole continuation.
  assert windows(d.tolist() for d in documents) == windows(reduced)
