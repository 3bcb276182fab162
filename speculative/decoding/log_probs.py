"""What is recorded of the target's law beside every emitted token.

The law is the target's own: softmax of its raw logits, before bias, penalties,
temperature and truncation, whatever the token was drawn from. Plain decoding
and speculation record by the same function.
"""

from collections.abc import Sequence

import flax.struct
import jax
from jax import numpy as jnp
import numpy as np

# What the device can record: nothing, the emitted token, or the likeliest too.
KINDS = ('none', 'chosen', 'top')
# As many as OpenAI's interface gives. The device always records this many, for
# choosing twenty tokens costs no more than choosing one, and so asking for
# another number compiles nothing; the host hands over those asked for.
MOST_TOP = 20


@flax.struct.dataclass
class LogProbs:
  """Log-probabilities at some positions of every row.

  The positions are the T of a pass, or in `DecodeState` the S of the text.

  Attributes:
    chosen_BT: float32, of the emitted token.
    top_ids_BTE: int32, the likeliest tokens, likeliest first, equals in the
      order of their ids; E is MOST_TOP, or 0 where they are not recorded.
    top_BTE: float32, theirs; minus infinity where the vocabulary has fewer.
  """

  chosen_BT: jax.Array
  top_ids_BTE: jax.Array
  top_BTE: jax.Array


def empty(kind: str, batch: int, num_positions: int) -> LogProbs | None:
  """Returns the buffer of a kind.

  Args:
    kind: one of KINDS.
    batch: B.
    num_positions: S.

  Returns:
    Zeros, every leaf a buffer of its own; None for 'none'.
  """
  if kind == 'none':
    return None
  E = MOST_TOP if kind == 'top' else 0
  shape = (batch, num_positions)
  return LogProbs(
      chosen_BT=jnp.zeros(shape),
      top_ids_BTE=jnp.zeros((*shape, E), jnp.int32),
      top_BTE=jnp.zeros((*shape, E)),
  )


def _likeliest(
    logits_BTV: jax.Array, num: int, num_parts: int
) -> tuple[jax.Array, jax.Array]:
  """Returns the largest logits and their ids, [B, T, num] each.

  Part by part first: over a vocabulary that a mesh splits, one `top_k` would
  gather whole rows. Equals stay in the order of their ids.
  """
  B, T, V = logits_BTV.shape
  if V % num_parts:
    num_parts = 1
  width = V // num_parts
  parts_BTPW = logits_BTV.reshape(B, T, num_parts, width)
  best_BTPE, within_BTPE = jax.lax.top_k(parts_BTPW, min(num, width))
  start_P = jnp.arange(num_parts, dtype=jnp.int32) * width
  ids_BTPE = within_BTPE + start_P[None, None, :, None]
  top_BTE, at_BTE = jax.lax.top_k(best_BTPE.reshape(B, T, -1), num)
  ids_BTE = jnp.take_along_axis(ids_BTPE.reshape(B, T, -1), at_BTE, axis=-1)
  return top_BTE, ids_BTE


def of_tokens(
    buffer: LogProbs | None,
    logits_BTV: jax.Array,
    tokens_BT: jax.Array,
    *,
    num_parts: int = 1,
) -> LogProbs | None:
  """Returns what the rows record of a pass.

    law [.5 .2 .3], token 1: chosen log .2, top ids [0, 2, 1]

  Args:
    buffer: of the rows; says what they record.
    logits_BTV: float32, raw logits of the target.
    tokens_BT: int32, what was emitted.
    num_parts: devices the vocabulary may be split over.

  Returns:
    LogProbs of T positions; None where nothing is recorded.
  """
  if buffer is None:
    return None
  total_BT1 = jax.nn.logsumexp(logits_BTV, axis=-1, keepdims=True)
  chosen_BT1 = jnp.take_along_axis(logits_BTV, tokens_BT[..., None], axis=-1)
  E = buffer.top_BTE.shape[-1]
  num_top = min(E, logits_BTV.shape[-1])
  top_BTE, ids_BTE = _likeliest(logits_BTV, num_top, num_parts)
  lacking = ((0, 0), (0, 0), (0, E - num_top))
  return LogProbs(
      chosen_BT=(chosen_BT1 - total_BT1)[..., 0],
      top_ids_BTE=jnp.pad(ids_BTE, lacking),
      top_BTE=jnp.pad(top_BTE - total_BT1, lacking, constant_values=-jnp.inf),
  )


def chosen_lists(
    buffer: LogProbs | None, spans: Sequence[tuple[int, int]]
) -> list[list[float]] | None:
  """Returns the emitted tokens' log-probabilities.

  Args:
    buffer: fetched from the device.
    spans: first position and end of the new tokens, a row.

  Returns:
    A list a row; None where nothing was recorded.
  """
  if buffer is None:
    return None
  return [
      buffer.chosen_BT[row, start:end].tolist()
      for row, (start, end) in enumerate(spans)
  ]


def top_lists(
    buffer: LogProbs | None, spans: Sequence[tuple[int, int]], *, num_top: int
) -> list[list[list[tuple[int, float]]]] | None:
  """Returns the likeliest tokens at every emitted one.

  Args:
    buffer: fetched from the device.
    spans: as `chosen_lists`.
    num_top: how many of each; 0 where they were not recorded.

  Returns:
    A list a row, of lists a token, of pairs of id and log-probability; tokens
    of probability zero are left out. None where they were not recorded.
  """
  if buffer is None or num_top == 0:
    return None

  def pairs(ids_E: np.ndarray, top_E: np.ndarray) -> list[tuple[int, float]]:
    listed = zip(ids_E.tolist(), top_E.tolist(), strict=True)
    return [(i, value) for i, value in listed if value > -np.inf]

  return [
      [
          pairs(
              buffer.top_ids_BTE[row, at, :num_top],
              buffer.top_BTE[row, at, :num_top],
          )
          for at in range(start, end)
      ]
      for row, (start, end) in enumerate(spans)
  ]
