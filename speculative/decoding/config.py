"""How one row is decoded, as a user says it, and as the device takes it."""

from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses

import numpy as np

from speculative.decoding.adjust import Adjustment
from speculative.decoding.log_probs import MOST_TOP
from speculative.decoding.logits import Warping
from speculative.decoding.sampling import Sampling
from speculative.errors import UserError

LOG_PROBS = ('none', 'chosen')
# Fields that have to be the same for all rows of a batch.
_OF_THE_BATCH = (
    'max_seq_len',
    'rounds_per_call',
    'log_probs',
    'num_top_log_probs',
)
# Id lists are padded to a multiple of this, so that their length compiles
# nothing new within it.
_ID_BUCKET = 16
# Factors and biases beyond these would leave float32 zero, infinite or NaN.
_SMALLEST, _LARGEST = 1e-4, 1e4


def is_int(value: object) -> bool:
  """Tells whole numbers, of numpy too, from all else; True is none."""
  return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
  return is_int(value) or isinstance(value, float | np.floating)


def _is_list(value: object) -> bool:
  # A text is no list of texts, though it can be iterated over.
  return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_id(value: object) -> bool:
  return is_int(value) and 0 <= value < 2**31


def _lacks(kind: type, name: str, value: object) -> str:
  """Returns what a value of a field's kind needs to be, '' where it is that."""
  if kind is int:
    if name == 'seed':
      return '' if is_int(value) else 'a whole number'
    # The device's integers.
    fits = is_int(value) and abs(value) < 2**31
    return '' if fits else 'a whole number below 2**31'
  if kind is float:
    return '' if _is_number(value) else 'a number'
  if kind is str:
    return '' if isinstance(value, str) else 'a text'
  return '' if _is_list(value) else 'a list'


def _is_bias(pair: object) -> bool:
  return (
      _is_list(pair)
      and len(pair) == 2
      and _is_id(pair[0])
      and _is_number(pair[1])
      and abs(pair[1]) <= _LARGEST
  )


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
  """How the tokens of one row are drawn and when it ends.

  Names and rules are those of vLLM and OpenAI's interface; the order of
  operations is that of `adjust.adjust_logits` and then `logits.warp_logits`.
  Fields marked (batch) have to be the same for all rows of a batch.

  Attributes:
    max_new_tokens: most tokens the row may add.
    min_new_tokens: tokens it adds before a stop id may end it.
    temperature: 0 is greedy.
    top_k: tokens kept before drawing; 0 keeps all.
    top_p: probability kept before drawing, in (0, 1].
    min_p: tokens less likely than this times the likeliest are cut; 0 keeps
      all.
    repetition_penalty: divides positive and multiplies negative logits of
      tokens in prompt or output; 1 is off.
    presence_penalty: taken off the logits of tokens in the output, in [-2, 2].
    frequency_penalty: taken off once for every occurrence, in [-2, 2].
    logit_bias: (token id, added to its logit) pairs.
    seed: of the row; any whole number, of which the lowest 32 bits count.
    stop_ids: tokens that end the row and are its last.
    stop_strings: texts that end the row; its text is cut before them.
    max_seq_len: (batch) prompt and new tokens a row may have; longer prompts
      are refused.
    rounds_per_call: (batch) rounds between two looks at the device while
      streaming; 0 runs to the end in one call.
    log_probs: (batch) 'chosen' records the target's log-probability of every
      emitted token, before any adjustment; 'none' does not.
    num_top_log_probs: (batch) as many of the target's likeliest tokens are
      recorded beside every emitted one, at most 20, and the emitted one's
      log-probability with them, whatever log_probs is; 0 records none.
  """

  max_new_tokens: int = 128
  min_new_tokens: int = 0
  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0
  min_p: float = 0.0
  repetition_penalty: float = 1.0
  presence_penalty: float = 0.0
  frequency_penalty: float = 0.0
  logit_bias: tuple[tuple[int, float], ...] = ()
  seed: int = 0
  stop_ids: tuple[int, ...] = ()
  stop_strings: tuple[str, ...] = ()
  max_seq_len: int = 2048
  rounds_per_call: int = 0
  log_probs: str = 'none'
  num_top_log_probs: int = 0

  def __post_init__(self) -> None:
    for field in dataclasses.fields(self):
      if need := _lacks(field.type, field.name, getattr(self, field.name)):
        self._refuse(field.name, need)
    for name, holds, need in self._ranges():
      if not holds:
        self._refuse(name, need)

  @property
  def recorded(self) -> str:
    """What the device records of the target's law, of `log_probs.KINDS`."""
    return 'top' if self.num_top_log_probs else self.log_probs

  def _refuse(self, name: str, need: str) -> None:
    raise UserError(
        f'{name} needs to be {need}, got {getattr(self, name)!r}; set '
        f'config.decode.{name}.'
    )

  def _ranges(self) -> tuple[tuple[str, bool, str], ...]:
    """Returns for every field its name, whether it is right, and its need."""
    penalty = 'in [-2, 2] (0 is off)'
    return (
        ('max_new_tokens', self.max_new_tokens >= 1, '>= 1'),
        (
            'min_new_tokens',
            0 <= self.min_new_tokens <= self.max_new_tokens,
            f'in [0, max_new_tokens={self.max_new_tokens}]',
        ),
        (
            'temperature',
            self.temperature == 0 or _SMALLEST <= self.temperature <= _LARGEST,
            '>= 0 (0 is greedy), at most 10000, and 0.0001 or more unless it '
            'is 0',
        ),
        ('top_k', self.top_k >= 0, '>= 0 (0 keeps all tokens)'),
        ('top_p', 0 < self.top_p <= 1, 'in (0, 1]'),
        ('min_p', 0 <= self.min_p <= 1, 'in [0, 1] (0 keeps all tokens)'),
        (
            'repetition_penalty',
            _SMALLEST <= self.repetition_penalty <= _LARGEST,
            '> 0 (1 is off), and from 0.0001 to 10000',
        ),
        ('presence_penalty', -2 <= self.presence_penalty <= 2, penalty),
        ('frequency_penalty', -2 <= self.frequency_penalty <= 2, penalty),
        (
            'logit_bias',
            all(map(_is_bias, self.logit_bias)),
            'pairs of a token id >= 0 and a number in [-10000, 10000]',
        ),
        ('stop_ids', all(map(_is_id, self.stop_ids)), 'token ids >= 0'),
        (
            'stop_strings',
            all(isinstance(s, str) and s for s in self.stop_strings),
            'texts that are not empty',
        ),
        ('rounds_per_call', self.rounds_per_call >= 0, '>= 0 (0 is no limit)'),
        (
            'log_probs',
            self.log_probs in LOG_PROBS,
            ' or '.join(map(repr, LOG_PROBS)),
        ),
        (
            'num_top_log_probs',
            0 <= self.num_top_log_probs <= MOST_TOP,
            f'in [0, {MOST_TOP}] (0 is off)',
        ),
    )


def check_names(fields: Iterable[object]) -> None:
  """Refuses names that are no fields of a DecodeConfig.

  Args:
    fields: names.

  Raises:
    UserError: Naming the first of them, and the fields there are.
  """
  known = {field.name for field in dataclasses.fields(DecodeConfig)}
  if unknown := sorted(set(fields) - known, key=str):
    raise UserError(
        f'{unknown[0]!r} is no setting of decoding; known: '
        f'{", ".join(sorted(known))}.'
    )


def rows_of(
    config: DecodeConfig | Sequence[DecodeConfig], num_rows: int
) -> list[DecodeConfig]:
  """Returns a config a row.

  Args:
    config: one for all rows, of which row b gets seed + b, or one a row.
    num_rows: B.

  Raises:
    UserError: If there are not as many as rows, or they differ in a field that
      is the batch's.
  """
  if isinstance(config, DecodeConfig):
    return [
        dataclasses.replace(config, seed=config.seed + row)
        for row in range(num_rows)
    ]
  rows = list(config)
  if len(rows) != num_rows:
    raise UserError(
        f'{num_rows} prompts need as many decode configs, got {len(rows)}.'
    )
  for name in _OF_THE_BATCH:
    values = [getattr(row, name) for row in rows]
    for index, value in enumerate(values):
      if value != values[0]:
        raise UserError(
            f'row {index}: {name} needs to be the same for all rows of a '
            f'batch, got {value!r} where row 0 has {values[0]!r}.'
        )
  return rows


def padded_ids(lists: Sequence[Sequence[int]]) -> np.ndarray:
  """Returns int32 [B, E]: id lists padded with -1 to a common bucket."""
  longest = max(max(map(len, lists)), 1)
  width = -(-longest // _ID_BUCKET) * _ID_BUCKET
  ids = np.full((len(lists), width), -1, np.int32)
  for row, values in enumerate(lists):
    ids[row, : len(values)] = values
  return ids


def sampling_of(rows: Sequence[DecodeConfig]) -> Sampling:
  """Returns the arrays of a batch, still on the host."""

  def column(name: str, dtype: type) -> np.ndarray:
    return np.array([getattr(row, name) for row in rows], dtype)

  bias_ids = padded_ids([[i for i, _ in row.logit_bias] for row in rows])
  bias = np.zeros(bias_ids.shape, np.float32)
  for b, row in enumerate(rows):
    bias[b, : len(row.logit_bias)] = [value for _, value in row.logit_bias]
  temperature = column('temperature', np.float32)
  return Sampling(
      adjustment=Adjustment(
          repetition_B=column('repetition_penalty', np.float32),
          presence_B=column('presence_penalty', np.float32),
          frequency_B=column('frequency_penalty', np.float32),
          bias_ids_BE=bias_ids,
          bias_BE=bias,
          min_new_tokens_B=column('min_new_tokens', np.int32),
      ),
      warping=Warping(
          greedy_B=temperature == 0,
          temperature_B=np.where(temperature == 0, 1, temperature).astype(
              np.float32
          ),
          min_p_B=column('min_p', np.float32),
          top_k_B=column('top_k', np.int32),
          top_p_B=column('top_p', np.float32),
      ),
      # Seeds wrap around at 32 bits.
      seed_B=np.array([row.seed % 2**32 for row in rows], np.uint32),
  )
