"""Drafts that the host has made before the round.

What is drafted lies in the drafter's state: `decoding.host_engine` puts it
there between rounds. All else is a drafter like any other.
"""

import dataclasses
from typing import Any

import jax
from jax import numpy as jnp

from speculative.decoding import drafter as drafter_lib
from speculative.decoding.drafter import Proposal
from speculative.decoding.state import DecodeState
from speculative.drafting.retrieval import Retrieval


def empty(batch: int, num_nodes: int, shape: str) -> Proposal:
  """Returns a Proposal of nothing, every leaf a buffer of its own.

  Args:
    batch: B.
    num_nodes: M.
    shape: 'chain' or 'tree'.
  """
  size = (batch, num_nodes)
  return Proposal(
      tokens_BM=jnp.zeros(size, jnp.int32),
      parent_BM=jnp.full(size, -1, jnp.int32),
      depth_BM=jnp.ones(size, jnp.int32),
      valid_BM=jnp.zeros(size, bool),
      shape=shape,
  )


def in_place_of(retrieval: Retrieval) -> 'Given':
  """Returns what rounds run where `retrieval.on_host` makes their drafts."""
  return Given(
      retrieval.num_draft_tokens,
      depth=retrieval.max_depth,
      shape=retrieval.shape,
      sizes=retrieval.buckets,
  )


@dataclasses.dataclass(frozen=True)
class Given:
  """Proposes what its state holds.

  Attributes:
    num_draft_tokens: M.
    depth: A, most tokens of a path; M for chains.
    shape: 'chain' or 'tree'.
    sizes: numbers of nodes that passes over trees are compiled for, M last; M
      alone where it is empty.
  """

  num_draft_tokens: int
  depth: int
  shape: str = 'chain'
  sizes: tuple[int, ...] = ()

  @property
  def max_depth(self) -> int:
    """A."""
    return self.depth

  @property
  def buckets(self) -> tuple[int, ...]:
    """Numbers of nodes that passes are compiled for."""
    return self.sizes or (self.num_draft_tokens,)

  @property
  def features(self) -> tuple[int, ...]:
    """No layers' outputs are needed."""
    return ()

  def init(
      self,
      params: None,
      state: DecodeState,
      features: dict[int, jax.Array],
      *,
      prompt_width: int,
  ) -> Proposal:
    """Holds nothing yet."""
    del params, features, prompt_width
    return empty(state.seq_len_B.shape[0], self.num_draft_tokens, self.shape)

  def propose(
      self, params: None, drafter_state: Proposal, state: DecodeState
  ) -> tuple[Proposal, Proposal]:
    """Returns what was given, as far as the rows have room for it."""
    del params
    room_BM = drafter_lib.within_depth(state, drafter_state.depth_BM)
    given = drafter_state.replace(valid_BM=drafter_state.valid_BM & room_BM)
    # Given for one round: the text will be another one.
    used = drafter_state.replace(
        valid_BM=jnp.zeros_like(drafter_state.valid_BM)
    )
    return given, used

  def commit(self, params, drafter_state, state, verdict, features) -> Any:
    """Has nothing to remember."""
    del params, state, verdict, features
    return drafter_state
