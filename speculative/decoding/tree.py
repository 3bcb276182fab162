"""Accept one path of a drafted tree so that the output keeps the target's law.

A pass over a tree has T = 1 + M rows: row 0 is the last committed token, row
1 + m is node m. A is the most tokens of a path, the greatest depth of a tree.

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

import flax.struct
import jax
from jax import numpy as jnp

from speculative.decoding import logits as logits_lib
from speculative.decoding import sampling as sampling_lib
from speculative.decoding import verify
from speculative.decoding.adjust import PathDrafts
from speculative.decoding.sampling import Sampling
from speculative.decoding.verify import Verdict
from speculative.sharding import Placement

_ANYWHERE = Placement()


@flax.struct.dataclass
class TreeVerdict(Verdict):
  """What one pass over a tree decided for every row.

  A depth counts as tested if the node reached above it has valid children.

  Attributes:
    path_BA: int32, the accepted node of every depth; -1 beyond num_accepted.
  """

  path_BA: jax.Array


@flax.struct.dataclass
class Tree:
  """Nodes of a draft, and how they hang together.

    nodes 0, 1 below the last token, 2 below 1: A = 2
      parent [-1, -1, 1]   lineage of rows 0..3: [0 0] [1 0] [2 0] [3 2]

  Attributes:
    tokens_BM: int32.
    parent_BM: int32, -1 is the last committed token; a parent comes before its
      children.
    valid_BM: bool; below an invalid node all are invalid, and so is all that
      lies deeper than A.
    lineage_BTA: int32, rows from a row itself up to a child of row 0, then 0.
  """

  tokens_BM: jax.Array
  parent_BM: jax.Array
  valid_BM: jax.Array
  lineage_BTA: jax.Array

  @property
  def depth_BT(self) -> jax.Array:
    """How many tokens of the tree lie on the way to a row, its own included."""
    return (self.lineage_BTA > 0).sum(axis=-1).astype(jnp.int32)

  @property
  def ancestors_BTT(self) -> jax.Array:
    """Which rows a row sees: itself and all above it."""
    T = self.lineage_BTA.shape[1]
    row_T = jnp.arange(T, dtype=jnp.int32)
    above_BTT = jnp.any(
        self.lineage_BTA[..., None] == row_T[None, None, None, :], axis=2
    )
    return above_BTT | (row_T == 0)[None, None, :]

  def drafts(self) -> PathDrafts:
    """Returns the drafted tokens before what each row decides."""
    return PathDrafts(
        tokens_BTA=self._at(
            jnp.pad(self.tokens_BM, ((0, 0), (1, 0))), self.lineage_BTA
        ),
        before_BTA=self.lineage_BTA > 0,
    )

  def path(self, row_B: jax.Array) -> jax.Array:
    """Returns [B, A] the nodes on the way down to a row; -1 beyond it."""
    A = self.lineage_BTA.shape[2]
    lineage_BA = jnp.take_along_axis(
        self.lineage_BTA, row_B[:, None, None], axis=1
    )[:, 0]
    num_B1 = (lineage_BA > 0).sum(axis=-1, keepdims=True)
    back_BA = num_B1 - 1 - jnp.arange(A)[None, :]
    nodes_BA = jnp.take_along_axis(lineage_BA, jnp.maximum(back_BA, 0), axis=1)
    return jnp.where(back_BA >= 0, nodes_BA - 1, -1)

  def all_above(self, is_so_BT: jax.Array) -> jax.Array:
    """Tells of every row whether it and all above it but row 0 are so."""
    so_BTA = self._at(is_so_BT, self.lineage_BTA) | (self.lineage_BTA == 0)
    return so_BTA.all(axis=-1)

  def _at(self, x_BT: jax.Array, index_BTA: jax.Array) -> jax.Array:
    flat = jnp.take_along_axis(
        x_BT, index_BTA.reshape(index_BTA.shape[0], -1), axis=1
    )
    return flat.reshape(index_BTA.shape)


def make(
    tokens_BM: jax.Array,
    parent_BM: jax.Array,
    valid_BM: jax.Array,
    *,
    max_depth: int,
) -> Tree:
  """Follows the parents up.

  Args:
    tokens_BM: int32.
    parent_BM: int32.
    valid_BM: bool.
    max_depth: A.

  Returns:
    The Tree.
  """
  B, M = parent_BM.shape
  row_BT = jnp.broadcast_to(jnp.arange(M + 1, dtype=jnp.int32), (B, M + 1))
  above_BT = jnp.pad(parent_BM + 1, ((0, 0), (1, 0)))
  lineage = [row_BT]
  for _ in range(max_depth - 1):
    lineage.append(jnp.take_along_axis(above_BT, lineage[-1], axis=1))
  return Tree(
      tokens_BM=tokens_BM,
      parent_BM=parent_BM,
      valid_BM=valid_BM,
      lineage_BTA=jnp.stack(lineage, axis=-1),
  )


def rows_of_path(tree: Tree, verdict: TreeVerdict) -> jax.Array:
  """Returns [B, 1 + A] the rows of the pass in the order of the text.

  Row 0, then those of the accepted nodes; beyond them any others.

  Args:
    tree: the draft.
    verdict: of it.
  """
  M, A = tree.tokens_BM.shape[1], verdict.path_BA.shape[1]
  others_A = jnp.minimum(jnp.arange(A, dtype=jnp.int32), M - 1)
  node_BA = jnp.where(verdict.path_BA >= 0, verdict.path_BA, others_A[None, :])
  return jnp.pad(node_BA + 1, ((0, 0), (1, 0)))


def verdict_of(
    tree: Tree, row_B: jax.Array, next_token_B: jax.Array
) -> TreeVerdict:
  """Returns the TreeVerdict that accepts the path down to a row."""
  path_BA = tree.path(row_B)
  num_accepted_B = (path_BA >= 0).sum(axis=-1).astype(jnp.int32)
  tried_B = jnp.any(
      tree.valid_BM & (tree.parent_BM + 1 == row_B[:, None]), axis=-1
  )
  return TreeVerdict(
      num_accepted_B=num_accepted_B,
      num_tested_B=num_accepted_B + tried_B,
      next_token_B=next_token_B,
      path_BA=path_BA,
  )


def deepest(tree: Tree, kept_BM: jax.Array) -> jax.Array:
  """Returns [B] the deepest row that is kept with all above it, the first."""
  kept_BT = jnp.pad(kept_BM, ((0, 0), (1, 0)), constant_values=True)
  depth_BT = jnp.where(tree.all_above(kept_BT), tree.depth_BT, 0)
  return jnp.argmax(depth_BT, axis=-1).astype(jnp.int32)


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
  row_B = deepest(tree, tree.valid_BM & (tree.tokens_BM == drawn_BM))
  next_B1 = jnp.take_along_axis(draws_BT, row_B[:, None], axis=1)
  return verdict_of(tree, row_B, next_B1[:, 0])


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
  keys_BM = sampling_lib.trial_keys(
      sampling.seed_B,
      positions_BT[:, 0],
      jnp.take_along_axis(positions_BT, parent_row_BM, axis=1),
      sampling_lib.ACCEPT,
  )
  # Siblings decide one position: a number of its own for each.
  keys_BM = sampling_lib.of_nodes(keys_BM)
  u_BM = sampling_lib.uniform(keys_BM)

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
  position_B1 = jnp.take_along_axis(positions_BT, trial.row_B[:, None], axis=1)
  draw_keys_B1 = jnp.where(
      trial.refused_B[:, None],
      sampling_lib.keys(sampling.seed_B, position_B1, sampling_lib.RESIDUAL),
      sampling_lib.keys(sampling.seed_B, position_B1, sampling_lib.TARGET),
  )
  next_B1 = sampling_lib.categorical(draw_keys_B1, trial.p_BV[:, None, :])
  return verdict_of(tree, *placement.replicate((trial.row_B, next_B1[:, 0])))


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
