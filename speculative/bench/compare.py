"""Sets two runs of the same prompts side by side, token for token."""

from collections.abc import Sequence
import dataclasses
import functools

import jax
import numpy as np

from speculative.decoding import engine as engine_lib
from speculative.models import transformer
from speculative.models.params import Params


@dataclasses.dataclass(frozen=True)
class Divergence:
  """The first token at which a run left plain decoding.

  Attributes:
    prompt: index of the prompt.
    position: index among the new tokens.
    plain_token: what plain decoding emitted, -1 where it had ended.
    other_token: what the other run emitted, -1 where it had ended.
    logit_gap: logit of plain_token minus that of other_token, None where one
      had ended: a gap near zero is a tie that rounding decides.
  """

  prompt: int
  position: int
  plain_token: int
  other_token: int
  logit_gap: float | None


def first_difference(plain: Sequence[int], other: Sequence[int]) -> int | None:
  """Returns the first index at which two lists differ, None if they do not."""
  for index, (a, b) in enumerate(zip(plain, other, strict=False)):
    if a != b:
      return index
  return None if len(plain) == len(other) else min(len(plain), len(other))


def _logits_after(
    model: transformer.Transformer, params: Params, ids: Sequence[int]
) -> np.ndarray:
  tokens_1T = np.zeros((1, engine_lib.bucket(len(ids))), np.int32)
  tokens_1T[0, : len(ids)] = ids
  return np.asarray(
      _logits_at(params, tokens_1T, np.int32(len(ids) - 1), model=model)
  )


# Compiled once a bucket: op by op, a large model takes seconds a call.
@functools.partial(jax.jit, static_argnames='model')
def _logits_at(
    params: Params,
    tokens_1T: jax.Array,
    index: jax.Array,
    *,
    model: transformer.Transformer,
) -> jax.Array:
  cache = model.init_cache(1, tokens_1T.shape[1] + model.slack)
  out = model.forward(params, tokens_1T, cache)
  last_11D = jax.lax.dynamic_slice_in_dim(out.hidden_BTD, index, 1, axis=1)
  # Every host reads all of it.
  return model.placement.replicate(model.logits(params, last_11D)[0, 0])


def divergence(
    model: transformer.Transformer,
    params: Params,
    *,
    prompt: int,
    prompt_ids: Sequence[int],
    plain: Sequence[int],
    other: Sequence[int],
) -> Divergence | None:
  """Finds where a run left plain decoding, and how near the choice was.

  Args:
    model: the target.
    params: its weights.
    prompt: index of the prompt.
    prompt_ids: its tokens.
    plain: new tokens of plain decoding.
    other: new tokens of the other run.

  Returns:
    The Divergence, or None if the runs are equal.
  """
  index = first_difference(plain, other)
  if index is None:
    return None
  tokens = [ids[index] if index < len(ids) else -1 for ids in (plain, other)]
  gap = None
  if min(tokens) >= 0:
    logits_V = _logits_after(model, params, [*prompt_ids, *plain[:index]])
    gap = float(logits_V[tokens[0]] - logits_V[tokens[1]])
  return Divergence(prompt, index, *tokens, logit_gap=gap)


def unequal(
    plain: Sequence[Sequence[int]], other: Sequence[Sequence[int]]
) -> list[int]:
  """Returns the indices of the rows that are not equal."""
  return [
      row
      for row, (a, b) in enumerate(zip(plain, other, strict=True))
      if first_difference(a, b) is not None
  ]
