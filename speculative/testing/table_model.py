"""A target and a drafter without a network: what they say is in a table.

They satisfy `decoding.loop.Model` and `decoding.drafter.Drafter`, so that every
pattern of acceptance can be had by writing it down, and the law of a text is
known exactly.
"""

from collections.abc import Sequence
import dataclasses

import jax
from jax import numpy as jnp

from speculative.decoding import drafter as drafter_lib
from speculative.decoding.drafter import Proposal
from speculative.decoding.state import DecodeState
from speculative.decoding.verify import Verdict
from speculative.models import kv_cache
from speculative.models.kv_cache import KVCache
from speculative.models.transformer import Output
from speculative.sharding import Placement

# Logit of the token a position is certain of, all others being zero.
_CERTAIN = 100.0


@dataclasses.dataclass(frozen=True)
class TableModel:
  """Answers row t with `params[position, token]`, float32 logits.

  The params are one array [P, U, V]. Positions from P - 1 on share the last
  entry of the first axis and tokens from U - 1 on that of the second: with
  U = 1 logits depend on the position alone, with P = 1 on the token alone.

  The cache keeps tokens where other models keep keys, so that a test can read
  what a row's context was.
  """

  @property
  def slack(self) -> int:
    """A pass writes its own rows only."""
    return 0

  @property
  def placement(self) -> Placement:
    """Says nothing about devices."""
    return Placement()

  def init_cache(self, batch: int, max_seq_len: int) -> KVCache:
    """Returns an empty cache of one layer."""
    return kv_cache.init(
        num_layers=1,
        batch=batch,
        num_kv_heads=1,
        max_seq_len=max_seq_len,
        head_dim=1,
        dtype=jnp.float32,
        layout='unrolled',
    )

  def forward(
      self,
      params: jax.Array,
      tokens_BT: jax.Array,
      cache: KVCache,
      *,
      positions_BT: jax.Array | None = None,
      ancestors_BTT: jax.Array | None = None,
      visible_BTS: jax.Array | None = None,
      features: Sequence[int] = (),
  ) -> Output:
    """Looks the rows up; their hidden states are the logits themselves."""
    del ancestors_BTT, visible_BTS, features
    T = tokens_BT.shape[1]
    if positions_BT is None:
      steps_T = jnp.arange(T, dtype=jnp.int32)
      positions_BT = cache.len_B[:, None] + steps_T[None, :]
    seen_B1T1 = tokens_BT[:, None, :, None].astype(jnp.float32)
    P, U, _ = params.shape
    return Output(
        hidden_BTD=params[
            jnp.minimum(positions_BT, P - 1), jnp.minimum(tokens_BT, U - 1)
        ],
        cache=KVCache(
            k=(kv_cache.write(cache.k[0], seen_B1T1, cache.len_B),),
            v=cache.v,
            len_B=cache.len_B + T,
        ),
        features={},
    )

  def logits(self, params: jax.Array, hidden_BTD: jax.Array) -> jax.Array:
    """Returns the looked-up rows."""
    del params
    return hidden_BTD


def certain(next_tokens_P: Sequence[int], vocab_size: int) -> jax.Array:
  """Returns params that follow position i with token next_tokens_P[i]."""
  one_hot_PV = jax.nn.one_hot(jnp.asarray(next_tokens_P), vocab_size)
  return one_hot_PV[:, None, :] * _CERTAIN


def cached_tokens(cache: KVCache) -> list[list[int]]:
  """Returns the tokens every row's cache holds, up to its length."""
  tokens_BS = jax.device_get(cache.k[0])[:, 0, :, 0].astype(int)
  lens_B = jax.device_get(cache.len_B)
  return [row[:n].tolist() for row, n in zip(tokens_BS, lens_B, strict=True)]


@dataclasses.dataclass(frozen=True)
class Script:
  """Drafts what its params say: int32 [B, P], -1 where nothing is drafted.

  Entry i is the token drafted for index i of the row's text.

  Attributes:
    num_draft_tokens: J.
  """

  num_draft_tokens: int

  @property
  def features(self) -> tuple[int, ...]:
    """No layers' outputs are needed."""
    return ()

  def init(
      self,
      params: jax.Array,
      state: DecodeState,
      features: dict[int, jax.Array],
      *,
      prompt_width: int,
  ) -> None:
    """Has no state."""
    del params, state, features, prompt_width

  def propose(
      self, params: jax.Array, drafter_state: None, state: DecodeState
  ) -> tuple[Proposal, None]:
    """Reads J tokens from the script; the first gap ends the chain."""
    J, P = self.num_draft_tokens, params.shape[1]
    index_BJ = state.seq_len_B[:, None] + jnp.arange(J, dtype=jnp.int32)[None]
    tokens_BJ = jnp.take_along_axis(
        params, jnp.minimum(index_BJ, P - 1), axis=1
    )
    is_said_BJ = (tokens_BJ >= 0) & (index_BJ < P)
    valid_BJ = jnp.cumprod(is_said_BJ.astype(jnp.int32), axis=1) > 0
    valid_BJ &= drafter_lib.within_budget(state, J)
    return drafter_lib.chain(jnp.maximum(tokens_BJ, 0), valid_BJ), drafter_state

  def commit(
      self,
      params: jax.Array,
      drafter_state: None,
      state: DecodeState,
      verdict: Verdict,
      features: dict[int, jax.Array],
  ) -> None:
    """Has nothing to remember."""
    del params, drafter_state, state, verdict, features
