import fractions
import importlib.util
import itertools
import math

import numpy as np
import pytest

from speculative.bench import bootstrap
from speculative.bench import builtin_tasks
from speculative.bench import quality
from speculative.bench import sandbox
from speculative.bench import task_sets
from speculative.errors import UserError

_PATIENT = sandbox.Limits(wall_s=120.0, cpu_s=30)


def _rows(task_set):
  found = task_sets.load('builtin', task_set=task_set, prompt_format='auto')
  return [p.row for p in found]


def _score(task_set, rows, texts, **kwargs):
  return quality.score(task_set, rows, texts, limits=_PATIENT, **kwargs)


@pytest.mark.parametrize('num', range(1, 8))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(num):
  for correct, k in itertools.product(range(num + 1), range(1, num + 1)):
    passed = [i < correct for i in range(num)]
    subsets = list(itertools.combinations(passed, k))
    share = fractions.Fraction(sum(map(any, subsets)), len(subsets))
    found = quality.pass_at_k(num, correct, k)
    assert found == pytest.approx(float(share), abs=1e-14)


def test_pass_at_k_keeps_its_digits_for_many_samples():
  assert quality.pass_at_k(10**6, 1, 1) == pytest.approx(1e-6, rel=1e-9)
  exact = 1 - fractions.Fraction(math.comb(197, 100), math.comb(200, 100))
  found = quality.pass_at_k(200, 3, 100)
  assert found == pytest.approx(float(exact), rel=1e-12)
  assert quality.pass_at_k(10**5, 5 * 10**4, 10**4) == 1.0


@pytest.mark.parametrize('num, correct, k', [(3, 4, 1), (3, -1, 1), (3, 1, 4)])
def test_pass_at_k_of_impossible_counts_is_refused(num, correct, k):
  with pytest.raises(ValueError, match='needs 0 <= correct'):
    quality.pass_at_k(num, correct, k)


def test_numbers_are_right_wherever_the_answer_ends_with_them():
  rows = _rows('gsm8k')
  texts = ['7', 'It is 36.0.', 'So 1,000', 'Answer: 7\nQuestion: 3?']
  found = _score('gsm8k', rows, texts)
  assert found['quality/exact_match'] == 0.75
  assert 0 <= found['quality/exact_match_low'] < 0.75
  assert 0.75 < found['quality/exact_match_high'] <= 1
  assert found['quality/prompts'] == 4


def test_samples_of_a_prompt_count_as_their_mean():
  rows = _rows('gsm8k')[:2]
  found = _score('gsm8k', rows, [['7', '8'], ['36', '36']])
  assert found['quality/exact_match'] == 0.75


def test_a_reference_without_a_number_makes_no_answer_right():
  found = _score('gsm8k', [{'answer': 'two'}, {'answer': '2'}], ['two', '2'])
  assert found['quality/exact_match'] == 0.5


@pytest.mark.parametrize(
    'num_right, low, high',
    # Of 263 and of 148 as in Newcombe 1998, table I.
    [
        ((0, 40), 0.0, 0.0876),
        ((40, 40), 0.9124, 1.0),
        ((81, 263), 0.2553, 0.3662),
        ((15, 148), 0.0624, 0.1605),
    ],
)
def test_the_interval_of_a_share_is_wilsons(num_right, low, high):
  right, num = num_right
  values_P = np.arange(num) < right
  found = quality.share_interval(values_P.astype(float))
  assert found.estimate == right / num
  assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)
  assert 0 <= found.low <= found.estimate <= found.high <= 1


def test_no_answer_right_leaves_room_for_some():
  rows = [{'answer': '1'}] * 40
  found = _score('gsm8k', rows, ['2'] * 40)
  assert found['quality/exact_match_low'] == 0
  assert found['quality/exact_match_high'] == pytest.approx(0.0876, abs=5e-5)


@pytest.mark.parametrize('task_set', ['gsm8k', 'summarise', 'translate'])
def test_one_prompt_has_a_score_and_no_interval(task_set):
  pytest.importorskip('rouge_score')
  pytest.importorskip('sacrebleu')
  found = _score(task_set, _rows(task_set)[:1], ['7'])
  ends = {k: v for k, v in found.items() if k.endswith(('_low', '_high'))}
  assert len(ends) in (2, 6)
  assert set(ends.values()) == {None}


def test_few_summaries_have_the_interval_of_few():
  """As `bootstrap` has it, whose tests hold its width."""
  pytest.importorskip('rouge_score')
  rows = [{'summary': 'a b c d'}] * 5
  texts = ['a b c d', 'a b x y', 'a x y z', 'x', 'a b c x']
  found = _score('summarise', rows, texts, seed=3)
  ones = [1.0, 0.5, 0.25, 0.0, 0.75]
  expected = bootstrap.interval(lambda total: total / 5, [ones], seed=3)
  names = ('rouge1', 'rouge1_low', 'rouge1_high')
  assert [found[f'quality/{n}'] for n in names] == pytest.approx(
      [expected.estimate, expected.low, expected.high]
  )


@pytest.mark.parametrize(
    'task_set, right, wrong',
    [
        ('humaneval', 'canonical_solution', '    return None\n'),
        ('mbpp', 'code', 'pass'),
    ],
)
def test_code_is_scored_by_running_it_where_that_is_allowed(
    task_set, right, wrong
):
  if sandbox.unavailable():
    pytest.skip(sandbox.unavailable())
  rows = _rows(task_set)[:2]
  answers = [row[right] for row in builtin_tasks.ROWS[task_set][:2]]
  assert _score(task_set, rows, answers) == {}
  found = _score(task_set, rows, [answers[0], wrong], run_code='yes')
  assert found['quality/pass_at_1'] == 0.5
  assert found['quality/prompts'] == 2
  assert found['quality/timed_out'] == 0
  assert 'guards' in found['quality/isolation']
  assert 'quality/pass_at_10' not in found
  assert found == _score(
      task_set, rows, [answers[0], wrong], run_code='guarded'
  )


def test_ten_samples_also_tell_what_the_best_of_ten_is(monkeypatch):
  def run_all(found, limits):
    assert len(found) == 20
    verdicts = ['passed'] + ['failed'] * 9 + ['timed out'] * 10
    return [sandbox.Outcome(v, '', ('guards',)) for v in verdicts]

  monkeypatch.setattr(sandbox, 'run_all', run_all)
  rows = _rows('humaneval')[:2]
  found = _score('humaneval', rows, [['x'] * 10, ['y'] * 10], run_code='yes')
  assert found['quality/pass_at_1'] == pytest.approx(0.05)
  assert found['quality/pass_at_10'] == 0.5
  assert found['quality/timed_out'] == 10


def test_summaries_are_scored_by_words_that_they_share():
  pytest.importorskip('rouge_score')
  rows = [{'summary': 'the cat sat'}, {'summary': 'a dog ran home'}]
  same = _score(
      'summarise', rows, ['The cat sat.\nArticle: x', 'a dog ran home']
  )
  names = ('rouge1', 'rouge2', 'rougeL')
  assert [same[f'quality/{n}'] for n in names] == [1, 1, 1]
  found = _score('summarise', rows[:1], ['the cat ran away'])
  # 2 of 4 words are right and 2 of 3 are there; of pairs 1 of 3 and 1 of 2.
  assert found['quality/rouge1'] == pytest.approx(4 / 7)
  assert found['quality/rouge2'] == pytest.approx(2 / 5)


def test_translations_are_scored_as_one_text():
  sacrebleu = pytest.importorskip('sacrebleu')
  rows = _rows('translate')
  right = [row['target'] for row in rows]
  assert _score('translate', rows, right)['quality/bleu'] == pytest.approx(100)
  texts = ['Das Boot ist sehr klein.', 'Heute regnet es.', 'Buch', 'zu Hause']
  found = _score('translate', rows, texts)
  expected = sacrebleu.corpus_bleu(texts, [right]).score
  assert found['quality/bleu'] == pytest.approx(expected)
  low, high = found['quality/bleu_low'], found['quality/bleu_high']
  assert low < expected < high
  # Of what goes on with the next example, only the answer counts.
  longer = [f'{t}\n\ntranslate English to German: One.\nEins.' for t in texts]
  assert _score('translate', rows, longer) == found


def test_translations_without_four_words_in_a_row_right_have_a_score():
  sacrebleu = pytest.importorskip('sacrebleu')
  rows = _rows('translate')
  right = [row['target'] for row in rows]
  texts = ['Das Boot war klein.', 'Es regnet heute.', 'Sie liest es.', 'Wir']
  expected = sacrebleu.corpus_bleu(texts, [right])
  assert expected.counts[1] > 0 == expected.counts[3]
  found = _score('translate', rows, texts)
  assert found['quality/bleu'] == pytest.approx(expected.score)
  assert found['quality/bleu'] > 5


def test_groups_of_spec_bench_are_scored_apart():
  pytest.importorskip('rouge_score')
  pytest.importorskip('sacrebleu')
  rows = _rows('spec_bench')
  texts = [str(row['reference']) or 'text' for row in rows]
  found = _score('spec_bench', rows, texts)
  assert found['quality/translation_bleu'] == pytest.approx(100)
  assert found['quality/summarization_rouge2'] == 1
  assert found['quality/math_reasoning_exact_match'] == 1
  assert found['quality/prompts'] == 3
  assert not any('qa' in key or 'mt_bench' in key for key in found)
  unscored = [row for row in rows if row['category'] == 'qa']
  assert _score('spec_bench', unscored, ['x']) == {}


@pytest.mark.parametrize('task_set', ['none', 'mt_bench'])
def test_what_has_no_measure_has_no_score(task_set):
  assert _score(task_set, [{}], ['x']) == {}


@pytest.mark.parametrize('texts', [[], ['a', 'b'], [[]]])
def test_every_row_needs_its_answer(texts):
  with pytest.raises(ValueError, match='need as many texts'):
    quality.score('gsm8k', [{'answer': '1'}], texts)


@pytest.mark.parametrize(
    'task_set, missing, package',
    [
        ('summarise', 'rouge_score', 'rouge-score'),
        ('translate', 'sacrebleu', 'sacrebleu'),
        ('spec_bench', 'sacrebleu', 'sacrebleu'),
    ],
)
def test_a_missing_package_is_one_line(monkeypatch, task_set, missing, package):
  monkeypatch.setattr(
      importlib.util, 'find_spec', lambda name: None if name == missing else 1
  )
  with pytest.raises(UserError, match=f'pip install {package}') as caught:
    quality.check(task_set, run_code='no')
  assert '\n' not in str(caught.value)
  quality.check('gsm8k', run_code='no')


def test_code_is_not_run_where_it_cannot_be_limited(monkeypatch):
  monkeypatch.setattr(sandbox, 'unavailable', lambda: 'needs Linux')
  quality.check('mbpp', run_code='no')
  quality.check('gsm8k', run_code='yes')
  for run_code in ('yes', 'guarded'):
    with pytest.raises(UserError, match='needs Linux; set config.bench.run_co'):
      quality.check('mbpp', run_code=run_code)
  with pytest.raises(UserError, match='run_code is True; it .* yes, guarded, '):
    quality.check('none', run_code=True)


@pytest.mark.parametrize(
    'held, is_enough',
    [
        (('guards',), False),
        (('namespace', 'guards'), False),
        (('landlock', 'guards'), False),
        (('namespace', 'landlock', 'guards'), True),
        (('seccomp', 'guards'), True),
    ],
)
def test_code_is_run_only_where_more_than_python_keeps_it_apart(
    monkeypatch, held, is_enough
):
  monkeypatch.setattr(sandbox, 'unavailable', lambda: '')
  monkeypatch.setattr(
      sandbox, 'run', lambda parts: sandbox.Outcome('passed', '', held)
  )
  quality.check('humaneval', run_code='guarded')
  quality.check('gsm8k', run_code='yes')
  if is_enough:
    quality.check('humaneval', run_code='yes')
    return
  message = f"apart here is {', '.join(held)}, and .* 'guarded' to do with less"
  with pytest.raises(UserError, match=message) as caught:
    quality.check('humaneval', run_code='yes')
  assert '\n' not in str(caught.value)


@pytest.mark.parametrize('run_code', ['yes', 'guarded'])
def test_a_sandbox_that_does_not_start_is_one_early_line(
    monkeypatch, tmp_path, run_code
):
  if sandbox.unavailable():
    pytest.skip(sandbox.unavailable())
  monkeypatch.setattr(sandbox, '_CHILD', tmp_path / 'no.py')
  message = "before it started; set config.bench.run_code to 'no'"
  with pytest.raises(UserError, match=message):
    quality.check('humaneval', run_code=run_code)
  late = sandbox.Outcome('timed out', 'after 30 s', ())
  monkeypatch.setattr(sandbox, 'run', lambda parts: late)
  with pytest.raises(UserError, match='that does nothing timed out; set'):
    quality.check('humaneval', run_code=run_code)


def test_a_line_says_why_there_is_no_score():
  assert 'run_code=yes' in quality.note('humaneval', run_code='no')
  assert not quality.note('humaneval', run_code='yes')
  assert not quality.note('humaneval', run_code='guarded')
  assert 'judged' in quality.note('mt_bench', run_code='no')
  assert not quality.note('none', run_code='no')
