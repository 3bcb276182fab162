"""How many tokens a draft reads before it drafts.

A draft that may lack many tokens of the text, because a long look-up can be
kept whole, mostly lacks few: the program has a narrow pass for those rounds.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import numpy as jnp

# A shallow tree kept whole and the target's own token behind it.
FEW = 4


def read(
    num_new_B: jax.Array, most: int, in_pass_of: Callable[[int], Any]
) -> Any:
  """Reads what is new to a draft, in a pass no wider than need be.

  Args:
    num_new_B: int32, tokens of the text that the draft lacks.
    most: that it can lack.
    in_pass_of: reads so many tokens of every row.

  Returns:
    What `in_pass_of` returns, the same shapes for any width.
  """
  # One more than half as wide saves less than what compiling it takes.
  if most < 2 * FEW:
    return in_pass_of(most)
  return jax.lax.cond(
      jnp.max(num_new_B) <= FEW,
      lambda: in_pass_of(FEW),
      lambda: in_pass_of(most),
  )
