"""Tests of speculative.tokenizer.detokenizer."""

import hypothesis
from hypothesis import strategies
import pytest

from speculative import tokenizer
from speculative.errors import UserError
from speculative.tokenizer import detokenizer


@pytest.fixture(params=['bpe', 'spm'])
def tok(request, make_bpe_fields, make_spm_fields):
  make = {'bpe': lambda: make_bpe_fields('smollm'), 'spm': make_spm_fields}
  return tokenizer.from_gguf(make[request.param]())


def _stream(tok, parts):
  stream = detokenizer.StreamingDetokenizer(tok)
  return ''.join([*map(stream.push, parts), stream.flush()])


# The fixture is only read, so that examples may share it.
@hypothesis.settings(
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
    deadline=None,
    derandomize=True,
)
@hypothesis.given(data=strategies.data())
def test_any_split_of_any_ids_gives_what_decode_gives(tok, data):
  token_id = strategies.integers(0, tok.vocab_size - 1)
  # Single bytes are rare among all ids, and are what characters break into.
  byte_id = strategies.integers(3, 258)
  part = strategies.lists(token_id | byte_id, max_size=6)
  parts = data.draw(strategies.lists(part, max_size=8))
  ids = [i for part in parts for i in part]
  assert _stream(tok, parts) == tok.decode(ids)


@hypothesis.settings(
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
    deadline=None,
    derandomize=True,
)
@hypothesis.given(text=strategies.text(max_size=20))
def test_push_never_emits_half_a_character(tok, text):
  hypothesis.assume('\ufffd' not in text)
  stream = detokenizer.StreamingDetokenizer(tok)
  parts = [stream.push([i]) for i in tok.encode(text, special='literal')]
  assert '\ufffd' not in ''.join(parts)
  assert stream.flush() == ''


def test_token_by_token_gives_the_text(tok, sample):
  ids = tok.encode(sample, special='literal')
  assert _stream(tok, [[i] for i in ids]) == sample


def test_bytes_are_held_back_until_the_character_is_whole(make_spm_fields):
  tok = tokenizer.from_gguf(make_spm_fields())
  stream = detokenizer.StreamingDetokenizer(tok)
  ids = tok.encode('\u1234')[-3:]
  assert [stream.push([i]) for i in ids] == ['', '', '\u1234']


def test_flush_replaces_what_is_left_and_starts_anew(make_spm_fields):
  tok = tokenizer.from_gguf(make_spm_fields())
  stream = detokenizer.StreamingDetokenizer(tok)
  ids = tok.encode(' the\u1234')
  assert stream.push(ids[:-1]) == ' the'
  assert stream.flush() == '\ufffd'
  assert stream.flush() == ''
  # The space at the start is dropped once more.
  assert stream.push(ids) == ' the\u1234'


def test_only_the_first_space_is_dropped(make_spm_fields):
  tok = tokenizer.from_gguf(make_spm_fields())
  the = tok.encode('the')
  stream = detokenizer.StreamingDetokenizer(tok)
  # A special token and an empty push come before the text.
  assert [stream.push(part) for part in ([1], [], the, the)] == [
      '',
      '',
      'the',
      ' the',
  ]


def test_ids_of_another_tokenizer_are_refused(tok):
  stream = detokenizer.StreamingDetokenizer(tok)
  with pytest.raises(UserError, match=f'Token id {tok.vocab_size} is outside'):
    stream.push([tok.vocab_size])


def test_a_continuation_keeps_the_space_it_begins_with(make_spm_fields):
  spm = tokenizer.from_gguf(make_spm_fields())
  ids = spm.encode('hello world')
  inside = detokenizer.StreamingDetokenizer(spm, at='inside')
  assert inside.push(ids) + inside.flush() == ' ' + spm.decode(ids)
