"""The parts of bench_gpu.py, and how they are run in the time there is.

A part's rows are a file, with the day they were measured; what has one is not
measured again.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import datetime
import functools
import json
import os
import pathlib
import statistics
import sys
from typing import Any

import bench_gpu_models as models_lib
import jax
import numpy as np

from speculative.bench import bandwidth
from speculative.bench import microbench
from speculative.decoding import engine as engine_lib
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.testing import set_acceptance

# 4 + 12 + 24 + 24 = 64 nodes, as deep as the chains are long.
TREE = (4, 3, 2, 1)
NUM_DRAFT_TOKENS = 4
_REPEATS = 5

Rows = list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Settings:
  """What all parts have in common.

  Attributes:
    acceptance_rate: of the coin.
    temperature: of every row; 0 is greedy.
    seed: of the first row.
  """

  acceptance_rate: float
  temperature: float
  seed: int


@dataclasses.dataclass(frozen=True)
class Part:
  """Something to measure.

  Attributes:
    name: of its file; up to a dot its kind.
    run: returns its rows.
  """

  name: str
  run: Callable[[], Rows]


@dataclasses.dataclass
class Outcome:
  """What became of the parts.

  Attributes:
    rows: of those that were measured, now or before.
    left_out: names of those for which no time was left.
    failed: why a part has no rows, by name.
  """

  rows: Rows = dataclasses.field(default_factory=list)
  left_out: list[str] = dataclasses.field(default_factory=list)
  failed: dict[str, str] = dataclasses.field(default_factory=dict)


def first_line(text: str, otherwise: str) -> str:
  """Returns the first line of a message, cut to fit into a table's head.

  Args:
    text: the message.
    otherwise: what is said where it is empty.
  """
  return (text.strip().splitlines() or [otherwise])[0][:200]


def write_text(path: pathlib.Path, text: str) -> None:
  """Writes a file beside its place and renames it there.

  `speculative.tasks.results` has the like, but asks jax which host this is, and
  so takes the device's memory, which the peer needs first.

  Args:
    path: of the file.
    text: all of it.
  """
  beside = path.with_name(f'{path.name}.partial')
  beside.write_text(text)
  os.replace(beside, path)


def _today() -> str:
  return datetime.date.today().isoformat()


def stored(folder: pathlib.Path, name: str) -> Rows | None:
  """Returns a part's rows, None if it has not been measured.

  Args:
    folder: of the files.
    name: of the part.
  """
  path = folder / f'{name}.json'
  return json.loads(path.read_text()) if path.exists() else None


def store(folder: pathlib.Path, name: str, rows: Rows) -> Rows:
  """Writes a part that was measured today.

  Args:
    folder: of the files.
    name: of the part.
    rows: all that it consists of.

  Returns:
    The rows with their day.
  """
  rows = [row | {'env/date': _today()} for row in rows]
  write_text(folder / f'{name}.json', json.dumps(rows, indent=2) + '\n')
  return rows


def run_parts(
    parts: Sequence[Part],
    folder: pathlib.Path,
    *,
    limit_s: float,
    clock: Callable[[], float],
) -> Outcome:
  """Runs parts in their order, as long as one would fit.

  A part is taken to need as long as the longest so far of its kind, the first
  of a kind as long as any.

  Args:
    parts: to run.
    folder: of their files.
    limit_s: by the clock.
    clock: seconds since the start.

  Returns:
    The Outcome.
  """
  outcome = Outcome()
  longest_s: dict[str, float] = {}
  for number, part in enumerate(parts, 1):
    before = stored(folder, part.name)
    if before is not None:
      outcome.rows += before
      continue
    started, kind = clock(), part.name.partition('.')[0]
    needed_s = longest_s.get(kind, max(longest_s.values(), default=0.0))
    if started + needed_s >= limit_s:
      outcome.left_out.append(part.name)
      continue
    print(
        f'part {number}/{len(parts)}  {part.name}  {started:.0f} s of '
        f'{limit_s:.0f}',
        file=sys.stderr,
        flush=True,
    )
    try:
      rows = part.run()
    except jax.errors.JaxRuntimeError as error:
      # Most often out of memory; the next part may need less.
      why = first_line(str(error), type(error).__name__)
      outcome.failed[part.name] = why
    else:
      outcome.rows += store(folder, part.name, rows)
    longest_s[kind] = max(longest_s.get(kind, 0.0), clock() - started)
  return outcome


def _config(models: models_lib.Models, settings: Settings) -> DecodeConfig:
  return DecodeConfig(
      max_new_tokens=models.shape.max_new_tokens,
      temperature=settings.temperature,
      seed=settings.seed,
  )


def read(models: models_lib.Models) -> Rows:
  """Measures how fast the device reads."""
  shape = models.shape
  rate = bandwidth.read_rate(
      models.target.precision.param_dtype,
      num_bytes=shape.read_bytes,
      num_calls=shape.read_calls,
  )
  return [{'row/name': 'reading', 'device/read_bytes_per_s': rate}]


def decode(
    models: models_lib.Models,
    settings: Settings,
    name: str,
    make: Callable[[], Engine],
    batch: int,
) -> Rows:
  """Times rounds of a batch, and the text of it.

  Args:
    models: gives the prompts.
    settings: of the rows.
    name: of the row.
    make: returns the engine.
    batch: B.

  Returns:
    One row. Tokens a second are those of whole texts after their prompts.
  """
  engine, config = make(), _config(models, settings)
  prompts = models.prompts(batch)
  count = np.int32(models.shape.num_rounds)
  part = microbench.rounds(engine, prompts, config, count)
  found = microbench.medians({'round': part}, repeats=_REPEATS)
  texts = [engine.generate(prompts, config) for _ in range(_REPEATS)]
  row = {
      'row/name': name,
      'row/batch': batch,
      'time/round_ms': found['round'],
      'decode/tokens_per_s': statistics.median(
          text.num_tokens / text.decode_s for text in texts
      ),
  }
  if engine.step.num_draft_tokens:
    text = texts[0]
    row |= {
        'row/label': set_acceptance.LABEL,
        'row/num_draft_tokens': engine.step.num_draft_tokens,
        'decode/set_acceptance_rate': settings.acceptance_rate,
        'decode/acceptance_rate': text.acceptance_rate,
        'decode/accepted': int(text.accepted.sum()),
        'decode/tested': int(text.tested.sum()),
        'decode/tokens_per_round': text.tokens_per_round,
    }
  else:
    slots = engine_lib.cache_slots(
        engine.step,
        prompt_len=models.shape.prompt_len,
        max_new_tokens=config.max_new_tokens,
        max_seq_len=config.max_seq_len,
    )
    row['decode/step_bytes'] = bandwidth.plain_step_bytes(
        models.target, models.target_params, batch=batch, num_slots=slots
    )
  return [row]


def one_pass(
    models: models_lib.Models, settings: Settings, positions: int
) -> Rows:
  """Times the target's pass over some positions of one row.

  Args:
    models: gives the target.
    settings: of the row.
    positions: n.
  """
  held = microbench.Held(
      # Its rows have room behind them for the widest pass.
      models.tree(TREE, settings.acceptance_rate),
      models.prompts(1),
      _config(models, settings),
      np.int32(models.shape.num_rounds),
  )
  run = functools.partial(held.passes, positions)
  found = microbench.medians({'pass': run}, repeats=2 * _REPEATS)
  return [
      {
          'row/name': f'pass of {positions}',
          'row/batch': 1,
          'pass/positions': positions,
          'time/pass_ms': found['pass'],
      }
  ]


def all_parts(models: models_lib.Models, settings: Settings) -> list[Part]:
  """Returns the parts, those that tell most first.

  Args:
    models: of a shape.
    settings: of all parts.
  """
  shape, rate = models.shape, settings.acceptance_rate
  first, *more = shape.batches
  first_n, *more_n = shape.positions

  def text(
      file: str, name: str, make: Callable[[], Engine], batch: int
  ) -> Part:
    """Returns the part of whole texts."""
    run = functools.partial(decode, models, settings, name, make, batch)
    return Part(f'{file}.batch{batch}', run)

  def passes(n: int) -> Part:
    run = functools.partial(one_pass, models, settings, n)
    return Part(f'pass.{n}', run)

  def chain(draft: str, batch: int) -> Part:
    make = functools.partial(models.chain, draft, NUM_DRAFT_TOKENS, rate)
    file = f'chain.{draft.replace(" ", "_")}'
    name = f'chain of {NUM_DRAFT_TOKENS}, draft {draft}'
    return text(file, name, make, batch)

  def plain(batch: int) -> Part:
    return text('plain', 'plain', models.plain, batch)

  tree = functools.partial(models.tree, TREE, rate)
  drafts = list(shape.drafts)
  return [
      Part('reading', functools.partial(read, models)),
      plain(first),
      *(chain(draft, first) for draft in drafts),
      text('tree', '64-node tree, drafts free', tree, first),
      *(passes(n) for n in (first_n, *more_n[:2])),
      *(part for b in more for part in (plain(b), chain(drafts[0], b))),
      *(passes(n) for n in more_n[2:]),
  ]


def derived(rows: Sequence[Mapping[str, Any]]) -> Rows:
  """Returns the rows with what follows from several of them.

  Plain decoding's share of the read rate, a pass over one of one position, and
  how many times plain decoding's tokens a second there are at the same batch.

  Args:
    rows: of all parts.
  """
  rates = [row.get('device/read_bytes_per_s') for row in rows]
  rate = next(filter(None, rates), None)
  plain = {row['row/batch']: row for row in rows if row['row/name'] == 'plain'}
  single = [row for row in rows if row.get('pass/positions') == 1]
  found = []
  for row in rows:
    row = dict(row)
    if rate and 'decode/step_bytes' in row:
      floor_ms = 1e3 * row['decode/step_bytes'] / rate
      row['decode/bandwidth_floor_ms'] = floor_ms
      row['decode/bandwidth_share'] = floor_ms / row['time/round_ms']
    if single and 'pass/positions' in row:
      row['pass/ratio'] = row['time/pass_ms'] / single[0]['time/pass_ms']
    beside = plain.get(row.get('row/batch'))
    if (
        beside
        and 'decode/tokens_per_s' in row
        and beside['row/name'] != (row['row/name'])
    ):
      row['decode/against_plain'] = (
          row['decode/tokens_per_s'] / beside['decode/tokens_per_s']
      )
    found.append(row)
  return found
