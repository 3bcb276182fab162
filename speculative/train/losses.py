"""How far a draft's law is from its target's, and the gradients of that.

p is the target's law of the next token and q the draft's, which has its whole
mass on the tokens W of its head; p has S = sum_W p <= 1 of it there. By token:

  cross-entropy     -log q(x), of the token x that the text has; none where x
                    is not in the head, which no weight could change
  divergence        sum_W p log(p / S q), S times the forward divergence
                    (Kullback-Leibler) of p among the head's tokens from q
  total variation   1 - sum_W min(p, q), the chance that a token drawn from q is
                    rejected (arXiv:2211.17192, corollary 3.6); alpha is the
                    rest

The mass 1 - S outside of the head is lost to every q; it is reported. Logits of
all positions would fill the memory, so they are made, differentiated and
dropped for a few positions at once.
"""

from collections.abc import Callable
import dataclasses

import flax.struct
import jax
from jax import numpy as jnp
from jax.scipy import special

# Of logits of the head's tokens from hidden states [B, T, D].
HeadLogits = Callable[[jax.Array, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class Mix:
  """What each loss counts.

  Attributes:
    cross_entropy: on the text.
    kl: the divergence.
    total_variation: the chance of a rejection.
  """

  cross_entropy: float = 0.0
  kl: float = 1.0
  total_variation: float = 0.0


@flax.struct.dataclass
class Terms:
  """Losses by token, [..., T], before weights.

  Attributes:
    cross_entropy: see the module.
    kl: see the module.
    acceptance: sum_W min(p, q), alpha of this position.
    in_head: sum_W p.
    agrees: 1 where p and q have the same likeliest token for certain, which is
      where p's likeliest in the head has at least the mass 1 - S outside of it:
      a lower bound if the head is partial. Zeros where nobody asked.
  """

  cross_entropy: jax.Array
  kl: jax.Array
  acceptance: jax.Array
  in_head: jax.Array
  agrees: jax.Array


@flax.struct.dataclass
class Teacher:
  """What the target says at every position.

  Attributes:
    hidden_BTD: its hidden state there, from which the next token follows.
    log_norm_BT: log-sum-exp of its logits over the whole vocabulary.
    label_BT: int32, the head's row of the text's next token; -1 where it is not
      in the head.
  """

  hidden_BTD: jax.Array
  log_norm_BT: jax.Array
  label_BT: jax.Array


def target_log_probs(
    head_WD: jax.Array, hidden_BTD: jax.Array, log_norm_BT: jax.Array
) -> jax.Array:
  """Returns the target's log-probabilities of the head's tokens, float32.

  Args:
    head_WD: rows of the target's head, in its own dtype.
    hidden_BTD: its hidden states.
    log_norm_BT: log-sum-exp of its logits over the whole vocabulary.
  """
  if not head_WD.dtype == hidden_BTD.dtype == jnp.bfloat16:
    head_WD = head_WD.astype(jnp.float32)
    hidden_BTD = hidden_BTD.astype(jnp.float32)
  # Float32 holds products of two bfloat16 numbers exactly.
  logits_BTW = jnp.einsum(
      'BTD,WD->BTW',
      hidden_BTD,
      head_WD,
      precision=jax.lax.Precision.HIGHEST,
      preferred_element_type=jnp.float32,
  )
  return logits_BTW - log_norm_BT[:, :, None]


def terms(
    log_p_BTW: jax.Array,
    log_q_BTW: jax.Array,
    label_BT: jax.Array,
    *,
    agreement: str = 'no',
) -> Terms:
  """Compares two laws.

  Args:
    log_p_BTW: the target's log-probabilities of the head's tokens.
    log_q_BTW: the draft's; minus infinity for what is no token.
    label_BT: see Teacher.
    agreement: 'yes' also compares the likeliest tokens.

  Returns:
    The Terms.
  """
  is_token_BTW = log_q_BTW > -jnp.inf
  log_p_BTW = jnp.where(is_token_BTW, log_p_BTW, -jnp.inf)
  p_BTW, q_BTW = jnp.exp(log_p_BTW), jnp.exp(log_q_BTW)
  found_BT = jnp.take_along_axis(
      log_q_BTW, jnp.maximum(label_BT, 0)[:, :, None], axis=-1
  )[:, :, 0]
  in_head_BT = p_BTW.sum(-1)
  # What is no token has p = q = 0, and 0 times infinity is not 0.
  gap_BTW = jnp.where(is_token_BTW, log_p_BTW - log_q_BTW, 0.0)
  kl_BT = (p_BTW * gap_BTW).sum(-1) - special.xlogy(in_head_BT, in_head_BT)
  agrees_BT = jnp.zeros_like(in_head_BT)
  if agreement == 'yes':
    best_BT1 = jnp.argmax(log_p_BTW, axis=-1, keepdims=True)
    has_BT = jnp.take_along_axis(log_q_BTW, best_BT1, axis=-1)[:, :, 0]
    # Otherwise a token outside of the head may be likelier.
    is_best_BT = p_BTW.max(-1) >= 1 - in_head_BT
    agrees_BT = (is_best_BT & (has_BT == log_q_BTW.max(-1))).astype(jnp.float32)
  return Terms(
      cross_entropy=jnp.where(label_BT >= 0, -found_BT, 0.0),
      kl=kl_BT,
      acceptance=jnp.minimum(p_BTW, q_BTW).sum(-1),
      in_head=in_head_BT,
      agrees=agrees_BT,
  )


def mixed(mix: Mix, found: Terms) -> jax.Array:
  """Returns the loss by token.

  Args:
    mix: what each loss counts; one that counts nothing is not computed.
    found: of the draft.
  """
  total = jnp.zeros_like(found.kl)
  if mix.cross_entropy:
    total += mix.cross_entropy * found.cross_entropy
  if mix.kl:
    total += mix.kl * found.kl
  if mix.total_variation:
    total += mix.total_variation * (1 - found.acceptance)
  return total


def log_norm(
    logits: Callable[[jax.Array], jax.Array],
    hidden_BTD: jax.Array,
    *,
    chunks: int,
) -> jax.Array:
  """Returns the log-sum-exp of a target's logits, [B, T].

  Args:
    logits: of hidden states.
    hidden_BTD: the target's.
    chunks: parts the positions are taken in, a divisor of T.
  """
  found = jax.lax.map(
      lambda x_BCD: jax.nn.logsumexp(logits(x_BCD), axis=-1),
      _apart(hidden_BTD, 1, chunks),
  )
  return _together(found, 1)


@flax.struct.dataclass
class Result:
  """What `compare` found.

  Attributes:
    loss: weighted sum over all steps and positions.
    terms: of every step, each [K, B, T].
    hidden_KBTD: gradient of the loss by the draft's hidden states.
    head: gradient by the head, None where it is not trained.
  """

  loss: jax.Array
  terms: Terms
  hidden_KBTD: jax.Array | None
  head: jax.Array | None


def num_chunks(rows: int, seq_len: int, head_size: int, limit: int) -> int:
  """Returns in how many parts of equal size a row's positions are taken.

  Args:
    rows: B of one device.
    seq_len: T.
    head_size: W.
    limit: most logits at once; one position of all rows may exceed it.
  """
  fits = max(1, limit // (rows * head_size))
  parts = (n for n in range(1, seq_len + 1) if seq_len % n == 0)
  return next(n for n in parts if seq_len // n <= fits)


def compare(
    head_logits: HeadLogits,
    head: jax.Array,
    hidden_KBTD: jax.Array,
    *,
    target_head_WD: jax.Array,
    teacher: Teacher,
    weight_KBT: jax.Array,
    mix: Mix,
    chunks: int,
    gradients: str,
    agreement: str = 'no',
) -> Result:
  """Compares what K training steps draft with the target, chunk by chunk.

  Args:
    head_logits: of the draft, called with its head and hidden states.
    head: the draft's, in the dtype of its products.
    hidden_KBTD: what the draft puts out in every step.
    target_head_WD: the target's head rows of the same tokens.
    teacher: the target.
    weight_KBT: what every position counts in the loss.
    mix: of losses.
    chunks: parts the positions are taken in, a divisor of T.
    gradients: 'none', by 'hidden', or by hidden states and the head ('both').
    agreement: see `terms`.

  Returns:
    The Result.
  """

  def one(head, hidden_KBCD, teacher, weight_KBC):
    found = _terms_of_chunk(
        head_logits, head, hidden_KBCD, target_head_WD, teacher, agreement
    )
    # What counts nothing may be infinite.
    loss = jnp.where(weight_KBC > 0, mixed(mix, found), 0.0) * weight_KBC
    return loss.sum(), found

  by = {'none': (), 'hidden': (1,), 'both': (0, 1)}[gradients]

  def chunk(carry, slices):
    loss, head_gradient = carry
    if not by:
      new_loss, found = one(head, *slices)
      return (loss + new_loss, head_gradient), (found, None)
    (new_loss, found), got = jax.value_and_grad(one, by, has_aux=True)(
        head, *slices
    )
    if gradients == 'both':
      head_gradient += got[0].astype(jnp.float32)
    return (loss + new_loss, head_gradient), (found, got[-1])

  nothing = jnp.zeros(head.shape if gradients == 'both' else (), jnp.float32)
  slices = (
      _apart(hidden_KBTD, 2, chunks),
      jax.tree.map(lambda x: _apart(x, 1, chunks), teacher),
      _apart(weight_KBT, 2, chunks),
  )
  (loss, head_gradient), (found, hidden) = jax.lax.scan(
      chunk, (jnp.zeros((), jnp.float32), nothing), slices
  )
  return Result(
      loss=loss,
      terms=jax.tree.map(lambda x: _together(x, 2), found),
      hidden_KBTD=None if hidden is None else _together(hidden, 2),
      head=head_gradient if gradients == 'both' else None,
  )


def _terms_of_chunk(
    head_logits, head, hidden_KBCD, target_head_WD, teacher, agreement
) -> Terms:
  """Returns the Terms of every step, each [K, B, C]."""
  log_p_BCW = target_log_probs(
      target_head_WD, teacher.hidden_BTD, teacher.log_norm_BT
  )
  each = [
      terms(
          log_p_BCW,
          jax.nn.log_softmax(head_logits(head, hidden_BCD), axis=-1),
          teacher.label_BT,
          agreement=agreement,
      )
      for hidden_BCD in hidden_KBCD
  ]
  return jax.tree.map(lambda *x: jnp.stack(x), *each)


def _apart(x: jax.Array, axis: int, chunks: int) -> jax.Array:
  """Splits an axis and brings the chunks to the front."""
  shape = x.shape
  parts = (*shape[:axis], chunks, shape[axis] // chunks, *shape[axis + 1 :])
  return jnp.moveaxis(x.reshape(parts), axis, 0)


def _together(x: jax.Array, axis: int) -> jax.Array:
  """Undoes `_apart`."""
  x = jnp.moveaxis(x, 0, axis)
  shape = x.shape
  return x.reshape(
      (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
  )
