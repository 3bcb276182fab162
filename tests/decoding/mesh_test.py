"""The same tokens on every mesh; float32."""

import dataclasses

import jax
import numpy as np
import pytest

from speculative import sharding
from speculative.decoding.autoregressive import Autoregressive
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.drafting.beam import Beam
from speculative.drafting.lm import Lm
from speculative.drafting.lookup import Lookup
from speculative.drafting.tree_lm import TreeLm
from speculative.models import params as params_lib
from speculative.models import transformer
from speculative.models.transformer import Transformer
from speculative.testing import tiny
from speculative.testing.random_tree import RandomTree
from speculative.testing.random_tree import Script

_TARGET = dataclasses.replace(
    tiny.TARGET, vocab_size=64, num_heads=8, mlp_dim=32, num_kv_heads=4
)
_DRAFT = dataclasses.replace(_TARGET, num_layers=1)
# Nothing of it but the vocabulary can be split over 8 devices.
_ODD = dataclasses.replace(
    _TARGET, num_heads=9, num_kv_heads=3, mlp_dim=20, head='tied'
)
# One prompt of a single token, and a number of rows that 8 does not divide.
_PROMPTS = ([1, 2, 3, 1, 2, 3, 1, 2], [5, 6, 7], [1])
_MIXED = [
    DecodeConfig(max_new_tokens=16),
    DecodeConfig(max_new_tokens=12, temperature=0.8, top_p=0.9, seed=4),
    DecodeConfig(
        max_new_tokens=14,
        temperature=0.9,
        top_k=20,
        frequency_penalty=0.4,
        logit_bias=((5, 1.0),),
        min_new_tokens=4,
        stop_ids=(9,),
        seed=7,
    ),
]

# A sampled row with a drawn tree keeps its law, not its tokens.
_GREEDY = [dataclasses.replace(config, temperature=0.0) for config in _MIXED]


def _engine(
    data,
    model,
    *,
    config=_TARGET,
    drafter='lm',
    shards=0,
    logits='auto',
    layers='unrolled',
    texts=(),
):
  mesh = sharding.make_mesh(data, model)
  target_placement, draft_placement = (
      sharding.place(
          mesh,
          c.axis_sizes,
          shards=s,
          logits=logits,
          indivisible='replicate',
      )
      for c, s in ((config, 0), (_DRAFT, shards))
  )
  target = Transformer(config, layout=layers, placement=target_placement)
  params = params_lib.place(
      tiny.init(jax.random.key(0), config), config, target_placement
  )
  if layers == 'scanned':
    params = transformer.stack_layers(params)
  if drafter == 'none':
    return Engine(Autoregressive(target), Weights(params))
  if drafter == 'lookup':
    step = Speculative(target, Lookup(num_draft_tokens=3))
    return Engine(step, Weights(params))
  if drafter == 'tree':
    step = Speculative(target, RandomTree(6, 3, 64, sizes=(2, 6)))
    # Rows that only fill the mesh expect what they like.
    tokens = np.zeros((-(-len(texts) // data) * data, 32), np.int32)
    for row, text in enumerate(texts):
      tokens[row, : len(text)] = text
    script = target_placement.put(Script(tokens, np.uint32(0)))
    return Engine(step, Weights(params, script))
  draft = Transformer(_DRAFT, placement=draft_placement)
  draft_params = params_lib.place(
      tiny.init(jax.random.key(1), _DRAFT), _DRAFT, draft_placement
  )
  V = config.vocab_size
  if drafter == 'beam':
    lm = Lm(draft, 5, V, num_behind=6)
    built = Beam(lm, num_draft_tokens=5, levels=3, width=2)
  elif drafter == 'drawn tree':
    built = TreeLm(draft, (2, 2), V)
  else:
    built = Lm(draft, num_draft_tokens=3, vocab_size=V)
  return Engine(Speculative(target, built), Weights(params, draft_params))


def _tokens(*args, **kwargs):
  generation = _engine(*args, **kwargs).generate(_PROMPTS, _MIXED)
  assert len(generation.token_ids) == len(generation.rounds) == 3
  return generation.token_ids


@pytest.fixture(scope='module')
def expected():
  """Tokens on one device, by drafter."""
  return {d: _tokens(1, 1, drafter=d) for d in ('lookup', 'lm')}


@pytest.mark.slow
@pytest.mark.parametrize(
    ('data', 'model', 'options'),
    [
        (1, 8, {}),
        (1, 8, {'logits': 'split'}),
        (2, 4, {'shards': 2, 'logits': 'split'}),
        (8, 1, {}),
        (1, 4, {'layers': 'scanned', 'shards': 1}),
        (2, 4, {'drafter': 'lookup'}),
    ],
    ids=str,
)
def test_tokens_are_those_of_one_device(expected, data, model, options):
  assert (
      _tokens(data, model, **options) == expected[options.get('drafter', 'lm')]
  )


@pytest.mark.slow
@pytest.mark.parametrize(
    ('data', 'model', 'logits'), [(2, 4, 'gathered'), (1, 8, 'split')]
)
def test_trees_say_what_plain_decoding_says_on_one_device(data, model, logits):
  plain = _tokens(1, 1, drafter='none')
  texts = [[*p, *ids] for p, ids in zip(_PROMPTS, plain, strict=True)]
  engine = _engine(data, model, drafter='tree', logits=logits, texts=texts)
  got = engine.generate(_PROMPTS, _MIXED)
  assert got.token_ids == plain
  assert got.tokens_per_round > 1.3


@pytest.fixture(scope='module')
def plain():
  """Tokens of plain decoding on one device, mixed rows and greedy ones."""
  engine = _engine(1, 1, drafter='none')
  return {
      rows: engine.generate(_PROMPTS, list(rows)).token_ids
      for rows in (tuple(_MIXED), tuple(_GREEDY))
  }


@pytest.mark.slow
@pytest.mark.parametrize(
    ('drafter', 'rows'), [('beam', _MIXED), ('drawn tree', _GREEDY)]
)
@pytest.mark.parametrize(
    ('data', 'model', 'options'),
    [(2, 4, {'shards': 2, 'logits': 'gathered'}), (1, 8, {'logits': 'split'})],
    ids=str,
)
def test_trees_of_a_model_leave_plain_tokens_alone(
    plain, drafter, rows, data, model, options
):
  engine = _engine(data, model, drafter=drafter, **options)
  got = engine.generate(_PROMPTS, rows)
  assert got.token_ids == plain[tuple(rows)]
  assert got.drafted.sum() > 0


@pytest.mark.slow
@pytest.mark.parametrize('logits', ['split', 'gathered'])
def test_the_likeliest_tokens_are_those_of_one_device(logits):
  config = DecodeConfig(max_new_tokens=12, num_top_log_probs=5)
  one, several = (
      _engine(*mesh, drafter='lookup', logits=logits).generate(_PROMPTS, config)
      for mesh in ((1, 1), (2, 4))
  )
  assert several.token_ids == one.token_ids
  for ours, theirs in zip(
      several.top_log_probs, one.top_log_probs, strict=True
  ):
    np.testing.assert_allclose(np.array(ours), np.array(theirs), atol=1e-4)


@pytest.mark.slow
def test_a_model_that_does_not_divide_gives_the_same_tokens():
  one = _tokens(1, 1, config=_ODD, drafter='none')
  assert _tokens(1, 8, config=_ODD, drafter='none') == one


def test_rows_that_fill_the_mesh_are_not_seen():
  seen = set()
  generation = _engine(4, 1, drafter='lookup').generate(
      _PROMPTS, _MIXED, on_tokens=lambda row, _: seen.add(row)
  )
  assert seen == {0, 1, 2}
  assert generation.num_tokens == sum(map(len, generation.token_ids))
  assert generation.tested.shape[0] == 3
  assert np.all(generation.rounds > 0)


def test_each_device_holds_its_share_of_weights_and_cache():
  engine = _engine(2, 4)
  carry = engine.start(_PROMPTS, _MIXED)
  weights = engine.weights.target
  for name, share in (('embed', 4), ('head', 4)):
    shards = weights[name].addressable_shards
    assert {s.data.size * share for s in shards} == {weights[name].size}
  layer = weights['layers'][0]
  for name in ('q_proj', 'k_proj', 'v_proj', 'o_proj', 'up_proj', 'down_proj'):
    shards = layer[name].addressable_shards
    assert {s.data.size * 4 for s in shards} == {layer[name].size}, name
  for slots in carry.state.cache.k + carry.drafter_state.cache.v:
    assert {s.data.size * 8 for s in slots.addressable_shards} == {slots.size}
  small = carry.state.replace(cache=None)
  assert all(x.is_fully_replicated for x in jax.tree.leaves(small))
