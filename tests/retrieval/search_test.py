import functools

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.retrieval import device_store
from speculative.retrieval import host_search
from speculative.retrieval import oracle
from speculative.retrieval import search
from speculative.retrieval.oracle import Shard
from speculative.testing import stores

_MAX_NGRAM = 6
_NUM_ROWS = 5
_LENGTH = 4
_WIDTH = 20


@functools.partial(jax.jit, static_argnames=('min_ngram', 'backoff'))
def _search(store, text_BS, seq_len_B, *, min_ngram=1, backoff=False):
  match = search.find(
      store,
      text_BS,
      seq_len_B,
      max_ngram=_MAX_NGRAM,
      min_ngram=min_ngram,
      backoff=backoff,
  )
  return match, search.continuations(
      store, match, num_rows=_NUM_ROWS, length=_LENGTH, backoff=backoff
  )


def _shards(rng, ids: np.ndarray, num_tokens: list[int]) -> list[Shard]:
  """Returns shards of documents of random length over few ids."""
  separator, shards = int(ids.max()) + 1, []
  for num in num_tokens:
    tokens = rng.choice(ids, size=num)
    tokens[rng.random(num) < 0.1] = separator
    tokens[-1:] = separator
    tokens = tokens.tolist()
    suffixes = oracle.sort_suffixes(tokens, separator=separator)
    shards.append(Shard(tokens, suffixes.tolist()))
  return shards


def _on_device(shards: list[Shard], separator: int):
  return stores.of_tokens(
      [(np.array(s.tokens), np.array(s.suffixes)) for s in shards],
      separator=separator,
  )


def _texts(rng, ids, shards, num: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns texts of random tokens that end like some place of the store."""
  text_BS = rng.choice(ids, size=(num, _WIDTH))
  seq_len_B = rng.integers(1, _WIDTH, size=num)
  tokens = [t for shard in shards for t in shard.tokens if t in ids]
  for text, seq_len in zip(text_BS, seq_len_B, strict=True):
    known = int(rng.integers(0, min(seq_len, 9) + 1))
    if known and len(tokens) > known:
      start = rng.integers(0, len(tokens) - known)
      text[seq_len - known : seq_len] = tokens[start : start + known]
  return text_BS.astype(np.int32), seq_len_B.astype(np.int32)


def _check(shards, separator, texts, got, min_ngram=1, backoff=False):
  match, found = jax.tree.map(np.asarray, got)
  for b, (text, seq_len) in enumerate(zip(*texts, strict=True)):
    expected = oracle.find(
        shards,
        text[:seq_len].tolist(),
        max_ngram=_MAX_NGRAM,
        min_ngram=min_ngram,
        backoff=backoff,
    )
    is_known_G = match.length_BG[b] > 0
    lengths = match.length_BG[b][is_known_G].tolist()
    assert lengths == [end.length for end in expected]
    assert match.length_B[b] == max(lengths, default=0)
    counts_GP = (match.high_BGP[b] - match.low_BGP[b])[is_known_G]
    for counts_P, end in zip(counts_GP, expected, strict=True):
      counts = [sum(p == q for q, _ in end.starts) for p in range(len(shards))]
      # Shards without suffixes are not there.
      assert [c for c in counts_P if c] == [c for c in counts if c]
    rows = oracle.continuations(
        shards,
        expected,
        num_rows=_NUM_ROWS,
        length=_LENGTH,
        separator=separator,
    )
    absent = _NUM_ROWS - len(rows)
    weights = [2 ** min(n, 6) if backoff else 1 for _, n in rows]
    assert found.weight_BR[b].tolist() == weights + [0] * absent
    tokens = zip(found.tokens_BRC[b], found.len_BR[b], strict=True)
    expected = [row for row, _ in rows] + [[]] * absent
    assert [t[:n].tolist() for t, n in tokens] == expected
    assert not found.tokens_BRC[b][
        np.arange(_LENGTH) >= found.len_BR[b][:, None]
    ].any()


@pytest.mark.parametrize(
    'ids, num_tokens',
    [
        ([0, 1], [100]),
        ([0, 1, 2, 3, 4], [45, 65]),
        ([0, 65_534], [60]),
        ([0, 65_535, 65_536, 131_072, 16_000_000], [70, 1, 25]),
        ([0, 65_536, 2**24, 2**24 + 5], [70, 25]),
        ([7], [40]),
        ([0, 1], []),
        ([0, 1], [1]),
    ],
    ids=[
        'many ties',
        'two shards',
        '16 bits',
        '24 bits, a shard of one separator',
        '32 bits',
        'one token',
        'no shard',
        'no suffix',
    ],
)
@pytest.mark.parametrize('backoff', [False, True])
def test_search_equals_a_linear_scan(ids, num_tokens, backoff):
  rng = np.random.default_rng(len(num_tokens) + ids[-1])
  ids = np.array(ids)
  separator = int(ids.max()) + 1
  shards = _shards(rng, ids, num_tokens)
  texts = _texts(rng, ids, shards, 1500)
  got = _search(_on_device(shards, separator), *texts, backoff=backoff)
  _check(shards, separator, texts, got, backoff=backoff)


def test_short_matches_do_not_count_below_min_ngram():
  rng = np.random.default_rng(0)
  ids = np.arange(4)
  shards = _shards(rng, ids, [60])
  texts = _texts(rng, ids, shards, 200)
  for backoff in (False, True):
    got = _search(_on_device(shards, 4), *texts, min_ngram=4, backoff=backoff)
    _check(shards, 4, texts, got, min_ngram=4, backoff=backoff)
    assert set(np.asarray(got[0].length_B).tolist()) == {0, 4, 5, 6}


def test_what_lies_behind_a_text_changes_nothing():
  rng = np.random.default_rng(1)
  ids = np.arange(3)
  shards = _shards(rng, ids, [100])
  store = _on_device(shards, 3)
  text_BS, seq_len_B = _texts(rng, ids, shards, 50)
  behind = np.arange(_WIDTH)[None, :] >= seq_len_B[:, None]
  got = _search(store, np.where(behind, 2, text_BS), seq_len_B)
  other = _search(store, np.where(behind, 0, text_BS), seq_len_B)
  jax.tree.map(np.testing.assert_array_equal, got, other)


@pytest.mark.parametrize('module', [search, host_search])
def test_what_is_no_token_matches_nothing(module):
  tokens = np.array([1, 2, 4, 1, 3, 4])
  suffixes = oracle.sort_suffixes(tokens, separator=4)
  store = stores.of_tokens([(tokens, suffixes)], separator=4)
  if module is search:
    store = jax.device_put(store)
  text_BS = np.array([[2, 4, 1], [1, 2, 4], [1, 2, 9], [0, 1, 2]], np.int32)
  match = module.find(store, text_BS, np.full(4, 3, np.int32), max_ngram=3)
  assert match.length_B.tolist() == [1, 0, 0, 2]


@pytest.mark.parametrize('module', [search, host_search])
@pytest.mark.parametrize('ngrams', [(1, 5), (3, 2), (0, 2), (1, 31)])
def test_a_search_for_other_lengths_than_a_store_is_sorted_by_is_refused(
    module, ngrams
):
  depth = 64 if ngrams[1] > 30 else 4
  store = stores.of_tokens([], separator=3, depth=depth)
  with pytest.raises(ValueError, match='the depth of the store'):
    module.find(
        store,
        np.zeros((1, 8), np.int32),
        np.ones(1, np.int32),
        min_ngram=ngrams[0],
        max_ngram=ngrams[1],
    )


def test_the_middle_of_large_bounds_does_not_overflow():
  low = jnp.array([0, 2**30, 2**31 - 3, 2**31 - 2], jnp.int32)
  got = search.middle(low, jnp.full(4, 2**31 - 2, jnp.int32))
  expected = [2**30 - 1, 2**30 + 2**29 - 1, 2**31 - 3, 2**31 - 2]
  assert got.tolist() == expected


def test_more_occurrences_than_int32_holds_stop_there():
  high_BGP = jnp.array([[[2**30] * 3], [[2**30, 5, 7]]], jnp.int32)
  length_BG = jnp.ones((2, 1), jnp.int32)
  match = search.Match(length_BG, jnp.zeros_like(high_BGP), high_BGP)
  assert match.count_BG.tolist() == [[2**31 - 1], [2**30 + 12]]


@pytest.mark.parametrize('count', [0, 1, 63, 64, 65, 1000, 2**31 - 1])
def test_rows_are_spread_evenly_over_any_count(count):
  match_BR, got = search.share_out(jnp.array([[count]], jnp.int32), 64)
  expected = [i if count <= 64 else i * count // 64 for i in range(64)]
  np.testing.assert_array_equal(got, [expected])
  assert not match_BR.any()


def test_rows_are_dealt_out_to_the_longest_match_first():
  counts_BG = jnp.array(
      [[2, 5, 3], [0, 1, 2], [4, 2**31 - 1, 7], [0, 0, 0]], jnp.int32
  )
  match_BR, number_BR = search.share_out(counts_BG, 6)
  np.testing.assert_array_equal(
      match_BR,
      [[0, 0, 1, 1, 1, 1], [1] + [2] * 5, [0] * 4 + [1] * 2, [2] * 6],
  )
  # Four rows for five occurrences; beyond what is there, numbers of none.
  np.testing.assert_array_equal(
      number_BR,
      [
          [0, 1, 0, 1, 2, 3],
          [0, 0, 1, 2, 3, 4],
          [0, 1, 2, 3, 0, 2**30 - 1],
          [0, 1, 2, 3, 4, 5],
      ],
  )


def test_ids_keep_their_bits_on_the_device():
  tokens = np.array([0, 65_535, 65_536, 200_000, 16_000_000, 16_000_001])
  suffixes = oracle.sort_suffixes(tokens, separator=16_000_001)
  store = stores.of_tokens([(tokens, suffixes)], separator=16_000_001)
  (shard,) = jax.device_put(store).shards
  got = shard.windows_at(jnp.array([0, 2, 2**30]), 5)
  end = [16_000_001]
  np.testing.assert_array_equal(got, [tokens[:5], [*tokens[2:], *end], end * 5])
  assert shard.low_N.dtype == jnp.uint16 and shard.high_N.dtype == jnp.uint8


def test_a_shard_beyond_31_bits_is_refused():
  class Long(np.ndarray):

    def __len__(self):
      return 2**31

  low_N = np.zeros(1, np.uint16).view(Long)
  with pytest.raises(ValueError, match='at most'):
    device_store.host_shard(low_N, None, np.zeros(1, np.uint32))
