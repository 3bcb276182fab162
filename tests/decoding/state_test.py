import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding import counts
from speculative.decoding import state as state_lib
from speculative.decoding.log_probs import LogProbs
from speculative.decoding.state import LENGTH
from speculative.decoding.state import RUNNING
from speculative.decoding.state import STOP_ID


def _cut(make_state, emitted, num_emitted, *, room, stop_ids=(), done=False):
  state = make_state(
      [[7, 8]], limits=[2 + room], stop_ids=stop_ids, done=[done]
  )
  kept, reason = state_lib.cut(
      state,
      jnp.asarray([emitted], jnp.int32),
      jnp.asarray([num_emitted], jnp.int32),
  )
  return int(kept[0]), int(reason[0])


@pytest.mark.parametrize(
    'emitted, num_emitted, room, stop_ids, kept, reason',
    [
        ([5, 6, 7, 8], 4, 9, (), 4, RUNNING),
        ([5, 6, 7, 8], 1, 9, (), 1, RUNNING),
        # A stop id inside accepted tokens is the last token; no bonus after it.
        ([5, 2, 9, 4], 4, 9, (2,), 2, STOP_ID),
        ([2, 5, 9, 4], 4, 9, (2,), 1, STOP_ID),
        ([5, 6, 9, 2], 4, 9, (2,), 4, STOP_ID),
        ([5, 9, 2, 3], 4, 9, (3, 2), 3, STOP_ID),
        # One in the rubbish behind what counts stops nothing.
        ([5, 6, 2, 2], 2, 9, (2,), 2, RUNNING),
        # The budget.
        ([5, 6, 7, 8], 4, 3, (), 3, LENGTH),
        ([5, 6, 7, 8], 3, 3, (), 3, LENGTH),
        ([5, 6, 7, 8], 4, 1, (), 1, LENGTH),
        # Both: a stop id within the budget is the reason, one beyond is not.
        ([5, 2, 7, 8], 4, 2, (2,), 2, STOP_ID),
        ([5, 2, 7, 8], 4, 3, (2,), 2, STOP_ID),
        ([5, 6, 2, 8], 4, 2, (2,), 2, LENGTH),
        # Id 0 is a token like others, and so is the padding of the ids.
        ([0, 0, 0, 0], 4, 9, (2,), 4, RUNNING),
        ([0, 5, 0, 0], 4, 9, (0,), 1, STOP_ID),
        ([5, 6, 0, 0], 2, 9, (0,), 2, RUNNING),
    ],
)
def test_cut_at_the_first_stop_id_and_at_the_limit(
    make_state, emitted, num_emitted, room, stop_ids, kept, reason
):
  got = _cut(make_state, emitted, num_emitted, room=room, stop_ids=stop_ids)
  assert got == (kept, reason)


def test_cut_keeps_nothing_of_a_row_that_was_done(make_state):
  assert _cut(
      make_state, [5, 2, 7, 8], 4, room=9, stop_ids=(2,), done=True
  ) == (
      0,
      LENGTH,
  )


def _commit(make_state, recorded='none', **changes):
  """Four rows: running, stopping at its second token, out of room, done."""
  state = make_state(
      [[7], [7, 8], [7, 8, 9], [7, 8, 9, 6]],
      limits=[14, 14, 5, 4],
      stop_ids=(2,),
      done=[False, False, False, True],
      log_probs=recorded,
  )
  emitted = [[5, 6, 9, 4], [5, 2, 9, 4], [5, 6, 9, 4], [5, 6, 9, 4]]
  settings = dict(
      emitted_BT=jnp.asarray(emitted, jnp.int32),
      num_emitted_B=jnp.asarray([2, 4, 3, 4], jnp.int32),
      num_drafted_B=jnp.asarray([3, 3, 2, 0], jnp.int32),
      num_tested_B=jnp.asarray([2, 3, 2, 0], jnp.int32),
      log_probs=None,
  )
  cache = state.cache.replace(len_B=state.cache.len_B + 4)
  return state_lib.commit(state, cache, **(settings | changes))


def test_commit_appends_what_is_kept_behind_each_text(make_state):
  after = _commit(make_state)
  texts = [
      row[:n].tolist()
      for row, n in zip(
          np.asarray(after.tokens_BS), np.asarray(after.seq_len_B), strict=True
      )
  ]
  assert texts == [[7, 5, 6], [7, 8, 5, 2], [7, 8, 9, 5, 6], [7, 8, 9, 6]]
  np.testing.assert_array_equal(after.prompt_len_B, [1, 2, 3, 4])


def test_commit_marks_rows_done_and_says_why(make_state):
  after = _commit(make_state)
  np.testing.assert_array_equal(after.done_B, [False, True, True, True])
  np.testing.assert_array_equal(
      after.reason_B, [RUNNING, STOP_ID, LENGTH, LENGTH]
  )


def test_commit_leaves_the_cache_one_token_behind_the_text(make_state):
  after = _commit(make_state)
  np.testing.assert_array_equal(after.cache.len_B, after.seq_len_B - 1)


def test_commit_writes_log_probs_at_the_index_of_their_token(make_state):
  chosen_BT = -jnp.arange(1.0, 17).reshape(4, 4)
  new = LogProbs(
      chosen_BT=chosen_BT,
      top_ids_BTE=jnp.broadcast_to(jnp.arange(20), (4, 4, 20)),
      top_BTE=chosen_BT[..., None] - jnp.arange(20.0)[None, None],
  )
  after = _commit(make_state, recorded='top', log_probs=new).log_probs
  chosen = np.asarray(after.chosen_BT)
  np.testing.assert_array_equal(chosen[0, :3], [0, -1, -2])
  np.testing.assert_array_equal(chosen[1, :4], [0, 0, -5, -6])
  np.testing.assert_array_equal(chosen[2, :5], [0, 0, 0, -9, -10])
  np.testing.assert_array_equal(chosen[3, :4], [0, 0, 0, 0])
  for row, start in enumerate((1, 2, 3)):
    np.testing.assert_array_equal(
        after.top_BTE[row, start : start + 4], new.top_BTE[row]
    )
    np.testing.assert_array_equal(after.top_ids_BTE[row, start], range(20))
    assert not np.asarray(after.top_BTE[row, :start]).any()


def test_commit_without_log_probs_records_none(make_state):
  assert _commit(make_state).log_probs is None


def _counts(state) -> counts.Counts:
  spans = np.stack([state.prompt_len_B, state.seq_len_B], axis=1).tolist()
  return counts.count(jax.device_get(state.origins), spans, num_draft_tokens=3)


def test_counts_hold_what_lies_before_the_cut(make_state):
  got = _counts(_commit(make_state))
  np.testing.assert_array_equal(got.rounds, [1, 1, 1, 0])
  np.testing.assert_array_equal(got.drafted, [3, 3, 2, 0])
  np.testing.assert_array_equal(
      got.tested,
      # Row 1 kept two of its four tokens, both drafted ones.
      [[1, 1, 0], [1, 1, 0], [1, 1, 0], [0, 0, 0]],
  )
  np.testing.assert_array_equal(
      got.accepted,
      [[1, 0, 0], [1, 1, 0], [1, 1, 0], [0, 0, 0]],
  )


def test_counts_add_up_over_rounds(make_state):
  state = make_state([[7]], limits=[14])
  for num_emitted, num_tested in ((4, 3), (1, 1), (2, 2), (1, 0)):
    state = state_lib.commit(
        state,
        state.cache,
        emitted_BT=jnp.zeros((1, 4), jnp.int32),
        num_emitted_B=jnp.asarray([num_emitted], jnp.int32),
        num_drafted_B=jnp.asarray([num_tested], jnp.int32),
        num_tested_B=jnp.asarray([num_tested], jnp.int32),
        log_probs=None,
    )
  got = _counts(state)
  assert int(state.num_rounds) == got.rounds[0] == 4
  np.testing.assert_array_equal(got.drafted, [6])
  np.testing.assert_array_equal(got.tested, [[3, 2, 1]])
  np.testing.assert_array_equal(got.accepted, [[2, 1, 1]])
  assert int(state.seq_len_B[0]) == 9


def test_a_done_row_stays_as_it_is_whatever_rounds_emit(make_state):
  state = make_state([[7, 2]], limits=[9], stop_ids=(2,), done=[True])
  after = state
  for _ in range(3):
    after = state_lib.commit(
        after,
        after.cache,
        emitted_BT=jnp.full((1, 4), 5, jnp.int32),
        num_emitted_B=jnp.asarray([4], jnp.int32),
        num_drafted_B=jnp.asarray([3], jnp.int32),
        num_tested_B=jnp.asarray([3], jnp.int32),
        log_probs=None,
    )
  np.testing.assert_array_equal(after.seq_len_B, [2])
  np.testing.assert_array_equal(after.tokens_BS[0, :2], [7, 2])
  np.testing.assert_array_equal(after.reason_B, state.reason_B)
  assert _counts(after).rounds[0] == 0


def test_last_token_and_next_positions_follow_each_length(make_state):
  state = make_state([[7], [7, 8, 0]], limits=[9, 9])
  np.testing.assert_array_equal(state_lib.last_token(state), [[7], [0]])
  np.testing.assert_array_equal(
      state_lib.next_positions(state, 3), [[1, 2, 3], [3, 4, 5]]
  )
