"""Finds texts that go round in circles.

Small models that decode greedily often end in a loop, and a drafter that looks
earlier text up is never wrong in one: what it gains there says little of what
it gains on a text that goes on.
"""

from collections.abc import Sequence

# Longest sequence that counts as one turn, turns to see, and tokens at least:
# a line of code may well come three times, and a number have many zeros.
MOST_PERIOD = 32
_TURNS = 3
_LEAST_TOKENS = 24


def ends_in_loop(ids: Sequence[int]) -> bool:
  """Returns whether a text ends in three turns or more of one sequence.

    ... 7 8 9 7 8 9 7 8 9 7 8 9 7 8 9 7 8 9 7 8 9 7 8 9: eight turns of 7 8 9

  Args:
    ids: new tokens of a row. A row that reached an end token got out of its
      loop, if it was in one.

  Returns:
    True if for some period of at most 32 tokens the last three periods, and at
    least 24 tokens, repeat with it.
  """
  for period in range(1, MOST_PERIOD + 1):
    window = max(_TURNS * period, _LEAST_TOKENS)
    tail = list(ids[-window:])
    if len(tail) == window and tail[period:] == tail[:-period]:
      return True
  return False
