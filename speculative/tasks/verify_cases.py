"""The cases of task `verify`: what is decoded, and what each has to show.

A case is a drafter, a rule of verification and a sampler. Its rows that promise
tokens (greedy ones, and all rows of a deterministic drafter) are compared with
plain decoding; its rows that draw are tested for the target's law.
"""

from collections.abc import Sequence
import dataclasses
import itertools

from speculative import api
from speculative.bench import compare
from speculative.bench import law
from speculative.bench.compare import Divergence
from speculative.bench.law import LawTest
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.decoding.generation import Generation
from speculative.drafting.config import DrafterConfig
from speculative.tasks import verify_batching
from speculative.tasks.verify_batching import Batching
from speculative.testing import faults

_SINGLE = {
    'greedy': {'temperature': 0.0},
    'T1': {'temperature': 1.0},
    'T0.7_p0.9': {'temperature': 0.7, 'top_p': 0.9},
    'T0.8_k40_m0.05': {'temperature': 0.8, 'top_k': 40, 'min_p': 0.05},
    'penalties': {
        'temperature': 0.9,
        'repetition_penalty': 1.2,
        'presence_penalty': 0.5,
        'frequency_penalty': 0.3,
        'logit_bias': ((5, 2.0), (12, -3.0)),
        'min_new_tokens': 3,
    },
}
# A sampler is a list of row settings; a batch goes through it row by row.
SAMPLERS = {name: (row,) for name, row in _SINGLE.items()}
SAMPLERS['mixed'] = tuple(_SINGLE.values())
SAMPLERS['T0.8_p0.95'] = ({'temperature': 0.8, 'top_p': 0.95},)
# Cuts so much that a law without a sum of one is bent for all to see.
SAMPLERS['T1_p0.5'] = ({'temperature': 1.0, 'top_p': 0.5},)


@dataclasses.dataclass(frozen=True)
class Case:
  """One combination to verify.

  Attributes:
    drafter: with its rule.
    sampler: name in SAMPLERS, or 'config' for the config's own settings.
    rows: decode settings, one a kind of row.
  """

  drafter: DrafterConfig
  sampler: str
  rows: tuple[DecodeConfig, ...]

  @property
  def name(self) -> str:
    """For instance 'lm block T1'."""
    drafter = self.drafter
    # Rules are those of drawn chains.
    how = '' if drafter.is_deterministic else f' {drafter.rule}'
    if drafter.shape != 'chain':
      how = f' {drafter.shape}'
    return f'{drafter.label}{how} {self.sampler}'

  @property
  def num_laws(self) -> int:
    """Kinds of rows that draw."""
    return sum(row.temperature > 0 for row in self.rows)

  @property
  def promises_tokens(self) -> bool:
    """Whether any row has to be plain decoding's token for token."""
    return self.drafter.is_deterministic or self.num_laws < len(self.rows)


@dataclasses.dataclass(frozen=True)
class Budget:
  """How much is decoded to verify a case.

  Attributes:
    num_samples: sequences drawn a case for the tests of its laws, dealt out
      to its kinds of rows; 0 leaves the laws untested.
    num_rows: of them at once.
    false_alarm_rate: of one law test.
  """

  num_samples: int
  num_rows: int
  false_alarm_rate: float


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What a case has shown.

  Attributes:
    case: which.
    num_equal: rows that promise tokens and kept them.
    divergences: of those that did not.
    laws: one test a kind of row that draws.
    batching: of rows alone and in batches, None where that was not asked for.
    generations: of the rows compared, one a batch.
    passed: whether nothing stands against the case.
  """

  case: Case
  num_equal: int
  divergences: tuple[Divergence, ...]
  laws: tuple[LawTest, ...]
  batching: Batching | None
  generations: tuple[Generation, ...]
  passed: bool


def cases(
    samplers: Sequence[str],
    drafters: Sequence[DrafterConfig],
    decode: DecodeConfig,
) -> list[Case]:
  """Returns every combination of drafter and sampler.

  Args:
    samplers: names in SAMPLERS, or 'config' for the settings of `decode`.
    drafters: with their rules.
    decode: what the samplers leave open.
  """

  def rows(sampler: str) -> tuple[DecodeConfig, ...]:
    if sampler == 'config':
      return (decode,)
    plain = {f.name: f.default for f in dataclasses.fields(DecodeConfig)}
    return tuple(
        dataclasses.replace(
            decode, **{k: row.get(k, plain[k]) for k in _SETTINGS}
        )
        for row in SAMPLERS[sampler]
    )

  return [
      Case(drafter, sampler, rows(sampler))
      for drafter, sampler in itertools.product(drafters, samplers)
  ]


# What a sampler decides; the rest is the config's.
_SETTINGS = sorted({key for row in _SINGLE.values() for key in row})


def engine_of(model: api.LanguageModel, case: Case, fault: str) -> Engine:
  """Returns the engine of a case.

  Args:
    model: with its weights loaded.
    case: which.
    fault: a deliberate fault of `testing.faults`, or ''.
  """
  engine = model.engine(case.drafter)
  if not fault:
    return engine
  return engine.with_step(faults.inject(engine.step, fault))


def _dealt(
    case: Case,
    prompts: Sequence[Sequence[int]],
    *,
    first_prompt: int,
) -> tuple[list[Sequence[int]], list[DecodeConfig]]:
  """Deals the kinds of rows of a case out to prompts in turn.

  Kind and seed are the prompt's and depend on no batch.

  Args:
    case: its kinds of rows.
    prompts: token ids; repeated where there are more kinds.
    first_prompt: index of the first among all.

  Returns:
    Token ids and settings of every row.
  """
  num_rows = max(len(prompts), len(case.rows))
  rows = [
      dataclasses.replace(
          case.rows[index % len(case.rows)],
          seed=case.rows[0].seed + index,
          rounds_per_call=0,
      )
      for index in range(first_prompt, first_prompt + num_rows)
  ]
  return [prompts[i % len(prompts)] for i in range(num_rows)], rows


def compare_batch(
    case: Case,
    batch: Sequence[Sequence[int]],
    *,
    first_prompt: int,
    plain: Engine,
    engine: Engine,
) -> tuple[Generation, int, list[Divergence]]:
  """Sets the rows of a batch that promise tokens beside plain decoding.

  Args:
    case: its kinds of rows are dealt out to the batch in turn.
    batch: token ids; repeated where there are more kinds of rows than prompts.
    first_prompt: index of the batch's first prompt among all.
    plain: engine of plain decoding.
    engine: of the case.

  Returns:
    The case's Generation, the number of rows equal, and where others left plain
    decoding.
  """
  ids, rows = _dealt(case, batch, first_prompt=first_prompt)
  found = engine.generate(ids, rows)
  promised = [
      row.temperature == 0 or case.drafter.is_deterministic for row in rows
  ]
  if not any(promised):
    return found, 0, []
  expected = plain.generate(ids, rows)
  divergences = [
      compare.divergence(
          plain.step.model,
          plain.weights.target,
          prompt=first_prompt + i % len(batch),
          prompt_ids=ids[i],
          plain=expected.token_ids[i],
          other=found.token_ids[i],
      )
      for i in range(len(rows))
      if promised[i]
  ]
  differ = [d for d in divergences if d is not None]
  return found, len(divergences) - len(differ), differ


def test_batching(
    case: Case,
    prompts: Sequence[Sequence[int]],
    *,
    batch_size: int,
    engine: Engine,
) -> Batching:
  """Sets rows that are decoded alone beside the same rows in batches.

  Args:
    case: its kinds of rows are dealt out to the prompts in turn.
    prompts: token ids of all prompts; repeated where there are more kinds.
    batch_size: rows at once.
    engine: of the case.

  Returns:
    The Batching.
  """
  ids, rows = _dealt(case, prompts, first_prompt=0)
  found = verify_batching.compare_batching(
      engine, ids, rows, batch_size=batch_size
  )
  return dataclasses.replace(
      found,
      differences=tuple(
          dataclasses.replace(d, prompt=d.prompt % len(prompts))
          for d in found.differences
      ),
  )


def test_laws(
    case: Case,
    prompt: Sequence[int],
    budget: Budget,
    *,
    plain: Engine,
    engine: Engine,
) -> list[LawTest]:
  """Tests the law of every kind of row that draws.

  Args:
    case: which.
    prompt: token ids of the text after which tokens are drawn.
    budget: how much is decoded.
    plain: engine of plain decoding.
    engine: of the case.

  Returns:
    One LawTest a kind.
  """
  kinds = len(case.rows)
  # As many of every kind, all kinds side by side in one batch.
  num_rows = max(budget.num_rows // kinds, 1) * kinds
  num_batches = -(-budget.num_samples // num_rows)
  pairs = law.draw_pairs(
      engine, prompt, case.rows, num_rows=num_rows, num_batches=num_batches
  )
  return [
      law.test_pairs(
          plain,
          prompt,
          row,
          pairs[:, kind::kinds].reshape(-1, 2),
          false_alarm_rate=budget.false_alarm_rate,
      )
      for kind, row in enumerate(case.rows)
      if row.temperature > 0
  ]
