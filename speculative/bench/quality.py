"""How good answers are, by the measures of their task set's paper.

  humaneval, mbpp  quality/pass_at_k: the share of tasks whose tests one sample,
                   or the best of k, passes
  gsm8k            quality/exact_match: the last number is the reference's
  summarise        quality/rouge1, rouge2, rougeL: F-measure of stems
  translate        quality/bleu: sacreBLEU of all answers, 0 to 100
  spec_bench       quality/translation_bleu and so on, of groups with references

Every one has a `_low` and a `_high` beside it, the ends of an interval of 95 %
over prompts, None for fewer than two: Wilson's (1927) for shares, which is no
point where all answers are right or none is, and `bootstrap`'s for others.
MT-Bench is judged by models and people, which this is not.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import importlib.util
import math

import numpy as np
from scipy import stats

from speculative.bench import bootstrap
from speculative.bench import programs
from speculative.bench import sandbox
from speculative.bench import task_rows
from speculative.bench import task_sets
from speculative.bench.paired import Interval
from speculative.errors import UserError

Row = Mapping[str, object]
# One text a prompt, or several samples a prompt.
Texts = Sequence[str] | Sequence[Sequence[str]]

_CODE = ('humaneval', 'mbpp')
# By set, modules its answers are scored with, and the packages they are in.
_ROUGE = ('rouge_score', 'rouge-score')
_BLEU = ('sacrebleu', 'sacrebleu')
_MODULES = {
    'summarise': (_ROUGE,),
    'translate': (_BLEU,),
    'spec_bench': (_ROUGE, _BLEU),
}
_KS = (1, 10, 100)
_ROUGE_TYPES = ('rouge1', 'rouge2', 'rougeL')
_CONFIDENCE = 0.95
RUN_CODE = ('yes', 'guarded', 'no')
# Either takes the network from a program whatever it does in Python, the first
# also other processes, the second also others' files.
_ENOUGH = (('seccomp',), ('namespace', 'landlock'))


def check(task_set: str, *, run_code: str) -> None:
  """Refuses what cannot be scored here, before anything is loaded.

  Args:
    task_set: one of `task_sets.TASK_SETS`.
    run_code: config.bench.run_code.

  Raises:
    UserError: Naming the package that is missing, or the setting; of code also
      if it would not be kept apart here.
  """
  if run_code not in RUN_CODE:
    raise UserError(
        f'config.bench.run_code is {run_code!r}; it needs to be one of '
        f'{", ".join(RUN_CODE)}.'
    )
  for module, package in _MODULES.get(task_set, ()):
    if importlib.util.find_spec(module) is None:
      raise UserError(
          f'config.data.task_set is {task_set!r}, which is scored with '
          f'{package}, and that is not installed; pip install {package}.'
      )
  if task_set in _CODE and run_code != 'no':
    _check_code(run_code)


def _check_code(run_code: str) -> None:
  """Runs a program that does nothing, to see how it is kept apart."""
  reason = sandbox.unavailable()
  if not reason:
    try:
      outcome = sandbox.run(('pass',))
    except (OSError, RuntimeError) as error:
      reason = str(error).split(';')[0]
    else:
      if outcome.verdict != 'passed':
        reason = f'a program that does nothing {outcome.verdict}'
  if reason:
    raise UserError(
        f'no program can be run here: {" ".join(reason.split())}; set config.'
        "bench.run_code to 'no'."
    )
  held = outcome.layers
  if run_code == 'yes' and not any(set(held) >= set(e) for e in _ENOUGH):
    raise UserError(
        f"config.bench.run_code is 'yes', but all that keeps programs apart "
        f'here is {", ".join(held) or "nothing"}, and it takes seccomp, or '
        "namespace and landlock; set it to 'guarded' to do with less, or to "
        "'no'."
    )


def note(task_set: str, *, run_code: str) -> str:
  """Returns in a line why answers are not scored, or ''.

  Args:
    task_set: one of `task_sets.TASK_SETS`.
    run_code: config.bench.run_code.
  """
  if task_set in _CODE and run_code == 'no':
    return (
        f'Answers to {task_set} are scored by running them, which '
        '--config.bench.run_code=yes allows.'
    )
  if task_set == 'mt_bench':
    return 'Answers to mt_bench are judged by models or people, not here.'
  return ''


def score(
    task_set: str,
    rows: Sequence[Row],
    texts: Texts,
    *,
    run_code: str = 'no',
    limits: sandbox.Limits | None = None,
    seed: int = 0,
) -> dict[str, object]:
  """Returns the quality/* keys of the answers of one setting.

  Args:
    task_set: one of `task_sets.TASK_SETS`.
    rows: Prompt.row of every prompt.
    texts: the answer to every prompt, or samples of it.
    run_code: 'yes' or 'guarded' runs the code that answers consist of.
    limits: of each program.
    seed: of the bootstrap: settings scored with one seed have the same prompts
      in their resamples.

  Returns:
    Scores by key, each with `_low` and `_high`; quality/prompts that were
    scored; of code quality/isolation, the layers that kept it apart. Empty
    where nothing is scored.
  """
  samples = [[t] if isinstance(t, str) else list(t) for t in texts]
  if len(samples) != len(rows) or not all(samples):
    raise ValueError(f'{len(rows)=} need as many texts, got {len(samples)}.')
  if not rows or task_set in ('none', 'mt_bench'):
    return {}
  if task_set == 'spec_bench':
    return _of_groups(rows, samples, seed)
  if task_set in _CODE:
    if run_code == 'no':
      return {}
    found = _of_code(task_set, rows, samples, limits)
  else:
    found = _MEASURES[task_set](rows, samples, seed)
  return {f'quality/{k}': v for k, v in found.items()} | {
      'quality/prompts': len(rows)
  }


def pass_at_k(num: int, correct: int, k: int) -> float:
  """Returns an unbiased estimate of how often one of k samples passes.

  That is 1 - C(num - correct, k) / C(num, k), as the product of Chen et al.
  2021, arXiv:2107.03374, whose factors do not overflow.

  Args:
    num: samples that were drawn, at least k.
    correct: samples of them that passed.
    k: how many one may choose from.
  """
  if not 0 <= correct <= num or not 0 < k <= num:
    raise ValueError(f'needs 0 <= correct <= num and k <= num: {num=} {k=}.')
  if num - correct < k:
    return 1.0
  # As a sum of logs, so that what is nearly 0 keeps its digits.
  return -math.expm1(
      sum(math.log1p(-k / i) for i in range(num - correct + 1, num + 1))
  )


def share_interval(values_P: np.ndarray) -> Interval | None:
  """Returns the mean of shares and its interval after Wilson.

  Of values between 0 and 1 it is too wide rather than too narrow: none vary
  more about their mean than those that are 0 or 1.

  Args:
    values_P: a share a prompt, in [0, 1].

  Returns:
    The Interval; None for fewer than two prompts.
  """
  P = len(values_P)
  if P < 2:
    return None
  z = float(stats.norm.ppf((1 + _CONFIDENCE) / 2))
  mean = float(np.mean(values_P))
  middle = mean + z * z / (2 * P)
  half = z * math.sqrt(mean * (1 - mean) / P + z * z / (4 * P * P))
  low, high = ((middle + s * half) / (1 + z * z / P) for s in (-1, 1))
  # They hold the mean and stay shares, whatever is rounded.
  return Interval(mean, max(0.0, min(low, mean)), min(1.0, max(high, mean)))


def _keys(
    name: str, value: float, interval: Interval | None
) -> dict[str, float | None]:
  return {
      name: float(value),
      f'{name}_low': interval.low if interval else None,
      f'{name}_high': interval.high if interval else None,
  }


def _shares(
    names: Sequence[str], values_PN: np.ndarray
) -> dict[str, float | None]:
  """Returns means over prompts of what is between 0 and 1, with intervals."""
  found = {}
  for name, values_P in zip(names, values_PN.T, strict=True):
    found |= _keys(name, np.mean(values_P), share_interval(values_P))
  return found


def _means(
    names: Sequence[str], values_PN: np.ndarray, seed: int
) -> dict[str, float | None]:
  """Returns means over prompts with their intervals."""
  P = len(values_PN)
  found = {}
  for name, values_P in zip(names, values_PN.T, strict=True):
    interval = bootstrap.interval(
        lambda total: total / P,
        [values_P],
        confidence=_CONFIDENCE,
        seed=seed,
    )
    found |= _keys(name, np.mean(values_P), interval)
  return found


def _of_code(
    task_set: str,
    rows: Sequence[Row],
    samples: Sequence[Sequence[str]],
    limits: sandbox.Limits | None,
) -> dict[str, object]:
  outcomes = iter(
      sandbox.run_all(
          [
              programs.of(task_set, row, text)
              for row, of_row in zip(rows, samples, strict=True)
              for text in of_row
          ],
          limits=limits,
      )
  )
  found = [[next(outcomes) for _ in of_row] for of_row in samples]
  num = [len(of_row) for of_row in found]
  correct = [sum(o.verdict == 'passed' for o in of_row) for of_row in found]
  ks = [k for k in _KS if k <= min(num)]
  values_PN = np.array(
      [
          [pass_at_k(n, c, k) for k in ks]
          for n, c in zip(num, correct, strict=True)
      ]
  )
  scores = _shares([f'pass_at_{k}' for k in ks], values_PN)
  every = [o for of_row in found for o in of_row]
  held = set(sandbox.LAYERS).intersection(*(o.layers for o in every))
  return scores | {
      'timed_out': sum(o.verdict == 'timed out' for o in every),
      'isolation': ', '.join(name for name in sandbox.LAYERS if name in held),
  }


def _of_numbers(
    rows: Sequence[Row], samples: Sequence[Sequence[str]], seed: int
) -> dict[str, float | None]:
  del seed
  equal_P1 = []
  for row, of_row in zip(rows, samples, strict=True):
    right = task_rows.last_number(row['answer'])
    answers = [programs.cut(t, task_sets.STOPS['gsm8k']) for t in of_row]
    # No number is right where the reference has none, nor is having none.
    is_right = [
        bool(right) and task_rows.last_number(a) == right for a in answers
    ]
    equal_P1.append([np.mean(is_right)])
  return _shares(['exact_match'], np.array(equal_P1))


def _of_summaries(
    rows: Sequence[Row], samples: Sequence[Sequence[str]], seed: int
) -> dict[str, float | None]:
  from rouge_score import rouge_scorer

  scorer = rouge_scorer.RougeScorer(_ROUGE_TYPES, use_stemmer=True)

  def values(summary: str, text: str) -> list[float]:
    text = programs.cut(text, task_sets.STOPS['summarise'])
    found = scorer.score(summary, text)
    return [found[name].fmeasure for name in _ROUGE_TYPES]

  values_PN = np.array(
      [
          np.mean([values(row['summary'], t) for t in of_row], axis=0)
          for row, of_row in zip(rows, samples, strict=True)
      ]
  )
  return _means(_ROUGE_TYPES, values_PN, seed)


def _of_translations(
    rows: Sequence[Row], samples: Sequence[Sequence[str]], seed: int
) -> dict[str, float | None]:
  from sacrebleu.metrics import BLEU

  # Only counts are taken of a sentence; with its effective order it is quiet.
  metric = BLEU(effective_order=True)

  def counts(target: str, text: str) -> list[int]:
    text = programs.cut(text, task_sets.STOPS['translate']).strip()
    found = metric.sentence_score(text, [target])
    return [*found.counts, *found.totals, found.sys_len, found.ref_len]

  stats_PN = np.array(
      [
          np.sum([counts(row['target'], t) for t in of_row], axis=0)
          for row, of_row in zip(rows, samples, strict=True)
      ]
  )

  def bleu(*totals: float) -> float:
    # It writes them out as whole numbers.
    *pairs, sys_len, ref_len = map(int, totals)
    order = len(pairs) // 2
    return BLEU.compute_bleu(
        correct=pairs[:order],
        total=pairs[order:],
        sys_len=sys_len,
        ref_len=ref_len,
        # As of a corpus: no match of four words leaves other matches to count.
        smooth_method='exp',
    ).score

  interval = bootstrap.interval(
      np.vectorize(bleu, otypes=[float]),
      list(stats_PN.T),
      confidence=_CONFIDENCE,
      seed=seed,
  )
  return _keys('bleu', bleu(*stats_PN.sum(axis=0)), interval)


_MEASURES = {
    'gsm8k': _of_numbers,
    'summarise': _of_summaries,
    'translate': _of_translations,
}
# Groups of Spec-Bench that have references: the set they are scored as, and the
# field that it calls them.
_GROUPS = {
    'translation': ('translate', 'target'),
    'summarization': ('summarise', 'summary'),
    'math_reasoning': ('gsm8k', 'answer'),
}


def _of_groups(
    rows: Sequence[Row], samples: Sequence[Sequence[str]], seed: int
) -> dict[str, object]:
  """Returns the scores of every group of Spec-Bench that can be scored."""
  found = {}
  num_scored = 0
  for group, (task_set, field) in _GROUPS.items():
    picked = [
        (row | {field: row['reference']}, of_row)
        for row, of_row in zip(rows, samples, strict=True)
        if row['category'] == group
        and isinstance(row['reference'], str)
        and row['reference']
    ]
    if picked:
      scores = _MEASURES[task_set](*zip(*picked, strict=True), seed)
      found |= {f'quality/{group}_{k}': v for k, v in scores.items()}
      num_scored += len(picked)
  return found | ({'quality/prompts': num_scored} if found else {})
