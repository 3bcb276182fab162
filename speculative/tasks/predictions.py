"""Predicts what settings will gain, from other prompts than those timed."""

from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

from absl import logging
import jax
import numpy as np

from speculative.bench import metrics
from speculative.bench import microbench
from speculative.bench import predict
from speculative.bench.predict import Acceptance
from speculative.bench.predict import Best
from speculative.bench.predict import Times
from speculative.decoding import engine as engine_lib
from speculative.decoding.engine import Engine
from speculative.decoding.generation import Generation
from speculative.drafting import hybrid
from speculative.drafting import text as text_lib
from speculative.drafting.config import DrafterConfig
from speculative.drafting.hybrid import Hybrid
from speculative.drafting.lookup import Lookup
from speculative.drafting.retrieval import Retrieval
from speculative.tasks import common
from speculative.tasks import measure

# Texts that are searched for in one call.
_FOUND_AT_ONCE = 16


@dataclasses.dataclass(frozen=True)
class Foreseen:
  """What is known of the settings with a drafter before they are timed.

  Attributes:
    times: of the parts of each.
    acceptance: of each, on the prompts set aside.
    best: the draft length to take, of each: among all lengths of its drafter.
    num_timed: prompts that will be timed.
  """

  times: Sequence[Times]
  acceptance: Sequence[Acceptance]
  best: Sequence[Best]
  num_timed: int

  def as_json(self) -> dict[str, Any]:
    """Returns what `from_json` takes."""
    return dataclasses.asdict(self)

  def keys(self, index: int, row: dict) -> dict[str, object]:
    """Returns the result keys of a setting.

    Args:
      index: of the setting among those with a drafter.
      row: its measured result.
    """
    return predict.keys(
        self.times[index],
        self.acceptance[index],
        self.best[index],
        measured=row['speedup/measured'],
        num_timed=self.num_timed,
    )


def from_json(found: dict[str, Any]) -> Foreseen:
  """Returns what `Foreseen.as_json` was called on.

  Args:
    found: as JSON gives it back.
  """
  return Foreseen(
      times=[Times(**fields) for fields in found['times']],
      acceptance=[Acceptance(**fields) for fields in found['acceptance']],
      best=[Best(**fields) for fields in found['best']],
      num_timed=found['num_timed'],
  )


def foresee(
    prepared: common.Prepared,
    settings: Sequence[DrafterConfig],
    *,
    repeats: int,
) -> Foreseen:
  """Times parts and counts what is accepted on the prompts set aside.

  Args:
    prepared: the run.
    settings: those with a drafter.
    repeats: config.bench.repeats.

  Returns:
    The Foreseen.
  """
  logging.info('Predicting from the parts of a round and other prompts ...')
  engines = [prepared.model.engine(drafter) for drafter in settings]
  generations = [_decode_aside(prepared, engine) for engine in engines]
  acceptance = [metrics.acceptance_of(found) for found in generations]
  times = _times(prepared, engines, generations, repeats=repeats)
  return Foreseen(
      times=times,
      acceptance=acceptance,
      best=best_of(settings, times, acceptance),
      num_timed=len(prepared.prompts),
  )


def best_of(
    settings: Sequence[DrafterConfig],
    times: Sequence[Times],
    acceptance: Sequence[Acceptance],
) -> list[Best]:
  """Returns the best length of every setting.

  Those that differ in their length alone are judged together; others say
  nothing of what a drafter would do with another length.

  Args:
    settings: with a drafter each.
    times: of every setting.
    acceptance: of every setting.
  """
  drafters = [common.plain(drafter) for drafter in settings]
  found = []
  for drafter in drafters:
    same = [i for i, other in enumerate(drafters) if other == drafter]
    found.append(
        predict.best([times[i] for i in same], [acceptance[i] for i in same])
    )
  return found


def _times(
    prepared: common.Prepared,
    engines: Sequence[Engine],
    generations: Sequence[Sequence[Generation]],
    *,
    repeats: int,
) -> list[Times]:
  """Times parts of the settings, kinds of rounds as often as they came."""
  kinds = [_kinds_of_round(engine) for engine in engines]
  # Costs follow from shapes, so these are the timed prompts' own.
  ordered = sorted(
      prepared.batches, key=lambda batch: (len(batch), max(map(len, batch)))
  )
  each = iter(
      microbench.time_parts(
          prepared.model.engine(common.plain(prepared.model.drafter)),
          [engine for of_setting in kinds for engine in of_setting],
          ordered[len(ordered) // 2],
          prepared.decode,
          repeats=repeats,
      )
  )
  times = []
  for engine, of_setting, found in zip(
      engines, kinds, generations, strict=True
  ):
    parts = [next(each) for _ in of_setting]
    if len(parts) > 1:
      share = _share_asked(prepared, engine, found)
      parts = [predict.blend(*parts, share)]
    times += parts
  return times


def _kinds_of_round(engine: Engine) -> list[Engine]:
  """Returns an engine for every kind of round that takes its own time."""
  drafter = getattr(engine.step, 'drafter', None)
  if not isinstance(drafter, Hybrid):
    return [engine]
  return [
      engine.with_step(
          dataclasses.replace(engine.step, drafter=drafter.always(source))
      )
      for source in ('model', 'text')
  ]


def _share_asked(
    prepared: common.Prepared, engine: Engine, found: Sequence[Generation]
) -> float:
  """Returns the share of rounds in which a hybrid asked its draft model."""
  asked, rounds = 0, 0
  for batch, generation in zip(prepared.calibration, found, strict=True):
    for prompt, new, starts in zip(
        batch, generation.token_ids, generation.round_starts, strict=True
    ):
      texts = [[*prompt, *new[:start]] for start in starts]
      rounds += len(texts)
      asked += len(texts) - sum(_are_found(engine, texts))
  return asked / max(rounds, 1)


def _are_found(engine: Engine, texts: Sequence[Sequence[int]]) -> list[bool]:
  """Tells after which texts a hybrid drafts from text."""
  text = engine.step.drafter.text
  if isinstance(text, Lookup):
    return [hybrid.repeats(ids, text.min_ngram) for ids in texts]
  put, store = engine.step.model.placement.put, engine.weights.drafter
  # A few programs serve all texts.
  width = engine_lib.bucket(max(map(len, texts), default=1))
  found = []
  for start in range(0, len(texts), _FOUND_AT_ONCE):
    some = texts[start : start + _FOUND_AT_ONCE]
    text_BS = np.zeros((_FOUND_AT_ONCE, width), np.int32)
    seq_len_B = np.ones(_FOUND_AT_ONCE, np.int32)
    for row, ids in enumerate(some):
      text_BS[row, : len(ids)], seq_len_B[row] = ids, len(ids)
    rows_B = _is_found(
        text, text_lib.store_of(store), *put((text_BS, seq_len_B))
    )
    found += np.asarray(rows_B)[: len(some)].tolist()
  return found


@functools.partial(jax.jit, static_argnames=('text',))
def _is_found(
    text: Retrieval, store: Any, text_BS: jax.Array, seq_len_B: jax.Array
) -> jax.Array:
  """Tells [B] after which texts anything is retrieved."""
  found = text.draft(store, text_BS, seq_len_B)
  # Every host reads all of it.
  return text.placement.replicate(found.valid_BM[:, 0])


def _decode_aside(
    prepared: common.Prepared, engine: Engine
) -> list[Generation]:
  """Decodes the prompts set aside."""
  size, first = len(prepared.calibration[0]), len(prepared.prompts)
  generations = []
  for index, batch in enumerate(prepared.calibration):
    # Seeds go on where those of the timed prompts end.
    seed = prepared.decode.seed + first + index * size
    decode = dataclasses.replace(prepared.decode, seed=seed, rounds_per_call=0)
    ends = measure.watch(prepared, len(batch))
    generations.append(engine.generate(batch, decode, **ends))
  return generations
