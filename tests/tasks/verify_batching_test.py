"""A row says the same alone and in any batch, and `verify` sees when not."""

import dataclasses
import types

from jax import numpy as jnp
import pytest

from speculative.decoding import verify as chain
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.errors import UserError
from speculative.tasks import verify
from speculative.tasks import verify_batching
from speculative.tasks import verify_cases

# One bucket, and a last batch of one row.
_TEXTS = ('abc ' * 5, 'xyz ' * 4, 'aab ' * 5, 'one two one ', 'q ' * 8)
# Rows that draw and promise no tokens: only their neighbours can show a fault.
_FIELDS = {
    'drafter.kind': 'lm',
    'drafter.model': 'target',
    'drafter.num_layers': 1,
    'decode.num_draft_tokens': 2,
    'decode.temperature': 0.7,
    'decode.batch_size': 2,
    'verify.batching': 'yes',
    'verify.num_samples': 0,
}


@pytest.fixture
def run(tmp_path, get_config, write_prompts):
  """Runs the task over a few prompts."""

  def call(fields=None, texts=_TEXTS):
    fields = _FIELDS | {'data.prompts': write_prompts(texts)} | (fields or {})
    return verify.run(get_config(fields), tmp_path / 'run')

  return call


class _Stub:
  """Answers a row with its prompt and seed, or as `answer` says."""

  step = types.SimpleNamespace(model=None)
  weights = types.SimpleNamespace(target=None)

  def __init__(self, answer=lambda ids, row, place, size: [*ids, row.seed]):
    self._answer = answer
    self.batches = []

  def generate(self, prompts, rows):
    self.batches.append([row.seed for row in rows])
    return types.SimpleNamespace(
        token_ids=[
            self._answer(ids, row, place, len(rows))
            for place, (ids, row) in enumerate(zip(prompts, rows, strict=True))
        ]
    )


def _compare(engine, num_rows=5, batch_size=2):
  return verify_batching.compare_batching(
      engine,
      [[i, i] for i in range(num_rows)],
      [DecodeConfig(seed=7 + i) for i in range(num_rows)],
      batch_size=batch_size,
  )


def test_every_row_is_decoded_alone_in_batches_and_in_another_order():
  engine = _Stub()
  found = _compare(engine)
  assert (found.num_equal, found.num_differ, found.differences) == (5, 0, ())
  assert engine.batches[:5] == [[7], [8], [9], [10], [11]]
  assert engine.batches[5:8] == [[7, 8], [9, 10], [11]]
  last = engine.batches[8:]
  assert list(map(len, last)) == [2, 2, 1]
  assert sorted(sum(last, [])) == [7, 8, 9, 10, 11]
  assert last != engine.batches[5:8]


@pytest.mark.parametrize('num_rows', [2, 3, 8])
def test_the_other_order_is_another(num_rows):
  for seed in range(8):
    order = verify_batching.shuffled(num_rows, seed)
    assert sorted(order) == list(range(num_rows)) != order
    assert order == verify_batching.shuffled(num_rows, seed)


def test_a_row_that_depends_on_the_size_of_its_batch_is_named():
  # Only row 4 is alone in its batch; others lack a token in theirs.
  engine = _Stub(lambda ids, row, place, size: [*ids, row.seed][: 4 - size])
  found = _compare(engine)
  given = [d for d in found.differences if d.order == 'given']
  assert [d.prompt for d in given] == [0, 1, 2, 3]
  assert [d.place for d in given] == [0, 1, 2, 3]
  assert {(d.position, d.batch_token) for d in given} == {(2, -1)}
  assert [d.alone_token for d in given] == [7, 8, 9, 10]
  assert found.num_equal + found.num_differ == 5
  assert found.num_differ == len({d.prompt for d in found.differences})


def test_a_difference_in_the_other_order_alone_is_found():
  def answer(ids, row, place, size):
    # Row 4 comes last in the given order and is alone there.
    return ids if (row.seed, size) == (11, 2) else [*ids, 1]

  found = _compare(_Stub(answer))
  (difference,) = found.differences
  assert (difference.order, difference.prompt) == ('shuffled', 4)
  assert (found.num_equal, found.num_differ) == (4, 1)


@pytest.mark.slow
def test_rows_are_the_same_and_the_report_says_what_was_tested(run, tmp_path):
  result = run()
  found = result.results
  assert result.exit_status == 0
  assert found['verify/passed'] is True
  assert found['verify/laws'] == 0
  assert found['verify/smallest_bias'] is None
  (row,) = found['rows']
  assert row['verify/batching_equal'] == 5
  assert row['verify/batching_differ'] == 0
  assert row['verify/first_batching_difference'] is None
  assert 'verify/p_value' not in row
  said = (tmp_path / 'run/verify.md').read_text()
  assert '5 of 5' in said
  assert 'laws not tested (config.verify.num_samples is 0)' in said
  assert '0 of 5 rows differ in batches' in said


def _seeds_of_places(sampling, *args, **kwargs):
  """Draws with keys that depend on the row's place in its batch."""
  places_B = jnp.arange(sampling.seed_B.shape[0], dtype=sampling.seed_B.dtype)
  return chain.verify_chain(
      sampling.replace(seed_B=sampling.seed_B + places_B), *args, **kwargs
  )


@pytest.mark.slow
def test_seeds_of_places_rather_than_prompts_fail_by_this_alone(
    run, tmp_path, monkeypatch
):
  right = verify_cases.engine_of

  def engine_of(model, case, fault):
    engine = right(model, case, fault)
    step = dataclasses.replace(engine.step, verifier=_seeds_of_places)
    return Engine(step, engine.weights)

  monkeypatch.setattr(verify_cases, 'engine_of', engine_of)
  result = run()
  (row,) = result.results['rows']
  assert result.exit_status == 1
  assert result.results['verify/passed'] is False
  assert row['verify/rows_differ'] == 0
  assert 1 <= row['verify/batching_differ'] <= 4
  first = row['verify/first_batching_difference']
  # The first row of a batch keeps its seed.
  assert first['order'] == 'given'
  assert first['prompt'] == first['place'] in (1, 3)
  assert first['alone_token'] != first['batch_token']
  said = (tmp_path / 'run/verify.md').read_text()
  assert 'FAILED' in said
  assert f'{row["verify/batching_equal"]} of 5' in said


@pytest.mark.parametrize(
    'fields, texts, message',
    [
        ({'verify.batching': 'maybe'}, _TEXTS, "'maybe'; .* one of no, yes"),
        (
            {'decode.batch_size': 1},
            _TEXTS,
            'decode.batch_size needs to be >= 2',
        ),
        ({}, _TEXTS[:1], r'number of prompts .* >= 2, got 1'),
        (
            {'verify.batching': 'no'},
            _TEXTS,
            "num_samples is 0, which leaves 'lm token config' untested",
        ),
    ],
    ids=['unknown', 'batches of one', 'one prompt', 'nothing tested'],
)
def test_what_would_test_nothing_is_refused(
    run, tmp_path, fields, texts, message
):
  with pytest.raises(UserError, match=message):
    run(fields, texts)
  assert not (tmp_path / 'run').exists()
