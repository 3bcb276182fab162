"""Plain decoding that keeps what the target computed of every token.

Decoding runs every token through the target once. Keeping its hidden state
then, and the normaliser of the logits the next token is drawn from, saves a
second pass over the finished text, which would cost about as much again.

Hidden states are kept in bfloat16. With weights in bfloat16 the head rounds its
inputs alike, and the logits drawn from are those of the kept states. With
float32 weights they are of the states before rounding, so that the normaliser
of a new token is off by what rounding does to logits, 2^-8 |head[v]| |hidden|
at most and far less as a rule; the right one would take a second product with
the head in every round. The normalisers of prompts are of the kept states.
"""

import dataclasses

import flax.struct
import jax
from jax import numpy as jnp

from speculative.decoding.autoregressive import Autoregressive
from speculative.decoding.loop import Carry
from speculative.decoding.loop import Weights
from speculative.decoding.state import DecodeState
from speculative.models import transformer
from speculative.models.transformer import Transformer
from speculative.train import score


@flax.struct.dataclass
class Record:
  """What was computed of the tokens in a row's cache; the rest is rubbish.

  Attributes:
    hidden_BSD: bfloat16, after the final norm.
    log_norm_BS: float32, log-sum-exp of the logits of the same; in float32, for
      new tokens, of the states before rounding.
  """

  hidden_BSD: jax.Array
  log_norm_BS: jax.Array


class _Tap:
  """A model that remembers what it returned, for the length of one trace."""

  def __init__(self, model: Transformer) -> None:
    self._model = model
    self.hidden_BTD: jax.Array | None = None
    self.logits_BTV: jax.Array | None = None

  def __getattr__(self, name):
    return getattr(self._model, name)

  def forward(self, *args, **kwargs):
    out = self._model.forward(*args, **kwargs)
    self.hidden_BTD = out.hidden_BTD
    return out

  def logits(self, *args):
    self.logits_BTV = self._model.logits(*args)
    return self.logits_BTV


@dataclasses.dataclass(frozen=True)
class Recording:
  """One round of plain decoding, recorded; the drafter's state is a Record.

  Attributes:
    model: the target.
  """

  model: Transformer

  @property
  def num_draft_tokens(self) -> int:
    """None are drafted."""
    return 0

  @property
  def max_depth(self) -> int:
    """None are drafted."""
    return 0

  @property
  def features(self) -> tuple[int, ...]:
    """The prompt's hidden states."""
    return (transformer.FINAL,)

  def init(
      self,
      weights: Weights,
      state: DecodeState,
      features: dict[int, jax.Array],
      *,
      prompt_width: int,
  ) -> Carry:
    """Records the prompts."""
    hidden_BTD = features[transformer.FINAL].astype(jnp.bfloat16)
    log_norm_BT = score.log_norm(self.model, weights.target, hidden_BTD)
    missing = state.tokens_BS.shape[1] - prompt_width
    record = Record(
        hidden_BSD=jnp.pad(hidden_BTD, ((0, 0), (0, missing), (0, 0))),
        log_norm_BS=jnp.pad(log_norm_BT, ((0, 0), (0, missing))),
    )
    return Carry(state=state, drafter_state=record)

  def __call__(self, weights: Weights, carry: Carry) -> Carry:
    """Appends one token to every running row, and records the one before."""
    tap = _Tap(self.model)
    at_B = carry.state.seq_len_B - 1
    after = Autoregressive(tap)(weights, carry)
    log_norm_B1 = jax.nn.logsumexp(tap.logits_BTV, axis=-1)

    def one_row(record, hidden_1D, log_norm_1, at):
      return Record(
          hidden_BSD=jax.lax.dynamic_update_slice(
              record.hidden_BSD, hidden_1D, (at, jnp.int32(0))
          ),
          log_norm_BS=jax.lax.dynamic_update_slice(
              record.log_norm_BS, log_norm_1, (at,)
          ),
      )

    record = jax.vmap(one_row)(
        carry.drafter_state,
        tap.hidden_BTD.astype(jnp.bfloat16),
        log_norm_B1,
        at_B,
    )
    return after.replace(drafter_state=record)
