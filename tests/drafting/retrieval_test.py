import dataclasses
import functools

import jax
import numpy as np
import pytest

from speculative import sharding
from speculative.decoding.autoregressive import Autoregressive
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.drafting.retrieval import Retrieval
from speculative.drafting.retrieval_config import RetrievalConfig
from speculative.models import params as params_lib
from speculative.models.transformer import Transformer
from speculative.retrieval import oracle
from speculative.retrieval import sharded
from speculative.retrieval.oracle import Shard
from speculative.sharding import Placement
from speculative.testing import stores
from speculative.testing import tiny

_V = 13
_MIXED = [
    DecodeConfig(**{'max_new_tokens': 30, 'seed': seed, **settings})
    for seed, settings in enumerate(
        [
            {},
            dict(temperature=1.0),
            dict(temperature=0.7, top_p=0.9, stop_ids=(3,)),
            dict(temperature=0.8, frequency_penalty=0.3, max_new_tokens=25),
        ]
    )
]
_PROMPTS = [[1, 2, 3], [9, 8, 9, 8, 9], [12], [4, 4, 4, 4]]


def _drafter(num_draft_tokens, shape='chain', **settings) -> Retrieval:
  return Retrieval(num_draft_tokens, RetrievalConfig(**settings), shape)


def _shard(documents) -> Shard:
  tokens = [int(t) for document in documents for t in [*document, _V]]
  suffixes = oracle.sort_suffixes(tokens, separator=_V)
  return Shard(tokens, suffixes.tolist())


def _on_device(shards):
  arrays = [(np.array(s.tokens), np.array(s.suffixes)) for s in shards]
  return jax.device_put(stores.of_tokens(arrays, separator=_V))


@functools.partial(jax.jit, static_argnames='drafter')
def _propose(drafter, store, state):
  return drafter.propose(store, None, state)[0]


@pytest.fixture(scope='module')
def shards() -> list[Shard]:
  rng = np.random.default_rng(0)
  return [
      _shard(rng.integers(0, 4, size=(6, num_tokens)))
      for num_tokens in (30, 12)
  ]


@pytest.fixture(scope='module')
def texts() -> list[list[int]]:
  rng = np.random.default_rng(1)
  sizes = rng.integers(1, 30, size=40)
  return [rng.integers(0, 4, size=size).tolist() for size in sizes]


@pytest.mark.parametrize('room', [100, 4, 1])
@pytest.mark.parametrize(
    'drafter',
    [
        _drafter(5, num_rows=6, length=5),
        _drafter(4, num_rows=6, length=5, sources='store', min_ngram=3),
        _drafter(7, length=4, sources='context', context_rows=3),
        _drafter(9, num_rows=6, length=5, max_ngram=3, shape='tree'),
        _drafter(9, num_rows=6, shape='tree', selection='random'),
        _drafter(9, num_rows=6, shape='tree', matches='longest'),
    ],
    ids=['both', 'store', 'context', 'tree', 'random tree', 'longest'],
)
def test_proposals_equal_the_oracle(make_state, shards, texts, drafter, room):
  got = _propose(drafter, _on_device(shards), make_state(texts, room=room))
  assert got.probs_BPV is None and got.shape == drafter.shape
  got = jax.tree.map(np.asarray, got)
  settings = drafter.settings
  ngrams = dict(max_ngram=settings.max_ngram, min_ngram=settings.min_ngram)
  ngrams['backoff'] = settings.matches == 'backoff'
  some = 0
  for b, text in enumerate(texts):
    rows, weights = [], []

    if settings.sources != 'store':
      num_rows = settings.context_rows
      near = oracle.context(
          text, num_rows=num_rows, length=settings.length, **ngrams
      )
      rows += near + [([], 0)] * (num_rows - len(near))
      weights += [32] * num_rows
    if settings.sources != 'context':
      far = oracle.continuations(
          shards,
          oracle.find(shards, text, **ngrams),
          num_rows=settings.num_rows,
          length=settings.length,
          separator=_V,
      )
      rows += far + [([], 0)] * (settings.num_rows - len(far))
      weights += [1] * settings.num_rows
    if settings.matches == 'backoff':
      lengths = [n for _, n in rows]
      weights = [
          w * 2 ** min(n, 6) for w, n in zip(weights, lengths, strict=True)
      ]
    expected = oracle.select(
        [row for row, _ in rows],
        weights,
        num_nodes=drafter.num_draft_tokens,
        how='chain' if drafter.shape == 'chain' else settings.selection,
        seed=len(text),
    )
    expected = [n for n in expected if n.depth < room]
    num = len(expected)
    some += num > 0
    assert got.valid_BM[b].tolist() == [True] * num + [False] * (
        drafter.num_draft_tokens - num
    )
    for name in ('token', 'parent', 'depth'):
      array = getattr(got, f'{name}s_BM' if name == 'token' else f'{name}_BM')
      assert array[b, :num].tolist() == [getattr(n, name) for n in expected]
  assert (some > 10) == (room > 1)


@pytest.mark.parametrize('shape', ['chain', 'tree'])
def test_the_host_drafts_what_the_device_drafts(
    make_state, shards, texts, shape
):
  drafter = _drafter(5, shape, num_rows=6, length=5)
  store, state = _on_device(shards), make_state(texts)
  draft = drafter.on_host(jax.tree.map(np.asarray, store))
  got = draft(np.asarray(state.tokens_BS), np.asarray(state.seq_len_B))
  assert {type(x) for x in jax.tree.leaves(got)} == {np.ndarray}
  expected = _propose(drafter, store, state)
  jax.tree.map(np.testing.assert_array_equal, got, expected)


def test_rows_that_are_done_draft_nothing(make_state, shards):
  state = make_state([[1, 2, 1, 2], [1, 2, 1, 2]], done=[True, False])
  proposal = _propose(Retrieval(4), _on_device(shards), state)
  assert proposal.valid_BM.any(axis=1).tolist() == [False, True]


def test_an_empty_store_drafts_nothing(make_state):
  drafter = _drafter(4, sources='store')
  proposal = _propose(drafter, _on_device([]), make_state([[1, 2, 1, 2]]))
  assert not proposal.valid_BM.any()


@pytest.fixture(scope='module')
def plain() -> Engine:
  params = tiny.init(jax.random.key(0), tiny.TARGET)
  return Engine(Autoregressive(Transformer(tiny.TARGET)), Weights(params))


@pytest.fixture(scope='module')
def store(plain):
  """What the target says to other prompts."""
  prompts = [[t, u] for t in range(0, 12, 3) for u in (5, 7)]
  config = DecodeConfig(max_new_tokens=40, temperature=0.7)
  written = plain.generate(prompts, config).token_ids
  return _on_device([_shard(written[:5]), _shard(written[5:])])


@pytest.mark.parametrize(
    'drafter',
    [
        _drafter(4),
        _drafter(4, sources='store'),
        _drafter(12, 'tree', length=5, buckets=(4, 8)),
        _drafter(6, 'tree', sources='store', selection='random', buckets=()),
    ],
    ids=['both', 'store', 'tree', 'random tree'],
)
def test_mixed_rows_equal_plain_token_for_token(plain, store, drafter):
  step = Speculative(plain.step.model, drafter)
  weights = dataclasses.replace(plain.weights, drafter=store)
  expected = plain.generate(_PROMPTS, _MIXED)
  got = Engine(step, weights).generate(_PROMPTS, _MIXED)
  assert got.token_ids == expected.token_ids
  assert got.reasons == expected.reasons
  assert got.num_rounds < expected.num_rounds
  for row in range(4):
    assert 0 < got.accepted[row].sum() < got.tested[row].sum(), row


@pytest.mark.slow
@pytest.mark.parametrize('how', ['whole', 'split'])
def test_a_mesh_says_the_same(plain, store, how):
  config = dataclasses.replace(tiny.TARGET, num_heads=4, num_kv_heads=4)
  mesh = sharding.make_mesh(2, 2)
  placement = sharding.place(
      mesh, config.axis_sizes, indivisible='replicate', logits='gathered'
  )
  params = tiny.init(jax.random.key(0), config)
  settings = RetrievalConfig(num_rows=16, placement=how)
  host = jax.tree.map(np.asarray, store)
  placed = placement.put(host)
  if how == 'split':
    placed = sharded.place(host, mesh, sharding.MODEL)
  one, several = (
      Engine(
          Speculative(
              Transformer(config, placement=where),
              Retrieval(4, settings, placement=where),
          ),
          Weights(params_lib.place(params, config, where), found),
      ).generate(_PROMPTS, _MIXED)
      for where, found in ((Placement(), store), (placement, placed))
  )
  assert several.token_ids == one.token_ids
  assert [a.tolist() for a in several.accepted] == [
      a.tolist() for a in one.accepted
  ]
