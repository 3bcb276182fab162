"""The text so far as a store: what followed earlier matches of its own end.

Prompt and output together are searched (LLMA, arXiv:2304.04487; prompt look-up
decoding). Where a continuation meets the end of the text it goes round: a text
that repeats with period d goes on with period d.
"""

import jax
from jax import numpy as jnp

from speculative.retrieval import search
from speculative.retrieval.search import Continuations


def match_lengths(
    tokens_BS: jax.Array, seq_len_B: jax.Array, max_ngram: int
) -> jax.Array:
  """Measures for every earlier position how much of the text's end it repeats.

    text 1 2 3 9 1 2 3, max_ngram 3: at index 2 (1 2 3) the length is 3

  Args:
    tokens_BS: int32.
    seq_len_B: int32, tokens that count.
    max_ngram: longest length looked at.

  Returns:
    int32 [B, S]: at index i the number of tokens, up to max_ngram, for which
    text[..i] ends like the whole text does; 0 from the last token on.
  """
  S = tokens_BS.shape[1]
  index_S = jnp.arange(S, dtype=jnp.int32)
  length_BS = jnp.zeros(tokens_BS.shape, jnp.int32)
  equal_BS = index_S[None, :] < seq_len_B[:, None] - 1
  for back in range(max_ngram):
    end_B1 = (seq_len_B - 1 - back)[:, None]
    wanted_B1 = jnp.take_along_axis(tokens_BS, jnp.maximum(end_B1, 0), axis=1)
    shifted_BS = jnp.roll(tokens_BS, back, axis=1)
    equal_BS &= (shifted_BS == wanted_B1) & (index_S[None, :] >= back)
    equal_BS &= end_B1 >= 0
    length_BS += equal_BS
  return length_BS


def continuations(
    tokens_BS: jax.Array,
    seq_len_B: jax.Array,
    *,
    max_ngram: int,
    min_ngram: int = 1,
    num_rows: int,
    length: int,
    weight: int = 1,
    backoff: bool = False,
) -> Continuations:
  """Returns what followed the longest earlier matches, the latest first.

    text 1 2 3 1 2 5 1 2, two rows of four tokens: 5 1 2 5 | 3 1 2 5

  Args:
    tokens_BS: int32.
    seq_len_B: int32, tokens that count.
    max_ngram: longest end of the text that is looked for.
    min_ngram: shortest that counts.
    num_rows: R, most occurrences.
    length: C.
    weight: of every row.
    backoff: whether shorter matches come after them, and the weight is times
      `search.worth`.

  Returns:
    The Continuations; of a text that does not repeat its end, none.
  """
  B, S = tokens_BS.shape
  length_BS = match_lengths(tokens_BS, seq_len_B, max_ngram)
  longest_B1 = jnp.max(length_BS, axis=1, keepdims=True)
  index_BS = jax.lax.broadcasted_iota(jnp.int32, (B, S), 1)
  least = min_ngram if backoff else jnp.maximum(longest_B1, min_ngram)
  is_match_BS = length_BS >= least
  num = min(num_rows, S)
  rank_BS = jnp.where(is_match_BS, length_BS * S + index_BS, -1)
  rank_BR, _ = jax.lax.top_k(rank_BS, num)
  rank_BR = jnp.pad(rank_BR, ((0, 0), (0, num_rows - num)), constant_values=-1)
  is_row_BR = rank_BR >= 0
  matched_BR, last_BR = jnp.divmod(jnp.maximum(rank_BR, 0), S)
  weight_BR = weight * (search.worth(matched_BR) if backoff else 1)
  period_BR1 = jnp.maximum(seq_len_B[:, None] - 1 - last_BR, 1)[..., None]
  step_BRC = jax.lax.broadcasted_iota(jnp.int32, (B, num_rows, length), 2)
  source_BRC = last_BR[..., None] + 1 + step_BRC % period_BR1
  read_BX = jnp.take_along_axis(
      tokens_BS, source_BRC.reshape(B, num_rows * length), axis=1
  )
  return Continuations(
      tokens_BRC=jnp.where(
          is_row_BR[..., None], read_BX.reshape(B, num_rows, length), 0
      ),
      len_BR=jnp.where(is_row_BR, length, 0).astype(jnp.int32),
      weight_BR=jnp.where(is_row_BR, weight_BR, 0).astype(jnp.int32),
  )
