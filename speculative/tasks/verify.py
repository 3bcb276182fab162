"""Task `verify`: is the output still the target's?

Greedy rows, and sampled rows with a deterministic drafter, have to equal plain
decoding of the same seed token for token in float32. Rows that draw are tested
for the target's law. `config.verify.batching` sets every row alone beside the
same row in batches. `config.verify.fault` puts a wrong verifier in the right
one's place; the task then has to fail.
"""

from collections.abc import Sequence
import dataclasses
import pathlib
import time

from absl import logging
from ml_collections import config_dict

from speculative import config as config_lib
from speculative.bench import contexts
from speculative.bench import metrics
from speculative.bench import report
from speculative.bench.compare import Divergence
from speculative.decoding.config import DecodeConfig
from speculative.decoding.generation import Generation
from speculative.drafting import changes
from speculative.drafting import config as drafter_config
from speculative.drafting.config import DrafterConfig
from speculative.errors import UserError
from speculative.tasks import common
from speculative.tasks import results
from speculative.tasks import verify_batching
from speculative.tasks import verify_cases
from speculative.tasks import verify_report
from speculative.tasks.results import TaskResult
from speculative.tasks.verify_cases import Budget
from speculative.tasks.verify_cases import Case
from speculative.tasks.verify_cases import Outcome
from speculative.testing import faults

_OWN = 'config'


def _drafters(
    config: config_dict.ConfigDict, drafter: DrafterConfig
) -> list[DrafterConfig]:
  """Returns the drafters to verify, each with its rules."""
  found = []
  for text in config.verify.drafters:
    of_kind = _drafter(text, drafter)
    rules = config.verify.rules
    if of_kind.is_deterministic:
      rules = (_OWN,)
    found += [
        dataclasses.replace(of_kind, rule=drafter.rule if r == _OWN else r)
        for r in rules
    ]
  for one in found:
    if one.is_plain:
      raise UserError(
          'verify compares a drafter with plain decoding; set '
          "config.drafter.kind to 'lookup', 'retrieval', 'bigram', 'lm', "
          "'hybrid' or 'cascade' and config.decode.num_draft_tokens above 0."
      )
  return found


def _drafter(text: str, drafter: DrafterConfig) -> DrafterConfig:
  """Reads one of config.verify.drafters: a kind, or changes of the drafter."""
  if '=' in text:
    try:
      name, found = changes.parse(text, drafter)
    except UserError as error:
      raise UserError(f'config.verify.drafters: {error}') from error
    if name != text:
      raise UserError(
          f'config.verify.drafters: the setting {text!r} has a name, but cases '
          'are called by drafter, rule and sampler; leave name= out.'
      )
    return found
  kind = drafter.kind if text == _OWN else text
  if kind in drafter_config.WITH_MODEL and not drafter.uses_model:
    raise UserError(
        f'config.verify.drafters has {kind!r}, which needs '
        f'config.drafter.kind to be {kind!r} and a model; it is '
        f'{drafter.kind!r}.'
    )
  return changes.changed(drafter, {'kind': kind})


def _check(
    config: config_dict.ConfigDict, drafters: Sequence[DrafterConfig]
) -> None:
  """Refuses what cannot be verified."""
  verify = config.verify
  known = (_OWN, *verify_cases.SAMPLERS)
  for name in verify.samplers:
    if name not in known:
      raise UserError(
          f'config.verify.samplers has {name!r}; known: {", ".join(known)}.'
      )
  for name, least in (('num_samples', 64), ('num_rows', 1)):
    if name == 'num_samples' and verify.num_samples == 0:
      _check_without_laws(config, drafters)
    elif verify[name] < least:
      raise UserError(
          f'config.verify.{name} needs to be >= {least}, got {verify[name]}.'
      )
  if not 0 < verify.false_alarm_rate < 1:
    raise UserError(
        'config.verify.false_alarm_rate needs to be in (0, 1), got '
        f'{verify.false_alarm_rate}.'
    )
  if config.target.layers != 'unrolled':
    raise UserError(
        f'config.target.layers is {config.target.layers!r}; verify needs '
        "'unrolled'."
    )
  fault = verify.fault
  known = (*faults.FAULTS, *faults.TREE_FAULTS)
  if fault and fault not in known:
    raise UserError(
        f'config.verify.fault is {fault!r}; known: {", ".join(known)}.'
    )
  if fault in faults.NEED_TRUNCATION and not any(
      _truncates(name, config) for name in verify.samplers
  ):
    raise UserError(
        f'the fault {fault!r} shows with top-k, top-p or min-p only; add a '
        "sampler that has one to config.verify.samplers, such as 'T0.7_p0.9'."
    )
  if fault and not any(_draws(name, config) for name in verify.samplers):
    raise UserError(
        f'the fault {fault!r} shows in rows that draw only; add a sampler to '
        "config.verify.samplers, such as 'T1'."
    )


def _rows(sampler: str, config: config_dict.ConfigDict) -> Sequence[dict]:
  if sampler == _OWN:
    return [config.decode.to_dict()]
  return verify_cases.SAMPLERS[sampler]


def _draws(sampler: str, config: config_dict.ConfigDict) -> bool:
  return any(row.get('temperature') for row in _rows(sampler, config))


def _truncates(sampler: str, config: config_dict.ConfigDict) -> bool:
  """Tells whether a row that draws has its law cut."""
  return any(
      row.get('temperature')
      and (row.get('top_k') or row.get('min_p') or row.get('top_p', 1.0) < 1)
      for row in _rows(sampler, config)
  )


def _that_show(
    fault: str, drafters: Sequence[DrafterConfig]
) -> list[DrafterConfig]:
  """Returns the drafters with which a fault can show, all without one."""
  wanted = 'tree' if fault in faults.TREE_FAULTS else 'chain'
  of_shape = [
      d for d in drafters if (d.shape == 'chain') == (wanted == 'chain')
  ]
  if fault and not of_shape:
    raise UserError(
        f'the fault {fault!r} is one of a {wanted}, but config.drafter.shape '
        f'is {drafters[0].shape!r}; change it.'
    )
  if fault not in faults.NEED_SAMPLED_DRAFT:
    return of_shape if fault else list(drafters)
  found = [d for d in of_shape if not d.is_deterministic]
  if not found:
    raise UserError(
        f'the fault {fault!r} needs a draft that samples, but '
        f'{drafters[0].kind!r} does not; set config.verify.drafters to '
        "('lm',)."
    )
  if len(found) < len(drafters):
    logging.info('%s needs a sampled draft: others are left out.', fault)
  return found


def _check_without_laws(
    config: config_dict.ConfigDict, drafters: Sequence[DrafterConfig]
) -> None:
  """Refuses cases of which nothing would be tested."""
  if config.verify.batching != 'no':
    return
  for case in verify_cases.cases(
      config.verify.samplers,
      drafters,
      DecodeConfig(temperature=config.decode.temperature),
  ):
    if not case.promises_tokens:
      raise UserError(
          f'config.verify.num_samples is 0, which leaves {case.name!r} '
          'untested; set it to 64 or more, or config.verify.batching to '
          "'yes'."
      )


def run(config: config_dict.ConfigDict, path: pathlib.Path) -> TaskResult:
  """Verifies every combination of drafter, rule and sampler.

  Args:
    config: of the run.
    path: of the workdir; verify.md gets the report.

  Returns:
    The TaskResult: `verify/passed`, and exit status 1 where a case fails.

  Raises:
    UserError: Before anything is written or loaded.
  """
  drafters = _drafters(config, config_lib.parse(config).drafter)
  _check(config, drafters)
  drafters = _that_show(config.verify.fault, drafters)
  prompts = config_lib.load_prompts(config)
  verify_batching.check(
      config.verify.batching,
      batch_size=config.decode.batch_size,
      num_prompts=len(prompts),
  )
  prepared = common.prepare(
      config, path, prompts, drafters={common.name(d): d for d in drafters}
  )
  precision = prepared.model.precision
  if precision.dtype != 'float32':
    logging.warning(
        'Verifying in %s: near ties may differ; equality is promised in '
        'float32.',
        precision.dtype,
    )
  cases = verify_cases.cases(config.verify.samplers, drafters, prepared.decode)
  num_laws = sum(case.num_laws for case in cases)
  budget = Budget(
      num_samples=config.verify.num_samples,
      num_rows=config.verify.num_rows,
      false_alarm_rate=config.verify.false_alarm_rate / max(num_laws, 1),
  )
  outcomes, started = [], time.perf_counter()
  texts = _Texts(prepared)
  for done, case in enumerate(cases, 1):
    outcome = _run_case(prepared, case, budget, config.verify, texts)
    outcomes.append(outcome)
    logging.info(
        '%s  %s: %s',
        report.progress(
            done, len(cases), time.perf_counter() - started, 'case'
        ),
        case.name,
        'passed' if outcome.passed else 'FAILED',
    )
  return _finish(prepared, outcomes, budget, config.verify.fault)


class _Texts:
  """The text after which a case's laws are tested, found once a sampler."""

  def __init__(self, prepared: common.Prepared) -> None:
    self._prepared = prepared
    self._found: dict[tuple[str, str], list[int]] = {}

  def of(self, case: Case) -> list[int]:
    key = (case.drafter.kind, case.sampler)
    if key not in self._found:
      model = self._prepared.model
      self._found[key] = contexts.most_telling(
          self._prepared.batches[0],
          next(row for row in case.rows if row.temperature > 0),
          plain=model.engine(common.plain(model.drafter)),
          engine=model.engine(case.drafter),
      )
    return self._found[key]


def _run_case(
    prepared: common.Prepared,
    case: Case,
    budget: Budget,
    wanted: config_dict.ConfigDict,
    texts: '_Texts',
) -> Outcome:
  """Verifies one case over all batches of prompts."""
  model = prepared.model
  engine = verify_cases.engine_of(model, case, wanted.fault)
  plain = model.engine(common.plain(model.drafter))
  generations: list[Generation] = []
  divergences: list[Divergence] = []
  num_equal, started = 0, time.perf_counter()
  for index, batch in enumerate(prepared.batches):
    generation, equal, differ = verify_cases.compare_batch(
        case,
        batch,
        first_prompt=index * len(prepared.batches[0]),
        plain=plain,
        engine=engine,
    )
    generations.append(generation)
    num_equal += equal
    divergences += differ
    elapsed = time.perf_counter() - started
    logging.info(
        '%s  %.2f tokens/round  %d differ',
        report.progress(index + 1, len(prepared.batches), elapsed, 'batch'),
        metrics.decode_metrics(generations)['decode/tokens_per_round'],
        len(divergences),
    )
  for found in divergences:
    logging.warning('Differs from plain decoding: %s', found)
  laws = ()
  if budget.num_samples and case.num_laws:
    laws = verify_cases.test_laws(
        case, texts.of(case), budget, plain=plain, engine=engine
    )
  batching = None
  if wanted.batching == 'yes':
    batching = verify_cases.test_batching(
        case,
        [ids for batch in prepared.batches for ids in batch],
        batch_size=len(prepared.batches[0]),
        engine=engine,
    )
    for found in batching.differences:
      logging.warning('Differs from the row alone: %s', found)
  return Outcome(
      case=case,
      num_equal=num_equal,
      divergences=tuple(divergences),
      laws=tuple(laws),
      batching=batching,
      generations=tuple(generations),
      passed=not divergences
      and not (batching and batching.num_differ)
      and all(test.passes(budget.false_alarm_rate) for test in laws),
  )


def _finish(
    prepared: common.Prepared,
    outcomes: Sequence[Outcome],
    budget: Budget,
    fault: str,
) -> TaskResult:
  """Writes and prints what came out."""
  divergences = [d for outcome in outcomes for d in outcome.divergences]
  generations = [g for outcome in outcomes for g in outcome.generations]
  rows = [verify_report.row_of(outcome) for outcome in outcomes]
  biases = [
      row['verify/smallest_bias']
      for row in rows
      if 'verify/smallest_bias' in row
  ]
  num_laws = sum(len(outcome.laws) for outcome in outcomes)
  passed = all(outcome.passed for outcome in outcomes)
  found = metrics.decode_metrics(generations)
  # Times of this task are not measurements: its runs are not warmed up.
  found = {k: v for k, v in found.items() if not k.endswith(('_s', 'token'))}
  found |= results.environment(prepared.model) | {
      'verify/passed': passed,
      'verify/cases': len(outcomes),
      'verify/fault': fault,
      'verify/false_alarm_rate': budget.false_alarm_rate,
      'verify/laws': num_laws,
      'verify/smallest_bias': max(biases, default=None),
      'lossless/greedy_equal': not divergences,
      'lossless/first_divergence': (
          dataclasses.asdict(divergences[0]) if divergences else None
      ),
      'lossless/unequal_prompts': len(divergences),
      'rows': rows,
  }
  for row in rows:
    prepared.workdir.metric(row)
  said = verify_report.text(
      outcomes,
      rows,
      budget,
      fault=fault,
      num_tokens=found['decode/tokens'],
      tokens_per_round=found['decode/tokens_per_round'],
  )
  results.write_text(prepared.workdir.path / 'verify.md', said)
  prepared.workdir.finish(found)
  results.say(said)
  return TaskResult(found, exit_status=0 if passed else 1)
