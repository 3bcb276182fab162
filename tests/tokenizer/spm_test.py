"""Tests of speculative.tokenizer.spm."""

import pytest
import sentencepiece

from speculative import tokenizer
from speculative.errors import UserError
from speculative.tokenizer import base
from speculative.tokenizer import spm

_MORE_SAMPLES = ('a\x00b', '     four and one', 'x<sep>y')


@pytest.fixture
def library(spm_model):
  return sentencepiece.SentencePieceProcessor(model_proto=spm_model)


def test_decode_gives_back_what_was_encoded(make_spm_directory, samples):
  tok = spm.from_directory(make_spm_directory())
  for text in (*samples, *_MORE_SAMPLES):
    assert tok.decode(tok.encode(text)) == text
    assert tok.decode(tok.encode(text, special='literal')) == text


def test_both_sources_encode_as_the_library(
    make_spm_directory, make_spm_fields, library, samples
):
  from_file = spm.from_directory(make_spm_directory())
  from_gguf = spm.from_gguf(make_spm_fields())
  assert from_file.fingerprint == from_gguf.fingerprint
  for text in (*samples, *_MORE_SAMPLES):
    expected = library.EncodeAsIds(text)
    assert from_file.encode(text) == expected, text
    assert from_gguf.encode(text) == expected, text
    assert from_gguf.decode(expected) == library.DecodeIds(expected)


def test_bytes_of_pieces_are_raw(make_spm_fields):
  tok = spm.from_gguf(make_spm_fields())
  ids = tok.encode('ф👍')
  assert b''.join(map(tok.token_bytes, ids)) == ' ф👍'.encode()
  pieces = [tok.piece(i) for i in tok.encode('\u1234')]
  assert pieces[-3:] == ['<0xE1>', '<0x88>', '<0xB4>']
  assert tok.token_bytes(tok.encode('\u1234')[-1]) == b'\xb4'


def test_special_tokens_are_parsed_or_literal_as_asked(make_spm_fields):
  tok = spm.from_gguf(make_spm_fields())
  ids = tok.encode('<s>the</s>')
  assert (ids[0], ids[-1]) == (1, 2)
  # A part starts as a text does: with the model's space.
  assert ids[1:-1] == tok.encode('the')
  assert tok.decode(ids) == 'the'
  literal = tok.encode('<s>the</s>', special='literal')
  assert not {1, 2} & set(literal)
  assert tok.decode(literal) == '<s>the</s>'


def test_longest_special_token_wins(make_spm_directory):
  added = {
      '440': {'content': '</s>x', 'special': True},
      '441': {'content': '<|im_end|>', 'special': True},
  }
  tok = spm.from_directory(
      make_spm_directory(tokenizer_config={'added_tokens_decoder': added})
  )
  assert tok.encode('</s>x</s>') == [440, 2]


def test_added_tokens_follow_the_models_own(make_spm_directory):
  added = {
      '1': {'content': '<s>', 'special': True},
      '441': {'content': '<|im_end|>', 'special': True},
      '443': {'content': '<shown text>', 'special': False},
  }
  config = {'added_tokens_decoder': added, 'eos_token': '<|im_end|>'}
  tok = spm.from_directory(make_spm_directory(tokenizer_config=config))
  assert tok.vocab_size == 444
  assert tok.encode('<|im_end|>') == [441]
  assert tok.eos_ids == (441, 2)
  assert tok.decode([441, 443]) == '<shown text>'
  assert 443 in tok.encode('a<shown text>', special='literal')
  assert tok.token_bytes(442) == b''


def test_bos_is_the_models_own_where_no_file_says(make_spm_directory):
  tok = spm.from_directory(make_spm_directory())
  assert (tok.bos_id, tok.eos_ids, tok.add_bos) == (1, (2,), 'yes')
  assert base.encode_prompt(tok, 'a') == [1, *tok.encode('a')]
  assert base.encode_prompt(tok, '<s>a') == [1, *tok.encode('a')]


def test_bos_is_left_out_where_the_file_says_so(make_spm_fields):
  tok = spm.from_gguf(make_spm_fields(add_bos_token=False))
  assert base.encode_prompt(tok, 'a') == tok.encode('a')


def test_no_space_is_put_before_a_text_where_the_file_says_so(make_spm_fields):
  tok = spm.from_gguf(make_spm_fields(add_space_prefix=False))
  assert tok.token_bytes(tok.encode('the')[0])[:1] == b't'
  assert tok.decode(tok.encode(' the')) == ' the'


def test_scores_decide_the_merges(make_spm_fields):
  fields = make_spm_fields()
  scores = fields['tokenizer.ggml.scores']
  plain = spm.from_gguf(fields)
  reverse = {**fields, 'tokenizer.ggml.scores': [-s for s in scores]}
  text = 'there was a little girl'
  assert spm.from_gguf(reverse).encode(text) != plain.encode(text)


def test_duplicate_pieces_are_refused_in_one_line(make_spm_fields):
  fields = make_spm_fields()
  pieces = list(fields['tokenizer.ggml.tokens'])
  pieces[-1] = pieces[-2]
  fields['tokenizer.ggml.tokens'] = pieces
  with pytest.raises(UserError, match='refused') as info:
    spm.from_gguf(fields)
  assert '\n' not in str(info.value)


def test_scores_that_do_not_fit_are_refused(make_spm_fields):
  with pytest.raises(UserError, match='440 tokens but 1 values'):
    spm.from_gguf(make_spm_fields(scores=[0.0]))


def test_damaged_model_file_is_refused(make_spm_directory):
  directory = make_spm_directory()
  path = directory / 'tokenizer.model'
  path.write_bytes(path.read_bytes()[:777])
  with pytest.raises(UserError, match='tokenizer.model'):
    tokenizer.from_directory(directory)
