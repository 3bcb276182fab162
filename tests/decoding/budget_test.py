"""What a round sends between devices, as compiled for eight CPU devices.

Nothing runs here. `budget_tpu_test.py` holds the same numbers, and the dtypes,
in what a TPU compiler emits.
"""

import collections
import dataclasses
import functools
import math
import re

import jax
import pytest

from speculative import hlo
from speculative import sharding
from speculative.hlo import module as module_lib
from speculative.testing import budget
from speculative.testing import rounds
from speculative.testing import tiny
from speculative.testing.rounds import Setting

pytestmark = pytest.mark.slow

_S = 96
# The smallest shard of a matrix or a cache on any mesh here is larger than what
# a layer or a draw sends.
_TARGET = dataclasses.replace(
    tiny.TARGET,
    vocab_size=32_768,
    num_layers=2,
    model_dim=192,
    num_heads=8,
    num_kv_heads=4,
    head_dim=32,
    mlp_dim=1024,
)
_DRAFT = dataclasses.replace(_TARGET, num_layers=1)
_DEEP = dataclasses.replace(_TARGET, num_layers=40)

_SETTINGS = {
    'gathered': ((2, 4), Setting(_TARGET, _DRAFT, num_draft_tokens=2)),
    'longer': ((2, 4), Setting(_TARGET, _DRAFT, num_draft_tokens=4)),
    # Eight devices for four key/value heads.
    'split': (
        (1, 8),
        Setting(_TARGET, _DRAFT, num_draft_tokens=3, logits='split'),
    ),
    # The draft lies twice over half as many devices.
    'deep': (
        (2, 4),
        Setting(
            _DEEP,
            dataclasses.replace(_DRAFT, num_layers=8),
            num_draft_tokens=3,
            shards=2,
            logits='split',
            layout='scanned',
            log_probs='chosen',
        ),
    ),
    'plain': ((2, 4), Setting(_DRAFT, num_draft_tokens=0)),
    'lookup': ((2, 4), Setting(_DRAFT, num_draft_tokens=3)),
    'chain': ((2, 4), Setting(_DRAFT, num_draft_tokens=7)),
    'tree': ((2, 4), Setting(_DRAFT, num_draft_tokens=7, max_depth=4)),
    'buckets': (
        (2, 4),
        Setting(_DRAFT, num_draft_tokens=7, max_depth=4, buckets=(3, 7)),
    ),
}
_WITH_DRAFT = ('gathered', 'longer', 'split', 'deep')


@functools.cache
def _round(name):
  shape, setting = _SETTINGS[name]
  return rounds.compile_round(setting, sharding.make_mesh(*shape))


@pytest.mark.parametrize('name', _WITH_DRAFT)
@pytest.mark.parametrize('scope', ['draft', 'verify'])
def test_a_layer_sends_two_all_reduces_and_an_embedding_one(name, scope):
  found = _round(name)
  model = found.setting.draft if scope == 'draft' else found.setting.target
  once = budget.passes(found, scope, 'f32')
  inside = [c for c in found.within(scope) if budget.in_layers(c)]
  for part in ('attention', 'mlp'):
    sent = budget.sizes(c for c in inside if c.within(part))
    assert sent == {k: v * model.num_layers for k, v in once.items()}
  embeddings = [
      c
      for c in found.within(scope)
      if budget.is_stream(found, c) and not budget.in_layers(c)
  ]
  assert budget.sizes(embeddings) == once


def test_forty_layers_are_eighty_all_reduces():
  found = _round('deep')
  verify = [c for c in found.within('verify') if budget.in_layers(c)]
  assert len(verify) == 2  # in the text: the layers are a loop
  assert sum(c.times for c in verify) == 80


def test_two_drafted_tokens_more_are_two_draft_steps_more():
  def num_runs(name):
    found = _round(name).along('model', 4)
    return sum(c.times for c in found if c.kind == 'all-reduce')

  step = 2 * _DRAFT.num_layers + 1
  assert num_runs('longer') - num_runs('gathered') == 2 * step


def _others(found, scope):
  """Returns what is sent in a scope but for layers and embeddings."""
  return [c for c in found.within(scope) if not budget.is_stream(found, c)]


@pytest.mark.parametrize('name', ['gathered', 'longer'])
def test_gathered_logits_are_all_that_sampling_sends(name):
  found = _round(name)
  J, V = found.setting.num_draft_tokens, found.setting.target.vocab_size
  for scope, logits in (
      ('draft', {found.rows * V: J}),
      ('verify', {found.rows * (J + 1) * V: 1}),
      ('commit', {}),
  ):
    assert budget.sizes(_others(found, scope)) == {
        ('all-gather', 'f32', size): times for size, times in logits.items()
    }


@pytest.mark.parametrize('scope', ['draft', 'verify'])
@pytest.mark.parametrize('name', ['split', 'deep'])
def test_split_logits_send_a_fixed_set(name, scope):
  found = _round(name)
  sent = budget.sizes(_others(found, scope))
  assert sent == budget.sampling(found, scope, compiler='cpu')


@pytest.mark.parametrize('name', ['split', 'deep'])
def test_split_sampling_sends_little(name):
  found = _round(name)
  J = found.setting.num_draft_tokens
  largest = budget.largest_elements(found.setting.target.vocab_size)
  assert largest == 256
  limit = found.rows * (J + 1) * largest * 4
  for scope in ('draft', 'verify', 'commit'):
    assert all(c.num_bytes <= limit for c in _others(found, scope))


def test_the_threshold_for_gathering_counts_what_a_pass_sends():
  found = _round('split')
  sent = budget.sampling(found, 'draft', compiler='cpu').total()
  # The two of a batch that is all greedy are another branch.
  a_pass = sent / found.setting.num_draft_tokens - 2
  assert abs(a_pass - sharding._NUM_SMALL_COLLECTIVES) <= 4


def _slots(found):
  """Returns the structs of the caches' slots."""
  caches = [found.carry.state.cache]
  if found.carry.drafter_state is not None:
    caches.append(found.carry.drafter_state.cache)
  return jax.tree.leaves([(c.k, c.v) for c in caches])


def _matrices(found):
  return [x for x in jax.tree.leaves(found.weights) if _is_matrix(x)]


def _is_matrix(struct):
  return len(struct.shape) > 1 and min(struct.shape[-2:]) > 128


def _layer_bytes(struct):
  """Returns a device's bytes of an array, or of one layer's part of it."""
  is_stacked = len(struct.shape) in (3, 5)
  return budget.share_bytes(struct) // (struct.shape[0] if is_stacked else 1)


def _is_law_of_a_narrower_draft(found, c):
  """Tells whether a device sends on its part of q for one position a row.

  With copies a device holds a larger part of q than of p, but not always the
  one that it has of p.
  """
  part = found.rows * found.setting.target.vocab_size // 4
  return (
      found.setting.shards
      and budget.sizes([c]) == {('collective-permute', 'f32', part): 1}
      and c.within('verify')
  )


def _check_small(found, c):
  smallest = min(map(_layer_bytes, _matrices(found) + _slots(found)))
  assert c.kind in ('all-reduce', 'all-gather'), c
  assert c.num_bytes < smallest, c
  V = found.setting.target.vocab_size
  dims = {size for r in c.results for size in r.shape}
  parts = {V // found.num_devices(scope) for scope in ('draft', 'verify')}
  assert not dims & {V, _S, *parts}, c


@pytest.mark.parametrize('name', _SETTINGS)
def test_nothing_is_gathered_that_is_held_in_parts(name):
  found = _round(name)
  V = found.setting.target.vocab_size
  laws = 0
  for c in found.collectives:
    gathers = c.kind == 'all-gather' and c.results[0].shape[-1] == V
    if gathers and found.setting.logits == 'gathered':
      continue
    if _is_law_of_a_narrower_draft(found, c):
      laws += 1
    else:
      _check_small(found, c)
  assert laws == (found.setting.shards > 0)


@pytest.mark.parametrize('name', _SETTINGS)
def test_rows_exchange_verdicts_and_predicates_alone(name):
  found = _round(name)
  data = found.mesh.shape['data']
  B, J = found.setting.batch, found.setting.num_draft_tokens
  rest = set(found.collectives)
  for scope in ('draft', 'verify'):
    rest -= set(found.along('model', found.num_devices(scope)))
  rows = set(found.along('data', data)) if data > 1 else set()
  rest -= rows
  assert all(_is_law_of_a_narrower_draft(found, c) for c in rest)
  # Predicates over all rows; tokens, counts and log-probabilities of each.
  # Draws of a tree go before its paths are followed.
  width = J + 1 if found.setting.max_depth else max(J, 1)
  most = {'pred': 1, 's32': B * width}
  if found.setting.log_probs == 'chosen':
    most['f32'] = B * (J + 1)
  for c in rows:
    for r in c.results:
      assert math.prod(r.shape) <= most.get(r.dtype, 0), c


@pytest.mark.parametrize('name', ['gathered', 'split', 'deep', 'lookup'])
def test_a_device_holds_its_share(name):
  found = _round(name)
  kept = jax.tree.leaves((found.weights, found.carry))
  if found.carry.drafter_state is not None:
    # budget.MADE_ANEW
    kept.remove(found.carry.drafter_state.cache.len_B)
    kept.remove(found.carry.drafter_state.known_B)
  assert found.argument_bytes == sum(map(budget.share_bytes, kept))
  for params, scope in (
      (found.weights.target, 'verify'),
      (found.weights.drafter, 'draft'),
  ):
    matrices = [x for x in jax.tree.leaves(params) if _is_matrix(x)]
    part = sum(map(budget.share_bytes, matrices))
    whole = sum(math.prod(x.shape) * x.dtype.itemsize for x in matrices)
    # Key/value projections stay whole where four heads meet eight devices.
    slack = 1.1 if name == 'split' else 1
    assert whole <= part * found.num_devices(scope) <= whole * slack
  parts = found.mesh.shape['data'] * found.num_devices('verify')
  for slots in jax.tree.leaves(found.carry.state.cache.k):
    whole = math.prod(slots.shape) * slots.dtype.itemsize
    assert budget.share_bytes(slots) * parts == whole


@pytest.mark.parametrize('name', _SETTINGS)
def test_a_round_writes_over_its_state(name):
  found = _round(name)
  assert set(budget.copied(found)) <= set(budget.MADE_ANEW)
  assert hlo.host_transfers(found.text) == ()


def _kinds(found):
  return collections.Counter(
      (c.kind, r.dtype) for c in found.along('data', 2) for r in c.results
  )


def test_a_tree_sends_what_a_chain_of_as_many_tokens_does():
  chain, tree = _round('chain'), _round('tree')
  assert budget.sizes(tree.along('model', 4)) == budget.sizes(
      chain.along('model', 4)
  )
  assert _kinds(tree) == _kinds(chain)
  assert len(tree.collectives) == len(chain.collectives)


def test_a_smaller_bucket_sends_less():
  """The text holds both passes; one of them runs."""
  found, small = _round('buckets'), 3
  D = found.setting.target.model_dim
  streams = [c for c in found.within('verify') if budget.is_stream(found, c)]
  times = 2 * found.setting.target.num_layers + 1
  assert budget.sizes(streams) == {
      ('all-reduce', 'f32', found.rows * (1 + M) * D): times
      for M in (small, found.setting.num_draft_tokens)
  }


def test_looking_up_a_draft_sends_nothing():
  found = _round('lookup')
  assert not [c for c in found.collectives if c.within('draft')]
  L, T = found.setting.target.num_layers, found.setting.num_draft_tokens + 1
  D = found.setting.target.model_dim
  assert budget.sizes(
      c for c in found.within('verify') if budget.in_layers(c)
  ) == {('all-reduce', 'f32', found.rows * T * D): 2 * L}


def test_plain_decoding_sends_two_all_reduces_a_layer_too():
  found = _round('plain')
  config = found.setting.target
  assert budget.sizes(found.along('model', 4)) == {
      ('all-reduce', 'f32', found.rows * config.model_dim): (
          2 * config.num_layers + 1
      ),
      ('all-gather', 'f32', found.rows * config.vocab_size): 1,
  }


def _program(text):
  """Counts instructions by all that they are made of, names and places aside.

  Two programs count alike if they compute the same in the same way; compilers
  number, and order what does not depend on one another, as it comes.
  """
  computations = module_lib.parse(text).computations
  counts = collections.Counter()
  digests = {}
  for name, computation in computations.items():  # callees come first
    for i in computation.instructions:
      literal = i.opcode in ('constant', 'parameter')
      operands = i.operands if literal else [digests[o] for o in i.operands]
      attributes = {
          key: re.sub(r'%([\w.-]+)', lambda m: str(digests[m[1]]), value)
          for key, value in i.attributes.items()
          if key not in ('metadata', 'sharding', 'frontend_attributes')
      }
      made_of = (i.type, i.opcode, *operands, *sorted(attributes.items()))
      digests[i.name] = hash(made_of)
      counts[made_of] += 1
    digests[name] = digests[computation.root.name]
  return counts


def test_a_mesh_of_one_device_costs_nothing():
  setting = Setting(_DRAFT, _DRAFT, logits='auto')
  one = rounds.compile_round(setting, sharding.make_mesh(1, 1))
  none = rounds.compile_round(setting, None)
  assert one.collectives == ()
  assert _program(one.text) == _program(none.text)
