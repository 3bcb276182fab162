"""Drafts from text: a datastore, the text so far, or both.

What followed the longest known end of the text is put into one trie, and its
heaviest nodes are drafted, as a tree or as one chain (REST, arXiv:2311.08252).
Deterministic, so q is one-hot and sampled output is plain decoding's token for
token.
"""

import dataclasses
from typing import Any

import jax
from jax import numpy as jnp

from speculative.decoding import drafter as drafter_lib
from speculative.decoding.drafter import Proposal
from speculative.decoding.state import DecodeState
from speculative.retrieval import context
from speculative.retrieval import search
from speculative.retrieval import trie
from speculative.retrieval.device_store import DeviceStore
from speculative.retrieval.search import Continuations

SOURCES = ('store', 'context', 'both')
SHAPES = ('chain', 'tree')
SELECTIONS = ('weight', 'random')


@dataclasses.dataclass(frozen=True)
class Retrieval:
  """Drafts what followed the end of the text in a store or earlier on.

  Its params are the store: a DeviceStore; or the Continuations of the rows'
  texts, found by someone else (`host_search`); None for sources 'context'.

  Attributes:
    num_draft_tokens: M nodes of a tree, J tokens of a chain.
    max_ngram: longest end of the text that is looked for.
    min_ngram: shortest that drafts anything.
    length: C, tokens that are read after a match; no path is longer.
    num_rows: R, matches in the store that are read.
    context_rows: matches in the text that are read, the latest.
    context_weight: what one of these counts, where one of the store counts 1.
    sources: 'store', 'context' or 'both'.
    shape: 'chain' for the one path that goes to the heaviest child each time,
      or 'tree'.
    selection: of a tree's nodes, 'weight' or 'random' (the baseline of the
      paper's ablation).
  """

  num_draft_tokens: int = 8
  max_ngram: int = 16
  min_ngram: int = 1
  length: int = 10
  num_rows: int = 128
  context_rows: int = 16
  context_weight: int = 4
  sources: str = 'both'
  shape: str = 'chain'
  selection: str = 'weight'

  def __post_init__(self) -> None:
    for name, known in (
        ('sources', SOURCES),
        ('shape', SHAPES),
        ('selection', SELECTIONS),
    ):
      if getattr(self, name) not in known:
        raise ValueError(
            f'{name} is {getattr(self, name)!r}; it needs to be one of '
            f'{", ".join(known)}.'
        )

  @property
  def features(self) -> tuple[int, ...]:
    """No layers' outputs are needed."""
    return ()

  @property
  def max_depth(self) -> int:
    """Most tokens of a path that can be kept."""
    if self.shape == 'chain':
      return self.num_draft_tokens
    return min(self.num_draft_tokens, self.length)

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
    found = []
    ngrams = dict(max_ngram=self.max_ngram, min_ngram=self.min_ngram)
    # Of nodes that weigh the same the text's own come first.
    if self.sources != 'store':
      found.append(
          context.continuations(
              text_BS,
              seq_len_B,
              num_rows=self.context_rows,
              length=self.length,
              weight=self.context_weight,
              **ngrams,
          )
      )
    if self.sources != 'context':
      found.append(self._of_store(params, text_BS, seq_len_B, ngrams))
    return jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *found)

  def _of_store(
      self,
      params: DeviceStore | Continuations,
      text_BS: jax.Array,
      seq_len_B: jax.Array,
      ngrams: dict[str, int],
  ) -> Continuations:
    if isinstance(params, Continuations):
      return params
    match = search.longest_match(params, text_BS, seq_len_B, **ngrams)
    return search.continuations(
        params, match, num_rows=self.num_rows, length=self.length
    )

  def draft(
      self, params: Any, text_BS: jax.Array, seq_len_B: jax.Array
  ) -> trie.Nodes:
    """Returns the nodes to draft after texts, whatever room there is.

    Args:
      params: the store.
      text_BS: int32.
      seq_len_B: int32, tokens that count.
    """
    how = 'chain' if self.shape == 'chain' else self.selection
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
    room_BJ = drafter_lib.within_budget(state, self.max_depth)
    room_B1 = room_BJ.sum(axis=1, keepdims=True)
    valid_BM = nodes.valid_BM & (nodes.depth_BM <= room_B1)
    if self.shape == 'chain':
      return drafter_lib.chain(nodes.tokens_BM, valid_BM), drafter_state
    proposal = Proposal(
        tokens_BM=nodes.tokens_BM,
        parent_BM=nodes.parent_BM,
        depth_BM=nodes.depth_BM,
        valid_BM=valid_BM,
    )
    return proposal, drafter_state

  def commit(self, params, drafter_state, state, verdict, features):
    """Has nothing to remember."""
    del params, state, verdict, features
    return drafter_state
