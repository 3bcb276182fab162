"""Text and a draft model in one drafter, row by row."""

import dataclasses
import functools

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding.autoregressive import Autoregressive
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.drafting import drawing
from speculative.drafting import hybrid as hybrid_lib
from speculative.drafting.beam import Beam
from speculative.drafting.hidden_lm import HiddenLm
from speculative.drafting.hybrid import Hybrid
from speculative.drafting.hybrid import HybridTree
from speculative.drafting.lm import Lm
from speculative.drafting.lookup import Lookup
from speculative.drafting.retrieval import Retrieval
from speculative.drafting.retrieval_config import RetrievalConfig
from speculative.drafting.text import StoreAndModel
from speculative.models import draft as draft_lib
from speculative.models.draft import DraftModel
from speculative.models.transformer import Transformer
from speculative.retrieval import oracle
from speculative.retrieval.device_store import DeviceStore
from speculative.testing import stores
from speculative.testing import tiny

_V, _J = tiny.TARGET.vocab_size, 3
_ATOL = 2e-5
_TARGET = Transformer(tiny.TARGET)
_LOOKUP = Lookup(num_draft_tokens=_J, max_ngram=4, min_ngram=2)
_DRAFTS = {
    'hidden': HiddenLm(DraftModel(tiny.HIDDEN_DRAFT), _J, vocab_size=_V),
    'model': Lm(Transformer(tiny.DRAFT), _J, vocab_size=_V, num_behind=_J + 1),
}
_DEEP = 7
# The last two end in what they began with.
_PROMPTS = [[3], [9, 8, 7, 6, 5], [1, 2, 3, 4, 1, 2, 3], [5, 6, 5, 6, 5, 6]]


@functools.partial(jax.jit, static_argnums=0)
def _propose(drafter, params, drafter_state, state):
  return drafter.propose(params, drafter_state, state)[0]


@pytest.fixture(scope='module')
def target() -> dict:
  return tiny.init(jax.random.key(7), tiny.TARGET)


def _params(name: str, target: dict) -> dict:
  if name == 'model':
    return tiny.init(jax.random.key(3), tiny.DRAFT)
  own = tiny.init_draft(jax.random.key(5), tiny.HIDDEN_DRAFT)
  ids = jnp.asarray(tiny.HEAD_IDS, jnp.int32)
  return draft_lib.attach(tiny.HIDDEN_DRAFT, own, ids, target)


def _engine(name: str, target: dict, **step) -> Engine:
  drafter = Hybrid(_LOOKUP, _DRAFTS[name])
  return Engine(
      Speculative(_TARGET, drafter, **step),
      Weights(target, _params(name, target)),
  )


@pytest.mark.slow
@pytest.mark.parametrize('name', _DRAFTS)
def test_each_row_has_the_proposal_of_the_drafter_it_chose(target, name):
  """In every round, whoever drafted in the rounds before."""
  engine = _engine(name, target)
  drafter, draft = engine.step.drafter, _DRAFTS[name]
  carry = engine.start(
      _PROMPTS, DecodeConfig(max_new_tokens=40, temperature=0.6)
  )
  one_round = jax.jit(engine.step)
  num_rounds, num_found = 8, 0
  for _ in range(num_rounds):
    state = carry.state
    got = _propose(drafter, engine.weights.drafter, carry.drafter_state, state)
    found = _propose(_LOOKUP, None, None, state)
    # The model alone, from the state that both drafters left behind.
    alone = _propose(draft, engine.weights.drafter, carry.drafter_state, state)
    for row in range(len(_PROMPTS)):
      text = state.tokens_BS[row, : int(state.seq_len_B[row])]
      said = hybrid_lib.repeats(text, _LOOKUP.min_ngram)
      assert said == bool(found.valid_BM[row, 0])
      if said:
        num_found += 1
        tokens = found.tokens_BM[row]
        law = np.asarray(jax.nn.one_hot(tokens, _V))
      else:
        tokens, law = alone.tokens_BM[row], alone.probs_BPV[row]
      np.testing.assert_array_equal(got.tokens_BM[row], tokens)
      np.testing.assert_allclose(got.probs_BPV[row], law, atol=_ATOL)
    np.testing.assert_array_equal(got.valid_BM, alone.valid_BM)
    carry = one_round(engine.weights, carry)
  assert 0 < num_found < num_rounds * len(_PROMPTS)


@pytest.mark.slow
@pytest.mark.parametrize('name', _DRAFTS)
def test_the_draft_knows_the_text_after_rounds_that_were_looked_up(
    target, name
):
  """Alone in the batch, where its passes are left out, as one that was not."""
  engine = _engine(name, target)
  draft = _DRAFTS[name]
  carry = engine.start([_PROMPTS[3]], DecodeConfig(max_new_tokens=40))
  one_round = jax.jit(engine.step)
  num_found = 0
  for _ in range(6):
    state = carry.state
    num_found += int(_propose(_LOOKUP, None, None, state).valid_BM[0, 0])
    text = np.asarray(state.tokens_BS[0, : state.seq_len_B[0]]).tolist()
    got = _propose(draft, engine.weights.drafter, carry.drafter_state, state)
    fresh = engine.start([text], DecodeConfig(max_new_tokens=40))
    expected = _propose(
        draft, engine.weights.drafter, fresh.drafter_state, fresh.state
    )
    np.testing.assert_array_equal(got.tokens_BM, expected.tokens_BM)
    carry = one_round(engine.weights, carry)
  assert num_found > 0


@pytest.mark.parametrize('name', _DRAFTS)
def test_greedy_output_equals_plain_token_for_token(target, name):
  plain = Engine(Autoregressive(_TARGET), Weights(target=target))
  fast = _engine(name, target)
  for prompts in (_PROMPTS, [_PROMPTS[2]]):
    config = DecodeConfig(max_new_tokens=40, stop_ids=(11,))
    expected = plain.generate(prompts, config)
    got = fast.generate(prompts, config)
    assert got.token_ids == expected.token_ids
    assert got.reasons == expected.reasons
    assert 0 < got.acceptance_rate < 1


def test_the_models_passes_are_left_out_where_no_row_asks(target, monkeypatch):
  asked = []
  draw_chain = drawing.draw_chain

  def counting(*args):
    jax.debug.callback(lambda: asked.append(1))
    return draw_chain(*args)

  monkeypatch.setattr(drawing, 'draw_chain', counting)
  engine = _engine('hidden', target)

  def num_asked(prompts: list[list[int]], hybrid=engine.step.drafter) -> int:
    asked.clear()
    # Not in the cache of programs that were traced without the callback.
    propose = jax.jit(lambda *args: hybrid.propose(*args)[0].tokens_BM)
    carry = engine.start(prompts, DecodeConfig(max_new_tokens=9))
    state = carry.drafter_state, carry.state
    jax.block_until_ready(propose(engine.weights.drafter, *state))
    jax.effects_barrier()
    return len(asked)

  assert num_asked([_PROMPTS[3]]) == 0
  assert num_asked([_PROMPTS[1]]) == 1
  assert num_asked([_PROMPTS[3], _PROMPTS[1]]) == 1
  # Rounds of one kind alone, to be timed.
  hybrid = engine.step.drafter
  assert num_asked([_PROMPTS[3]], hybrid.always('model')) == 1
  assert num_asked([_PROMPTS[1]], hybrid.always('text')) == 0


@pytest.fixture(scope='module')
def plain(target) -> Engine:
  return Engine(Autoregressive(_TARGET), Weights(target))


@pytest.fixture(scope='module')
def store(plain) -> DeviceStore:
  """What the target says to other prompts."""
  prompts = [[t, u] for t in range(0, 12, 3) for u in (5, 7)]
  config = DecodeConfig(max_new_tokens=40, temperature=0.7)
  return _store_of(plain.generate(prompts, config).token_ids)


def _store_of(documents: list[list[int]]) -> DeviceStore:
  tokens = np.array([t for ids in documents for t in [*ids, _V]])
  suffixes = np.asarray(oracle.sort_suffixes(tokens.tolist(), separator=_V))
  return jax.device_put(stores.of_tokens([(tokens, suffixes)], separator=_V))


def _retrieving(num, shape, sources, **settings) -> Retrieval:
  """Of matches of three tokens, of which half the texts have one."""
  return Retrieval(
      num,
      RetrievalConfig(sources=sources, min_ngram=3, num_rows=16, **settings),
      shape,
  )


_MIXED = [
    DecodeConfig(max_new_tokens=30, stop_ids=(11,), seed=seed, **sampler)
    for seed, sampler in enumerate(
        (
            {},
            {'temperature': 1.0},
            {'temperature': 0.8, 'top_p': 0.9},
            {'temperature': 1.2, 'frequency_penalty': 0.4},
        )
    )
]


@pytest.mark.parametrize('sources', ['both', 'store'])
def test_rows_without_a_long_match_are_drafted_by_the_model(
    target, store, sources
):
  text, draft = _retrieving(_J, 'chain', sources), _DRAFTS['model']
  model = _params('model', target)
  params = StoreAndModel(store, model)
  step = Speculative(_TARGET, Hybrid(text, draft))
  engine = Engine(step, Weights(target, params))
  carry = engine.start(_PROMPTS, _MIXED)
  one_round = jax.jit(step)
  num_found = 0
  for _ in range(4):
    states = carry.drafter_state, carry.state
    got = _propose(step.drafter, params, *states)
    found = _propose(text, store, None, carry.state)
    alone = _propose(draft, model, *states)
    for row in range(len(_PROMPTS)):
      is_found = bool(found.valid_BM[row, 0])
      num_found += is_found
      wanted = found if is_found else alone
      law = np.asarray(jax.nn.one_hot(wanted.tokens_BM[row], _V))
      if not is_found:
        law = alone.probs_BPV[row]
      np.testing.assert_array_equal(got.tokens_BM[row], wanted.tokens_BM[row])
      np.testing.assert_array_equal(got.valid_BM[row], wanted.valid_BM[row])
      np.testing.assert_allclose(got.probs_BPV[row], law, atol=_ATOL)
    carry = one_round(engine.weights, carry)
  assert 0 < num_found < 4 * len(_PROMPTS)


def test_greedy_output_with_a_store_equals_plain(target, store, plain):
  name = 'hidden'
  text = _retrieving(_J, 'chain', 'both')
  params = StoreAndModel(store, _params(name, target))
  step = Speculative(_TARGET, Hybrid(text, _DRAFTS[name]))
  config = DecodeConfig(max_new_tokens=40, stop_ids=(11,))
  expected = plain.generate(_PROMPTS, config)
  got = Engine(step, Weights(target, params)).generate(_PROMPTS, config)
  assert got.token_ids == expected.token_ids
  assert got.reasons == expected.reasons
  assert 0 < got.acceptance_rate < 1


@pytest.mark.parametrize(
    'name, shape', [('hidden', 'tree'), ('model', 'tree'), ('model', 'chain')]
)
def test_sampled_output_over_trees_with_a_store_equals_plain(
    target, store, plain, name, shape
):
  """Token for token; trees from text are deeper than the model's, and wider."""
  M, depth = 8, 8 if shape == 'chain' else 4
  text = _retrieving(M, shape, 'both', length=depth, buckets=(4,))
  longer = {'num_behind': depth + 1} if name == 'model' else {}
  draft = dataclasses.replace(_DRAFTS[name], num_draft_tokens=depth, **longer)
  tree = HybridTree(text, Beam(draft, M, levels=3, width=2))
  assert (tree.max_depth, tree.buckets) == (depth, (4, M))
  params = StoreAndModel(store, _params(name, target))
  engine = Engine(Speculative(_TARGET, tree), Weights(target, params))
  expected = plain.generate(_PROMPTS, _MIXED)
  got = engine.generate(_PROMPTS, _MIXED)
  assert got.token_ids == expected.token_ids
  assert got.reasons == expected.reasons
  assert 0 < got.acceptance_rate < 1


@pytest.mark.parametrize('num_looked_up', [2, 7])
def test_text_drafts_another_number_of_tokens_than_the_tree_has(
    target, plain, num_looked_up
):
  """Shorter or longer: each in a pass of its own size."""
  draft = dataclasses.replace(
      _DRAFTS['model'], num_draft_tokens=7, num_behind=8
  )
  beam = Beam(draft, 4, levels=2, width=2)
  tree = HybridTree(Lookup(num_looked_up, max_ngram=4, min_ngram=2), beam)
  assert tree.buckets == tuple(sorted((num_looked_up, 4)))
  assert tree.num_draft_tokens == max(num_looked_up, 4)
  weights = Weights(target, _params('model', target))
  expected = plain.generate(_PROMPTS, _MIXED)
  got = Engine(Speculative(_TARGET, tree), weights).generate(_PROMPTS, _MIXED)
  assert got.token_ids == expected.token_ids
  assert 0 < got.acceptance_rate < 1


@pytest.mark.parametrize('name', _DRAFTS)
@pytest.mark.parametrize('shape', ['chain', 'tree'])
def test_the_draft_knows_the_text_after_rounds_deeper_than_its_tree(
    target, plain, name, shape
):
  """As one that read the same text anew."""
  longer = {'num_behind': _DEEP + 1} if name == 'model' else {}
  draft = dataclasses.replace(_DRAFTS[name], num_draft_tokens=_DEEP, **longer)
  beam = Beam(draft, 4, levels=2, width=2)
  text = _retrieving(_DEEP, shape, 'store', length=_DEEP)
  tree = HybridTree(text, beam)
  config = DecodeConfig(max_new_tokens=40)
  # All that will be said.
  said = plain.generate(_PROMPTS, config).token_ids
  documents = [p + ids for p, ids in zip(_PROMPTS, said, strict=True)]
  model = _params(name, target)
  engine = Engine(
      Speculative(_TARGET, tree),
      Weights(target, StoreAndModel(_store_of(documents), model)),
  )
  carry = engine.start(_PROMPTS, config)
  one_round = jax.jit(engine.step)
  num_new = []
  for _ in range(3):
    before_B = carry.state.seq_len_B
    carry = one_round(engine.weights, carry)
    num_new.append(carry.state.seq_len_B - before_B)
  assert (np.max(num_new, axis=0) > beam.levels + 1).all()
  state = carry.state
  texts = [
      state.tokens_BS[row, : state.seq_len_B[row]].tolist()
      for row in range(len(_PROMPTS))
  ]
  fresh = engine.start(texts, config)
  got = _propose(beam, model, carry.drafter_state, state)
  expected = _propose(beam, model, fresh.drafter_state, fresh.state)
  np.testing.assert_array_equal(got.tokens_BM, expected.tokens_BM)
  np.testing.assert_array_equal(got.parent_BM, expected.parent_BM)


@pytest.mark.parametrize(
    'source, expected', [('text', [7] * 4), ('model', [4] * 4)]
)
def test_a_round_from_one_source_has_its_number_of_nodes(
    target, source, expected
):
  """As parts of a round are timed, whether or not a text repeats itself."""
  draft = dataclasses.replace(
      _DRAFTS['model'], num_draft_tokens=7, num_behind=8
  )
  beam = Beam(draft, 4, levels=2, width=2)
  tree = HybridTree(Lookup(7, max_ngram=4, min_ngram=2), beam).always(source)
  weights = Weights(target, _params('model', target))
  engine = Engine(Speculative(_TARGET, tree), weights)
  prompts = [[1 + i, 9 + i, 17 + i] for i in range(4)]
  carry = engine.start(prompts, DecodeConfig(max_new_tokens=20))
  proposal, _ = tree.propose(weights.drafter, carry.drafter_state, carry.state)
  assert proposal.valid_BM.sum(axis=1).tolist() == expected


@pytest.mark.slow
def test_each_source_alone_changes_no_token_either(target, store, plain):
  """As parts of a round are timed."""
  text = _retrieving(_J, 'tree', 'both', length=_J)
  tree = HybridTree(text, Beam(_DRAFTS['model'], _J, levels=2, width=2))
  weights = Weights(target, StoreAndModel(store, _params('model', target)))
  expected = plain.generate(_PROMPTS, _MIXED)
  drafted = {}
  for source in ('text', 'model'):
    step = Speculative(_TARGET, tree.always(source))
    got = Engine(step, weights).generate(_PROMPTS, _MIXED)
    assert got.token_ids == expected.token_ids
    drafted[source] = got.drafted.sum()
  assert 0 < drafted['text'] < drafted['model']


def test_parts_that_do_not_fit_are_refused():
  beam = Beam(_DRAFTS['model'], _J, levels=2, width=2)
  shallow = dataclasses.replace(_DRAFTS['model'], num_draft_tokens=2)
  HybridTree(_LOOKUP, beam)
  with pytest.raises(ValueError, match='of 3 tokens from text is deeper'):
    HybridTree(_LOOKUP, dataclasses.replace(beam, draft=shallow))
  with pytest.raises(ValueError, match='same number of tokens, got 4 and 3'):
    Hybrid(Lookup(num_draft_tokens=4), _DRAFTS['hidden'])
  with pytest.raises(ValueError, match='num_behind > 3'):
    Hybrid(_LOOKUP, Lm(Transformer(tiny.DRAFT), _J, vocab_size=_V))
