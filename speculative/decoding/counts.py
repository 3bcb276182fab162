"""Where every emitted token came from, and the counts that follow from it.

The record is kept a token. So whatever cuts a text (a stop id, the budget, or a
stop string that the host finds some rounds later) cuts its counts at the same
token, and they do not depend on how often the host looked.
"""

from collections.abc import Sequence
import dataclasses

import flax.struct
import jax
from jax import numpy as jnp
import numpy as np


@flax.struct.dataclass
class Origins:
  """Where the tokens at some positions of every row came from.

  The positions are the T of a round, or in `DecodeState` the S of the text.

  Attributes:
    place_BT: int32, in the token's round; 0 is its first.
    drafted_BT: int32, valid drafted tokens of the round, at its first token; 0
      at the others.
    tested_BT: bool, whether the drafted token of this place was tested.
    accepted_BT: bool, whether it was kept, so that this token is it.
  """

  place_BT: jax.Array
  drafted_BT: jax.Array
  tested_BT: jax.Array
  accepted_BT: jax.Array


@dataclasses.dataclass(frozen=True)
class Counts:
  """What happened in every row.

  Attributes:
    starts: index among the new tokens of the first of every round, a row.
    rounds: rounds that brought tokens, [B].
    drafted: valid drafted tokens of those rounds, [B].
    tested: how often the drafted token of each place was tested, [B, J].
    accepted: how often it was kept, [B, J].
  """

  starts: list[np.ndarray]
  rounds: np.ndarray
  drafted: np.ndarray
  tested: np.ndarray
  accepted: np.ndarray


def empty(batch: int, num_positions: int) -> Origins:
  """Returns the record of rows that have no new token yet.

  Args:
    batch: B.
    num_positions: S.

  Returns:
    Every leaf a buffer of its own.
  """
  shape = (batch, num_positions)
  return Origins(
      place_BT=jnp.zeros(shape, jnp.int32),
      drafted_BT=jnp.zeros(shape, jnp.int32),
      tested_BT=jnp.zeros(shape, bool),
      accepted_BT=jnp.zeros(shape, bool),
  )


def of_round(
    num_places: int,
    *,
    num_drafted_B: jax.Array,
    num_tested_B: jax.Array,
    num_accepted_B: jax.Array,
) -> Origins:
  """Returns where a round's tokens came from, cut or not.

    3 drafted, 2 tested, 1 accepted -> place 0 1 2 3, drafted 3 0 0 0,
    tested 1 1 0 0, accepted 1 0 0 0

  Args:
    num_places: T, most tokens a round emits.
    num_drafted_B: int32, valid drafted tokens.
    num_tested_B: int32, how many of those were tested.
    num_accepted_B: int32, how many were kept.

  Returns:
    The Origins of T positions.
  """
  place_1T = jnp.arange(num_places, dtype=jnp.int32)[None, :]
  num_drafted_B1 = num_drafted_B[:, None]
  return Origins(
      place_BT=jnp.broadcast_to(place_1T, (num_drafted_B.shape[0], num_places)),
      drafted_BT=jnp.where(place_1T == 0, num_drafted_B1, 0),
      tested_BT=place_1T < num_tested_B[:, None],
      accepted_BT=place_1T < num_accepted_B[:, None],
  )


def count(
    origins: Origins,
    spans: Sequence[tuple[int, int]],
    *,
    num_draft_tokens: int,
) -> Counts:
  """Counts what happened up to where each row was cut.

  Args:
    origins: fetched from the device.
    spans: first position and end of the new tokens, a row.
    num_draft_tokens: J.

  Returns:
    The Counts.
  """

  def by_place(is_so_BT: jax.Array) -> np.ndarray:
    counts_BJ = np.zeros((len(spans), num_draft_tokens), np.int32)
    for row, (start, end) in enumerate(spans):
      places = origins.place_BT[row, start:end]
      counts_BJ[row] = np.bincount(
          places[is_so_BT[row, start:end]], minlength=num_draft_tokens
      )
    return counts_BJ

  rows = list(enumerate(spans))
  starts = [np.flatnonzero(origins.place_BT[b, i:j] == 0) for b, (i, j) in rows]
  return Counts(
      starts=starts,
      rounds=np.array([len(of_row) for of_row in starts]),
      drafted=np.array(
          [origins.drafted_BT[b, i:j].sum() for b, (i, j) in rows]
      ),
      tested=by_place(origins.tested_BT),
      accepted=by_place(origins.accepted_BT),
  )
