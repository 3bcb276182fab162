import numpy as np
import pytest

from speculative.bench import loops

# Nothing in it comes twice.
_TEXT = list(range(100, 220))


@pytest.mark.parametrize('period', [1, 2, 3, 7, 16, 32])
def test_a_sequence_that_comes_again_and_again_is_a_loop(period):
  turn = list(range(period))
  assert loops.ends_in_loop(_TEXT + turn * 40)
  # Wherever in a turn the budget cuts it.
  assert loops.ends_in_loop(_TEXT + turn * 40 + turn[: period // 2])


@pytest.mark.parametrize(
    'ids',
    [
        [],
        [7],
        [7] * 23,
        _TEXT,
        _TEXT + list(range(16)) * 2,
        _TEXT + list(range(33)) * 4,
        [5] * 60 + [2],
        np.random.default_rng(0).integers(0, 4, 500).tolist(),
    ],
    ids=[
        'nothing',
        'one token',
        'a short run',
        'a text',
        'a line that comes twice',
        'turns too long to call them that',
        'a loop that ended with an end token',
        'chance, of four tokens',
    ],
)
def test_other_texts_are_left_alone(ids):
  assert not loops.ends_in_loop(ids)


def test_one_different_token_breaks_the_turns():
  ids = _TEXT + [1, 2, 3] * 8
  assert loops.ends_in_loop(ids)
  for back in range(1, 25):
    broken = list(ids)
    broken[-back] = 9
    assert not loops.ends_in_loop(broken)
