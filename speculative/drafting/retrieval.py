"""Drafts from text: a datastore, the text so far, or both.

What followed the known ends of the text is put into one trie, and its heaviest
nodes are drafted, as a tree or as one chain (REST, arXiv:2311.08252, of the
longest end alone).
Deterministic, so q is one-hot and sampled output is plain decoding's token for
token.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
from jax import numpy as jnp
import numpy as np

from speculative import sharding
from speculative.decoding import drafter as drafter_lib
from speculative.decoding.drafter import Proposal
from speculative.decoding.state import DecodeState
from speculative.drafting.retrieval_config import RetrievalConfig
from speculative.retrieval import context
from speculative.retrieval import host_search
from speculative.retrieval import search
from speculative.retrieval import sharded
from speculative.retrieval import trie
from speculative.retrieval.device_store import DeviceStore
from speculative.retrieval.search import Continuations
from speculative.retrieval.sharded import ShardedStore
from speculative.sharding import Placement


@dataclasses.dataclass(frozen=True)
class Retrieval:
  """Drafts what followed the end of the text in a store or earlier on.

  Its params are the store: a DeviceStore; a ShardedStore on the placement's
  mesh; or the Continuations of the rows' texts, where the host has found them
  (`retrieval.host_search`). None for the source 'context'.

  Attributes:
    num_draft_tokens: M nodes of a tree, J tokens of a chain.
    settings: where and how is searched.
    shape: 'chain' for the path that goes to the heaviest child each time, or
      'tree'.
    placement: of the target, for a ShardedStore.
  """

  num_draft_tokens: int
  settings: RetrievalConfig = RetrievalConfig()
  shape: str = 'chain'
  placement: Placement = Placement()

  @property
  def features(self) -> tuple[int, ...]:
    """No layers' outputs are needed."""
    return ()

  @property
  def max_depth(self) -> int:
    """Most tokens of a path that can be kept."""
    if self.shape == 'chain':
      return self.num_draft_tokens
    return min(self.num_draft_tokens, self.settings.length)

  @property
  def buckets(self) -> tuple[int, ...]:
    """Numbers of nodes that passes over trees are compiled for, M last."""
    M = self.num_draft_tokens
    return (*(n for n in self.settings.buckets if n < M), M)

  def with_least_match(self) -> 'Retrieval':
    """Returns one that drafts after a match of one token."""
    settings = dataclasses.replace(self.settings, min_ngram=1)
    return dataclasses.replace(self, settings=settings)

  def init(self, params, state, features, *, prompt_width):
    """Has no state: the text is in the DecodeState."""
    del params, state, features, prompt_width
    return None

  def retrieve(
      self, params: Any, text_BS: jax.Array, seq_len_B: jax.Array
  ) -> Continuations:
    """Returns what followed the ends of texts, in all sources.

    Args:
      params: the store.
      text_BS: int32.
      seq_len_B: int32, tokens that count.
    """
    settings, found = self.settings, []
    # Of nodes that weigh the same the text's own come first.
    if settings.sources != 'store':
      found.append(
          context.continuations(
              text_BS,
              seq_len_B,
              max_ngram=settings.max_ngram,
              min_ngram=settings.min_ngram,
              num_rows=settings.context_rows,
              length=settings.length,
              weight=settings.context_weight,
              backoff=settings.backs_off,
          )
      )
    if settings.sources != 'context':
      found.append(self._of_store(params, text_BS, seq_len_B))
    return jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *found)

  def _of_store(
      self, params: Any, text_BS: jax.Array, seq_len_B: jax.Array
  ) -> Continuations:
    """Returns what followed the ends of texts in the store."""
    if isinstance(params, Continuations):
      return params
    settings = self.settings
    backoff = settings.backs_off
    ngrams = dict(max_ngram=settings.max_ngram, min_ngram=settings.min_ngram)
    rows = dict(num_rows=settings.num_rows, length=settings.length)
    if isinstance(params, ShardedStore):
      return sharded.retrieve(
          params,
          text_BS,
          seq_len_B,
          mesh=self.placement.mesh,
          axis=sharding.MODEL,
          backoff=backoff,
          **ngrams,
          **rows,
      )
    match = search.find(params, text_BS, seq_len_B, backoff=backoff, **ngrams)
    return search.continuations(params, match, backoff=backoff, **rows)

  def draft(
      self, params: Any, text_BS: jax.Array, seq_len_B: jax.Array
  ) -> trie.Nodes:
    """Returns the nodes to draft after texts, whatever room there is.

    Args:
      params: the store.
      text_BS: int32.
      seq_len_B: int32, tokens that count.
    """
    how = 'chain' if self.shape == 'chain' else self.settings.selection
    return trie.select(
        self.retrieve(params, text_BS, seq_len_B),
        num_nodes=self.num_draft_tokens,
        how=how,
        # Other rows in every round.
        seed=seq_len_B,
    )

  def propose(
      self, params: Any, drafter_state: None, state: DecodeState
  ) -> tuple[Proposal, None]:
    """Drafts for every row; rows without a match draft nothing."""
    nodes = self.draft(params, state.tokens_BS, state.seq_len_B)
    room_BM = drafter_lib.within_depth(state, nodes.depth_BM)
    nodes = nodes.replace(valid_BM=nodes.valid_BM & room_BM)
    return self._proposal(nodes), drafter_state

  def _proposal(self, nodes: trie.Nodes) -> Proposal:
    if self.shape == 'chain':
      return drafter_lib.chain(nodes.tokens_BM, nodes.valid_BM)
    return Proposal(
        tokens_BM=nodes.tokens_BM,
        parent_BM=nodes.parent_BM,
        depth_BM=nodes.depth_BM,
        valid_BM=nodes.valid_BM,
        shape='tree',
    )

  def on_host(
      self, store: DeviceStore
  ) -> Callable[[np.ndarray, np.ndarray], Proposal]:
    """Returns a function that drafts from a store on the host.

    It takes texts [B, S] and how many of their tokens count [B], and returns
    what `propose` would with the store on the device, but for nodes beyond what
    a row has room for. The store is searched on the host, the text so far and
    the trie on the device.

    Args:
      store: of host arrays, such as views of a memory map.
    """
    settings = self.settings
    select = jax.jit(lambda *args: self._proposal(self.draft(*args)))

    def draft(text_BS: np.ndarray, seq_len_B: np.ndarray) -> Proposal:
      match = host_search.find(
          store,
          text_BS,
          seq_len_B,
          max_ngram=settings.max_ngram,
          min_ngram=settings.min_ngram,
          backoff=settings.backs_off,
          enough=settings.num_rows,
      )
      found = host_search.continuations(
          store,
          match,
          num_rows=settings.num_rows,
          length=settings.length,
          backoff=settings.backs_off,
      )
      return jax.device_get(select(found, text_BS, seq_len_B))

    return draft

  def commit(self, params, drafter_state, state, verdict, features):
    """Has nothing to remember."""
    del params, state, verdict, features
    return drafter_state
