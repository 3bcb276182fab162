"""Chains and trees from a bigram table."""

import dataclasses
import functools

import hypothesis
from hypothesis import strategies as st
import jax
import numpy as np
import pytest

from speculative import sharding
from speculative.decoding import drafter as drafter_lib
from speculative.decoding.autoregressive import Autoregressive
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.drafting import bigram_config
from speculative.drafting.bigram import Bigram
from speculative.errors import UserError
from speculative.models import params as params_lib
from speculative.models.transformer import Transformer
from speculative.retrieval import bigram_table
from speculative.retrieval.bigram_counts import Counted
from speculative.retrieval.bigram_counts import Counter
from speculative.retrieval.bigram_table import DeviceTable
from speculative.sharding import Placement
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
_CHAIN = Bigram(5)
_TREE = Bigram(8, 'tree', levels=3)
_NONE = dataclasses.replace(_TREE, fallback='none')


@functools.partial(jax.jit, static_argnames='drafter')
def _propose(drafter, table, state):
  return drafter.propose(table, None, state)[0]


def _counted(documents, directory, *, num=3) -> Counted:
  counter = Counter(_V, pairs_at_once=1 << 12, directory=directory)
  for tokens in documents:
    counter.add(np.array(tokens, np.uint32))
  return counter.counted(num)


def _table(documents, directory) -> DeviceTable:
  return bigram_table.for_device(_counted(documents, directory))


def _after(table: DeviceTable, token: int, fallback: str) -> list[tuple]:
  """Returns successors of a token with their scores, in plain Python."""
  row = None
  if 0 <= token < _V and table.tokens_VW[token, 0] >= 0:
    row = zip(table.tokens_VW[token], table.score_VW[token], strict=True)
  elif fallback == 'frequent':
    row = zip(table.frequent_W, table.frequent_score_W, strict=True)
  return [(int(t), score) for t, score in row or () if t >= 0]


def _chain(table: DeviceTable, text, drafter: Bigram, room: int) -> list[int]:
  drafted = []
  while len(drafted) < min(drafter.num_draft_tokens, room - 1):
    token = ([*text] + drafted)[-1]
    successors = _after(table, token, drafter.fallback)
    if not successors:
      break
    drafted.append(successors[0][0])
  return drafted


def _tree(table: DeviceTable, text, drafter: Bigram) -> set[tuple[int, ...]]:
  """Returns the paths of the tree: all there are, of which the likeliest.

  Of equals the shallower, then the children of the likelier parent.
  """
  level, every = [((), np.float32(0))], []
  for _ in range(drafter.levels):
    children = [
        ((*path, token), np.float32(above + score))
        for path, above in level
        for token, score in _after(table, [*text, *path][-1], drafter.fallback)
    ]
    every += children
    # Sorting leaves equals in their order.
    level = sorted(children, key=lambda child: -child[1])
  chosen = sorted(every, key=lambda child: -child[1])
  return {path for path, _ in chosen[: drafter.num_draft_tokens]}


def _paths(proposal, row: int) -> list[tuple[int, ...]]:
  """Returns paths of the valid nodes; checks that these are a tree."""
  valid = proposal.valid_BM[row]
  num = int(valid.sum())
  depths = proposal.depth_BM[row, :num].tolist()
  assert depths == sorted(depths), 'not breadth-first'
  paths = []
  for m in np.flatnonzero(valid):
    parent = int(proposal.parent_BM[row, m])
    assert parent < m and (parent < 0 or valid[parent])
    above = () if parent < 0 else paths[parent]
    paths.append((*above, int(proposal.tokens_BM[row, m])))
    assert len(paths[-1]) == proposal.depth_BM[row, m]
  assert len(set(paths)) == len(paths)
  assert ((0 <= proposal.tokens_BM) & (proposal.tokens_BM < _V)).all()
  return paths


# Few tokens, so that pairs come as often as others.
_documents = st.lists(
    st.lists(st.integers(0, 4), max_size=12), min_size=0, max_size=4
)
_texts = st.lists(
    st.lists(st.integers(0, _V - 1), min_size=1, max_size=3),
    min_size=4,
    max_size=4,
)
_settings = hypothesis.settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)


@pytest.mark.parametrize('fallback', ['frequent', 'none'])
@_settings
@hypothesis.given(documents=_documents, texts=_texts, room=st.integers(1, 8))
def test_chains_are_those_of_plain_python(
    make_state, tmp_path, fallback, documents, texts, room
):
  drafter = dataclasses.replace(_CHAIN, fallback=fallback)
  table = _table(documents, tmp_path)
  got = _propose(drafter, table, make_state(texts, room=room, rubbish=1))
  assert got.probs_BPV is None and got.shape == 'chain'
  got = jax.tree.map(np.asarray, got)
  np.testing.assert_array_equal(got.parent_BM, [[-1, 0, 1, 2, 3]] * 4)
  for row, text in enumerate(texts):
    expected = _chain(table, text, drafter, room)
    num = len(expected)
    assert got.valid_BM[row].tolist() == [True] * num + [False] * (5 - num)
    assert got.tokens_BM[row, :num].tolist() == expected
  assert ((0 <= got.tokens_BM) & (got.tokens_BM < _V)).all()


@pytest.mark.parametrize('drafter', [_TREE, _NONE], ids=['frequent', 'none'])
@_settings
@hypothesis.given(documents=_documents, texts=_texts)
def test_trees_have_the_likeliest_paths(
    make_state, tmp_path, drafter, documents, texts
):
  table = _table(documents, tmp_path)
  got = _propose(drafter, table, make_state(texts, rubbish=1))
  assert got.probs_BPV is None and got.shape == 'tree'
  got = jax.tree.map(np.asarray, got)
  for row, text in enumerate(texts):
    paths = _paths(got, row)
    # A smaller number of valid nodes comes first.
    assert got.valid_BM[row, : len(paths)].all()
    assert set(paths) == _tree(table, text, drafter)


def test_a_tree_by_hand(make_state, tmp_path):
  # After 1: 2 (.6), 3 (.4). After 2: 5 (.5), 6 (.5). After 3: 7.
  documents = [[1, 2]] * 3 + [[1, 3]] * 2 + [[2, 5], [2, 6], [3, 7]]
  table = _table(documents, tmp_path)
  drafter = Bigram(4, 'tree', levels=2, fallback='none')
  got = _propose(drafter, table, make_state([[8, 1], [1, 8]]))
  # 1 2 5 and 1 2 6 are as likely as each other, at .3; 1 3 7 is likelier.
  assert got.tokens_BM[0].tolist() == [2, 3, 5, 7]
  assert got.parent_BM[0].tolist() == [-1, -1, 0, 1]
  assert got.depth_BM[0].tolist() == [1, 1, 2, 2]
  assert got.valid_BM.tolist() == [[True] * 4, [False] * 4]


@pytest.mark.parametrize('drafter', [_CHAIN, _TREE], ids=['chain', 'tree'])
def test_no_more_is_drafted_than_a_row_has_room_for(
    make_state, tmp_path, drafter
):
  table = _table([[1] * 6], tmp_path)
  for room, depth in ((100, drafter.max_depth), (3, 2), (1, 0)):
    state = make_state([[1], [1]], room=room, done=[False, True])
    got = jax.tree.map(np.asarray, _propose(drafter, table, state))
    assert not got.valid_BM[1].any()
    deepest = np.where(got.valid_BM[0], got.depth_BM[0], 0).max()
    assert deepest == depth


def test_depths_that_can_be_kept():
  assert drafter_lib.max_depth(_CHAIN) == 5
  assert drafter_lib.max_depth(_TREE) == 3
  assert drafter_lib.max_depth(Bigram(2, 'tree', levels=3)) == 2
  assert drafter_lib.buckets(_TREE) == (8,)


@pytest.fixture(scope='module')
def plain() -> Engine:
  params = tiny.init(jax.random.key(0), tiny.TARGET)
  return Engine(Autoregressive(Transformer(tiny.TARGET)), Weights(params))


@pytest.fixture(scope='module')
def table(plain, tmp_path_factory) -> DeviceTable:
  """What the target says to other prompts."""
  prompts = [[t, u] for t in range(0, 12, 3) for u in (5, 7)]
  config = DecodeConfig(max_new_tokens=40, temperature=0.7)
  written = plain.generate(prompts, config).token_ids
  return _table(written, tmp_path_factory.mktemp('counts'))


@pytest.mark.parametrize(
    'drafter',
    [Bigram(3), Bigram(10, 'tree', levels=3), _NONE],
    ids=['chain', 'tree', 'tree without fallback'],
)
def test_mixed_rows_equal_plain_token_for_token(plain, table, drafter):
  step = Speculative(plain.step.model, drafter)
  weights = dataclasses.replace(plain.weights, drafter=jax.device_put(table))
  expected = plain.generate(_PROMPTS, _MIXED)
  got = Engine(step, weights).generate(_PROMPTS, _MIXED)
  assert got.token_ids == expected.token_ids
  assert got.reasons == expected.reasons
  assert got.num_rounds < expected.num_rounds
  for row in range(4):
    assert 0 < got.accepted[row].sum() < got.tested[row].sum(), row


@pytest.mark.slow
@pytest.mark.parametrize('drafter', [Bigram(3), _TREE], ids=['chain', 'tree'])
def test_a_mesh_says_the_same(table, drafter):
  config = dataclasses.replace(tiny.TARGET, num_heads=4, num_kv_heads=4)
  mesh = sharding.make_mesh(2, 2)
  placement = sharding.place(
      mesh, config.axis_sizes, indivisible='replicate', logits='gathered'
  )
  params = tiny.init(jax.random.key(0), config)
  one, several = (
      Engine(
          Speculative(Transformer(config, placement=where), drafter),
          Weights(params_lib.place(params, config, where), where.put(table)),
      ).generate(_PROMPTS, _MIXED)
      for where in (Placement(), placement)
  )
  assert several.token_ids == one.token_ids
  assert [a.tolist() for a in several.accepted] == [
      a.tolist() for a in one.accepted
  ]


def test_levels_beyond_the_nodes_are_not_counted():
  sizes = dict(num_successors=2, table='x.table')
  # 2 + 4 + 8, however many levels are allowed.
  bigram_config.check_nodes(num_nodes=14, levels=10**9, **sizes)
  bigram_config.check_nodes(num_nodes=14, levels=3, **sizes)
  with pytest.raises(UserError, match='at most 6 nodes where x.table has 2'):
    bigram_config.check_nodes(num_nodes=7, levels=2, **sizes)
