"""Settings of rows and of drafters, through `LanguageModel.generate`."""

import dataclasses

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


@pytest.fixture(scope='module')
def model() -> api.LanguageModel:
  """A random model with look-up, in the format where equality holds."""
  return speculative.load('random://tiny', dtype='float32', drafter='lookup')


@pytest.fixture
def unread() -> api.LanguageModel:
  """The same model, whose weights must not be needed."""
  return api.open_model('random://tiny', dtype='float32', drafter='lookup')


@pytest.mark.parametrize(
    'row, message',
    [
        ({'temperature': -0.5}, 'temperature needs to be >= 0'),
        ({'temperature': float('nan')}, 'temperature .*got nan'),
        ({'temperature': '0.8'}, 'temperature needs to be a number'),
        ({'top_p': 0.0}, r'top_p needs to be in \(0, 1\]'),
        ({'top_p': 1.5}, r'top_p needs to be in \(0, 1\]'),
        ({'seed': True}, 'seed needs to be a whole number'),
        ({'min_new_tokens': -1}, r'min_new_tokens .*in \[0'),
        ({'max_seq_len': 'x'}, 'max_seq_len needs to be a whole number'),
        ({'log_probs': 'all'}, "log_probs needs to be 'none' or 'chosen'"),
        ({'num_top_log_probs': 21}, r'num_top_log_probs .*in \[0, 20\]'),
        ({1: 2}, '1 is no setting of decoding'),
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


@pytest.mark.parametrize(
    'rows', [{'top_k': 3}, 'ab', 5, [{}, None], [{}, ['top_k', 3]]], ids=str
)
def test_rows_of_settings_are_a_list_of_mappings(unread, rows):
  with pytest.raises(UserError, match='need to be a list with a mapping'):
    unread.generate(_PROMPTS, rows=rows)


@pytest.mark.parametrize(
    'name, value',
    [
        ('max_seq_len', 64),
        ('log_probs', 'chosen'),
        ('num_top_log_probs', 3),
    ],
)
def test_what_the_batch_shares_cannot_differ(unread, name, value):
  with pytest.raises(UserError, match=f'^row 1: {name} needs to be the same'):
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
        ({'num_draft_tokens': '4'}, "num_draft_tokens .* is '4'.*whole number"),
        ({'max_ngram': 2.0}, 'max_ngram .* is 2.0.*whole number'),
    ],
)
def test_a_wrong_drafter_is_refused(fields, message):
  with pytest.raises(UserError, match=message):
    dataclasses.replace(DrafterConfig(), **fields)
