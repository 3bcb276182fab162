"""The host's side of decoding: buckets, streaming and results.

Prompts and caches are padded to buckets, so that lengths compile nothing new
once a bucket is warm. The host uploads prompts explicitly, starts the device
program and fetches its results explicitly: everything runs under a transfer
guard that forbids anything implicit.
"""

from collections.abc import Callable
from collections.abc import Sequence
import time
from typing import Any

import jax
import numpy as np

from speculative import watchdog
from speculative.decoding import config as config_lib
from speculative.decoding import generation as generation_lib
from speculative.decoding import loop
from speculative.decoding.config import DecodeConfig
from speculative.decoding.generation import Generation
from speculative.decoding.loop import Carry
from speculative.decoding.loop import Step
from speculative.decoding.loop import Weights
from speculative.errors import UserError

_SMALLEST_BUCKET = 32
_ALL_ROUNDS = np.iinfo(np.int32).max // 2
# Rounds between two looks at the tokens where the config names no number, and
# between two signs of life where a watchdog waits for them.
_ROUNDS_PER_LOOK = 8
_ROUNDS_PER_BEAT = 64


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
    biased = [i for i, _ in config.logit_bias]
    for name, ids in (('logit_bias', biased), ('stop_ids', config.stop_ids)):
      outside = [i for i in ids if i >= (vocab_size or i + 1)]
      if outside:
        raise UserError(
            f'row {row}: {name} names token id {outside[0]}, but the '
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

  def with_step(self, step: Step) -> 'Engine':
    """Returns an engine of the same kind and weights for another round."""
    return Engine(step, self.weights)

  def drafted(self, carry: Carry) -> Carry:
    """Returns a carry after whose text the drafter can be asked.

    Args:
      carry: from `start` or `advance`.

    Returns:
      The Carry, with what has to be known before a round.
    """
    return carry

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
        log_probs=rows[0].recorded,
    )

  def warm_up(
      self,
      prompts: Sequence[Sequence[int]],
      config: DecodeConfig | Sequence[DecodeConfig],
  ) -> None:
    """Compiles the programs of these prompts' bucket and runs one round.

    Args:
      prompts: a batch of the size and bucket to come.
      config: how to decode; only max_new_tokens and what is recorded matter.
    """
    carry = self.start(prompts, config)
    carry = self.advance(
        carry,
        num_rounds=self._put(np.int32(1)),
        ended_B=np.zeros(self.num_rows(len(prompts)), bool),
    )
    jax.block_until_ready(carry)
    watchdog.beat()

  def advance(
      self, carry: Carry, *, num_rounds: jax.Array, ended_B: np.ndarray
  ) -> Carry:
    """Runs up to so many rounds; donates `carry`.

    Args:
      carry: from `start` or an earlier call.
      num_rounds: int32 scalar, on the devices.
      ended_B: bool, rows that the host has ended.

    Returns:
      The Carry.
    """
    return loop.run(
        weights=self.weights,
        carry=carry,
        num_rounds=num_rounds,
        step=self.step,
        ended_B=self._put(ended_B),
    )

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
    if watchdog.is_watching():
      per_call = min(per_call, _ROUNDS_PER_BEAT)
    started = time.perf_counter()
    with jax.transfer_guard('disallow'):
      num_rounds = self._put(np.int32(per_call))
      carry = jax.block_until_ready(self.start(prompts, rows))
      read = time.perf_counter()
      watch = _Watch(
          [len(p) for p in prompts],
          on_tokens,
          num_rows=self.num_rows(len(prompts)),
      )
      done = watch.ended
      while not done.all():
        carry = self.advance(carry, num_rounds=num_rounds, ended_B=watch.ended)
        done = jax.device_get(carry.state.done_B)
        watchdog.beat()
        if on_tokens is not None:
          watch.look(carry)
          done = done | watch.ended
      ended_s = time.perf_counter()
      return generation_lib.collect(
          carry,
          num_rows=len(prompts),
          kept=watch.kept,
          num_draft_tokens=self.step.max_depth,
          num_top=rows[0].num_top_log_probs,
          prefill_s=read - started,
          decode_s=ended_s - read,
      )


class _Watch:
  """Hands new tokens over as they come and remembers where rows were cut."""

  def __init__(
      self,
      prompt_lens: Sequence[int],
      on_tokens: OnTokens | None,
      *,
      num_rows: int,
  ) -> None:
    self._num_rows = num_rows
    self._seen = np.array(prompt_lens)
    self._on_tokens = on_tokens
    # New tokens that count, of rows that the host ended.
    self.kept: dict[int, int] = {}

  @property
  def ended(self) -> np.ndarray:
    """Which rows the host has ended, bool [B], those that fill the mesh too."""
    return np.array([row in self.kept for row in range(self._num_rows)])

  def look(self, carry: Carry) -> None:
    """Hands over the rows' new tokens."""
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
