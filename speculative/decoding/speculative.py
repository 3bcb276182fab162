"""The speculative round: draft, verify, commit, all on the device."""

from collections.abc import Callable
import dataclasses
import functools

import flax.struct
import jax
from jax import numpy as jnp

from speculative.decoding import adjust
from speculative.decoding import drafter as drafter_lib
from speculative.decoding import log_probs as log_probs_lib
from speculative.decoding import state as state_lib
from speculative.decoding import tree as tree_lib
from speculative.decoding import verify
from speculative.decoding import verify_tree as verify_tree_lib
from speculative.decoding.drafter import Drafter
from speculative.decoding.drafter import Proposal
from speculative.decoding.log_probs import LogProbs
from speculative.decoding.loop import Carry
from speculative.decoding.loop import Model
from speculative.decoding.loop import Weights
from speculative.decoding.state import DecodeState
from speculative.decoding.tree import TreeVerdict
from speculative.decoding.verify import Verdict
from speculative.models import kv_cache
from speculative.models.kv_cache import KVCache


def emitted(draft_tokens_BJ: jax.Array, verdict: Verdict) -> jax.Array:
  """Puts the target's token behind the accepted ones.

    drafted [7, 2, 9], 1 accepted, next token 4 -> [7, 4, 9, 0], 2 count

  Returns:
    int32 [B, J + 1]; the first num_accepted + 1 count.
  """
  J = draft_tokens_BJ.shape[1]
  padded_BT = jnp.pad(draft_tokens_BJ, ((0, 0), (0, 1)))
  index_T = jnp.arange(J + 1, dtype=jnp.int32)
  is_next_BT = index_T[None, :] == verdict.num_accepted_B[:, None]
  return jnp.where(is_next_BT, verdict.next_token_B[:, None], padded_BT)


@flax.struct.dataclass
class Checked:
  """What the target's pass over a proposal brought.

  Attributes:
    verdict: of every row.
    cache: with all drafted tokens, or of a tree the accepted path.
    emitted_BT: int32, T = A + 1 for paths of up to A tokens.
    log_probs: of those, if the rows record them.
    features: layers that the drafter asked for; T positions in the order of the
      text.
  """

  verdict: Verdict
  cache: KVCache
  emitted_BT: jax.Array
  log_probs: LogProbs | None
  features: dict[int, jax.Array]


@dataclasses.dataclass(frozen=True)
class Speculative:
  """One round of speculative sampling with a drafted chain or tree.

  A batch of two with J = 2 (prompts [5, 6] and [8], tokens 10.. drafted):

    row  text    drafted   target's rows score  kept  next  text after
     0   5 6     10 11     6 10 11              2     12    5 6 10 11 12
     1   8       20 21     8 20 21              0     30    8 30

  The caches held 1 and 0 tokens, took 3 slots each in the pass and are cut back
  to 4 and 1: everything but the newest token.

  Of a tree only one path is kept. Its slots, if others lie between, are moved
  together first.

  Attributes:
    model: the target.
    drafter: proposes the tokens.
    rule: how sampled chains are verified, one of `verify.RULES`.
    verifier: what decides chains; replaced only to show that a wrong one is
      caught.
    tree_verifier: what decides trees; likewise.
  """

  model: Model
  drafter: Drafter
  rule: str = 'token'
  verifier: Callable[..., Verdict] = verify.verify_chain
  tree_verifier: Callable[..., TreeVerdict] = verify_tree_lib.verify_tree

  @property
  def num_draft_tokens(self) -> int:
    """M; J for a chain."""
    return self.drafter.num_draft_tokens

  @property
  def max_depth(self) -> int:
    """A; J for a chain."""
    return drafter_lib.max_depth(self.drafter)

  @property
  def features(self) -> tuple[int, ...]:
    """Layers whose outputs the drafter wants."""
    return self.drafter.features

  def init(
      self,
      weights: Weights,
      state: DecodeState,
      features: dict[int, jax.Array],
      *,
      prompt_width: int,
  ) -> Carry:
    """Lets the drafter read the prompts."""
    drafter_state = self.drafter.init(
        weights.drafter, state, features, prompt_width=prompt_width
    )
    return Carry(state=state, drafter_state=drafter_state)

  def __call__(self, weights: Weights, carry: Carry) -> Carry:
    """Appends between 1 and A + 1 tokens to every running row."""
    state = carry.state
    with jax.named_scope('draft'):
      proposal, drafter_state = self.drafter.propose(
          weights.drafter, carry.drafter_state, state
      )
      proposal = proposal.replicated(self.model.placement)
    if proposal.shape == 'tree':
      checked = self._check_tree(weights, state, proposal)
    else:
      checked = self._check_chain(weights, state, proposal)
    verdict = checked.verdict
    with jax.named_scope('commit'):
      state = state_lib.commit(
          state,
          checked.cache,
          emitted_BT=checked.emitted_BT,
          num_emitted_B=verdict.num_accepted_B + 1,
          num_drafted_B=proposal.valid_BM.sum(axis=1).astype(jnp.int32),
          num_tested_B=verdict.num_tested_B,
          log_probs=checked.log_probs,
      )
      drafter_state = self.drafter.commit(
          weights.drafter, drafter_state, state, verdict, checked.features
      )
    return Carry(state=state, drafter_state=drafter_state)

  def _check_chain(
      self, weights: Weights, state: DecodeState, proposal: Proposal
  ) -> Checked:
    """Verifies a chain."""
    placement = self.model.placement
    with jax.named_scope('verify'):
      last_B1 = state_lib.last_token(state)
      out = self.model.forward(
          weights.target,
          jnp.concatenate([last_B1, proposal.tokens_BM], axis=1),
          state.cache,
          features=self.features,
      )
      logits_BTV = self.model.logits(weights.target, out.hidden_BTD)
      verdict = self.verifier(
          state.sampling,
          state_lib.adjusted(
              state, logits_BTV, adjust.chain_drafts(proposal.tokens_BM)
          ),
          state_lib.next_positions(state, self.num_draft_tokens + 1),
          draft_tokens_BJ=proposal.tokens_BM,
          valid_BJ=proposal.valid_BM,
          draft_probs_BJV=proposal.probs_BPV,
          rule=self.rule,
      )
      verdict = placement.replicate(verdict)
    with jax.named_scope('commit'):
      tokens_BT = emitted(proposal.tokens_BM, verdict)
      # Else counters and lengths are split over rows, and gathered one by one.
      tokens_BT = placement.replicate(tokens_BT)
      log_probs = self._log_probs(state, logits_BTV, tokens_BT)
    return Checked(verdict, out.cache, tokens_BT, log_probs, out.features)

  def _log_probs(
      self, state: DecodeState, logits_BTV: jax.Array, tokens_BT: jax.Array
  ) -> LogProbs | None:
    placement = self.model.placement
    return placement.replicate(
        log_probs_lib.of_tokens(
            state.log_probs,
            logits_BTV,
            tokens_BT,
            num_parts=placement.model_size,
        )
    )

  def _check_tree(
      self, weights: Weights, state: DecodeState, proposal: Proposal
  ) -> Checked:
    """Verifies a tree, in a pass over the smallest bucket that holds it."""
    sizes = drafter_lib.buckets(self.drafter)
    checks = [
        functools.partial(
            self._check_nodes, weights, state, proposal.first(size)
        )
        for size in sizes
    ]
    with jax.named_scope('verify'):
      if len(sizes) == 1:
        checked = checks[0]()
      else:
        end_M = jnp.arange(1, sizes[-1] + 1, dtype=jnp.int32)
        needed = jnp.max(jnp.where(proposal.valid_BM, end_M[None, :], 0))
        bucket = jnp.sum(needed > jnp.asarray(sizes[:-1], jnp.int32))
        checked = jax.lax.switch(bucket, checks)
    with jax.named_scope('commit'):
      cache = kv_cache.compact(
          checked.cache, state.seq_len_B, checked.verdict.path_BA
      )
    return checked.replace(cache=cache)

  def _check_nodes(
      self, weights: Weights, state: DecodeState, proposal: Proposal
  ) -> Checked:
    """Verifies a tree in one pass; leaves the cache as that wrote it."""
    placement = self.model.placement
    # Else the attention's mask splits it over rows, and all that follows paths.
    tree = placement.replicate(
        tree_lib.make(
            proposal.tokens_BM,
            proposal.parent_BM,
            proposal.valid_BM,
            max_depth=self.max_depth,
        )
    )
    last_B1 = state_lib.last_token(state)
    depth_BT = tree.depth_BT
    out = self.model.forward(
        weights.target,
        jnp.concatenate([last_B1, proposal.tokens_BM], axis=1),
        state.cache,
        positions_BT=state.seq_len_B[:, None] - 1 + depth_BT,
        ancestors_BTT=tree.ancestors_BTT,
        features=self.features,
    )
    logits_BTV = self.model.logits(weights.target, out.hidden_BTD)
    verdict = self.tree_verifier(
        state.sampling,
        state_lib.adjusted(state, logits_BTV, tree.drafts()),
        state.seq_len_B[:, None] + depth_BT,
        tree=tree,
        draft_probs_BPV=proposal.probs_BPV,
        replacement=proposal.replacement,
        placement=placement,
    )
    verdict = placement.replicate(verdict)
    path_BT1 = tree_lib.rows_of_path(tree, verdict)[..., None]

    def along_path(x_BTn: jax.Array) -> jax.Array:
      return jnp.take_along_axis(x_BTn, path_BT1, axis=1)

    rows_BT = jnp.concatenate([last_B1, proposal.tokens_BM], axis=1)[..., None]
    tokens_BT = emitted(along_path(rows_BT)[:, 1:, 0], verdict)
    tokens_BT = placement.replicate(tokens_BT)
    log_probs = None
    if state.log_probs is not None:
      log_probs = self._log_probs(state, along_path(logits_BTV), tokens_BT)
    features = {i: along_path(x_BTD) for i, x_BTD in out.features.items()}
    # Of one length whatever the bucket; the round's end sets it.
    cache = out.cache.replace(len_B=state.cache.len_B)
    return Checked(verdict, cache, tokens_BT, log_probs, features)
