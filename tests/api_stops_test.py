"""Stop strings through `LanguageModel.generate`: everything ends at one token.

A token of these models is a byte, so every stop string longer than one spans
several tokens; plain decoding brings one of them a round, and no round of the
others brings more than five.
"""

import itertools

import numpy as np
import pytest

import speculative
from speculative import api
from speculative.drafting.config import DrafterConfig

_PROMPTS = [
    'abcabcabcabcabcabcabcabcabcabcabcabc',
    'xyzxyzxyzxyzxyzxyzxyzxyzxyzxyzxyzxyzx',
]
_NEW = 16
_LM = DrafterConfig('lm', model='target', num_layers=1)
_DRAFTERS = {'plain': 'none', 'lookup': 'lookup', 'lm': _LM}
_each_drafter = pytest.mark.parametrize('drafter', _DRAFTERS)
_BASE = dict(
    max_new_tokens=_NEW,
    seed=5,
    num_top_log_probs=3,
    stop_ids=(),
    min_new_tokens=_NEW,
)


def _only(*allowed: int) -> tuple[tuple[int, float], ...]:
  return tuple((i, -100.0) for i in range(257) if i not in allowed)


# A token is a letter: no control characters, no halves of longer ones, no end.
_LETTERS = _BASE | {'logit_bias': _only(*range(0x61, 0x7B))}
# é is C3 A9 and è C3 A8; where they do not meet, half a character is left.
_HALVES = _BASE | {'logit_bias': _only(0x61, 0xA8, 0xA9, 0xC3)}


@pytest.fixture(scope='module')
def model() -> api.LanguageModel:
  """A random model with all drafters, in the format where equality holds."""
  return speculative.load('random://tiny', dtype='float32', drafter=_LM)


def _generate(
    model, *, streams: str, **settings
) -> tuple[api.Result, list[list[str]]]:
  """Returns the result and the pieces that were streamed, a row."""
  pieces = [[] for _ in _PROMPTS]
  result = model.generate(
      _PROMPTS,
      on_text=(lambda row, text: pieces[row].append(text))
      if streams == 'yes'
      else None,
      **settings,
  )
  return result, pieces


def _ways() -> itertools.product:
  """Returns the ways to look at the device: streams, rounds_per_call."""
  return itertools.product(('no', 'yes'), (0, 1, 3))


@pytest.mark.slow
@pytest.mark.parametrize('temperature', [0.0, 0.8])
@_each_drafter
def test_a_stop_string_cuts_all_there_is_of_a_row_at_one_token(
    model, drafter, temperature
):
  settings = _LETTERS | {
      'drafter': _DRAFTERS[drafter],
      'temperature': temperature,
  }
  whole, _ = _generate(model, streams='no', **settings)
  for start, length in itertools.product((0, 4, 10), (1, 2, 6)):
    stop = whole.texts[0][start : start + length]
    settings['stop_strings'] = (stop, 'END')
    results = []
    for streams, rounds_per_call in _ways():
      got, pieces = _generate(
          model, streams=streams, rounds_per_call=rounds_per_call, **settings
      )
      results.append(got.generation)
      for row, text in enumerate(whole.texts):
        _check_row(got, row, whole, stop=stop, text=text)
        if streams == 'yes':
          assert ''.join(pieces[row]) == got.texts[row]
    # However often the device was looked at.
    for name, got in itertools.product(
        ('rounds', 'drafted', 'tested', 'accepted'), results
    ):
      np.testing.assert_array_equal(
          getattr(got, name), getattr(results[0], name)
      )


def _check_row(
    got: api.Result, row: int, whole: api.Result, *, stop: str, text: str
) -> None:
  """Holds that a row ends where the stop string first comes in its text."""
  at = text.find(stop)
  end = at + len(stop) if at >= 0 else _NEW
  assert got.texts[row] == (text[:at] if at >= 0 else text)
  found, expected = got.generation, whole.generation
  assert found.reasons[row] == ('stop' if at >= 0 else 'length')
  assert found.token_ids[row] == expected.token_ids[row][:end]
  np.testing.assert_allclose(
      found.log_probs[row], expected.log_probs[row][:end], atol=1e-6
  )
  assert [[i for i, _ in pairs] for pairs in found.top_log_probs[row]] == [
      [i for i, _ in pairs] for pairs in expected.top_log_probs[row][:end]
  ]


@pytest.mark.slow
@_each_drafter
def test_the_host_cuts_at_a_string_as_the_device_does_at_an_id(model, drafter):
  """Counts included: a stop string of one token is a stop id."""
  settings = _LETTERS | {
      'drafter': _DRAFTERS[drafter],
      'min_new_tokens': 0,
      'temperature': 0.8,
  }
  whole, _ = _generate(model, streams='no', **settings)
  met = set(whole.generation.token_ids[0])
  assert len(met) > 3
  for token_id in met:
    by_id = model.generate(
        _PROMPTS, **(settings | {'stop_ids': (token_id,)})
    ).generation
    by_string = model.generate(
        _PROMPTS, stop_strings=(chr(token_id),), **settings
    ).generation
    assert by_string.token_ids == by_id.token_ids
    assert by_string.reasons == by_id.reasons
    for name in ('rounds', 'drafted', 'tested', 'accepted'):
      np.testing.assert_array_equal(
          getattr(by_string, name), getattr(by_id, name)
      )


@pytest.mark.slow
@_each_drafter
def test_half_a_character_is_never_shown_while_its_other_half_may_come(
    model, drafter
):
  settings = _HALVES | {'drafter': _DRAFTERS[drafter], 'temperature': 1.5}
  whole, _ = _generate(model, streams='no', **settings)
  assert any('é' in text or 'è' in text for text in whole.texts)
  stops = [()] + [
      (whole.texts[0][i : i + n],) for i in (0, 2, 5) for n in (1, 2)
  ]
  for stop_strings, (streams, rounds_per_call) in itertools.product(
      stops, _ways()
  ):
    got, pieces = _generate(
        model,
        streams=streams,
        rounds_per_call=rounds_per_call,
        stop_strings=stop_strings,
        **settings,
    )
    for row, text in enumerate(whole.texts):
      # Of whole characters: what a half became is in the final text too.
      expected = text.split(stop_strings[0])[0] if stop_strings else text
      assert got.texts[row] == expected
      if streams == 'yes':
        assert ''.join(pieces[row]) == expected
    assert model.decode(whole.generation.token_ids[0]) == whole.texts[0]


@pytest.mark.slow
def test_every_row_has_stop_strings_of_its_own(model):
  settings = _LETTERS | {'drafter': 'lookup'}
  whole, _ = _generate(model, streams='no', **settings)
  rows = [
      {'stop_strings': (whole.texts[0][3:5],), 'seed': 5},
      {'stop_strings': (whole.texts[1][8:10], '??'), 'seed': 6},
  ]
  got = model.generate(_PROMPTS, rows=rows, **settings)
  for row, text in enumerate(whole.texts):
    stop = rows[row]['stop_strings'][0]
    assert got.texts[row] == text[: text.index(stop)]
