"""Plain decoding of many prompts with all rows of a batch kept busy.

A batch that waits for its longest answer idles in most of its rows. Here a row
that has ended makes room for the next prompt: prompts are read a few rows at a
time, as soon as so many rows are free, and put into the rows of the running
batch. A row's draws follow from its seed and its own positions, so in float32
the texts are those of `Engine.generate`; in bfloat16 logits depend on the shape
of the batch too, and so do texts where two tokens are nearly tied.

  four rows, refilled two at a time; letters are prompts, dots idle
    a a a a a e e e ...      b and c end; d and e take their rows
    b b . d d d d d
    c c . e e ...
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import functools

import jax
from jax import numpy as jnp
import numpy as np

from speculative import watchdog
from speculative.decoding import config as config_lib
from speculative.decoding import engine as engine_lib
from speculative.decoding import loop
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.decoding.loop import Carry
from speculative.decoding.loop import Step
from speculative.train.recording import Record

# Every slot is attended to, used or not, so their number is rounded finely: it
# compiles one program, whatever the prompts.
_SLOT_BLOCK = 32
# Rounds between two looks at which rows have ended.
_ROUNDS_PER_LOOK = 16


@dataclasses.dataclass(frozen=True)
class Request:
  """One prompt.

  Attributes:
    prompt: token ids.
    config: how to go on; what concerns a whole batch is the same for all.
  """

  prompt: Sequence[int]
  config: DecodeConfig


@dataclasses.dataclass(frozen=True, eq=False)
class Answer:
  """What became of a request.

  Attributes:
    tokens: new ones.
    hidden: bfloat16 [T, D] of prompt and new tokens, zero at the last one,
      which has not been through the target; None where nothing is recorded.
    log_norm: float32 [T], log V at the last one, as zero has it; see `hidden`.
  """

  tokens: np.ndarray
  hidden: np.ndarray | None = None
  log_norm: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Shape:
  """Sizes that the programs are compiled for.

  Attributes:
    num_rows: B, decoded at once.
    num_refill: rows whose prompts are read at once.
    num_slots: S, of cache and tokens of every row.
  """

  num_rows: int
  num_refill: int
  num_slots: int


def shape_of(
    engine: Engine, *, num_rows: int, prompt_len: int, num_tokens: int
) -> Shape:
  """Returns the sizes for prompts and answers of some length.

  Args:
    engine: what decodes.
    num_rows: wanted; rounded up to what the mesh divides.
    prompt_len: of the longest prompt.
    num_tokens: most new ones.
  """
  rows = engine.num_rows(num_rows)
  longest = engine_lib.bucket(prompt_len) + num_tokens
  blocks = -(-(longest + loop.slack(engine.step)) // _SLOT_BLOCK)
  return Shape(
      num_rows=rows,
      num_refill=min(rows, engine.num_rows(-(-rows // 8))),
      num_slots=blocks * _SLOT_BLOCK,
  )


@functools.partial(jax.jit, static_argnames=('num_rows', 'step'))
def _idle(carry: Carry, *, num_rows: int, step: Step) -> Carry:
  """Returns a batch of rows that are all done, made like those of `carry`."""
  R = carry.state.seq_len_B.shape[0]
  repeated = _map_rows(lambda x: x[jnp.arange(num_rows) % R], carry)
  done_B = jnp.ones((num_rows,), bool)
  return loop.placed(
      step, repeated.replace(state=repeated.state.replace(done_B=done_B))
  )


@functools.partial(
    jax.jit, static_argnames=('step',), donate_argnames=('carry',)
)
def _insert(*, carry: Carry, new: Carry, rows_R: jax.Array, step: Step):
  """Puts rows of `new` into those of `carry`; a row beyond the end nowhere."""

  def one(x: jax.Array, y: jax.Array) -> jax.Array:
    return x.at[rows_R].set(y, mode='drop')

  return loop.placed(step, _map_rows(one, carry, new))


def _map_rows(function: Callable, carry: Carry, *others: Carry) -> Carry:
  """Maps every array with a row axis; scalars stay those of the first."""
  return jax.tree.map(
      lambda x, *y: function(x, *y) if x.ndim else x, carry, *others
  )


class Roller:
  """Decodes requests in one rolling batch.

  Attributes:
    shape: of the batch.
    busy_rounds: rounds of rows that brought a token, so far.
    all_rounds: rounds of all rows, so far.
  """

  def __init__(self, engine: Engine, shape: Shape) -> None:
    """Keeps both; nothing runs or compiles yet.

    Args:
      engine: of plain decoding, recorded or not.
      shape: of the batch.
    """
    self._engine, self.shape = engine, shape
    self._carry: Carry | None = None
    self.busy_rounds, self.all_rounds = 0, 0

  def generate(
      self,
      requests: Sequence[Request],
      *,
      on_look: Callable[[int], None] | None = None,
  ) -> list[Answer]:
    """Decodes requests to their ends.

    Args:
      requests: prompts that fit the shape.
      on_look: called now and then with the number of new tokens since.

    Returns:
      An Answer a request.
    """
    found: list[Answer | None] = [None] * len(requests)
    # Prompts of one length are read together: little padding, few programs.
    queue = sorted(
        range(len(requests)), key=lambda i: (len(requests[i].prompt), i)
    )
    holders = [-1] * self.shape.num_rows
    seen_B = np.zeros(self.shape.num_rows, np.int64)
    while queue or any(holder >= 0 for holder in holders):
      free = [row for row, holder in enumerate(holders) if holder < 0]
      while queue and (
          len(free) >= self.shape.num_refill or len(free) == self.shape.num_rows
      ):
        taken = queue[-self.shape.num_refill :]
        del queue[-self.shape.num_refill :]
        rows, free = free[: len(taken)], free[len(taken) :]
        self._refill([requests[i] for i in taken], rows)
        for row, i in zip(rows, taken, strict=True):
          holders[row] = i
          seen_B[row] = len(requests[i].prompt)
      tokens_BS, len_B, done_B = self._run()
      num_new = 0
      record = None
      for row, holder in enumerate(holders):
        if holder < 0:
          continue
        num_new += len_B[row] - seen_B[row]
        seen_B[row] = len_B[row]
        if done_B[row]:
          start = len(requests[holder].prompt)
          record = record or jax.device_get(self._carry.drafter_state)
          found[holder] = self._answer(
              tokens_BS[row, start : len_B[row]], record, row, int(len_B[row])
          )
          holders[row] = -1
      # A view of the buffer would have the next rounds copy it.
      del record
      self.busy_rounds += int(num_new)
      if on_look is not None:
        on_look(int(num_new))
    return found

  def _answer(
      self, tokens: np.ndarray, record: Record | None, row: int, size: int
  ) -> Answer:
    if record is None:
      return Answer(tokens.copy())
    hidden = record.hidden_BSD[row, :size].copy()
    log_norm = record.log_norm_BS[row, :size].copy()
    # Zero has the logit 0 for every token.
    model = self._engine.step.model
    hidden[-1] = 0
    log_norm[-1] = np.log(model.num_tokens or model.config.vocab_size)
    return Answer(tokens.copy(), hidden, log_norm)

  def _put(self, tree):
    return self._engine.step.model.placement.put(tree)

  def _refill(self, requests: Sequence[Request], rows: Sequence[int]) -> None:
    R, S = self.shape.num_refill, self.shape.num_slots
    lens = [len(request.prompt) for request in requests]
    padded = np.zeros((R, engine_lib.bucket(max(lens))), np.int32)
    for row, request in enumerate(requests):
      padded[row, : lens[row]] = request.prompt
    extra = R - len(requests)
    configs = [r.config for r in requests] + [requests[-1].config] * extra
    limits = [
        min(n + r.config.max_new_tokens, r.config.max_seq_len)
        for n, r in zip(lens, requests, strict=True)
    ]
    arguments = self._put(
        (
            padded,
            np.array(lens + [1] * extra, np.int32),
            np.array(limits + [1] * extra, np.int32),
            config_lib.padded_ids([config.stop_ids for config in configs]),
            config_lib.sampling_of(configs),
        )
    )
    step = self._engine.step
    new = loop.prefill(
        self._engine.weights,
        *arguments,
        step=step,
        max_seq_len=S,
        log_probs='none',
    )
    if self._carry is None:
      self._carry = _idle(new, num_rows=self.shape.num_rows, step=step)
    nowhere = [self.shape.num_rows] * extra
    rows_R = self._put(np.array([*rows, *nowhere], np.int32))
    self._carry = _insert(carry=self._carry, new=new, rows_R=rows_R, step=step)

  def _run(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    before = int(self._carry.state.num_rounds)
    self._carry = loop.run(
        weights=self._engine.weights,
        carry=self._carry,
        num_rounds=self._put(np.int32(_ROUNDS_PER_LOOK)),
        step=self._engine.step,
    )
    state = self._carry.state
    tokens_BS, len_B, done_B, num_rounds = jax.device_get(
        (state.tokens_BS, state.seq_len_B, state.done_B, state.num_rounds)
    )
    watchdog.beat()
    self.all_rounds += (int(num_rounds) - before) * self.shape.num_rows
    return tokens_BS, len_B, done_B
