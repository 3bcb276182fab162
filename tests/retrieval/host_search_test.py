import jax
import numpy as np
import pytest

from speculative.retrieval import device_store
from speculative.retrieval import host_search
from speculative.retrieval import oracle
from speculative.retrieval import search
from speculative.testing import stores


@pytest.mark.parametrize(
    'ids, num_tokens, ngrams',
    [
        ([0, 1], [300], (1, 8)),
        ([0, 65_535, 65_536, 16_000_000], [120, 1, 90], (1, 8)),
        ([0, 1, 2], [90, 70, 110], (3, 5)),
        ([7], [30], (1, 8)),
        ([0, 1], [], (1, 8)),
    ],
    ids=['ties', '24 bits, three shards', 'longer ends', 'one token', 'none'],
)
@pytest.mark.parametrize('backoff', [False, True])
def test_the_host_finds_what_the_device_finds(ids, num_tokens, ngrams, backoff):
  rng = np.random.default_rng(ids[-1] + len(num_tokens))
  ids = np.array(ids)
  separator = int(ids.max()) + 1
  arrays = []
  for num in num_tokens:
    tokens = rng.choice(ids, size=num)
    tokens[rng.random(num) < 0.05] = separator
    tokens[-1] = separator
    arrays.append((tokens, oracle.sort_suffixes(tokens, separator=separator)))
  store = stores.of_tokens(arrays, separator=separator)
  text_BS = rng.choice(ids, size=(300, 16)).astype(np.int32)
  seq_len_B = rng.integers(1, 17, size=300).astype(np.int32)

  def run(module, *args, **kwargs):
    match = module.find(
        *args,
        min_ngram=ngrams[0],
        max_ngram=ngrams[1],
        backoff=backoff,
        **kwargs,
    )
    return match, module.continuations(
        args[0], match, num_rows=7, length=5, backoff=backoff
    )

  expected = jax.jit(lambda *args: run(search, *args))(
      store, text_BS, seq_len_B
  )
  match, found = run(host_search, store, text_BS, seq_len_B, enough=10**9)
  jax.tree.map(np.testing.assert_array_equal, (match, found), expected)
  # Shorter ends than rows are left for need not be looked up.
  _, soon = run(host_search, store, text_BS, seq_len_B, enough=7)
  jax.tree.map(np.testing.assert_array_equal, soon, found)
  assert {x.dtype for x in jax.tree.leaves(found)} == {np.dtype(np.int32)}
  if num_tokens:
    assert len(set(match.length_B)) > 1


def test_a_corrupt_file_drafts_no_ids_that_are_no_tokens():
  tokens = np.array([1, 2, 3, 1, 2, 60_000, 9], np.uint16)
  suffixes = np.array([0, 3, 1, 4, 2, 2**31 + 5], np.uint32)
  shard = device_store.host_shard(tokens, None, suffixes)
  store = device_store.DeviceStore((shard,), separator=9)
  match = search.Match(np.array([[2]]), np.array([[[0]]]), np.array([[[6]]]))
  found = host_search.continuations(store, match, num_rows=6, length=2)
  assert found.tokens_BRC[0, :2].tolist() == [[3, 1], [0, 0]]
  assert found.tokens_BRC.max() < 9


def test_a_store_on_disk_is_read_in_place(tmp_path):
  path = tmp_path / 'tokens'
  tokens = np.array([1, 2, 3, 1, 2, 4, 9], np.uint16)
  tokens.tofile(path)
  mapped = np.memmap(path, np.uint16, mode='r').view(np.ndarray)
  suffixes = oracle.sort_suffixes(tokens, separator=9)
  shard = device_store.host_shard(mapped, None, suffixes)
  assert np.shares_memory(shard.low_N, mapped)
  assert np.shares_memory(shard.suffixes_N, suffixes)
  store = device_store.DeviceStore((shard,), separator=9)
  match = host_search.find(
      store, np.array([[1, 2]]), np.array([2]), max_ngram=4
  )
  found = host_search.continuations(store, match, num_rows=3, length=2)
  assert found.tokens_BRC.tolist() == [[[3, 1], [4, 0], [0, 0]]]
