"""A counted table as draft: what follows the last token most often.

The trivial draft of Leviathan et al. (arXiv:2211.17192), which costs next to
nothing. Its likeliest tokens are drafted, as a chain or as a tree, and none is
drawn: q is one-hot, and sampled output is plain decoding's token for token.
"""

import dataclasses

import jax
from jax import numpy as jnp

from speculative.decoding import drafter as drafter_lib
from speculative.decoding import state as state_lib
from speculative.decoding.drafter import Proposal
from speculative.decoding.state import DecodeState
from speculative.drafting import beam
from speculative.drafting.beam import Offered
from speculative.retrieval.bigram_table import DeviceTable


@dataclasses.dataclass(frozen=True)
class Bigram:
  """Drafts from a table; its params are a DeviceTable.

  Attributes:
    num_draft_tokens: J tokens of a chain, M nodes of a tree.
    shape: 'chain', or 'tree' for the paths whose frequencies have the largest
      product.
    levels: most tokens of a tree's path.
    fallback: what follows tokens without successors: the most 'frequent'
      tokens, or 'none', which drafts nothing.
  """

  num_draft_tokens: int
  shape: str = 'chain'
  levels: int = 4
  fallback: str = 'frequent'

  @property
  def features(self) -> tuple[int, ...]:
    """No layers' outputs are needed."""
    return ()

  @property
  def max_depth(self) -> int:
    """Most tokens of a path that can be kept."""
    if self.shape == 'chain':
      return self.num_draft_tokens
    return min(self.num_draft_tokens, self.levels)

  def init(self, params, state, features, *, prompt_width):
    """Has no state: the text is in the DecodeState."""
    del params, state, features, prompt_width
    return None

  def propose(
      self, params: DeviceTable, drafter_state: None, state: DecodeState
  ) -> tuple[Proposal, None]:
    """Drafts for every row."""
    draft = self._chain if self.shape == 'chain' else self._tree
    return draft(params, state), drafter_state

  def _chain(self, table: DeviceTable, state: DecodeState) -> Proposal:
    """Goes from every token to its likeliest successor."""

    def one(token_B1: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
      tokens_B1W, _ = table.after(token_B1, fallback=self.fallback)
      return tokens_B1W[..., 0], tokens_B1W[:, 0, 0]

    last_B1 = state_lib.last_token(state)
    J = self.num_draft_tokens
    _, tokens_JB = jax.lax.scan(one, last_B1, None, length=J)
    tokens_BJ = tokens_JB.T
    valid_BJ = (tokens_BJ >= 0) & drafter_lib.within_budget(state, J)
    return drafter_lib.chain(jnp.maximum(tokens_BJ, 0), valid_BJ)

  def _tree(self, table: DeviceTable, state: DecodeState) -> Proposal:
    """Grows the likeliest paths, level by level.

    A node of the M likeliest has its parent among the M likeliest of the level
    above, so no others are looked up.
    """
    tokens_BN = state_lib.last_token(state)
    B = tokens_BN.shape[0]
    place_BN = jnp.full((B, 1), -1, jnp.int32)
    path_score_BN = jnp.zeros((B, 1), jnp.float32)
    offered, first = [], 0
    for _ in range(self.max_depth):
      tokens_BNW, score_BNW = table.after(tokens_BN, fallback=self.fallback)
      parent_BNW = jnp.broadcast_to(place_BN[..., None], tokens_BNW.shape)
      score_BNW += path_score_BN[..., None]
      level = Offered(
          tokens_BN=tokens_BNW.reshape(B, -1),
          parent_BN=parent_BNW.reshape(B, -1),
          score_BN=score_BNW.reshape(B, -1),
      )
      offered.append(level)
      num = min(self.num_draft_tokens, level.tokens_BN.shape[1])
      path_score_BN, at_BN = jax.lax.top_k(level.score_BN, num)
      tokens_BN = drafter_lib.rows_of(level.tokens_BN, at_BN)
      place_BN = at_BN + first
      first += level.tokens_BN.shape[1]
    return beam.choose(offered, state, self.num_draft_tokens)

  def commit(self, params, drafter_state, state, verdict, features):
    """Has nothing to remember."""
    del params, state, verdict, features
    return drafter_state
