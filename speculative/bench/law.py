"""Does the output follow the target's law? Many seeds against exact numbers.

The laws of the first new token and of the second given the first are known:
one plain pass over the prompt, and over the prompt with that token, gives them.
A case decodes the same prompt with many seeds and compares the counts with
these laws by Pearson's chi-square. Rare tokens are pooled, since the
approximation of the statistic's law needs a few expected counts in each cell.
"""

from collections.abc import Sequence
import dataclasses
import functools

import jax
import numpy as np
from scipy import stats

from speculative.decoding import adjust
from speculative.decoding import config as config_lib
from speculative.decoding import logits as logits_lib
from speculative.decoding import state as state_lib
from speculative.decoding.autoregressive import Autoregressive
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.decoding.loop import Carry
from speculative.decoding.loop import Weights
from speculative.decoding.sampling import Sampling

# Expected counts a cell needs; rarer tokens are pooled.
_LEAST_EXPECTED = 8.0
# First tokens after which the second's law is tested.
_MOST_FIRST_TOKENS = 24
_POWER = 0.95
# A cell of eight expected counts has a far tail up to this much heavier than
# the chi-square law's; tests are held to that share of the rate asked for.
_TAIL = 16.0


@dataclasses.dataclass(frozen=True)
class LawTest:
  """Outcome of one chi-square test.

  Attributes:
    statistic: Pearson's.
    degrees: of freedom.
    p_value: probability of a statistic this large if the law holds.
    num_samples: sequences drawn.
    impossible: draws of tokens that the law gives no probability.
    smallest_bias: probability moved to or from the likeliest first token that
      this test would have caught 95 times in 100.
  """

  statistic: float
  degrees: int
  p_value: float
  num_samples: int
  impossible: int
  smallest_bias: float

  def passes(self, false_alarm_rate: float) -> bool:
    """Whether the law stands at a rate of false alarms."""
    return self.impossible == 0 and self.p_value >= false_alarm_rate / _TAIL


def unending(config: DecodeConfig, *, num_tokens: int = 2) -> DecodeConfig:
  """Returns settings whose rows have so many new tokens, whatever they are.

  Args:
    config: of a row.
    num_tokens: at least 2.
  """
  # Stop ids that are ruled out long enough are part of the law.
  ruled_out = config.min_new_tokens >= 2
  return dataclasses.replace(
      config,
      max_new_tokens=num_tokens,
      min_new_tokens=2 if ruled_out else 0,
      stop_ids=config.stop_ids if ruled_out else (),
      stop_strings=(),
  )


@functools.partial(jax.jit, static_argnames=('step',))
def _first_law(weights: Weights, carry: Carry, step: Autoregressive):
  """Returns the law [B, V] of every row's next token, by a plain pass."""
  state = carry.state
  out = step.model.forward(
      weights.target, state_lib.last_token(state), state.cache
  )
  logits_B1V = step.model.logits(weights.target, out.hidden_BTD)
  adjusted_B1V = state_lib.adjusted(
      state, logits_B1V, adjust.no_drafts(state.seq_len_B)
  )
  probs_B1V = logits_lib.warp_probs(state.sampling.warping, adjusted_B1V)
  # Every host reads all of it.
  return step.model.placement.replicate(probs_B1V[:, 0])


def room(engine: Engine) -> int:
  """Returns a budget that shortens no chain of the first two tokens."""
  return 2 + engine.step.num_draft_tokens


def first_laws(
    plain: Engine,
    texts: Sequence[Sequence[int]],
    rows: Sequence[DecodeConfig],
    *,
    num_new: int = 0,
) -> np.ndarray:
  """Returns the law of the next token of every text.

  Args:
    plain: engine of plain decoding.
    texts: token ids.
    rows: how tokens are drawn, one a text.
    num_new: how many of each text's last tokens are output, not prompt.

  Returns:
    float64 [B, V].
  """
  carry = plain.start(texts, rows)
  state = carry.state
  state = state.replace(prompt_len_B=state.prompt_len_B - num_new)
  found = _first_law(plain.weights, Carry(state=state), plain.step)
  return np.asarray(found, np.float64)[: len(texts)]


def next_laws(
    plain: Engine,
    prompt: Sequence[int],
    first_tokens: Sequence[int],
    config: DecodeConfig,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the laws of the first new token and of the second.

  Args:
    plain: engine of plain decoding.
    prompt: token ids.
    first_tokens: first new tokens the second's law is wanted after.
    config: of the row.

  Returns:
    Float64 [V], and [len(first_tokens), V].
  """
  row = unending(config)
  first_V = first_laws(plain, [list(prompt)], [row])[0]
  if not len(first_tokens):
    return first_V, np.zeros((0, len(first_V)))
  texts = [[*prompt, int(t)] for t in first_tokens]
  return first_V, first_laws(plain, texts, [row] * len(texts), num_new=1)


@functools.partial(jax.jit, static_argnames=('num_rows',))
def _tiled(
    carry: Carry, sampling: Sampling, stop_ids_BE: jax.Array, num_rows: int
) -> Carry:
  """Repeats a carry of one row, with settings of its own a row."""

  def tile(leaf: jax.Array) -> jax.Array:
    if leaf.ndim == 0:
      return leaf
    shape = (num_rows, *leaf.shape[1:])
    # Rows behind the first only fill the mesh.
    return jax.numpy.broadcast_to(leaf[:1], shape)

  tiled = jax.tree.map(tile, carry)
  return tiled.replace(
      state=tiled.state.replace(sampling=sampling, stop_ids_BE=stop_ids_BE)
  )


def draw_pairs(
    engine: Engine,
    prompt: Sequence[int],
    config: DecodeConfig | Sequence[DecodeConfig],
    *,
    num_rows: int,
    num_batches: int,
) -> np.ndarray:
  """Draws the first two new tokens for many seeds.

  Args:
    engine: with or without a drafter; its layers unrolled.
    prompt: token ids, read once for all rows.
    config: of all rows, or one a row; seeds are set here.
    num_rows: rows decoded at once.
    num_batches: how often.

  Returns:
    int32 [num_batches, num_rows, 2].
  """
  rows = [config] if isinstance(config, DecodeConfig) else list(config)
  rows = [
      unending(rows[i % len(rows)], num_tokens=room(engine))
      for i in range(num_rows)
  ]
  stop_ids_BE = config_lib.padded_ids([row.stop_ids for row in rows])
  start = engine.start([prompt], [rows[0]])
  num_rounds = engine.step.model.placement.put(np.int32(2))
  pairs = np.zeros((num_batches, num_rows, 2), np.int32)
  for batch in range(num_batches):
    seeded = [
        dataclasses.replace(row, seed=_seed(row, batch * num_rows + i))
        for i, row in enumerate(rows)
    ]
    settings = (config_lib.sampling_of(seeded), stop_ids_BE)
    carry = _tiled(start, *jax.device_put(settings), num_rows)
    carry = engine.advance(
        carry, num_rounds=num_rounds, ended_B=np.zeros(num_rows, bool)
    )
    tokens = jax.device_get(carry.state.tokens_BS)
    pairs[batch] = tokens[:, len(prompt) : len(prompt) + 2]
  return pairs


def _seed(config: DecodeConfig, index: int) -> int:
  """Returns the seed of sample `index` of a case."""
  return (config.seed * 1_000_003 + index) % 2**32


def _cells(
    counts_V: np.ndarray, law_V: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Pools rare tokens; returns observed and expected counts of the cells."""
  num = counts_V.sum()
  expected_V = law_V / law_V.sum() * num
  common_V = expected_V >= _LEAST_EXPECTED
  observed = np.append(counts_V[common_V], counts_V[~common_V].sum())
  expected = np.append(expected_V[common_V], expected_V[~common_V].sum())
  if expected[-1] < _LEAST_EXPECTED and len(expected) > 1:
    # Too small a rest goes to the rarest cell that can hold it.
    least = int(np.argmin(expected[:-1]))
    observed[least] += observed[-1]
    expected[least] += expected[-1]
    observed, expected = observed[:-1], expected[:-1]
  return observed, expected


def chi_square(
    counts: Sequence[np.ndarray], laws: Sequence[np.ndarray]
) -> LawTest:
  """Compares counts with laws, each its own multinomial, in one statistic.

  Args:
    counts: of every token, [V] each.
    laws: as many, [V].

  Returns:
    The LawTest; its smallest_bias is that of the first law.
  """
  statistic, degrees, impossible = 0.0, 0, 0
  for counts_V, law_V in zip(counts, laws, strict=True):
    impossible += int(counts_V[law_V == 0].sum())
    observed, expected = _cells(counts_V, law_V)
    statistic += float(((observed - expected) ** 2 / expected).sum())
    degrees += len(expected) - 1
  num = int(counts[0].sum())
  p_value = float(stats.chi2.sf(statistic, degrees)) if degrees else 1.0
  return LawTest(
      statistic=statistic,
      degrees=degrees,
      p_value=p_value,
      num_samples=num,
      impossible=impossible,
      smallest_bias=float('nan'),
  )


def smallest_bias(
    law_V: np.ndarray, num: int, degrees: int, false_alarm_rate: float
) -> float:
  """Returns the shift of the likeliest token's probability that is caught.

  Moving delta of probability to or from that token, in proportion from all
  others, gives the statistic the non-centrality num delta^2 / (p (1 - p)).
  """
  p = float(law_V.max() / law_V.sum())
  if p >= 1:
    # Any other token is impossible: one such draw is enough.
    return 1 - (1 - _POWER) ** (1 / num)
  if degrees == 0:
    # The law is too sharp for so few samples to test anything.
    return 1.0
  threshold = stats.chi2.isf(false_alarm_rate / _TAIL, degrees)
  low, high = 0.0, 1e7
  for _ in range(100):
    middle = (low + high) / 2
    caught = stats.ncx2.sf(threshold, degrees, middle) >= _POWER
    low, high = (low, middle) if caught else (middle, high)
  # No more can be moved than there is.
  return min(float(np.sqrt(high * p * (1 - p) / num)), max(p, 1 - p))


def test_pairs(
    plain: Engine,
    prompt: Sequence[int],
    config: DecodeConfig,
    pairs_N2: np.ndarray,
    *,
    false_alarm_rate: float,
) -> LawTest:
  """Tests first tokens, and second tokens given the commonest first ones.

  Args:
    plain: engine of plain decoding, which gives the laws.
    prompt: token ids.
    config: of the rows that drew the pairs.
    pairs_N2: int32, first and second new token of every sample.
    false_alarm_rate: for smallest_bias.

  Returns:
    The LawTest over all of these laws.
  """
  firsts, nums = np.unique(pairs_N2[:, 0], return_counts=True)
  common = firsts[np.argsort(-nums)][:_MOST_FIRST_TOKENS]
  enough = [t for t in common if (pairs_N2[:, 0] == t).sum() >= 64]
  # Always as many rows, so that one program serves every case.
  padded = [*enough, *[int(common[0])] * (_MOST_FIRST_TOKENS - len(enough))]
  first_V, second_FV = next_laws(plain, prompt, padded, config)
  V = len(first_V)
  counts = [np.bincount(pairs_N2[:, 0], minlength=V)]
  laws = [first_V]
  for token, law_V in zip(enough, second_FV, strict=False):
    after = pairs_N2[pairs_N2[:, 0] == token, 1]
    counts.append(np.bincount(after, minlength=V))
    laws.append(law_V)
  result = chi_square(counts, laws)
  return dataclasses.replace(
      result,
      smallest_bias=smallest_bias(
          first_V, result.num_samples, result.degrees, false_alarm_rate
      ),
  )
