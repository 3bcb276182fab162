import jax
from jax import numpy as jnp
import numpy as np

from speculative.decoding import counts


def _rounds(*rounds: tuple[int, int, int]) -> counts.Origins:
  """Puts rounds of (drafted, tested, accepted) in one row behind a prompt."""
  parts = []
  for drafted, tested, accepted in rounds:
    got = counts.of_round(
        4,
        num_drafted_B=jnp.asarray([drafted]),
        num_tested_B=jnp.asarray([tested]),
        num_accepted_B=jnp.asarray([accepted]),
    )
    parts.append(jax.tree.map(lambda x, a=accepted: x[:, : a + 1], got))
  start = counts.empty(1, 2)
  return jax.device_get(
      jax.tree.map(lambda *xs: jnp.concatenate(xs, axis=1), start, *parts)
  )


def test_of_round_by_hand():
  got = counts.of_round(
      4,
      num_drafted_B=jnp.asarray([3, 0]),
      num_tested_B=jnp.asarray([2, 0]),
      num_accepted_B=jnp.asarray([1, 0]),
  )
  np.testing.assert_array_equal(got.place_BT, [[0, 1, 2, 3]] * 2)
  np.testing.assert_array_equal(got.drafted_BT, [[3, 0, 0, 0], [0] * 4])
  np.testing.assert_array_equal(got.tested_BT, [[1, 1, 0, 0], [0] * 4])
  np.testing.assert_array_equal(got.accepted_BT, [[1, 0, 0, 0], [0] * 4])


def test_counts_end_at_the_token_where_the_text_was_cut():
  # Tokens of rounds: 2..5, 6, 7..8, and a prompt of two before them.
  origins = _rounds((3, 3, 3), (3, 1, 0), (2, 2, 1))
  expected = {
      # end: rounds, drafted, tested, accepted
      9: (3, 8, [3, 2, 1], [2, 1, 1]),
      8: (3, 8, [3, 1, 1], [2, 1, 1]),
      7: (2, 6, [2, 1, 1], [1, 1, 1]),
      6: (1, 3, [1, 1, 1], [1, 1, 1]),
      4: (1, 3, [1, 1, 0], [1, 1, 0]),
      2: (0, 0, [0, 0, 0], [0, 0, 0]),
  }
  for end, (rounds, drafted, tested, accepted) in expected.items():
    got = counts.count(origins, [(2, end)], num_draft_tokens=3)
    assert (got.rounds[0], got.drafted[0]) == (rounds, drafted), end
    np.testing.assert_array_equal(got.tested, [tested])
    np.testing.assert_array_equal(got.accepted, [accepted])


def test_plain_decoding_has_rounds_and_no_places():
  got = counts.count(
      jax.device_get(counts.empty(2, 5)), [(1, 4), (2, 2)], num_draft_tokens=0
  )
  np.testing.assert_array_equal(got.rounds, [3, 0])
  assert got.tested.shape == got.accepted.shape == (2, 0)
