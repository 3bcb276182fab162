"""The host's side of decoding: buckets, streaming and results.

Prompts and caches are padded to buckets, so that lengths compile nothing new
once a bucket is warm. The host uploads prompts explicitly, starts the device
program and fetches its results explicitly: everything runs under a transfer
guard that forbids anything implicit.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import math
import time

import jax
import numpy as np

from speculative.decoding import loop
from speculative.decoding import state as state_lib
from speculative.decoding.logits import Warping
from speculative.decoding.loop import Carry
from speculative.decoding.loop import Step
from speculative.decoding.loop import Weights
from speculative.decoding.sampling import Sampling
from speculative.errors import UserError

LOG_PROBS = ('none', 'chosen')
_SMALLEST_BUCKET = 32
_INT32_MAX = np.iinfo(np.int32).max
_ALL_ROUNDS = _INT32_MAX // 2
_STOP_ID_BUCKET = 8


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
  """How tokens are drawn and when a row ends.

  Attributes:
    max_new_tokens: most tokens a row may add.
    temperature: 0 is greedy.
    top_k: tokens kept before drawing; 0 keeps all.
    top_p: probability kept before drawing, in (0, 1].
    seed: of the first row; row b of a batch has seed + b.
    stop_ids: tokens that end a row and are its last.
    max_seq_len: prompt and new tokens a row may have; longer prompts are
      refused.
    rounds_per_call: rounds between two looks at the device while streaming; 0
      runs to the end in one call.
    log_probs: 'chosen' records the target's log-probability of every emitted
      token, 'none' does not.
  """

  max_new_tokens: int = 128
  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0
  seed: int = 0
  stop_ids: tuple[int, ...] = ()
  max_seq_len: int = 2048
  rounds_per_call: int = 0
  log_probs: str = 'none'

  def __post_init__(self) -> None:
    for name, holds, need in (
        ('max_new_tokens', self.max_new_tokens >= 1, '>= 1'),
        (
            'temperature',
            self.temperature == 0 or 1e-4 <= self.temperature < math.inf,
            '>= 0 (0 is greedy), finite, and 0.0001 or more unless it is 0',
        ),
        ('top_k', self.top_k >= 0, '>= 0 (0 keeps all tokens)'),
        ('top_p', 0 < self.top_p <= 1, 'in (0, 1]'),
        ('rounds_per_call', self.rounds_per_call >= 0, '>= 0 (0 is no limit)'),
        (
            'log_probs',
            self.log_probs in LOG_PROBS,
            ' or '.join(LOG_PROBS),
        ),
    ):
      if not holds:
        raise UserError(
            f'{name} needs to be {need}, got {getattr(self, name)!r}; set '
            f'config.decode.{name}.'
        )


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


def check(prompts: Sequence[Sequence[int]], config: DecodeConfig) -> None:
  """Refuses prompts that cannot be decoded.

  Raises:
    UserError: If there is none, one is empty, or one is longer than the buffer.
  """
  if not prompts:
    raise UserError('at least one prompt is needed, got none.')
  for row, prompt in enumerate(prompts):
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


OnTokens = Callable[[int, list[int]], None]


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

  def start(
      self, prompts: Sequence[Sequence[int]], config: DecodeConfig
  ) -> Carry:
    """Uploads and reads a batch of prompts.

    Args:
      prompts: token ids of every row.
      config: how to decode.

    Returns:
      The Carry that `loop.run` takes.

    Raises:
      UserError: If a prompt is empty or longer than the buffer.
    """
    check(prompts, config)
    B = len(prompts)
    lens = np.array([len(p) for p in prompts], np.int32)
    width = bucket(int(lens.max()))
    most_new = min(config.max_new_tokens, config.max_seq_len)
    limit = np.minimum(lens + most_new, config.max_seq_len)
    max_seq_len = cache_slots(
        self.step,
        prompt_len=int(lens.max()),
        max_new_tokens=config.max_new_tokens,
        max_seq_len=config.max_seq_len,
    )
    padded = np.zeros((B, width), np.int32)
    for row, prompt in enumerate(prompts):
      padded[row, : len(prompt)] = prompt
    num_stop = -(-max(len(config.stop_ids), 1) // _STOP_ID_BUCKET)
    stop_ids = np.full((B, num_stop * _STOP_ID_BUCKET), -1, np.int32)
    stop_ids[:, : len(config.stop_ids)] = config.stop_ids
    # Seeds wrap around at 32 bits.
    seeds = (config.seed + np.arange(B)) % 2**32
    sampling = Sampling(
        warping=Warping(
            greedy_B=np.full(B, config.temperature == 0),
            temperature_B=np.full(B, config.temperature or 1.0, np.float32),
            # More than all tokens is all tokens.
            top_k_B=np.full(B, min(config.top_k, _INT32_MAX), np.int32),
            top_p_B=np.full(B, config.top_p, np.float32),
        ),
        seed_B=seeds.astype(np.uint32),
    )
    arguments = jax.device_put((padded, lens, limit, stop_ids, sampling))
    return loop.prefill(
        self.weights,
        *arguments,
        step=self.step,
        max_seq_len=max_seq_len,
        log_probs=config.log_probs,
    )

  def warm_up(
      self, prompts: Sequence[Sequence[int]], config: DecodeConfig
  ) -> None:
    """Compiles the programs of these prompts' bucket and runs one round.

    Args:
      prompts: a batch of the size and bucket to come.
      config: how to decode; only max_new_tokens and log_probs matter.
    """
    one = dataclasses.replace(config, rounds_per_call=1)
    carry = self.start(prompts, one)
    jax.block_until_ready(
        loop.run(
            weights=self.weights,
            carry=carry,
            num_rounds=jax.device_put(np.int32(1)),
            step=self.step,
        )
    )

  def generate(
      self,
      prompts: Sequence[Sequence[int]],
      config: DecodeConfig,
      *,
      on_tokens: OnTokens | None = None,
  ) -> Generation:
    """Decodes a batch of prompts to the end.

    Args:
      prompts: token ids of every row.
      config: how to decode.
      on_tokens: called with (row, new token ids) each time the device was
        looked at, every config.rounds_per_call rounds.

    Returns:
      The Generation.

    Raises:
      UserError: If a prompt is empty or longer than the buffer.
    """
    num_rounds = jax.device_put(np.int32(config.rounds_per_call or _ALL_ROUNDS))
    started = time.perf_counter()
    with jax.transfer_guard('disallow'):
      carry = jax.block_until_ready(self.start(prompts, config))
      read = time.perf_counter()
      seen = [len(prompt) for prompt in prompts]
      while True:
        carry = loop.run(
            weights=self.weights,
            carry=carry,
            num_rounds=num_rounds,
            step=self.step,
        )
        done = jax.device_get(carry.state.done_B)
        if on_tokens is not None:
          seen = _tell(carry, seen, on_tokens)
        if done.all():
          break
      ended = time.perf_counter()
      return _collect(carry, prefill_s=read - started, decode_s=ended - read)


def _tell(carry: Carry, seen: list[int], on_tokens: OnTokens) -> list[int]:
  """Hands over the tokens that are new since `seen`."""
  tokens, lens = jax.device_get((carry.state.tokens_BS, carry.state.seq_len_B))
  for row, (before, now) in enumerate(zip(seen, lens, strict=True)):
    if now > before:
      # The user's code may use jax as it likes.
      with jax.transfer_guard('allow'):
        on_tokens(row, tokens[row, before:now].tolist())
  return lens.tolist()


def _collect(carry: Carry, *, prefill_s: float, decode_s: float) -> Generation:
  """Fetches what a finished batch produced."""
  state = carry.state.replace(cache=None)
  state = jax.device_get(state)
  spans = list(zip(state.prompt_len_B, state.seq_len_B, strict=True))
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
      reasons=[state_lib.REASONS[reason] for reason in state.reason_B],
      log_probs=log_probs,
      num_rounds=int(state.num_rounds),
      rounds=state.counters.rounds_B,
      drafted=state.counters.drafted_B,
      tested=state.counters.tested_BJ,
      accepted=state.counters.accepted_BJ,
      prefill_s=prefill_s,
      decode_s=decode_s,
  )
