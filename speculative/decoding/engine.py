"""The host's side of decoding: buckets, streaming and results.

Prompts and caches are padded to buckets, so that lengths compile nothing new
once a bucket is warm. The host uploads prompts explicitly, starts the device
program and fetches its results explicitly: everything runs under a transfer
guard that forbids anything implicit.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import time
from typing import Any

import jax
import numpy as np

from speculative import watchdog
from speculative.decoding import config as config_lib
from speculative.decoding import loop
from speculative.decoding import state as state_lib
from speculative.decoding.config import DecodeConfig
from speculative.decoding.loop import Carry
from speculative.decoding.loop import Step
from speculative.decoding.loop import Weights
from speculative.errors import UserError

_SMALLEST_BUCKET = 32
_ALL_ROUNDS = np.iinfo(np.int32).max // 2
# Rounds between two looks at the tokens where the config names no number.
_ROUNDS_PER_LOOK = 8


@dataclasses.dataclass(frozen=True)
class Generation:
  """What a batch of prompts was answered with.

  Attributes:
    token_ids: new tokens of every row, cut where the row ended; a stop id is
      included.
    reasons: 'stop' or 'length', a row.
    log_probs: of the new tokens, a row; None when not recorded.
    num_rounds: target passes of the batch.
    rounds: target passes of every row while it was running.
    drafted: drafted tokens of every row.
    tested: how often the drafted token of each place in a round was tested,
      [B, J].
    accepted: how often it was kept, [B, J].
    prefill_s: seconds to read the prompts.
    decode_s: seconds from there to the last token.
  """

  token_ids: list[list[int]]
  reasons: list[str]
  log_probs: list[list[float]] | None
  num_rounds: int
  rounds: np.ndarray
  drafted: np.ndarray
  tested: np.ndarray
  accepted: np.ndarray
  prefill_s: float
  decode_s: float

  @property
  def num_tokens(self) -> int:
    """New tokens of all rows."""
    return sum(len(ids) for ids in self.token_ids)

  @property
  def tokens_per_round(self) -> float:
    """Emitted tokens per target pass of a row; at least 1 before the cut."""
    return self.num_tokens / max(int(self.rounds.sum()), 1)

  @property
  def acceptance_rate(self) -> float:
    """Accepted over tested drafted tokens: estimates Leviathan's alpha."""
    return float(self.accepted.sum()) / max(int(self.tested.sum()), 1)

  @property
  def draft_yield(self) -> float:
    """Accepted over drafted tokens."""
    return float(self.accepted.sum()) / max(int(self.drafted.sum()), 1)


def bucket(length: int) -> int:
  """Rounds a length up to 32, 48, 64, 96, 128, 192, ..."""
  size = _SMALLEST_BUCKET
  while size < length:
    if size + size // 2 >= length:
      return size + size // 2
    size *= 2
  return size


def check(
    prompts: Sequence[Sequence[int]],
    rows: Sequence[DecodeConfig],
    *,
    vocab_size: int | None = None,
) -> None:
  """Refuses prompts and settings that cannot be decoded.

  Args:
    prompts: token ids of every row.
    rows: as many configs.
    vocab_size: V, if the ids of biases are to be checked.

  Raises:
    UserError: If there is no prompt, one is empty or longer than the buffer, or
      a bias names an id outside the vocabulary.
  """
  if not prompts:
    raise UserError('at least one prompt is needed, got none.')
  for row, (prompt, config) in enumerate(zip(prompts, rows, strict=True)):
    if not prompt:
      raise UserError(
          f'prompt {row} is empty; it needs at least one token, for instance '
          'the BOS token.'
      )
    if len(prompt) + 1 > config.max_seq_len:
      raise UserError(
          f'prompt {row} has {len(prompt)} tokens, but with max_seq_len='
          f'{config.max_seq_len} at most {config.max_seq_len - 1} fit; '
          'shorten it or raise config.decode.max_seq_len.'
      )
    outside = [i for i, _ in config.logit_bias if i >= (vocab_size or i + 1)]
    if outside:
      raise UserError(
          f'row {row}: logit_bias names token id {outside[0]}, but the '
          f'vocabulary ends at {vocab_size - 1}; leave that id out.'
      )


def cache_slots(
    step: Step, *, prompt_len: int, max_new_tokens: int, max_seq_len: int
) -> int:
  """Returns S, the bucket of cache and token buffer of a batch.

  It follows from the prompts' bucket, so that one prompt bucket has one
  program; a large budget does not make it longer than texts can get.

  Args:
    step: what will decode.
    prompt_len: of the longest prompt.
    max_new_tokens: the largest of the rows.
    max_seq_len: longest text allowed.
  """
  width = bucket(prompt_len)
  most_new = min(max_new_tokens, max_seq_len)
  longest = min(width + most_new, max(width, max_seq_len))
  return bucket(longest + loop.slack(step))


# Called with (row, new token ids). Returns None while the row may go on, or how
# many of its new tokens count, all told, to end it there.
OnTokens = Callable[[int, list[int]], int | None]


class Engine:
  """Runs one `Step` over batches of prompts.

  Attributes:
    step: the round.
    weights: params of target and drafter.
  """

  def __init__(self, step: Step, weights: Weights) -> None:
    """Keeps step and weights; nothing runs or compiles yet."""
    self.step = step
    self.weights = weights

  def num_rows(self, batch: int) -> int:
    """Returns the rows a batch takes: a multiple of the mesh's axis data."""
    size = self.step.model.placement.data_size
    return -(-batch // size) * size

  def _put(self, tree: Any) -> Any:
    return self.step.model.placement.put(tree)

  def start(
      self,
      prompts: Sequence[Sequence[int]],
      config: DecodeConfig | Sequence[DecodeConfig],
  ) -> Carry:
    """Uploads and reads a batch of prompts.

    Args:
      prompts: token ids of every row.
      config: how to decode: one a row, or one for all, of which row b gets
        seed + b.

    Returns:
      The Carry that `loop.run` takes; it may have rows at its end that only
      fill the mesh and are done.

    Raises:
      UserError: If a prompt is empty or longer than the buffer.
    """
    rows = config_lib.rows_of(config, len(prompts))
    check(prompts, rows)
    B = len(prompts)
    lens = np.array([len(p) for p in prompts], np.int32)
    width = bucket(int(lens.max()))
    longest = rows[0].max_seq_len
    most_new = np.minimum([row.max_new_tokens for row in rows], longest)
    limit = np.minimum(lens + most_new, longest).astype(np.int32)
    max_seq_len = cache_slots(
        self.step,
        prompt_len=int(lens.max()),
        max_new_tokens=int(most_new.max()),
        max_seq_len=longest,
    )
    padded = np.zeros((B, width), np.int32)
    for row, prompt in enumerate(prompts):
      padded[row, : len(prompt)] = prompt
    # Rows that only fill the mesh have reached their limit before they begin.
    extra = self.num_rows(B) - B
    rows = [*rows, *[rows[-1]] * extra]
    arguments = self._put(
        (
            np.pad(padded, ((0, extra), (0, 0))),
            np.pad(lens, (0, extra), constant_values=1),
            np.pad(limit, (0, extra), constant_values=1),
            config_lib.padded_ids([row.stop_ids for row in rows]),
            config_lib.sampling_of(rows),
        )
    )
    return loop.prefill(
        self.weights,
        *arguments,
        step=self.step,
        max_seq_len=max_seq_len,
        log_probs=rows[0].log_probs,
    )

  def warm_up(
      self,
      prompts: Sequence[Sequence[int]],
      config: DecodeConfig | Sequence[DecodeConfig],
  ) -> None:
    """Compiles the programs of these prompts' bucket and runs one round.

    Args:
      prompts: a batch of the size and bucket to come.
      config: how to decode; only max_new_tokens and log_probs matter.
    """
    carry = self.start(prompts, config)
    carry = loop.run(
        weights=self.weights,
        carry=carry,
        num_rounds=self._put(np.int32(1)),
        step=self.step,
    )
    ended_B = self._put(np.zeros(self.num_rows(len(prompts)), bool))
    jax.block_until_ready(loop.finish(carry=carry, ended_B=ended_B))
    watchdog.beat()

  def generate(
      self,
      prompts: Sequence[Sequence[int]],
      config: DecodeConfig | Sequence[DecodeConfig],
      *,
      on_tokens: OnTokens | None = None,
  ) -> Generation:
    """Decodes a batch of prompts to the end.

    Args:
      prompts: token ids of every row.
      config: how to decode: one a row, or one for all, of which row b gets
        seed + b.
      on_tokens: called with (row, new token ids) each time the device was
        looked at, every config.rounds_per_call rounds. It may end the row, for
        instance at a stop string, and is not called for it again.

    Returns:
      The Generation.

    Raises:
      UserError: If a prompt is empty or longer than the buffer.
    """
    rows = config_lib.rows_of(config, len(prompts))
    check(prompts, rows)
    per_call = rows[0].rounds_per_call or (
        _ALL_ROUNDS if on_tokens is None else _ROUNDS_PER_LOOK
    )
    started = time.perf_counter()
    with jax.transfer_guard('disallow'):
      num_rounds = self._put(np.int32(per_call))
      carry = jax.block_until_ready(self.start(prompts, rows))
      read = time.perf_counter()
      watch = _Watch([len(p) for p in prompts], on_tokens)
      while True:
        carry = loop.run(
            weights=self.weights,
            carry=carry,
            num_rounds=num_rounds,
            step=self.step,
        )
        done = jax.device_get(carry.state.done_B)
        watchdog.beat()
        if on_tokens is not None:
          ended = np.zeros_like(done)
          ended[: len(prompts)] = watch.look(carry)
          if (ended & ~done).any():
            done = done | ended
            carry = loop.finish(carry=carry, ended_B=self._put(ended))
        if done.all():
          break
      ended_s = time.perf_counter()
      return _collect(
          carry,
          num_rows=len(prompts),
          kept=watch.kept,
          prefill_s=read - started,
          decode_s=ended_s - read,
      )


class _Watch:
  """Hands new tokens over as they come and remembers where rows were cut."""

  def __init__(
      self, prompt_lens: Sequence[int], on_tokens: OnTokens | None
  ) -> None:
    self._seen = np.array(prompt_lens)
    self._on_tokens = on_tokens
    # New tokens that count, of rows that the host ended.
    self.kept: dict[int, int] = {}

  def look(self, carry: Carry) -> np.ndarray:
    """Looks at the rows' new tokens; returns which rows the host has ended."""
    tokens, lens = jax.device_get(
        (carry.state.tokens_BS, carry.state.seq_len_B)
    )
    lens = lens[: len(self._seen)]
    for row, (before, now) in enumerate(zip(self._seen, lens, strict=True)):
      if now > before and row not in self.kept:
        # The user's code may use jax as it likes.
        with jax.transfer_guard('allow'):
          keep = self._on_tokens(row, tokens[row, before:now].tolist())
        if keep is not None:
          self.kept[row] = keep
    self._seen = lens
    return np.array([row in self.kept for row in range(len(lens))])


def _collect(
    carry: Carry,
    *,
    num_rows: int,
    kept: dict[int, int],
    prefill_s: float,
    decode_s: float,
) -> Generation:
  """Fetches what a finished batch produced, cut where the host ended rows."""
  state = jax.device_get(carry.state.replace(cache=None))
  num_rounds = int(state.num_rounds)
  state = jax.tree.map(lambda x: x[:num_rows] if x.ndim else x, state)
  spans = [
      (start, start + kept.get(row, end - start))
      for row, (start, end) in enumerate(
          zip(state.prompt_len_B, state.seq_len_B, strict=True)
      )
  ]
  log_probs = None
  if state.log_probs_BS.shape[1]:
    log_probs = [
        state.log_probs_BS[row, start:end].tolist()
        for row, (start, end) in enumerate(spans)
    ]
  return Generation(
      token_ids=[
          state.tokens_BS[row, start:end].tolist()
          for row, (start, end) in enumerate(spans)
      ],
      reasons=[
          state_lib.REASONS[state_lib.STOP_ID if row in kept else reason]
          for row, reason in enumerate(state.reason_B)
      ],
      log_probs=log_probs,
      num_rounds=num_rounds,
      rounds=state.counters.rounds_B,
      drafted=state.counters.drafted_B,
      tested=state.counters.tested_BJ,
      accepted=state.counters.accepted_BJ,
      prefill_s=prefill_s,
      decode_s=decode_s,
  )
