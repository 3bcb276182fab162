"""Masks, paths and drafts of trees."""

from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding import tree as tree_lib
from speculative.testing import trees


@pytest.mark.parametrize('parents', trees.PARENTS.values(), ids=trees.PARENTS)
def test_rows_see_themselves_and_what_lies_above(parents):
  T = len(parents) + 1
  tree = trees.make(parents, np.zeros((2, T - 1)))
  expected_TT = np.zeros((T, T), bool)
  for row in range(T):
    expected_TT[
        row, [0, row, *(m + 1 for m in trees.path_to(parents, row))]
    ] = True
  np.testing.assert_array_equal(tree.ancestors_BTT, [expected_TT] * 2)
  np.testing.assert_array_equal(
      tree.depth_BT, [[0, *trees.depths(parents)]] * 2
  )


def test_paths_and_drafts_by_hand():
  tree = trees.make((-1, -1, 1), [[7, 2, 9]])
  np.testing.assert_array_equal(
      tree.lineage_BTA, [[[0, 0], [1, 0], [2, 0], [3, 2]]]
  )
  for row, path in enumerate([[-1, -1], [0, -1], [1, -1], [1, 2]]):
    np.testing.assert_array_equal(tree.path(jnp.asarray([row])), [path])
  drafts = tree.drafts()
  np.testing.assert_array_equal(
      np.where(drafts.before_BTA, drafts.tokens_BTA, -1),
      [[[-1, -1], [7, -1], [2, -1], [9, 2]]],
  )


def test_rows_of_a_path_come_in_the_order_of_the_text():
  tree = trees.make((-1, -1, 1, 2), [[7, 2, 9, 4]])
  verdict = tree_lib.verdict_of(tree, jnp.asarray([3]), jnp.asarray([8]))
  assert verdict.num_accepted_B[0] == verdict.num_tested_B[0] - 1 == 2
  rows = np.asarray(tree_lib.rows_of_path(tree, verdict))
  np.testing.assert_array_equal(rows[0, :3], [0, 2, 3])
  assert rows.shape == (1, 4)
