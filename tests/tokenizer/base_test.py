"""Tests of speculative.tokenizer.base."""

import pytest

from speculative import tokenizer
from speculative.errors import UserError
from speculative.tokenizer import base


def _vocabulary(*pieces, added=()):
  return base.Vocabulary(pieces, frozenset(added), frozenset())


def test_fingerprint_tells_apart_what_joined_pieces_would_not():
  vocabularies = [
      _vocabulary('ab', 'c'),
      _vocabulary('a', 'bc'),
      _vocabulary('c', 'ab'),
      _vocabulary('ab', 'c', ''),
      _vocabulary('ab', 'c', added=[1]),
  ]
  assert len({v.fingerprint() for v in vocabularies}) == len(vocabularies)


def test_fingerprint_does_not_depend_on_what_is_shown():
  shown = base.Vocabulary(('a', 'b'), frozenset([1]), frozenset())
  hidden = base.Vocabulary(('a', 'b'), frozenset([1]), frozenset([1]))
  assert shown.fingerprint() == hidden.fingerprint()


@pytest.mark.parametrize('token_id', [-1, 1_000_000])
def test_ids_outside_the_vocabulary_are_refused(make_bpe_fields, token_id):
  tok = tokenizer.from_gguf(make_bpe_fields('smollm'))
  for call in (tok.token_bytes, tok.piece, lambda i: tok.decode([i])):
    with pytest.raises(UserError, match=f'Token id {token_id} is outside'):
      call(token_id)


def test_encode_refuses_an_unknown_mode(make_bpe_fields):
  tok = tokenizer.from_gguf(make_bpe_fields('smollm'))
  with pytest.raises(ValueError, match="'parse', 'literal'"):
    tok.encode('a', special='none')


def test_empty_text_has_no_ids(make_bpe_fields, make_spm_fields):
  for fields in (make_bpe_fields('smollm'), make_spm_fields()):
    tok = tokenizer.from_gguf(fields)
    assert tok.encode('') == []
    assert tok.decode([]) == ''


def test_eos_ids_are_the_checkpoints_own_first_then_other_ends(
    make_bpe_fields,
):
  tok = tokenizer.from_gguf(make_bpe_fields('smollm', eos_token_id=2))
  assert [tok.piece(i) for i in tok.eos_ids] == ['<|im_end|>', '<|endoftext|>']
  # A start of turn ends nothing, an end that is plain text neither.
  kinds = list(make_bpe_fields('smollm')['tokenizer.ggml.token_type'])
  kinds[0] = 1
  tok = tokenizer.from_gguf(make_bpe_fields('smollm', token_type=kinds))
  assert [tok.piece(i) for i in tok.eos_ids] == ['<|im_end|>']


def test_settings_that_point_outside_the_vocabulary_are_dropped(
    make_bpe_fields,
):
  fields = make_bpe_fields(
      'smollm', bos_token_id=9999, eos_token_id=9998, add_bos_token=True
  )
  tok = tokenizer.from_gguf(fields)
  assert tok.bos_id is None
  assert tok.add_bos == 'no'
  assert 9998 not in tok.eos_ids


def test_encode_prompt_does_not_double_the_bos(make_bpe_fields):
  tok = tokenizer.from_gguf(make_bpe_fields('smollm', add_bos_token=True))
  once = [tok.bos_id, *tok.encode('a')]
  assert base.encode_prompt(tok, 'a') == once
  assert base.encode_prompt(tok, '<|im_start|>a') == once
  assert base.encode_prompt(tok, '') == [tok.bos_id]
  literal = base.encode_prompt(tok, '<|im_start|>a', special='literal')
  assert literal[0] == tok.bos_id
  assert tok.decode(literal) == '<|im_start|>a'
