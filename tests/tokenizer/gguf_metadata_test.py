"""Tests of speculative.tokenizer.gguf_metadata."""

import pytest

from speculative.errors import UserError
from speculative.tokenizer import base
from speculative.tokenizer import gguf_metadata
from speculative.tokenizer.gguf_metadata import TokenType


def _fields(pieces, kinds, **more):
  return {
      'tokenizer.ggml.tokens': pieces,
      'tokenizer.ggml.token_type': kinds,
      **{f'tokenizer.ggml.{key}': value for key, value in more.items()},
  }


def test_vocabulary_ends_before_the_padding():
  fields = _fields(['a', '[PAD1]', 'b', '[PAD3]', 'x'], [1, 5, 3, 4, 5])
  pieces, types = gguf_metadata.vocabulary(fields)
  assert pieces == ['a', '[PAD1]', 'b']
  assert types == [TokenType.NORMAL, TokenType.UNUSED, TokenType.CONTROL]


def test_a_piece_that_only_looks_like_padding_is_kept():
  pieces, _ = gguf_metadata.vocabulary(_fields(['a', '[PAD7]'], [1, 1]))
  assert pieces == ['a', '[PAD7]']


@pytest.mark.parametrize(
    ('fields', 'match'),
    [
        ({}, 'has no tokenizer.ggml.tokens'),
        ({'tokenizer.ggml.tokens': ['a']}, 'has no tokenizer.ggml.token_type'),
        (_fields(['a', 'b'], [1]), '2 tokens but 1 values'),
        (_fields(['a', 'b'], [1, 9]), r'token types \[9\]'),
        (_fields([], []), 'empty vocabulary'),
        (_fields(['x'], [5]), 'empty vocabulary'),
    ],
)
def test_fields_that_do_not_fit_are_refused(fields, match):
  with pytest.raises(UserError, match=match):
    gguf_metadata.vocabulary(fields)


def test_settings_are_what_the_file_says():
  fields = _fields(
      [],
      [],
      bos_token_id=1,
      eos_token_id=2,
      eot_token_id=5,
      eom_token_id=2,
      add_bos_token=False,
  )
  fields['tokenizer.chat_template'] = 'T'
  assert gguf_metadata.settings(fields, default_add_bos='yes') == base.Settings(
      bos_id=1, eos_ids=(2, 5, 2), add_bos='no', chat_template='T'
  )


@pytest.mark.parametrize('default', ['yes', 'no'])
def test_settings_fall_back_where_the_file_is_silent(default):
  settings = gguf_metadata.settings({}, default_add_bos=default)
  assert settings == base.Settings(add_bos=default)
