import numpy as np
import pytest

from speculative.decoding import config as config_lib
from speculative.decoding.config import DecodeConfig
from speculative.errors import UserError


@pytest.mark.parametrize(
    'name, value, need',
    [
        ('max_new_tokens', 0, '>= 1'),
        ('max_new_tokens', 2.5, 'a whole number'),
        ('min_new_tokens', -1, r'in \[0, max_new_tokens=128\]'),
        ('min_new_tokens', 129, r'in \[0, max_new_tokens=128\]'),
        ('temperature', -0.5, r'>= 0 \(0 is greedy\)'),
        ('temperature', float('nan'), '>= 0'),
        ('temperature', float('inf'), '>= 0'),
        ('temperature', 'hot', 'a number'),
        ('temperature', True, 'a number'),
        ('temperature', 1e39, '.*at most 10000'),
        ('top_k', -1, '>= 0'),
        ('top_k', 2.0, 'a whole number'),
        ('top_k', True, 'a whole number'),
        ('top_k', '5', 'a whole number'),
        ('top_k', 2**31, r'a whole number below 2\*\*31'),
        ('top_p', 0.0, r'in \(0, 1\]'),
        ('top_p', 1.5, r'in \(0, 1\]'),
        ('top_p', float('nan'), r'in \(0, 1\]'),
        ('top_p', '0.9', 'a number'),
        ('min_p', -0.1, r'in \[0, 1\]'),
        ('min_p', 1.1, r'in \[0, 1\]'),
        ('min_p', float('nan'), r'in \[0, 1\]'),
        ('repetition_penalty', 0.0, '> 0'),
        ('repetition_penalty', -1.2, '> 0'),
        ('repetition_penalty', float('inf'), '> 0'),
        ('repetition_penalty', float('nan'), '> 0'),
        # Zero in float32, which divides.
        ('repetition_penalty', 1e-300, '> 0 .*from 0.0001 to 10000'),
        ('presence_penalty', -2.1, r'in \[-2, 2\]'),
        ('presence_penalty', 2.1, r'in \[-2, 2\]'),
        ('frequency_penalty', -2.1, r'in \[-2, 2\]'),
        ('frequency_penalty', float('nan'), r'in \[-2, 2\]'),
        ('logit_bias', ((-1, 1.0),), 'pairs of a token id >= 0'),
        ('logit_bias', ((3, float('inf')),), 'pairs .* a number in'),
        ('logit_bias', ((3, float('nan')),), 'pairs .* a number in'),
        # Infinite in float32.
        ('logit_bias', ((3, 1e39),), r'pairs .* in \[-10000, 10000\]'),
        ('logit_bias', ((3, 'much'),), 'pairs .* a number in'),
        ('logit_bias', ((3, True),), 'pairs .* a number in'),
        ('logit_bias', (3, 1.0), 'pairs of a token id'),
        ('logit_bias', {3: 1.0}, 'a list'),
        ('seed', 'now', 'a whole number,'),
        ('seed', 1.5, 'a whole number,'),
        ('seed', True, 'a whole number,'),
        ('stop_ids', ('</s>',), 'token ids'),
        ('stop_ids', (1.0,), 'token ids'),
        ('stop_ids', (-1,), 'token ids >= 0'),
        ('stop_ids', 2, 'a list'),
        ('stop_strings', (b'END',), 'texts that are not empty'),
        ('stop_strings', (7,), 'texts that are not empty'),
        ('stop_strings', ('END', ''), 'texts that are not empty'),
        # One text is not the list of its characters.
        ('stop_strings', 'END', 'a list'),
        ('rounds_per_call', -1, '>= 0'),
        ('log_probs', 'all', "'none' or 'chosen'"),
        ('log_probs', 5, 'a text'),
        ('log_probs', 'top', "'none' or 'chosen'"),
        ('num_top_log_probs', -1, r'in \[0, 20\] \(0 is off\)'),
        ('num_top_log_probs', 21, r'in \[0, 20\]'),
        ('num_top_log_probs', True, 'a whole number'),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(name, value, need):
  with pytest.raises(UserError, match=f'^{name} needs to be {need}') as caught:
    DecodeConfig(**{name: value})
  assert f'got {value!r}; set config.decode.{name}.' in str(caught.value)
  assert '\n' not in str(caught.value)


def test_the_edges_of_the_ranges_are_allowed():
  for settings in (
      dict(max_new_tokens=1, min_new_tokens=1),
      dict(temperature=0, top_k=0, top_p=1, min_p=1),
      dict(presence_penalty=-2, frequency_penalty=2, repetition_penalty=1e-4),
      dict(temperature=1e-4, repetition_penalty=1e4, num_top_log_probs=20),
      dict(temperature=1e4, logit_bias=((0, 1e4), (1, -1e4))),
      dict(
          logit_bias=[[np.int32(0), np.float32(-100)]], stop_ids=[np.int64(5)]
      ),
      dict(seed=-(2**70), stop_strings=['a']),
  ):
    DecodeConfig(**settings)


def test_one_config_is_that_of_all_rows_but_for_the_seed():
  rows = config_lib.rows_of(DecodeConfig(seed=7, top_k=3), 3)
  assert rows == [DecodeConfig(seed=s, top_k=3) for s in (7, 8, 9)]


def test_configs_of_rows_keep_their_own_seeds():
  own = [DecodeConfig(seed=4), DecodeConfig(seed=4, temperature=1.0)]
  assert config_lib.rows_of(own, 2) == own


def test_there_is_a_config_a_prompt():
  with pytest.raises(UserError, match='3 prompts need as many .*got 2'):
    config_lib.rows_of([DecodeConfig()] * 2, 3)


@pytest.mark.parametrize(
    'name, other',
    [
        ('max_seq_len', 64),
        ('rounds_per_call', 3),
        ('log_probs', 'chosen'),
        ('num_top_log_probs', 5),
    ],
)
def test_fields_of_the_batch_cannot_differ_between_its_rows(name, other):
  rows = [DecodeConfig()] * 2 + [DecodeConfig(**{name: other})]
  with pytest.raises(
      UserError,
      match=f'^row 2: {name} .*same for all rows .*got {other!r} where row 0',
  ):
    config_lib.rows_of(rows, 3)


def test_the_likeliest_are_recorded_with_the_chosen():
  for log_probs in ('none', 'chosen'):
    assert DecodeConfig(log_probs=log_probs).recorded == log_probs
    top = DecodeConfig(log_probs=log_probs, num_top_log_probs=1)
    assert top.recorded == 'top'


@pytest.mark.parametrize(
    'lengths, width', [([0], 16), ([1, 0], 16), ([16], 16), ([3, 17], 32)]
)
def test_padded_ids_have_the_width_of_their_bucket(lengths, width):
  lists = [list(range(100, 100 + n)) for n in lengths]
  ids = config_lib.padded_ids(lists)
  assert ids.dtype == np.int32
  assert ids.shape == (len(lists), width)
  for row, expected in zip(ids, lists, strict=True):
    # Token 0 pads nothing.
    assert row.tolist() == expected + [-1] * (width - len(expected))


def test_sampling_of_puts_every_field_in_its_rows_place():
  rows = [
      DecodeConfig(seed=3),
      DecodeConfig(
          temperature=0.5,
          top_k=7,
          top_p=0.25,
          min_p=0.125,
          repetition_penalty=1.5,
          presence_penalty=0.75,
          frequency_penalty=-0.5,
          logit_bias=((9, 2.0), (0, -1.0)),
          min_new_tokens=4,
          seed=-1,
      ),
  ]
  got = config_lib.sampling_of(rows)
  warping, adjustment = got.warping, got.adjustment
  assert warping.greedy_B.tolist() == [True, False]
  # No greedy row divides by its temperature.
  assert warping.temperature_B.tolist() == [1.0, 0.5]
  assert warping.top_k_B.tolist() == [0, 7]
  assert warping.top_p_B.tolist() == [1.0, 0.25]
  assert warping.min_p_B.tolist() == [0.0, 0.125]
  assert adjustment.repetition_B.tolist() == [1.0, 1.5]
  assert adjustment.presence_B.tolist() == [0.0, 0.75]
  assert adjustment.frequency_B.tolist() == [0.0, -0.5]
  assert adjustment.min_new_tokens_B.tolist() == [0, 4]
  assert adjustment.bias_ids_BE[:, :3].tolist() == [[-1] * 3, [9, 0, -1]]
  assert adjustment.bias_BE[:, :3].tolist() == [[0] * 3, [2.0, -1.0, 0]]
  assert got.seed_B.tolist() == [3, 2**32 - 1]
  assert got.greedy_B is warping.greedy_B


def test_every_number_has_the_devices_type():
  got = config_lib.sampling_of([DecodeConfig(temperature=1)])
  for name, kind in (
      ('temperature_B', np.float32),
      ('min_p_B', np.float32),
      ('top_p_B', np.float32),
      ('top_k_B', np.int32),
  ):
    assert getattr(got.warping, name).dtype == kind
  assert got.seed_B.dtype == np.uint32
  assert got.adjustment.bias_BE.dtype == np.float32
