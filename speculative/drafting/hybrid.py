"""Drafts from text where something is found, a draft model elsewhere.

Text is looked up or retrieved, and a match counts from so many tokens on.
Decided row by row and round by round, by the row's own text alone. A row whose
draft was found has a one-hot q, another one the draft's law; verification
treats both by one rule, so that the output keeps the target's law (sampled) or
its tokens (greedy).

The draft reads every round's tokens either way, in one pass; its other passes
are left out in rounds in which no row asks for them.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any

import jax
from jax import numpy as jnp
import numpy as np

from speculative.decoding import drafter as drafter_lib
from speculative.decoding.drafter import Proposal
from speculative.decoding.state import DecodeState
from speculative.drafting import drawing
from speculative.drafting import text as text_lib
from speculative.drafting.beam import Beam
from speculative.drafting.drawing import Chain
from speculative.drafting.drawing import ChainDrafter
from speculative.drafting.text import TextDrafter
from speculative.models.kv_cache import KVCache

# Where a hybrid drafts from: text where something is found, or one of both
# whatever is found.
DRAFTS_FROM = ('either', 'text', 'model')


def repeats(text: Sequence[int], num_tokens: int) -> bool:
  """Tells on the host whether the end of a text occurs earlier in it.

    text 1 2 3 1 2: its last two tokens do, its last three do not

  Args:
    text: token ids.
    num_tokens: of the end.
  """
  text = np.asarray(text)
  if len(text) <= num_tokens:
    return False
  windows = np.lib.stride_tricks.sliding_window_view(text, num_tokens)
  return bool((windows[:-1] == windows[-1]).all(axis=1).any())


@dataclasses.dataclass(frozen=True)
class Hybrid:
  """Drafts from text if it can, else with a model.

  Its params are the model's, or where text is searched in a store a
  `StoreAndModel`.

  Attributes:
    text: of chains; its min_ngram is the shortest match that is preferred to
      the model.
    draft: of as many tokens; an `Lm` needs num_behind > num_draft_tokens, as
      its cache may lack a whole round.
    drafts_from: one of `DRAFTS_FROM`.
  """

  text: TextDrafter
  draft: ChainDrafter
  drafts_from: str = 'either'

  def __post_init__(self) -> None:
    _check_source(self.drafts_from)
    J = self.draft.num_draft_tokens
    if self.text.num_draft_tokens != J:
      raise ValueError(
          f'both drafters need the same number of tokens, got '
          f'{self.text.num_draft_tokens} and {J}.'
      )
    if getattr(self.draft, 'num_behind', J + 1) <= J:
      raise ValueError(f'the draft needs num_behind > {J}.')

  def always(self, source: str) -> 'Hybrid':
    """Returns one whose rounds are all of one kind, as parts are timed.

    From text that is after the shortest match there can be; where a datastore
    has none even so, nothing is drafted.

    Args:
      source: 'text' or 'model'.
    """
    text = self.text.with_least_match() if source == 'text' else self.text
    return dataclasses.replace(self, drafts_from=source, text=text)

  @property
  def num_draft_tokens(self) -> int:
    """J."""
    return self.draft.num_draft_tokens

  @property
  def features(self) -> tuple[int, ...]:
    """What the draft wants to see."""
    return self.draft.features

  def init(
      self,
      params: Any,
      state: DecodeState,
      features: dict[int, jax.Array],
      *,
      prompt_width: int,
  ) -> Any:
    """Lets the draft read the prompts."""
    return self.draft.init(
        text_lib.model_of(params), state, features, prompt_width=prompt_width
    )

  def _find(
      self, params: Any, state: DecodeState
  ) -> tuple[Proposal, jax.Array]:
    """Returns drafts from text, and which rows take them."""
    found, _ = self.text.propose(text_lib.store_of(params), None, state)
    found_B = found.valid_BM[:, 0]
    # Always so, which the compiler cannot know: the search is not left out.
    is_text_B = state.seq_len_B > 0
    if self.drafts_from == 'text':
      found_B |= is_text_B
    elif self.drafts_from == 'model':
      found_B &= ~is_text_B
    return found, found_B

  def propose(
      self, params: Any, drafter_state: Any, state: DecodeState
  ) -> tuple[Proposal, Any]:
    """Drafts J tokens for every row."""
    draft = self.draft
    found, found_B = self._find(params, state)
    params = text_lib.model_of(params)
    valid_BJ = drafter_lib.within_budget(state, self.num_draft_tokens)
    asks_B = valid_BJ[:, 0] & ~found_B
    hidden_B1D, drafter_state = draft.catch_up(params, drafter_state, state)
    cache = drafter_state.cache

    def draw() -> Chain:
      return drawing.draw_chain(draft, params, state, hidden_B1D, cache)

    def leave_out() -> Chain:
      shape = (*valid_BJ.shape, draft.head.size)
      return Chain(
          tokens_BJ=jnp.zeros(valid_BJ.shape, jnp.int32),
          laws_BJW=jnp.zeros(shape, jnp.float32),
          cache=cache,
      )

    chain = jax.lax.cond(jnp.any(asks_B), draw, leave_out)
    tokens_BJ = jnp.where(found_B[:, None], found.tokens_BM, chain.tokens_BJ)
    proposal = drafter_lib.chain(
        tokens_BJ,
        # What was found may be shorter.
        jnp.where(found_B[:, None], found.valid_BM, valid_BJ),
        draft.head.laws(params, state, tokens_BJ, chain.laws_BJW, found_B),
    )
    return proposal, drafter_state.replace(cache=chain.cache)

  def commit(self, params, drafter_state, state, verdict, features):
    """Tells the draft what the target knew."""
    return self.draft.commit(
        text_lib.model_of(params), drafter_state, state, verdict, features
    )


@dataclasses.dataclass(frozen=True)
class HybridTree(Hybrid):
  """Drafts a chain or a tree from text if it can, else a tree with a model.

  Nothing is drawn, so that sampled output too is plain decoding's. What was
  found is right more often than what a model guesses, and may have more nodes:
  passes are compiled for the tree's number and for the text's.

  Attributes:
    text: of any number of nodes; a chain that is looked up is as deep.
    draft: the tree.
    drafts_from: as `Hybrid`.
  """

  draft: Beam

  def __post_init__(self) -> None:
    _check_source(self.drafts_from)
    depth = drafter_lib.max_depth(self.text)
    if self.draft.max_depth < depth:
      raise ValueError(
          f'a draft of {depth} tokens from text is deeper than the '
          f'{self.draft.max_depth} tokens the model can catch up with.'
      )

  @property
  def num_draft_tokens(self) -> int:
    """M, of whichever drafts more nodes."""
    return self.buckets[-1]

  @property
  def max_depth(self) -> int:
    """A, of whichever is deeper."""
    return self.draft.max_depth

  @property
  def buckets(self) -> tuple[int, ...]:
    """Numbers of nodes that passes are compiled for, M last."""
    sizes = set()
    if self.drafts_from != 'model':
      sizes |= {*drafter_lib.buckets(self.text)}
    if self.drafts_from != 'text':
      sizes |= {self.draft.num_draft_tokens}
    return tuple(sorted(sizes))

  def propose(
      self, params: Any, drafter_state: Any, state: DecodeState
  ) -> tuple[Proposal, Any]:
    """Drafts a chain or a tree for every row."""
    beam = self.draft
    found, found_B = self._find(params, state)
    M = self.num_draft_tokens
    found = _of_size(found.replace(shape='tree'), M)
    params = text_lib.model_of(params)
    can_B = drafter_lib.within_budget(state, 1)[:, 0]
    hidden_B1D, drafter_state = beam.draft.catch_up(
        params, drafter_state, state
    )
    cache = drafter_state.cache

    def grow() -> tuple[Proposal, KVCache]:
      tree, written = beam.grow(params, state, hidden_B1D, cache)
      chosen = jax.tree.map(
          lambda x, y: jnp.where(found_B[:, None], x, y),
          found,
          _of_size(tree, M),
      )
      return chosen, written

    proposal, cache = jax.lax.cond(
        jnp.any(can_B & ~found_B), grow, lambda: (found, cache)
    )
    return proposal, drafter_state.replace(cache=cache)


def _of_size(proposal: Proposal, num_nodes: int) -> Proposal:
  """Pads a Proposal, or cuts one that no row takes."""
  return proposal.first(num_nodes).padded(num_nodes)


def _check_source(drafts_from: str) -> None:
  if drafts_from not in DRAFTS_FROM:
    raise ValueError(
        f'drafts_from is {drafts_from!r}, not one of {DRAFTS_FROM}.'
    )
