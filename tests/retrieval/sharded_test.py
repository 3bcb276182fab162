import functools

import jax
import numpy as np
import pytest

from speculative import hlo
from speculative import sharding
from speculative.retrieval import oracle
from speculative.retrieval import search
from speculative.retrieval import sharded
from speculative.testing import stores

_SETTINGS = dict(max_ngram=4, min_ngram=1)
_ROWS = dict(num_rows=6, length=4)


def _store(rng, ids, num_tokens):
  separator = int(ids.max()) + 1
  arrays = []
  for num in num_tokens:
    tokens = rng.choice(ids, size=num)
    tokens[rng.random(num) < 0.1] = separator
    tokens[-1] = separator
    arrays.append((tokens, oracle.sort_suffixes(tokens, separator=separator)))
  return stores.of_tokens(arrays, separator=separator)


@functools.partial(jax.jit, static_argnames='backoff')
def _whole(store, text_BS, seq_len_B, *, backoff):
  match = search.find(store, text_BS, seq_len_B, backoff=backoff, **_SETTINGS)
  return search.continuations(store, match, backoff=backoff, **_ROWS)


def _split(mesh, backoff):
  return jax.jit(
      functools.partial(
          sharded.retrieve,
          mesh=mesh,
          axis='model',
          backoff=backoff,
          **_SETTINGS,
          **_ROWS,
      )
  )


@pytest.mark.parametrize(
    'shape, ids, num_tokens',
    [
        ((1, 8), [0, 1, 2], [40, 25, 60, 10, 30, 50, 7, 33, 21, 12]),
        ((2, 4), [0, 65_535, 70_000], [40, 25, 60]),
        ((1, 2), [0, 1], []),
    ],
    ids=['ten shards on eight devices', 'three on four, 24 bits', 'none'],
)
@pytest.mark.parametrize('backoff', [False, True])
def test_shards_on_devices_give_what_they_give_on_one(
    shape, ids, num_tokens, backoff
):
  rng = np.random.default_rng(len(num_tokens))
  ids = np.array(ids)
  store = _store(rng, ids, num_tokens)
  mesh = sharding.make_mesh(*shape)
  text_BS = rng.choice(ids, size=(60, 9)).astype(np.int32)
  seq_len_B = rng.integers(1, 9, size=60).astype(np.int32)
  placed = sharded.place(store, mesh, 'model')
  got = _split(mesh, backoff)(placed, text_BS, seq_len_B)
  expected = _whole(store, text_BS, seq_len_B, backoff=backoff)
  jax.tree.map(np.testing.assert_array_equal, got, expected)
  assert (np.asarray(expected.weight_BR).sum() > 0) == bool(num_tokens)


def test_two_collectives_bring_the_results_together():
  mesh = sharding.make_mesh(2, 4)
  store = _store(np.random.default_rng(0), np.arange(3), [40] * 4)
  placed = sharded.place(store, mesh, 'model')
  assert {s.data.shape for s in placed.low_PN.addressable_shards} == {(1, 40)}
  text_BS = np.zeros((3, 9), np.int32)
  search_all = _split(mesh, backoff=True)
  lowered = search_all.lower(placed, text_BS, np.ones(3, np.int32))
  compiled = lowered.compile()
  kinds = [c.kind for c in hlo.collectives(compiled.as_text())]
  assert sorted(kinds) == ['all-gather', 'all-reduce']
