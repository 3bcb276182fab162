"""Rounds over trees against plain decoding: the same tokens token for token."""

import dataclasses

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding import loop
from speculative.decoding.autoregressive import Autoregressive
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.models import transformer
from speculative.models.transformer import Transformer
from speculative.testing import table_model
from speculative.testing import tiny
from speculative.testing.random_tree import RandomTree
from speculative.testing.random_tree import Script
from speculative.testing.table_model import TableModel

# Float32 logits of passes of different widths.
_ATOL = 1e-4
_V = tiny.TARGET.vocab_size
_TREE = RandomTree(7, 4, _V, right=0.7)
_GREEDY = DecodeConfig(max_new_tokens=40, log_probs='chosen')
_SAMPLED = dataclasses.replace(_GREEDY, temperature=0.8, top_p=0.95)
_MIXED = [
    dataclasses.replace(_GREEDY, stop_ids=(3, 4), min_new_tokens=9),
    dataclasses.replace(_SAMPLED, seed=3, max_new_tokens=23),
    dataclasses.replace(
        _SAMPLED,
        seed=5,
        repetition_penalty=1.2,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        logit_bias=((5, 1.5), (12, -3.0)),
    ),
    dataclasses.replace(
        _GREEDY,
        frequency_penalty=0.5,
        stop_ids=(2, 7),
        min_new_tokens=5,
    ),
]
_CONFIGS = {'greedy': _GREEDY, 'sampled': _SAMPLED, 'mixed': _MIXED}


def _script(prompts, generation, seed=0) -> Script:
  """Expects what plain decoding wrote."""
  tokens = np.zeros((len(prompts), 96), np.int32)
  for row, ids in enumerate(generation.token_ids):
    text = [*prompts[row], *ids]
    tokens[row, : len(text)] = text
  return Script(jnp.asarray(tokens), jnp.uint32(seed))


@pytest.fixture(scope='module')
def check(plain, prompts, target_params):
  """Holds a drafter of trees against plain decoding."""

  def call(config, drafter=_TREE, model=plain.step.model, seed=0):
    expected = plain.generate(prompts, config)
    engine = Engine(
        Speculative(model, drafter),
        Weights(target_params, _script(prompts, expected, seed)),
    )
    got = engine.generate(prompts, config)
    assert got.token_ids == expected.token_ids
    assert got.reasons == expected.reasons
    for row in range(len(prompts)):
      np.testing.assert_allclose(
          got.log_probs[row], expected.log_probs[row], atol=_ATOL
      )
    return got

  return call


@pytest.mark.parametrize('name', _CONFIGS)
def test_trees_say_what_plain_decoding_says_token_for_token(check, name):
  got = check(_CONFIGS[name])
  assert got.accepted.shape == (4, 4)
  # Paths of all depths were kept, and some were not.
  assert (got.accepted.sum(axis=0) > 0).all()
  assert got.accepted.sum() < got.tested.sum() - 5
  assert got.tokens_per_round > 1.5


@pytest.mark.parametrize('seed', [1, 2])
def test_other_trees_say_the_same(check, seed):
  check(_MIXED, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['greedy', 'mixed'])
def test_passes_over_fewer_nodes_say_the_same(check, name):
  drafter = dataclasses.replace(_TREE, sizes=(1, 3, 7))
  whole, parts = check(_CONFIGS[name]), check(_CONFIGS[name], drafter)
  # The round's own counts know nothing of the widths of passes.
  np.testing.assert_array_equal(parts.accepted, whole.accepted)
  np.testing.assert_array_equal(parts.tested, whole.tested)
  np.testing.assert_array_equal(parts.drafted, whole.drafted)


_widths = []


class _Widths(TableModel):
  """Writes down how many rows its passes have."""

  def forward(self, params, tokens_BT, cache, **how):
    jax.debug.callback(lambda T=tokens_BT.shape[1]: _widths.append(T))
    return super().forward(params, tokens_BT, cache, **how)


class _Fan(RandomTree):
  """Drafts a fan of as many valid nodes as the script's first tokens say."""

  def propose(self, params, drafter_state, state):
    proposal, _ = super().propose(params, drafter_state, state)
    node_M = jnp.arange(self.num_draft_tokens)[None, :]
    fan = proposal.replace(
        parent_BM=jnp.full_like(proposal.parent_BM, -1),
        depth_BM=jnp.ones_like(proposal.depth_BM),
        valid_BM=node_M < params.tokens_BP[:, :1],
    )
    return fan, drafter_state


def test_a_round_takes_the_smallest_bucket_that_holds_every_row():
  drafter = _Fan(8, 1, _V, sizes=(2, 4, 8))
  table = jnp.asarray(np.random.default_rng(0).normal(size=(1, _V, _V)))
  step = Speculative(_Widths(), drafter)
  for num_valid, width in (
      ((0, 0), 3),
      ((2, 1), 3),
      ((0, 3), 5),
      ((5, 1), 9),
      ((8, 8), 9),
  ):
    script = Script(jnp.asarray(num_valid)[:, None], jnp.uint32(0))
    engine = Engine(step, Weights(table, script))
    carry = engine.start([[1], [2]], DecodeConfig(max_new_tokens=9))
    jax.effects_barrier()
    _widths.clear()
    jax.block_until_ready(
        loop.run(
            weights=engine.weights,
            carry=carry,
            num_rounds=jnp.int32(1),
            step=step,
        )
    )
    jax.effects_barrier()
    assert _widths == [width], num_valid


def test_the_cache_holds_the_text_whatever_lay_between():
  rng = np.random.default_rng(6)
  table = jnp.asarray(rng.normal(size=(1, _V, _V)), jnp.float32)
  config = DecodeConfig(max_new_tokens=30, temperature=1.0, seed=2)
  prompts = [[3], [5, 0, 1], [1, 2]]
  plain = Engine(Autoregressive(TableModel()), Weights(table))
  expected = plain.generate(prompts, config)
  engine = Engine(
      Speculative(TableModel(), _TREE),
      Weights(table, _script(prompts, expected)),
  )
  carry = engine.start(prompts, config)
  for num_rounds in (1, 2, 3):
    carry = loop.run(
        weights=engine.weights,
        carry=carry,
        num_rounds=jnp.int32(num_rounds),
        step=engine.step,
    )
    lens = np.asarray(carry.state.seq_len_B)
    cached = table_model.cached_tokens(carry.state.cache)
    for row, prompt in enumerate(prompts):
      text = [*prompt, *expected.token_ids[row]][: lens[row]]
      assert cached[row] == text[:-1]
  assert (lens > [7, 9, 8]).all()


@pytest.mark.slow
def test_scanned_layers_say_the_same(prompts, plain, target_params):
  model = Transformer(tiny.TARGET, layout='scanned')
  copied = jax.tree.map(lambda x: x, target_params)
  expected = plain.generate(prompts, _MIXED)
  engine = Engine(
      Speculative(model, _TREE),
      Weights(transformer.stack_layers(copied), _script(prompts, expected)),
  )
  assert engine.generate(prompts, _MIXED).token_ids == expected.token_ids


@dataclasses.dataclass(frozen=True)
class _Listening(RandomTree):
  """Keeps what it is told of the target's hidden states."""

  @property
  def features(self):
    return (0, transformer.FINAL)

  def init(self, params, state, features, *, prompt_width):
    shape = (state.seq_len_B.shape[0], self.max_depth + 1)
    return {
        i: jnp.zeros((*shape, x_BTD.shape[-1])) for i, x_BTD in features.items()
    }

  def commit(self, params, drafter_state, state, verdict, features):
    del params, drafter_state, state, verdict
    return features


def test_features_come_in_the_order_of_the_text(plain, prompts, target_params):
  """They are those of a pass over the text itself, which is the plain one."""
  drafter = _Listening(7, 4, _V, right=0.9, sizes=(2, 7))
  expected = plain.generate(prompts, _GREEDY)
  engine = Engine(
      Speculative(plain.step.model, drafter),
      Weights(target_params, _script(prompts, expected)),
  )
  carry = engine.start(prompts, _GREEDY)
  before = np.asarray(carry.state.seq_len_B)
  num_kept = 0
  for _ in range(3):
    carry = loop.run(
        weights=engine.weights,
        carry=carry,
        num_rounds=jnp.int32(1),
        step=engine.step,
    )
    model = plain.step.model
    tokens_BS = carry.state.tokens_BS
    whole = model.forward(
        target_params,
        tokens_BS,
        model.init_cache(4, tokens_BS.shape[1]),
        features=drafter.features,
    )
    after = np.asarray(carry.state.seq_len_B)
    for row in range(4):
      text = [*prompts[row], *expected.token_ids[row]][: after[row]]
      np.testing.assert_array_equal(tokens_BS[row, : after[row]], text)
      kept = slice(before[row] - 1, after[row] - 1)
      for i, x_BTD in carry.drafter_state.items():
        np.testing.assert_allclose(
            x_BTD[row, : after[row] - before[row]],
            whole.features[i][row, kept],
            atol=_ATOL,
        )
    num_kept = max(num_kept, (after - before).max())
    before = after
  assert num_kept > 2
