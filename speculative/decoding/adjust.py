"""What a row's own text does to its logits: bias, minimum length, penalties.

Order of operations, before `logits.warp_logits`: logit bias is added, ids that
would end the row are ruled out until it has min_new_tokens, then come the
repetition, presence and frequency penalties. Names and rules are vLLM's.

The text before a drafted position includes the drafts before it. Counts are
made from the text whenever they are needed and kept nowhere: nothing of a
rejected draft can stay in them.
"""

import flax.struct
import jax
from jax import numpy as jnp


@flax.struct.dataclass
class Adjustment:
  """How the logits of every row depend on its text; traced.

  Attributes:
    repetition_B: float32 > 0; a positive logit of a token that occurs in prompt
      or output is divided by it, a negative one multiplied. 1 is off.
    presence_B: float32, taken off the logit of a token in the output. 0 is off.
    frequency_B: float32, taken off for every time it is in the output.
    bias_ids_BE: int32, tokens whose logits get a bias; padded with -1.
    bias_BE: float32, the biases.
    min_new_tokens_B: int32, new tokens before the row may end by itself.
  """

  repetition_B: jax.Array
  presence_B: jax.Array
  frequency_B: jax.Array
  bias_ids_BE: jax.Array
  bias_BE: jax.Array
  min_new_tokens_B: jax.Array


@flax.struct.dataclass
class Text:
  """The committed text of every row.

  Attributes:
    tokens_BS: int32, rubbish from seq_len on.
    seq_len_B: int32.
    prompt_len_B: int32.
    stop_ids_BE: int32, padded with -1.
  """

  tokens_BS: jax.Array
  seq_len_B: jax.Array
  prompt_len_B: jax.Array
  stop_ids_BE: jax.Array


@flax.struct.dataclass
class Drafts:
  """Drafted tokens that follow the committed text.

  Attributes:
    tokens_BM: int32.
    before_TM: bool, [t, m] is true where drafted token m comes before the
      token that row t of the logits decides.
  """

  tokens_BM: jax.Array
  before_TM: jax.Array

  @property
  def width(self) -> int:
    """Drafted tokens that may come before one of the logits' rows."""
    return self.tokens_BM.shape[1]

  def num_before(self) -> jax.Array:
    """Returns [1, T] how many drafts come before what row t decides."""
    return self.before_TM.sum(axis=1)[None, :]

  def tokens(self, num_rows: int) -> jax.Array:
    """Returns [B, T, M] the drafted tokens, for T rows."""
    B, M = self.tokens_BM.shape
    return jnp.broadcast_to(self.tokens_BM[:, None, :], (B, num_rows, M))

  def counts(self, base_BV: jax.Array) -> jax.Array:
    """Returns [B, T, M] how often each token comes before, text and drafts."""
    tokens_BM = self.tokens_BM
    base_BM = jnp.take_along_axis(base_BV, tokens_BM, axis=1)
    same_BMM = tokens_BM[:, :, None] == tokens_BM[:, None, :]
    drafted_BTM = jnp.einsum(
        'TM,BMN->BTN',
        self.before_TM.astype(jnp.int32),
        same_BMM.astype(jnp.int32),
    )
    return base_BM[:, None, :] + drafted_BTM

  def before(self) -> jax.Array:
    """Returns [1, T, M] which drafts come before."""
    return self.before_TM[None]


@flax.struct.dataclass
class PathDrafts:
  """Drafted tokens of trees: before each row those on its own path.

  A is the longest path.

  Attributes:
    tokens_BTA: int32, in any order.
    before_BTA: bool, which of them there are.
  """

  tokens_BTA: jax.Array
  before_BTA: jax.Array

  @property
  def width(self) -> int:
    """As `Drafts`."""
    return self.tokens_BTA.shape[2]

  def num_before(self) -> jax.Array:
    """As `Drafts`, [B, T]."""
    return self.before_BTA.sum(axis=2)

  def tokens(self, num_rows: int) -> jax.Array:
    """As `Drafts`."""
    del num_rows
    return self.tokens_BTA

  def counts(self, base_BV: jax.Array) -> jax.Array:
    """As `Drafts`."""
    B, T, A = self.tokens_BTA.shape
    base_BR = jnp.take_along_axis(
        base_BV, self.tokens_BTA.reshape(B, T * A), axis=1
    )
    same_BTAA = self.tokens_BTA[..., None, :] == self.tokens_BTA[..., None]
    drafted_BTA = (same_BTAA & self.before_BTA[..., None, :]).sum(axis=-1)
    return base_BR.reshape(B, T, A) + drafted_BTA

  def before(self) -> jax.Array:
    """As `Drafts`, [B, T, A]."""
    return self.before_BTA


def chain_drafts(tokens_BJ: jax.Array) -> Drafts:
  """Returns the Drafts of a pass over a chain: row t follows t drafts."""
  J = tokens_BJ.shape[1]
  row_T = jnp.arange(J + 1)
  return Drafts(tokens_BJ, jnp.arange(J)[None, :] < row_T[:, None])


def no_drafts(seq_len_B: jax.Array) -> Drafts:
  """Returns the Drafts of a pass over the last committed token alone."""
  return chain_drafts(jnp.zeros((seq_len_B.shape[0], 0), jnp.int32))


def _column(x_B: jax.Array) -> jax.Array:
  return x_B[:, None, None]


def is_active(adjustment: Adjustment) -> jax.Array:
  """Tells whether any row asks for anything."""
  return (
      jnp.any(adjustment.repetition_B != 1)
      | jnp.any(adjustment.presence_B != 0)
      | jnp.any(adjustment.frequency_B != 0)
      | jnp.any(adjustment.bias_ids_BE >= 0)
      | jnp.any(adjustment.min_new_tokens_B > 0)
  )


def _or_dropped(ids: jax.Array, vocab_size: int) -> jax.Array:
  """Moves padding beyond the vocabulary, where a scatter drops it."""
  return jnp.where(ids >= 0, ids, vocab_size)


def _add_bias(adjustment: Adjustment, logits_BTV: jax.Array) -> jax.Array:
  ids_BE = _or_dropped(adjustment.bias_ids_BE, logits_BTV.shape[-1])

  def one_row(logits_TV, ids_E, bias_E):
    return logits_TV.at[:, ids_E].add(bias_E[None, :], mode='drop')

  return jax.vmap(one_row)(logits_BTV, ids_BE, adjustment.bias_BE)


def _forbid_end(
    adjustment: Adjustment,
    text: Text,
    drafts: Drafts | PathDrafts,
    logits_BTV: jax.Array,
) -> jax.Array:
  V = logits_BTV.shape[-1]
  num_drafts_BT = drafts.num_before()
  new_BT = (text.seq_len_B - text.prompt_len_B)[:, None] + num_drafts_BT
  too_short_BT = new_BT < adjustment.min_new_tokens_B[:, None]
  ids_BE = _or_dropped(text.stop_ids_BE, V)

  def one(logits_V, too_short, ids_E):
    ids_E = jnp.where(too_short, ids_E, V)
    return logits_V.at[ids_E].set(-jnp.inf, mode='drop')

  rows = jax.vmap(one, in_axes=(0, 0, None))
  return jax.vmap(rows)(logits_BTV, too_short_BT, ids_BE)


def _counts(text: Text, vocab_size: int) -> tuple[jax.Array, jax.Array]:
  """Returns how often each token is in the output, and whether in the text."""
  index_S = jnp.arange(text.tokens_BS.shape[1])
  in_text_BS = index_S[None, :] < text.seq_len_B[:, None]
  in_output_BS = in_text_BS & (index_S[None, :] >= text.prompt_len_B[:, None])

  def one_row(tokens_S, weights_S):
    return jnp.zeros(vocab_size, jnp.int32).at[tokens_S].add(weights_S)

  count = jax.vmap(one_row)
  counts_BV = count(text.tokens_BS, in_output_BS.astype(jnp.int32))
  return counts_BV, count(text.tokens_BS, in_text_BS.astype(jnp.int32)) > 0


def _rounded(product: jax.Array, zero: jax.Array) -> jax.Array:
  """Returns a product that no compiler fuses with what is added to it.

  Plain decoding and a pass over drafts are different programs; a product fused
  with a difference in one of them only would be rounded differently there.

  Args:
    product: float32.
    zero: int32 zero that the compiler cannot know to be one.
  """
  bits = jax.lax.bitcast_convert_type(product, jnp.int32) + zero
  return jax.lax.bitcast_convert_type(bits, jnp.float32)


def _penalise(
    adjustment: Adjustment,
    text: Text,
    logits: jax.Array,
    counts: jax.Array,
    seen: jax.Array,
) -> jax.Array:
  """Applies the three penalties; all arrays are [B, T, tokens]."""
  zero = _column(jnp.minimum(text.seq_len_B, 0))
  more = _column(adjustment.repetition_B)
  factor = jnp.where(seen, jnp.where(logits > 0, 1 / more, more), 1)
  repeated = _rounded(logits * factor, zero)
  often = _rounded(_column(adjustment.frequency_B) * counts, zero)
  once = jnp.where(counts > 0, _column(adjustment.presence_B), 0)
  return repeated - often - once


def _apply_penalties(
    adjustment: Adjustment,
    text: Text,
    drafts: Drafts | PathDrafts,
    logits_BTV: jax.Array,
) -> jax.Array:
  V = logits_BTV.shape[-1]
  counts_BV, seen_BV = _counts(text, V)
  penalised_BTV = _penalise(
      adjustment, text, logits_BTV, counts_BV[:, None], seen_BV[:, None]
  )
  if drafts.width == 0:
    return penalised_BTV
  # Only the drafted tokens themselves count differently from row to row: those
  # few logits are made anew from the unpenalised ones.
  counts_BTM = drafts.counts(counts_BV)
  tokens_BTM = drafts.tokens(logits_BTV.shape[1])
  mended_BTM = _penalise(
      adjustment,
      text,
      jnp.take_along_axis(logits_BTV, tokens_BTM, axis=2),
      counts_BTM,
      jnp.ones(tokens_BTM.shape, bool),
  )
  where_BTM = jnp.where(drafts.before(), tokens_BTM, V)

  def one(logits_V, where_M, mended_M):
    return logits_V.at[where_M].set(mended_M, mode='drop')

  return jax.vmap(jax.vmap(one))(penalised_BTV, where_BTM, mended_BTM)


def adjust_logits(
    adjustment: Adjustment,
    text: Text,
    drafts: Drafts | PathDrafts,
    logits_BTV: jax.Array,
) -> jax.Array:
  """Returns logits with bias, minimum length and penalties applied.

    output 5 5, frequency 1, drafts [5, 7]: row 0 takes 2 off token 5; row 1,
    after draft 5, takes 3 off it; row 2, after 5 and 7, also 1 off token 7.

  Args:
    adjustment: of every row.
    text: committed so far.
    drafts: drafted tokens after it; of width 0 where there are none.
    logits_BTV: float32, raw.

  Returns:
    float32 [B, T, V]; the argument itself where no row asks for anything.
  """

  def active() -> jax.Array:
    biased_BTV = _add_bias(adjustment, logits_BTV)
    open_BTV = _forbid_end(adjustment, text, drafts, biased_BTV)
    return _apply_penalties(adjustment, text, drafts, open_BTV)

  return jax.lax.cond(is_active(adjustment), active, lambda: logits_BTV)
