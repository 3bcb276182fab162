import pytest

from speculative.errors import UserError
from speculative.tokenizer import byte_level
from speculative.tokenizer import detokenizer

_TEXTS = ('plain', 'naïve 日本語 👩‍👩‍👧\n\t\x00', ' <0x41> ')


@pytest.fixture(scope='module')
def tokenizer() -> byte_level.ByteTokenizer:
  return byte_level.ByteTokenizer()


@pytest.mark.parametrize('text', _TEXTS)
def test_ids_are_the_bytes_of_the_text_and_decode_to_it(tokenizer, text):
  ids = tokenizer.encode(text)
  assert bytes(ids) == text.encode('utf-8')
  assert tokenizer.decode(ids) == text


def test_every_byte_is_a_token_of_its_own(tokenizer):
  assert [tokenizer.token_bytes(i) for i in range(256)] == [
      bytes([i]) for i in range(256)
  ]


def test_the_end_token_is_special_and_shows_nothing(tokenizer):
  assert tokenizer.eos_ids == (byte_level.EOS_ID,)
  assert tokenizer.vocab_size == byte_level.VOCAB_SIZE
  assert tokenizer.piece(byte_level.EOS_ID) == '</s>'
  assert tokenizer.decode([97, byte_level.EOS_ID, 98]) == 'ab'


def test_the_end_token_is_read_from_text_only_when_parsing(tokenizer):
  text = 'a</s></s>b'
  assert tokenizer.encode(text) == [97, 256, 256, 98]
  literal = tokenizer.encode(text, special='literal')
  assert byte_level.EOS_ID not in literal
  assert tokenizer.decode(literal) == text


def test_no_bos_and_no_template_are_claimed(tokenizer):
  assert tokenizer.bos_id is None
  assert tokenizer.add_bos == 'no'
  assert tokenizer.chat_template is None


def test_two_of_them_have_one_fingerprint(tokenizer):
  assert tokenizer.fingerprint == byte_level.ByteTokenizer().fingerprint


def test_half_a_character_is_held_back_while_streaming(tokenizer):
  stream = detokenizer.StreamingDetokenizer(tokenizer)
  first, second = tokenizer.encode('é')
  assert stream.push([first]) == ''
  assert stream.push([second]) == 'é'


@pytest.mark.parametrize('token_id', [-1, byte_level.VOCAB_SIZE])
def test_ids_outside_the_vocabulary_are_refused(tokenizer, token_id):
  with pytest.raises(UserError, match='outside the vocabulary of 257'):
    tokenizer.decode([token_id])
