"""What `LanguageModel.generate` promises whatever the settings of its rows."""

import dataclasses

import numpy as np
import pytest

import speculative
from speculative import api
from speculative.bench import compiles
from speculative.decoding.config import DecodeConfig
from speculative.drafting.config import DrafterConfig

# Texts that repeat themselves, so that look-up drafts; all of one bucket.
_PROMPTS = [
    'abcabcabcabcabcabcabcabcabcabcabcabc',
    'xyzxyzxyzxyzxyzxyzxyzxyzxyzxyzxyzxyzx',
    'the cat and the dog and the cat and the',
]
_BASE = dict(max_new_tokens=20, num_top_log_probs=1)
_LM = DrafterConfig('lm', model='target', num_layers=1)
# Of one model: the drafters `generate` takes.
_DRAFTERS = {'plain': 'none', 'lookup': 'lookup', 'lm': _LM}
_each_drafter = pytest.mark.parametrize('drafter', _DRAFTERS)

_CHANGES = [
    {'temperature': 0.8},
    {'temperature': 1.3, 'top_k': 5, 'top_p': 0.9, 'min_p': 0.01},
    {'seed': 2**40},
    {'repetition_penalty': 1.2},
    {'presence_penalty': 0.5, 'frequency_penalty': -0.5},
    {'logit_bias': ((97, 2.0),)},
    {'logit_bias': tuple((i, 0.5) for i in range(16))},
    {'min_new_tokens': 3},
    # Within the bucket of the cache.
    {'max_new_tokens': 17},
    {'stop_ids': ()},
    {'stop_ids': tuple(range(16))},
    {'max_seq_len': 64},
    {'rounds_per_call': 2},
    {'num_top_log_probs': 20},
    {'stop_strings': ('a', 'END')},
    # Ends a row at once, on the host.
    {'stop_strings': tuple(map(chr, range(128))) + ('\ufffd',)},
]
# What the rows of a batch cannot differ in.
_SHARED = {'max_seq_len', 'rounds_per_call', 'num_top_log_probs'}


@pytest.fixture(scope='module')
def model() -> api.LanguageModel:
  """A random model with all drafters, in the format where equality holds."""
  return speculative.load('random://tiny', dtype='float32', drafter=_LM)


@pytest.mark.slow
@_each_drafter
def test_no_setting_compiles_anything_new(model, drafter):
  drafter = _DRAFTERS[drafter]

  def generate(**settings) -> api.Result:
    return model.generate(_PROMPTS, drafter=drafter, **(_BASE | settings))

  with compiles.counted() as first:
    generate()
  assert first.count >= 2
  with compiles.counted() as later:
    for change in _CHANGES:
      generate(**change)
    own = [change for change in _CHANGES if not _SHARED & set(change)]
    for start in range(len(own)):
      generate(rows=[own[(start + i) % len(own)] for i in range(3)])
    pieces = []
    generate(on_text=lambda row, text: pieces.append((row, text)))
    model.generate([p[:33] for p in _PROMPTS], drafter=drafter, **_BASE)
  assert later.count == 0
  assert pieces


_ROWS = {
    'greedy': [{}, {'max_new_tokens': 11}, {'min_new_tokens': 12}],
    'sampled': [
        {'temperature': 0.8, 'seed': 3},
        {'temperature': 1.0, 'top_p': 0.9, 'seed': 2},
        {'temperature': 0.7, 'presence_penalty': 1.0, 'seed': 3},
    ],
    'mixed': [
        {'stop_strings': ('q', 'e')},
        {'temperature': 0.9, 'min_p': 0.02, 'seed': 8},
        {'temperature': 1.1, 'frequency_penalty': 0.4, 'stop_ids': (101, 113)},
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize('rows', _ROWS)
@_each_drafter
def test_a_row_says_the_same_alone_in_a_batch_and_in_another_order(
    model, drafter, rows
):
  rows = _ROWS[rows]

  def generate(order: list[int]) -> api.Result:
    return model.generate(
        [_PROMPTS[i] for i in order],
        rows=[rows[i] for i in order],
        drafter=_DRAFTERS[drafter],
        **_BASE,
    )

  together = generate([0, 1, 2])
  for order in ([2, 0, 1], [0], [1], [2]):
    got = generate(order)
    for place, row in enumerate(order):
      _check_same_row(got, place, together, row)


def _check_same_row(
    got: api.Result, place: int, expected: api.Result, row: int
) -> None:
  assert got.texts[place] == expected.texts[row]
  ours, theirs = got.generation, expected.generation
  assert ours.token_ids[place] == theirs.token_ids[row]
  assert ours.reasons[place] == theirs.reasons[row]
  np.testing.assert_allclose(
      ours.log_probs[place], theirs.log_probs[row], atol=1e-4
  )
  for name in ('rounds', 'drafted', 'tested', 'accepted'):
    np.testing.assert_array_equal(
        getattr(ours, name)[place], getattr(theirs, name)[row]
    )


@pytest.mark.slow
@pytest.mark.parametrize('temperature', [0.0, 0.9])
def test_every_drafter_reports_the_log_probs_of_plain_decoding(
    model, temperature
):
  """Token for token where that is promised; sampled drafts keep the law."""
  settings = _BASE | {'num_top_log_probs': 5, 'temperature': temperature}
  results = {
      name: model.generate(_PROMPTS, drafter=drafter, **settings).generation
      for name, drafter in _DRAFTERS.items()
  }
  plain = results['plain']
  for name, got in results.items():
    for row, ids in enumerate(got.token_ids):
      assert len(got.top_log_probs[row]) == len(got.log_probs[row]) == len(ids)
      for token_id, value, pairs in zip(
          ids, got.log_probs[row], got.top_log_probs[row], strict=True
      ):
        values = [top for _, top in pairs]
        assert values == sorted(values, reverse=True)
        assert len(values) == 5
        listed = dict(pairs)
        assert listed.get(token_id, value) == pytest.approx(value, abs=1e-6)
        assert token_id in listed or value <= values[-1]
    if temperature == 0 or name == 'lookup':
      assert got.token_ids == plain.token_ids
      for row in range(len(_PROMPTS)):
        np.testing.assert_allclose(
            [[p for _, p in pairs] for pairs in got.top_log_probs[row]],
            [[p for _, p in pairs] for pairs in plain.top_log_probs[row]],
            atol=1e-4,
        )


def test_every_setting_is_among_those_that_compile_nothing():
  tried = set().union(_BASE, *_CHANGES)
  fields = {field.name for field in dataclasses.fields(DecodeConfig)}
  # The one that is a program of its own.
  assert fields - tried == {'log_probs'}
