"""What tasks share: prompts as tokens, checked before any weight is read."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import itertools
import pathlib
import time

from absl import logging
from ml_collections import config_dict

from speculative import api
from speculative import config as config_lib
from speculative.bench import report
from speculative.bench.prompts import Prompt
from speculative.decoding import engine
from speculative.decoding.config import DecodeConfig
from speculative.drafting.config import DrafterConfig
from speculative.errors import UserError
from speculative.tasks import hosts
from speculative.tasks import memory_maps
from speculative.tasks import results
from speculative.tasks import turns


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
  """A run whose mistakes, if any, have been found.

  Attributes:
    model: with its weights loaded.
    decode: how to decode.
    prompts: as read; of several turns the last, once the run is loaded.
    batches: token ids of the prompts, batch by batch.
    calibration: of prompts that are not timed but predicted from.
    workdir: where results go; None before it is made.
    aside: the prompts of `calibration`.
  """

  model: api.LanguageModel
  decode: DecodeConfig
  prompts: Sequence[Prompt]
  batches: Sequence[Sequence[Sequence[int]]]
  workdir: results.Workdir | None
  calibration: Sequence[Sequence[Sequence[int]]] = ()
  aside: Sequence[Prompt] = ()

  @property
  def answers(self) -> list[list[str]]:
    """Answers to the earlier turns of every prompt, those aside too."""
    return [list(p.history[1::2]) for p in (*self.prompts, *self.aside)]

  def decode_of(self, index: int) -> DecodeConfig:
    """Returns how to decode a batch.

    The first row of a batch has the config's seed, plus one for every prompt
    before it: a prompt's seed does not depend on the size of the batches.

    Args:
      index: of the batch.
    """
    first = index * len(self.batches[0])
    return dataclasses.replace(self.decode, seed=self.decode.seed + first)


def prepare(
    config: config_dict.ConfigDict,
    path: pathlib.Path,
    prompts: Sequence[Prompt],
    *,
    calibration: Sequence[Prompt] = (),
    drafters: Mapping[str, DrafterConfig] | None = None,
) -> Prepared:
  """Does what `open_run` and `load` do.

  Args:
    config: of the run.
    path: of the workdir.
    prompts: what to answer.
    calibration: prompts to predict from.
    drafters: that the model has to be able to run with, by the names of their
      settings; its own is taken for granted.

  Returns:
    The Prepared run.

  Raises:
    UserError: For anything wrong with config, models, prompts or the workdir;
      nothing has been written then.
  """
  opened = open_run(config, prompts, calibration=calibration, drafters=drafters)
  loaded = load(opened)
  # It comes last: what is wrong leaves none behind.
  return dataclasses.replace(loaded, workdir=results.Workdir(path, config))


def open_run(
    config: config_dict.ConfigDict,
    prompts: Sequence[Prompt],
    *,
    calibration: Sequence[Prompt] = (),
    drafters: Mapping[str, DrafterConfig] | None = None,
) -> Prepared:
  """Opens the models and encodes the prompts, of several turns the first.

  Args:
    config: of the run.
    prompts: what to answer.
    calibration: see `prepare`.
    drafters: see `prepare`.

  Returns:
    The Prepared run without workdir; no weights are read.

  Raises:
    UserError: For anything wrong with config, models or prompts.
  """
  run_config = config_lib.parse(config)
  model = run_config.open_model()
  for setting, drafter in (drafters or {}).items():
    try:
      model.check_drafter(drafter)
    except UserError as error:
      raise UserError(f'the setting {setting!r}: {error}') from error
  return _with_prompts(
      Prepared(
          model=model,
          decode=run_config.decode_for(model),
          prompts=prompts,
          batches=[],
          workdir=None,
          aside=calibration,
      ),
      [*prompts, *calibration],
      batch_size=run_config.batch_size,
  )


def load(
    run: Prepared, *, answers: Sequence[Sequence[str]] | None = None
) -> Prepared:
  """Reads the weights and gets to the last turns; writes nothing.

  Args:
    run: that was opened.
    answers: `Prepared.answers` of an earlier run of the same; the model is
      asked for them where there are none.

  Returns:
    The Prepared run without workdir.

  Raises:
    UserError: For anything wrong with weights or with the last turns.
  """
  # Hosts that go on with other prompts would wait for each other for ever.
  hosts.agree([run.batches, run.calibration], name='prompts')
  run.model.load_weights()
  every = [*run.prompts, *run.aside]
  if any(p.next_turns for p in every):
    size = len(run.batches[0])
    if answers is None:
      every = turns.answer_first(
          run.model,
          every,
          run.decode,
          drafter=plain(run.model.drafter),
          batch_size=size,
      )
    else:
      every = turns.follow(every, answers)
    run = _with_prompts(run, every, batch_size=size)
  # A host that cannot go on ends them all before anything is written.
  hosts.agree([run.batches, run.calibration], name='prompts')
  return run


def _with_prompts(
    run: Prepared, every: Sequence[Prompt], *, batch_size: int
) -> Prepared:
  """Returns a run over other prompts, as many as it had."""
  ids, num = _encode(run.model, every, run.decode), len(run.prompts)
  return dataclasses.replace(
      run,
      prompts=every[:num],
      aside=every[num:],
      batches=_batches(ids[:num], batch_size),
      calibration=_batches(ids[num:], batch_size),
  )


def _encode(
    model: api.LanguageModel, prompts: Sequence[Prompt], decode: DecodeConfig
) -> list[list[int]]:
  """Returns the ids of prompts that can be decoded."""
  ids = [model.encode(p.said, chat_template=p.chat_template) for p in prompts]
  model.check(ids, [decode] * len(ids))
  return ids


def _batches(
    ids: Sequence[Sequence[int]], size: int
) -> list[Sequence[Sequence[int]]]:
  return [ids[i : i + size] for i in range(0, len(ids), size)]


def repeats(config: config_dict.ConfigDict) -> int:
  """Returns how often a batch is timed with each setting.

  Raises:
    UserError: If that is less than once.
  """
  if config.bench.repeats < 1:
    raise UserError(
        f'config.bench.repeats needs to be >= 1, got {config.bench.repeats}.'
    )
  return config.bench.repeats


# Of the row beside which all others are set.
PLAIN = 'plain'
# Seconds between two lines while programs are compiled.
_SAY_EVERY_S = 15.0


def plain(drafter: DrafterConfig) -> DrafterConfig:
  """Returns the setting of plain decoding beside a drafter."""
  return dataclasses.replace(drafter, num_draft_tokens=0)


def name(drafter: DrafterConfig) -> str:
  """Returns 'plain', or for instance 'lookup 4' or 'hybrid tree 5'.

  A hybrid that drafts other numbers with its model and from text has both:
  'hybrid tree 4 or 12'.
  """
  if drafter.is_plain:
    return PLAIN
  shape = '' if drafter.shape == 'chain' else f' {drafter.shape}'
  said = f'{drafter.label}{shape} {drafter.num_draft_tokens}'
  return f'{said} or {drafter.hybrid_tokens}' if drafter.hybrid_tokens else said


def warm_up(run: Prepared, settings: Sequence[DrafterConfig]) -> None:
  """Compiles every program the run will need.

  Raises:
    UserError: If that are more than a process can hold.
  """
  # Batches of one size and bucket share their programs.
  shapes: dict[tuple[int, int], Sequence[Sequence[int]]] = {}
  for batch in run.batches:
    shapes.setdefault((len(batch), engine.bucket(max(map(len, batch)))), batch)
  total = len(shapes) * len(settings)
  logging.info(
      'Compiling for %d setting(s) and %d shape(s) of prompts ...',
      len(settings),
      len(shapes),
  )
  started = said = time.monotonic()
  pairs = itertools.product(shapes.values(), settings)
  for done, (batch, drafter) in enumerate(pairs):
    memory_maps.check(done, total)
    run.model.engine(drafter).warm_up(batch, run.decode)
    now = time.monotonic()
    if now - said > _SAY_EVERY_S:
      said = now
      line = report.progress(done + 1, total, now - started, 'program')
      logging.info('%s', line)
