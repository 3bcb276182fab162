"""Parts that several decoding tests start from."""

from collections.abc import Callable
from collections.abc import Sequence

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding import counts
from speculative.decoding import log_probs as log_probs_lib
from speculative.decoding import state as state_lib
from speculative.decoding.autoregressive import Autoregressive
from speculative.decoding.engine import Engine
from speculative.decoding.logits import Warping
from speculative.decoding.loop import Weights
from speculative.decoding.sampling import Sampling
from speculative.decoding.speculative import Speculative
from speculative.decoding.state import DecodeState
from speculative.drafting.hidden_lm import HiddenLm
from speculative.drafting.hybrid import Hybrid
from speculative.drafting.lm import Lm
from speculative.drafting.lookup import Lookup
from speculative.models import draft as draft_lib
from speculative.models.draft import DraftModel
from speculative.models.params import Params
from speculative.models.transformer import Transformer
from speculative.testing import samplers
from speculative.testing import tiny
from speculative.testing.table_model import TableModel

TARGET = Transformer(tiny.TARGET)


def _warping(batch: int, **settings) -> Warping:
  """Takes values for all rows or lists; temperature 0 is greedy."""
  return samplers.sampling(batch, **settings).warping


def _state(
    texts: Sequence[Sequence[int]],
    *,
    limits: Sequence[int],
    stop_ids: Sequence[int] = (),
    done: Sequence[bool] | None = None,
    max_seq_len: int = 16,
    log_probs: str = 'none',
) -> DecodeState:
  B = len(texts)
  lens = np.array([len(text) for text in texts], np.int32)
  tokens = np.full((B, max_seq_len), 99, np.int32)
  for row, text in enumerate(texts):
    tokens[row, : len(text)] = text
  done_B = np.zeros(B, bool) if done is None else np.array(done)
  reasons = np.where(done_B, state_lib.LENGTH, state_lib.RUNNING)
  stops = np.full((B, 4), -1, np.int32)
  stops[:, : len(stop_ids)] = stop_ids
  return DecodeState(
      tokens_BS=jnp.asarray(tokens),
      seq_len_B=jnp.asarray(lens),
      prompt_len_B=jnp.asarray(lens),
      limit_B=jnp.asarray(limits, jnp.int32),
      done_B=jnp.asarray(done_B),
      reason_B=jnp.asarray(reasons.astype(np.int32)),
      stop_ids_BE=jnp.asarray(stops),
      log_probs=log_probs_lib.empty(log_probs, B, max_seq_len),
      cache=TableModel()
      .init_cache(B, max_seq_len)
      .replace(len_B=jnp.asarray(lens - 1)),
      sampling=samplers.sampling(B),
      origins=counts.empty(B, max_seq_len),
      num_rounds=jnp.int32(0),
  )


@pytest.fixture(scope='session')
def make_warping() -> Callable[..., Warping]:
  """Makes the Warping of a batch."""
  return _warping


@pytest.fixture(scope='session')
def make_sampling() -> Callable[..., Sampling]:
  """Makes the Sampling of a batch."""
  return samplers.sampling


@pytest.fixture(scope='session')
def make_state() -> Callable[..., DecodeState]:
  """Makes a DecodeState from texts; what lies beyond them is token 99."""
  return _state


@pytest.fixture(scope='session')
def prompts() -> list[list[int]]:
  """Ragged: one token, fewer than the n-gram, repeating, and none of these."""
  rng = np.random.default_rng(5)
  longest = rng.integers(0, tiny.TARGET.vocab_size, 20).tolist()
  return [[3], [5, 0], [1, 2, 3, 4, 1, 2, 3], longest]


@pytest.fixture(scope='session')
def target_params() -> Params:
  """Params of tiny.TARGET."""
  return tiny.init(jax.random.key(7), tiny.TARGET)


@pytest.fixture(scope='session')
def plain(target_params) -> Engine:
  """Plain decoding with tiny.TARGET."""
  return Engine(Autoregressive(TARGET), Weights(target=target_params))


@pytest.fixture(scope='session')
def with_lookup(target_params) -> Engine:
  """Prompt look-up with tiny.TARGET."""
  return Engine(
      Speculative(TARGET, Lookup(num_draft_tokens=4)),
      Weights(target=target_params),
  )


@pytest.fixture(scope='session')
def with_itself(target_params) -> Engine:
  """tiny.TARGET drafting three tokens for itself."""
  drafter = Lm(TARGET, num_draft_tokens=3, vocab_size=tiny.TARGET.vocab_size)
  return Engine(
      Speculative(TARGET, drafter),
      Weights(target=target_params, drafter=target_params),
  )


@pytest.fixture(scope='session')
def with_relative(target_params, with_itself) -> Engine:
  """tiny.TARGET and a draft that agrees with it mostly."""
  draft_params = tiny.perturb(jax.random.key(1), target_params, scale=0.15)
  return Engine(
      with_itself.step, Weights(target=target_params, drafter=draft_params)
  )


@pytest.fixture(scope='session')
def with_hybrid(target_params) -> Engine:
  """tiny.TARGET, look-up, and a draft that reads its hidden states."""
  own = tiny.init_draft(jax.random.key(5), tiny.HIDDEN_DRAFT)
  ids = jnp.asarray(tiny.HEAD_IDS, jnp.int32)
  draft = HiddenLm(
      DraftModel(tiny.HIDDEN_DRAFT), 3, vocab_size=tiny.TARGET.vocab_size
  )
  return Engine(
      Speculative(TARGET, Hybrid(Lookup(num_draft_tokens=3), draft)),
      Weights(
          target=target_params,
          drafter=draft_lib.attach(tiny.HIDDEN_DRAFT, own, ids, target_params),
      ),
  )


@pytest.fixture(scope='session')
def full_logits(target_params) -> Callable[[list[list[int]]], np.ndarray]:
  """Returns logits [B, 96, V] of whole texts in one pass, without rounds."""

  @jax.jit
  def run(params, tokens_BT):
    cache = TARGET.init_cache(tokens_BT.shape[0], 96)
    out = TARGET.forward(params, tokens_BT, cache)
    return TARGET.logits(params, out.hidden_BTD)

  def call(texts: list[list[int]]) -> np.ndarray:
    tokens_BT = np.zeros((len(texts), 96), np.int32)
    for row, text in enumerate(texts):
      tokens_BT[row, : len(text)] = text
    return np.asarray(run(target_params, tokens_BT))

  return call
