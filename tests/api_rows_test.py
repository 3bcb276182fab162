"""Settings of rows and stop strings, through `LanguageModel.generate`."""

import dataclasses
import itertools

import pytest

import speculative
from speculative import api
from speculative.drafting.config import DrafterConfig
from speculative.errors import UserError

# Texts that repeat themselves, so that look-up drafts; all of one bucket.
_PROMPTS = [
    'abcabcabcabcabcabcabcabcabcabcabcabc',
    'xyzxyzxyzxyzxyzxyzxyzxyzxyzxyzxyzxyzx',
]
_NEW = 16
_PLAIN = DrafterConfig()
# A token is a letter: no control characters, no halves of longer ones, no end.
_LETTERS_ONLY = tuple((i, -100.0) for i in range(257) if not 0x61 <= i <= 0x7A)
_SETTINGS = dict(
    max_new_tokens=_NEW,
    logit_bias=_LETTERS_ONLY,
    temperature=0.8,
    seed=5,
    log_probs='chosen',
    stop_ids=(),
)


@pytest.fixture(scope='module')
def model() -> api.LanguageModel:
  """A random model with look-up, in the format where equality holds."""
  return speculative.load('random://tiny', dtype='float32', drafter='lookup')


@pytest.fixture
def unread() -> api.LanguageModel:
  """The same model, whose weights must not be needed."""
  return api.open_model('random://tiny', dtype='float32', drafter='lookup')


@pytest.fixture(scope='module')
def whole(model) -> api.Result:
  """What is said where nothing stops it."""
  return model.generate(_PROMPTS, **_SETTINGS)


@pytest.mark.slow
@pytest.mark.parametrize('streams', ['no', 'yes'])
@pytest.mark.parametrize('rounds_per_call', [0, 1, 3])
@pytest.mark.parametrize('drafter', [None, _PLAIN], ids=['lookup', 'plain'])
def test_a_stop_string_cuts_text_tokens_and_log_probs_at_one_token(
    model, whole, drafter, rounds_per_call, streams
):
  """The same cut, plain and speculative, streaming or not."""
  for start, length in itertools.product((0, 4, 10), (1, 3, 6)):
    stop = whole.texts[0][start : start + length]
    pieces = {0: '', 1: ''}

    def on_text(row: int, text: str, pieces=pieces) -> None:
      pieces[row] += text

    got = model.generate(
        _PROMPTS,
        drafter=drafter,
        on_text=on_text if streams == 'yes' else None,
        rounds_per_call=rounds_per_call,
        stop_strings=(stop,),
        **_SETTINGS,
    )
    for row, text in enumerate(whole.texts):
      at = text.find(stop)
      end = at + length if at >= 0 else _NEW
      said = text[:at] if at >= 0 else text
      assert got.texts[row] == said
      if streams == 'yes':
        assert pieces[row] == said
      found, expected = got.generation, whole.generation
      assert found.token_ids[row] == expected.token_ids[row][:end]
      assert found.log_probs[row] == pytest.approx(
          expected.log_probs[row][:end], abs=1e-4
      )
      assert found.reasons[row] == ('stop' if at >= 0 else 'length')


@pytest.mark.slow
def test_every_row_has_stop_strings_of_its_own(model, whole):
  rows = [
      {'stop_strings': (whole.texts[0][3:5],)},
      {'stop_strings': (whole.texts[1][8:10], '??')},
  ]
  settings = {**_SETTINGS}
  seed = settings.pop('seed')
  got = model.generate(
      _PROMPTS,
      rows=[{**row, 'seed': seed + i} for i, row in enumerate(rows)],
      **settings,
  )
  for row, text in enumerate(whole.texts):
    stop = rows[row]['stop_strings'][0]
    assert got.texts[row] == text[: text.index(stop)]


@pytest.mark.slow
def test_a_row_of_a_mixed_batch_is_what_it_is_alone(model):
  rows = [
      {'temperature': 0.0},
      {'temperature': 0.7, 'top_p': 0.9, 'seed': 3},
      {'temperature': 1.0, 'min_p': 0.02, 'presence_penalty': 1.0, 'seed': 4},
  ]
  prompts = [*_PROMPTS, _PROMPTS[0]]
  together = model.generate(prompts, rows=rows, max_new_tokens=_NEW)
  for row, settings in enumerate(rows):
    alone = model.generate(prompts[row], max_new_tokens=_NEW, **settings)
    assert alone.generation.token_ids[0] == together.generation.token_ids[row]
    assert alone.texts[0] == together.texts[row]


@pytest.mark.parametrize(
    'row, message',
    [
        ({'presence_penalty': -2.5}, r'presence_penalty .*in \[-2, 2\]'),
        ({'frequency_penalty': 3.0}, r'frequency_penalty .*in \[-2, 2\]'),
        ({'repetition_penalty': -1.0}, 'repetition_penalty .*> 0'),
        ({'top_k': -1}, 'top_k needs to be >= 0 .*got -1'),
        ({'min_p': 2.0}, r'min_p .*in \[0, 1\]'),
        ({'stop_strings': (3,)}, 'stop_strings needs to be texts'),
        ({'stop_strings': 'END'}, 'stop_strings needs to be a list'),
        ({'stop_ids': ('END',)}, 'stop_ids needs to be token ids'),
        ({'logit_bias': ((257, 1.0),)}, 'logit_bias names token id 257.*256'),
        ({'min_new_tokens': 17}, r'min_new_tokens .*in \[0, max_new_tokens=16'),
        ({'temprature': 1.0}, "'temprature' is no setting of decoding; known"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else '',
)
def test_a_wrong_setting_of_a_row_names_row_and_field_before_anything_runs(
    unread, monkeypatch, row, message
):
  monkeypatch.setattr(
      api.LanguageModel, 'load_weights', lambda self: pytest.fail('was read')
  )
  with pytest.raises(UserError, match=f'^row 1: {message}') as caught:
    unread.generate(_PROMPTS, rows=[{}, row], max_new_tokens=_NEW)
  assert '\n' not in str(caught.value)


def test_there_is_a_row_of_settings_a_prompt(unread):
  with pytest.raises(UserError, match='2 prompts need as many rows .*got 1'):
    unread.generate(_PROMPTS, rows=[{}])


@pytest.mark.parametrize('name, value', [('max_seq_len', 64)])
def test_what_the_batch_shares_cannot_differ(unread, name, value):
  with pytest.raises(UserError, match=f'{name} needs to be the same'):
    unread.generate(_PROMPTS, rows=[{}, {name: value}])


@pytest.mark.slow
def test_all_layers_of_the_target_as_its_own_draft_accept_every_token():
  drafter = DrafterConfig('lm', model='target')
  model = speculative.load('random://tiny', dtype='float32', drafter=drafter)
  got = model.generate(
      _PROMPTS, max_new_tokens=_NEW, stop_ids=(), temperature=0.8
  )
  assert got.generation.acceptance_rate == 1
  weights = model.load_weights()
  assert weights.drafter['embed'] is weights.target['embed']
  assert len(weights.drafter['layers']) == len(weights.target['layers'])


@pytest.mark.slow
def test_the_first_layers_of_the_target_draft_and_leave_its_greedy_text(model):
  drafter = DrafterConfig('lm', model='target', num_layers=1)
  first = speculative.load('random://tiny', dtype='float32', drafter=drafter)
  assert len(first.load_weights().drafter['layers']) == 1
  got = first.generate(_PROMPTS, max_new_tokens=_NEW)
  expected = model.generate(_PROMPTS, max_new_tokens=_NEW)
  assert got.generation.token_ids == expected.generation.token_ids
  assert got.generation.accepted.sum() > 0


@pytest.mark.parametrize(
    'drafter, layers, message',
    [
        (
            DrafterConfig('lm', model='target', num_layers=3),
            'unrolled',
            'num_layers is 3, but random://tiny has 2 layers; lower it',
        ),
        (
            DrafterConfig('lm', model='random://tiny_draft', num_layers=2),
            'unrolled',
            'num_layers is 2, but random://tiny_draft has 1 layers',
        ),
        (
            DrafterConfig('lm', model='target'),
            'scanned',
            "set config.target.layers to 'unrolled'",
        ),
    ],
    ids=['too many', 'too many of a draft', 'scanned'],
)
def test_layers_that_cannot_draft_are_refused(drafter, layers, message):
  with pytest.raises(UserError, match=message):
    api.open_model('random://tiny', drafter=drafter, layers=layers)


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'rule': 'chunk'}, "verification is 'chunk'.*token, block"),
        ({'num_layers': -1}, 'num_layers is -1; it needs to be >= 0'),
    ],
)
def test_a_wrong_drafter_is_refused(fields, message):
  with pytest.raises(UserError, match=message):
    dataclasses.replace(DrafterConfig(), **fields)
