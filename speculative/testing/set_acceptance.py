"""Rounds whose drafts are kept by a coin instead of by the target, for timing.

How long a round takes hardly depends on what the models say, but how many
tokens it brings does. With random weights a draft is never right, so for timing
at an acceptance that a trained pair would have, the decision alone is replaced:
the target's pass, the warping, the draws and the residual stay, and the token
after the kept ones is the one that they brought. What is emitted is not the
target's text. Nothing in the package puts this in place: no config names it.
"""

import dataclasses

import jax
from jax import numpy as jnp

from speculative.decoding import drafter as drafter_lib
from speculative.decoding import sampling as sampling_lib
from speculative.decoding import tree as tree_lib
from speculative.decoding import verify
from speculative.decoding import verify_tree
from speculative.decoding.drafter import Proposal
from speculative.decoding.sampling import Sampling
from speculative.decoding.speculative import Speculative
from speculative.decoding.state import DecodeState
from speculative.decoding.tree import Tree
from speculative.decoding.tree import TreeVerdict
from speculative.decoding.verify import Verdict
from speculative.drafting import tree_lm
from speculative.errors import UserError
from speculative.sharding import Placement

LABEL = 'set acceptance: not lossless, for timing'

# A use of random keys beside those of `sampling`.
_COIN = 100
_ANYWHERE = Placement()


def _heads(
    sampling: Sampling,
    positions_BT: jax.Array,
    at_Bn: jax.Array,
    acceptance_rate: float,
) -> jax.Array:
  """Tosses the coin of some positions; a later round tosses another.

  Args:
    sampling: gives the seeds.
    positions_BT: int32, of the round.
    at_Bn: int32, positions decided.
    acceptance_rate: of the coin.
  """
  keys_Bn = sampling_lib.trial_keys(
      sampling.seed_B, positions_BT[:, 0], at_Bn, _COIN
  )
  return sampling_lib.uniform(keys_Bn) < acceptance_rate


@dataclasses.dataclass(frozen=True)
class CoinChain:
  """Verifies chains as `verify.verify_chain`, but keeps tokens by a coin.

  Attributes:
    acceptance_rate: probability that a tested token is kept.
  """

  acceptance_rate: float

  def __call__(
      self,
      sampling: Sampling,
      target_logits_BTV: jax.Array,
      positions_BT: jax.Array,
      *,
      draft_tokens_BJ: jax.Array,
      valid_BJ: jax.Array,
      draft_probs_BJV: jax.Array | None,
      rule: str = 'token',
  ) -> Verdict:
    """Takes and returns what `verify.verify_chain` does."""
    right = verify.verify_chain(
        sampling,
        target_logits_BTV,
        positions_BT,
        draft_tokens_BJ=draft_tokens_BJ,
        valid_BJ=valid_BJ,
        draft_probs_BJV=draft_probs_BJV,
        rule=rule,
    )
    J = draft_tokens_BJ.shape[1]
    heads_BJ = _heads(
        sampling, positions_BT, positions_BT[:, :J], self.acceptance_rate
    )
    # The next token depends on how many the right rule keeps and on both laws,
    # so the compiler can leave out none of that.
    return verify.verdict_of(
        verify.num_leading(heads_BJ & valid_BJ), valid_BJ, right.next_token_B
    )


@dataclasses.dataclass(frozen=True)
class CoinTree:
  """Verifies trees as `verify_tree.verify_tree`, but follows paths by a coin.

  One coin decides whether any child of a node is kept, and then it is the
  first: the acceptance is that of a depth.

  Attributes:
    acceptance_rate: probability that a tested depth is kept.
  """

  acceptance_rate: float

  def __call__(
      self,
      sampling: Sampling,
      target_logits_BTV: jax.Array,
      positions_BT: jax.Array,
      *,
      tree: Tree,
      draft_probs_BPV: jax.Array | None,
      replacement: str = 'without',
      placement: Placement = _ANYWHERE,
  ) -> TreeVerdict:
    """Takes and returns what `verify_tree.verify_tree` does."""
    parent_row_BM = tree.parent_BM + 1
    # Of the position after the parent, so siblings share it.
    heads_BM = _heads(
        sampling,
        positions_BT,
        jnp.take_along_axis(positions_BT, parent_row_BM, axis=1),
        self.acceptance_rate,
    )
    if draft_probs_BPV is None and placement.num_devices == 1:
      # As the right rule: one draw a row of the path, and as many as that has.
      return verify_tree.follow(
          sampling,
          target_logits_BTV,
          positions_BT,
          tree,
          is_next=lambda _: heads_BM,
      )
    right = verify_tree.verify_tree(
        sampling,
        target_logits_BTV,
        positions_BT,
        tree=tree,
        draft_probs_BPV=draft_probs_BPV,
        replacement=replacement,
        placement=placement,
    )
    kept_BM = heads_BM & tree.valid_BM & _is_first_child(tree)
    row_B = tree_lib.deepest(tree, kept_BM)
    return tree_lib.verdict_of(tree, row_B, right.next_token_B)


def _is_first_child(tree: Tree) -> jax.Array:
  """Marks [B, M] the first valid node below every parent."""
  M = tree.parent_BM.shape[1]
  node_M = jnp.arange(M, dtype=jnp.int32)
  is_sibling_BMM = tree.parent_BM[:, :, None] == tree.parent_BM[:, None, :]
  is_earlier_BMM = (
      is_sibling_BMM
      & tree.valid_BM[:, None, :]
      & (node_M[None, None, :] < node_M[None, :, None])
  )
  return ~jnp.any(is_earlier_BMM, axis=-1)


def put(step: Speculative, acceptance_rate: float) -> Speculative:
  """Returns the round with a coin in the place of both verifiers.

  Args:
    step: a right one.
    acceptance_rate: accepted over tested tokens that it shall have.

  Raises:
    UserError: If the rate is not a probability.
  """
  if not 0 <= acceptance_rate <= 1:
    raise UserError(
        f'a set acceptance needs to be in 0 to 1, got {acceptance_rate}.'
    )
  return dataclasses.replace(
      step,
      verifier=CoinChain(acceptance_rate),
      tree_verifier=CoinTree(acceptance_rate),
  )


@dataclasses.dataclass(frozen=True)
class FixedTree:
  """Drafts a tree of one shape, of tokens that mean nothing, at no cost.

  For the time of a round over a tree, whatever would have drafted it.

  Attributes:
    widths: children of every node of a level.
    vocab_size: V of the target.
  """

  widths: tuple[int, ...]
  vocab_size: int

  @property
  def num_draft_tokens(self) -> int:
    """M."""
    return len(tree_lm.shape_of(self.widths)[0])

  @property
  def max_depth(self) -> int:
    """A."""
    return len(self.widths)

  @property
  def features(self) -> tuple[int, ...]:
    """No layers' outputs are needed."""
    return ()

  def init(self, params, state, features, *, prompt_width) -> None:
    """Has no state."""
    del params, state, features, prompt_width

  def propose(
      self, params: None, drafter_state: None, state: DecodeState
  ) -> tuple[Proposal, None]:
    """Drafts tokens that follow the last one by number."""
    del params
    parents, sizes = tree_lm.shape_of(self.widths)
    B, M = state.seq_len_B.shape[0], len(parents)
    node_M = jnp.arange(M, dtype=jnp.int32)
    depth_M = jnp.repeat(
        jnp.arange(1, len(sizes) + 1, dtype=jnp.int32),
        jnp.asarray(sizes),
        total_repeat_length=M,
    )
    depth_BM = jnp.broadcast_to(depth_M, (B, M))
    tokens_BM = (state.seq_len_B[:, None] + node_M[None, :]) % self.vocab_size
    proposal = Proposal(
        tokens_BM=tokens_BM.astype(jnp.int32),
        parent_BM=jnp.broadcast_to(jnp.asarray(parents, jnp.int32), (B, M)),
        depth_BM=depth_BM,
        valid_BM=drafter_lib.within_depth(state, depth_BM),
        shape='tree',
    )
    return proposal, drafter_state

  def commit(self, params, drafter_state, state, verdict, features) -> None:
    """Has nothing to remember."""
    del params, drafter_state, state, verdict, features
