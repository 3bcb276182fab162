"""States that drafters are asked to draft from."""

from collections.abc import Callable
from collections.abc import Sequence

from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding import counts
from speculative.decoding import state as state_lib
from speculative.decoding.state import DecodeState
from speculative.testing import samplers
from speculative.testing.table_model import TableModel


def _state(
    texts: Sequence[Sequence[int]],
    *,
    room: int | Sequence[int] = 100,
    done: Sequence[bool] | None = None,
    max_seq_len: int = 32,
    rubbish: int = 0,
    stop_ids: Sequence[int] = (-1,),
    **settings,
) -> DecodeState:
  B = len(texts)
  lens = np.array([len(text) for text in texts], np.int32)
  tokens = np.full((B, max_seq_len), rubbish, np.int32)
  for row, text in enumerate(texts):
    tokens[row, : len(text)] = text
  return DecodeState(
      tokens_BS=jnp.asarray(tokens),
      seq_len_B=jnp.asarray(lens),
      prompt_len_B=jnp.asarray(lens),
      limit_B=jnp.asarray(lens + np.asarray(room, np.int32)),
      done_B=jnp.asarray(np.zeros(B, bool) if done is None else done),
      reason_B=jnp.full(B, state_lib.RUNNING, jnp.int32),
      stop_ids_BE=jnp.tile(jnp.asarray(stop_ids, jnp.int32), (B, 1)),
      log_probs=None,
      cache=TableModel().init_cache(B, max_seq_len),
      sampling=samplers.sampling(B, **settings),
      origins=counts.empty(B, max_seq_len),
      num_rounds=jnp.int32(0),
  )


@pytest.fixture(scope='session')
def make_state() -> Callable[..., DecodeState]:
  """Makes a DecodeState from texts, `room` tokens away from their limits."""
  return _state
