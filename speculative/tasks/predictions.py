"""Predicts what settings will gain, from other prompts than those timed."""

from collections.abc import Sequence
import dataclasses

from absl import logging

from speculative.bench import metrics
from speculative.bench import microbench
from speculative.bench import predict
from speculative.bench.predict import Acceptance
from speculative.bench.predict import Best
from speculative.bench.predict import Times
from speculative.decoding import engine as engine_lib
from speculative.drafting.config import DrafterConfig
from speculative.tasks import common


@dataclasses.dataclass(frozen=True)
class Foreseen:
  """What is known of the settings with a drafter before they are timed.

  Attributes:
    times: of the parts of each.
    acceptance: of each, on the prompts set aside.
    best: the draft length to take.
    num_timed: prompts that will be timed.
  """

  times: Sequence[Times]
  acceptance: Sequence[Acceptance]
  best: Best
  num_timed: int

  def keys(self, index: int, row: dict) -> dict[str, object]:
    """Returns the result keys of a setting.

    Args:
      index: of the setting among those with a drafter.
      row: its measured result.
    """
    return predict.keys(
        self.times[index],
        self.acceptance[index],
        self.best,
        measured=row['speedup/measured'],
        num_timed=self.num_timed,
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
  acceptance = [_acceptance(prepared, engine) for engine in engines]
  # Costs follow from shapes, so these are the timed prompts' own.
  ordered = sorted(
      prepared.batches, key=lambda batch: (len(batch), max(map(len, batch)))
  )
  times = microbench.time_parts(
      prepared.model.engine(common.plain(prepared.model.drafter)),
      engines,
      ordered[len(ordered) // 2],
      prepared.decode,
      repeats=repeats,
  )
  return Foreseen(
      times=times,
      acceptance=acceptance,
      best=predict.best(times, acceptance),
      num_timed=len(prepared.prompts),
  )


def _acceptance(
    prepared: common.Prepared, engine: engine_lib.Engine
) -> Acceptance:
  """Decodes the prompts set aside and returns what was accepted."""
  size, first = len(prepared.calibration[0]), len(prepared.prompts)
  generations = []
  for index, batch in enumerate(prepared.calibration):
    # Seeds go on where those of the timed prompts end.
    seed = prepared.decode.seed + first + index * size
    decode = dataclasses.replace(prepared.decode, seed=seed, rounds_per_call=0)
    generations.append(engine.generate(batch, decode))
  return metrics.acceptance_of(generations)
