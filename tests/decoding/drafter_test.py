from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding import drafter as drafter_lib


def test_chain_hangs_each_token_below_the_one_before():
  proposal = drafter_lib.chain(
      jnp.asarray([[7, 2, 9], [0, 0, 0]]),
      jnp.asarray([[True, True, False], [True, False, False]]),
  )
  np.testing.assert_array_equal(proposal.parent_BM, [[-1, 0, 1]] * 2)
  np.testing.assert_array_equal(proposal.depth_BM, [[1, 2, 3]] * 2)
  np.testing.assert_array_equal(
      proposal.valid_BM, [[True, True, False], [True, False, False]]
  )
  assert proposal.probs_BPV is None


def test_chain_carries_the_laws_its_tokens_were_drawn_from():
  laws = jnp.full((1, 2, 4), 0.25)
  proposal = drafter_lib.chain(
      jnp.zeros((1, 2), jnp.int32), jnp.ones((1, 2), bool), laws
  )
  assert proposal.probs_BPV is laws


def test_a_deterministic_draft_alone_is_padded_with_invalid_nodes():
  tokens, valid = jnp.asarray([[7, 2]]), jnp.ones((1, 2), bool)
  padded = drafter_lib.chain(tokens, valid).padded(3)
  np.testing.assert_array_equal(padded.tokens_BM, [[7, 2, 0]])
  np.testing.assert_array_equal(padded.parent_BM, [[-1, 0, -1]])
  np.testing.assert_array_equal(padded.depth_BM, [[1, 2, 1]])
  np.testing.assert_array_equal(padded.valid_BM, [[True, True, False]])
  with pytest.raises(ValueError, match='laws have no rows for invalid nodes'):
    drafter_lib.chain(tokens, valid, jnp.full((1, 2, 4), 0.25)).padded(3)


def test_rows_outside_are_the_nearest():
  x = jnp.asarray([[[1, 2], [3, 4], [5, 6]], [[7, 8], [9, 10], [11, 12]]])
  index = jnp.asarray([[-2, 1], [2, 3]])
  got = drafter_lib.rows_of(x, index)
  np.testing.assert_array_equal(got, [[[1, 2], [3, 4]], [[11, 12], [11, 12]]])
  got = drafter_lib.rows_of(x[..., 0], index)
  np.testing.assert_array_equal(got, [[1, 3], [11, 11]])


@pytest.mark.parametrize(
    'room, done, num_useful',
    [(9, False, 3), (4, False, 3), (3, False, 2), (1, False, 0), (9, True, 0)],
)
def test_within_budget_leaves_room_for_the_targets_own_token(
    make_state, room, done, num_useful
):
  state = make_state([[5, 6]], limits=[2 + room], done=[done])
  useful = drafter_lib.within_budget(state, 3)
  np.testing.assert_array_equal(useful, [np.arange(3) < num_useful])
