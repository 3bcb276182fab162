"""Accept one path of a drafted tree so that the output keeps the target's law.

Deterministic trees (REST, arXiv:2311.08252): the target draws one token at
every row, from plain decoding's own key, and the child that equals it is
followed; where there is none that very draw is emitted. So the tokens, not only
their law, are those of plain decoding. Nodes of one depth share a position and
so a key, which is of no matter: they are on different paths, and one is taken.

Sampled trees: the children of a node are tried one after another, each against
what the refusals before it have left of the target's law. Children drawn
independently: recursive rejection of Miao et al. (SpecInfer, arXiv:2305.09781).
Without replacement, where also the draft's law loses the refused tokens: Jeon
et al. (arXiv:2402.14160).
"""

from collections.abc import Callable

import flax.struct
import jax
from jax import numpy as jnp

from speculative.decoding import logits as logits_lib
from speculative.decoding import sampling as sampling_lib
from speculative.decoding import tree as tree_lib
from speculative.decoding import verify
from speculative.decoding.sampling import Sampling
from speculative.decoding.tree import Tree
from speculative.decoding.tree import TreeVerdict
from speculative.sharding import Placement

_ANYWHERE = Placement()


def match_draws(tree: Tree, draws_BT: jax.Array) -> TreeVerdict:
  """Follows the children that equal the target's own draws.

    nodes 7, 2 below the last token, 9 below 2; draws [2, 5, 9, 4]
      2 and 9 are kept, 4 comes after them

  Args:
    tree: the draft.
    draws_BT: int32, row t is the target's draw for the token after row t.

  Returns:
    The TreeVerdict. Emitted tokens are always the target's own draws.
  """
  drawn_BM = jnp.take_along_axis(draws_BT, tree.parent_BM + 1, axis=1)
  row_B = tree_lib.deepest(tree, tree.valid_BM & (tree.tokens_BM == drawn_BM))
  next_B1 = jnp.take_along_axis(draws_BT, row_B[:, None], axis=1)
  return tree_lib.verdict_of(tree, row_B, next_B1[:, 0])


def walk(
    sampling: Sampling,
    logits_BTV: jax.Array,
    positions_BT: jax.Array,
    tree: Tree,
) -> TreeVerdict:
  """Follows the target's draws node by node: no others are drawn.

  What `match_draws` decides of the draws at all rows (of twins, siblings of one
  token, this follows the first). To warp and draw from a whole vocabulary, or
  only to find its likeliest token, at every node of a large tree can take
  longer than the pass that scored it; a path is a few rows, one after another.

  Args:
    sampling: how tokens are drawn.
    logits_BTV: float32, adjusted.
    positions_BT: int32, index in the text of the token row t decides.
    tree: the draft.

  Returns:
    The TreeVerdict.
  """
  return follow(
      sampling,
      logits_BTV,
      positions_BT,
      tree,
      is_next=lambda draws_B1: tree.tokens_BM == draws_B1,
  )


def follow(
    sampling: Sampling,
    logits_BTV: jax.Array,
    positions_BT: jax.Array,
    tree: Tree,
    *,
    is_next: Callable[[jax.Array], jax.Array],
) -> TreeVerdict:
  """Goes down a tree row by row, drawing from the target at each.

  Args:
    sampling: how tokens are drawn.
    logits_BTV: float32, adjusted.
    positions_BT: int32, index in the text of the token row t decides.
    tree: the draft.
    is_next: from the draws [B, 1] at the rows reached, which nodes [B, M] may
      come next; the first child among them does.

  Returns:
    The TreeVerdict; the token after the path is the draw at its end.
  """
  B = positions_BT.shape[0]

  def one(carry):
    row_B, _, running_B = carry
    draws_B1 = sampling_lib.draw(
        sampling,
        _row(logits_BTV, row_B)[:, None],
        jnp.take_along_axis(positions_BT, row_B[:, None], axis=1),
        use=sampling_lib.TARGET,
    )
    is_it_BM = tree.valid_BM & (tree.parent_BM + 1 == row_B[:, None])
    is_it_BM &= is_next(draws_B1) & running_B[:, None]
    child_B = jnp.argmax(is_it_BM, axis=-1).astype(jnp.int32) + 1
    running_B = jnp.any(is_it_BM, axis=-1)
    # A row that stopped draws the same again.
    return jnp.where(running_B, child_B, row_B), draws_B1[:, 0], running_B

  row_B, next_B, _ = jax.lax.while_loop(
      lambda carry: jnp.any(carry[2]),
      one,
      (
          jnp.zeros((B,), jnp.int32),
          jnp.zeros((B,), jnp.int32),
          jnp.ones((B,), bool),
      ),
  )
  return tree_lib.verdict_of(tree, row_B, next_B)


@flax.struct.dataclass
class Trial:
  """How far the nodes of every row have been tried.

  Attributes:
    row_B: int32, the deepest row kept so far.
    refused_B: bool, whether a child of it was refused.
    p_BV: float32, the law of the token after it, given the refusals.
    q_BV: float32, the law of its next child.
  """

  row_B: jax.Array
  refused_B: jax.Array
  p_BV: jax.Array
  q_BV: jax.Array


def after_refusal(
    p_BV: jax.Array, q_BV: jax.Array, token_B: jax.Array, replacement: str
) -> tuple[jax.Array, jax.Array]:
  """Returns the laws that the refusal of a token leaves.

  Args:
    p_BV: of the target.
    q_BV: of the draft, which drew the token.
    token_B: int32.
    replacement: 'with' or 'without': whether the next one may be the same.

  Returns:
    The target's residual law, and the law of the next token drafted here.
  """
  rest_BV = verify.residual(p_BV, q_BV)
  if replacement == 'with':
    return rest_BV, q_BV
  index_V = jnp.arange(q_BV.shape[-1])
  others_BV = jnp.where(index_V[None, :] == token_B[:, None], 0, q_BV)
  # Summed anew: one minus what is left out loses all digits of a small rest.
  mass_B1 = others_BV.sum(axis=-1, keepdims=True)
  return rest_BV, others_BV / jnp.where(mass_B1 > 0, mass_B1, 1)


def _row(x_BTV: jax.Array, row_B: jax.Array) -> jax.Array:
  row_B = jnp.minimum(row_B, x_BTV.shape[1] - 1)
  return jnp.take_along_axis(x_BTV, row_B[:, None, None], axis=1)[:, 0]


def _trial_numbers(
    sampling: Sampling, positions_BT: jax.Array, parent_row_BM: jax.Array
) -> jax.Array:
  """Returns [B, M] a uniform number for the trial of every node."""
  keys_BM = sampling_lib.trial_keys(
      sampling.seed_B,
      positions_BT[:, 0],
      jnp.take_along_axis(positions_BT, parent_row_BM, axis=1),
      sampling_lib.ACCEPT,
  )
  # Siblings decide one position: a number of its own for each.
  return sampling_lib.uniform(sampling_lib.of_nodes(keys_BM))


def _draw_rest(
    sampling: Sampling, positions_BT: jax.Array, trial: Trial
) -> jax.Array:
  """Returns [B] the token after the last one kept, from what p is there."""
  position_B1 = jnp.take_along_axis(positions_BT, trial.row_B[:, None], axis=1)
  draw_keys_B1 = jnp.where(
      trial.refused_B[:, None],
      sampling_lib.keys(sampling.seed_B, position_B1, sampling_lib.RESIDUAL),
      sampling_lib.keys(sampling.seed_B, position_B1, sampling_lib.TARGET),
  )
  return sampling_lib.categorical(draw_keys_B1, trial.p_BV[:, None, :])[:, 0]


def reject_recursively(
    sampling: Sampling,
    positions_BT: jax.Array,
    *,
    tree: Tree,
    draft_probs_BPV: jax.Array,
    target_probs_BTV: jax.Array,
    replacement: str,
    placement: Placement = _ANYWHERE,
) -> TreeVerdict:
  """Tries the nodes of a sampled tree in their order.

  A node is tried if its parent is the deepest node kept so far: kept with
  probability min(1, p(x) / q(x)), where p is what earlier siblings' refusals
  left of the target's law. Where all children are refused, or there are none,
  the next token is drawn from what is left. Each emitted token is distributed
  as if drawn from the target alone.

  Args:
    sampling: gives the seeds.
    positions_BT: int32, index in the text of the token row t decides.
    tree: siblings in the order in which they were drawn.
    draft_probs_BPV: q of the first child of every row; rows from P on have no
      children.
    target_probs_BTV: p.
    replacement: how siblings were drawn, 'with' or 'without'.
    placement: as `verify_tree`.

  Returns:
    The TreeVerdict.
  """
  B, M = tree.tokens_BM.shape
  parent_row_BM = tree.parent_BM + 1
  u_BM = _trial_numbers(sampling, positions_BT, parent_row_BM)

  def one(trial: Trial, m: jax.Array) -> tuple[Trial, None]:
    token_B = tree.tokens_BM[:, m]
    p_B, q_B = (
        jnp.take_along_axis(x_BV, token_B[:, None], axis=-1)[:, 0]
        for x_BV in (trial.p_BV, trial.q_BV)
    )
    tried_B = tree.valid_BM[:, m] & (parent_row_BM[:, m] == trial.row_B)
    kept_B = tried_B & verify.acceptance(u_BM[:, m], p_B, q_B)
    refused_B = tried_B & ~kept_B
    rest_BV, others_BV = after_refusal(
        trial.p_BV, trial.q_BV, token_B, replacement
    )
    row_B = jnp.full((B,), m + 1, jnp.int32)

    def chosen(kept_BV, refused_BV, before_BV):
      return jnp.where(
          kept_B[:, None],
          kept_BV,
          jnp.where(refused_B[:, None], refused_BV, before_BV),
      )

    return (
        Trial(
            row_B=jnp.where(kept_B, row_B, trial.row_B),
            refused_B=~kept_B & (refused_B | trial.refused_B),
            p_BV=chosen(_row(target_probs_BTV, row_B), rest_BV, trial.p_BV),
            q_BV=chosen(_row(draft_probs_BPV, row_B), others_BV, trial.q_BV),
        ),
        None,
    )

  start = Trial(
      row_B=jnp.zeros((B,), jnp.int32),
      refused_B=jnp.zeros((B,), bool),
      p_BV=target_probs_BTV[:, 0],
      q_BV=draft_probs_BPV[:, 0],
  )
  trial, _ = jax.lax.scan(one, start, jnp.arange(M, dtype=jnp.int32))
  next_B = _draw_rest(sampling, positions_BT, trial)
  return tree_lib.verdict_of(tree, *placement.replicate((trial.row_B, next_B)))


def verify_tree(
    sampling: Sampling,
    target_logits_BTV: jax.Array,
    positions_BT: jax.Array,
    *,
    tree: Tree,
    draft_probs_BPV: jax.Array | None,
    replacement: str = 'without',
    placement: Placement = _ANYWHERE,
) -> TreeVerdict:
  """Decides a drafted tree, whatever the drafter and the rows' samplers.

  Args:
    sampling: of every row; the target's logits are warped here, by the same
      function as everywhere.
    target_logits_BTV: float32, adjusted, T = 1 + M.
    positions_BT: int32, index in the text of the token row t decides.
    tree: the draft.
    draft_probs_BPV: q of a sampled draft, already warped, once a parent; None
      for a deterministic one.
    replacement: how siblings of a sampled draft were drawn, 'with' or
      'without'.
    placement: of the target. Draws of rows on several devices are brought
      together before paths are followed: one collective instead of several.

  Returns:
    The TreeVerdict. Deterministic drafts and greedy rows: token for token what
    plain decoding emits (up to the numerics of a wider pass). Sampled drafts:
    the same distribution.
  """

  def by_draws() -> TreeVerdict:
    if placement.num_devices == 1:
      return walk(sampling, target_logits_BTV, positions_BT, tree)
    # On a mesh every step of a walk would be a set of collectives.
    draws_BT = sampling_lib.draw(
        sampling, target_logits_BTV, positions_BT, use=sampling_lib.TARGET
    )
    return match_draws(tree, placement.replicate(draws_BT))

  def by_rejection() -> TreeVerdict:
    return reject_recursively(
        sampling,
        positions_BT,
        tree=tree,
        draft_probs_BPV=draft_probs_BPV,
        target_probs_BTV=logits_lib.warp_probs(
            sampling.warping, target_logits_BTV
        ),
        replacement=replacement,
        placement=placement,
    )

  if draft_probs_BPV is None:
    return by_draws()
  # Greedy rows are one-hot laws, and come out right whatever q is said to be:
  # all but the likeliest token are refused, and leave it as the rest.
  return jax.lax.cond(jnp.all(sampling.greedy_B), by_draws, by_rejection)
