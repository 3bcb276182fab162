"""Tests of speculative.tokenizer.text_stream."""

import hypothesis
from hypothesis import strategies as st
import pytest

from speculative import tokenizer
from speculative.tokenizer import byte_level
from speculative.tokenizer import detokenizer
from speculative.tokenizer import text_stream

_BYTES = byte_level.ByteTokenizer()


def _expected(tok, ids, stops) -> tuple[str, int, bool]:
  """Returns text, tokens that count and whether it ended, looking at all of it.

  After every token the whole text so far is decoded and searched.
  """

  def first_stop(text: str) -> int:
    return min((text.find(s) for s in stops if s in text), default=-1)

  stream = detokenizer.StreamingDetokenizer(tok, at='inside')
  text = ''
  for num, token_id in enumerate(ids, start=1):
    if token_id < tok.vocab_size:
      text += stream.push([token_id])
    if (at := first_stop(text)) >= 0:
      return text[:at], num, True
  text += stream.flush()
  if (at := first_stop(text)) >= 0:
    return text[:at], len(ids), True
  return text, len(ids), False


def _run(tok, parts, stops) -> tuple[list[str], text_stream.TextStream]:
  stream = text_stream.TextStream(tok, stops)
  pieces = [stream.push(part) for part in parts]
  return [*pieces, stream.flush()], stream


def _bytes(*texts: str) -> list[list[int]]:
  """Returns the pushes of texts, a token a byte."""
  return [list(text.encode()) for text in texts]


@pytest.mark.parametrize(
    'pushes, stops, pieces, num_tokens',
    [
        # As the docstring has it.
        (['x E', 'N', 'D y'], ['END'], ['x ', '', '', ''], 5),
        # No stop string: nothing is held back.
        (['x E', 'N'], [], ['x E', 'N', ''], None),
        # What was held back turns out to begin none.
        (['x E', 'Nd'], ['END'], ['x ', 'ENd', ''], None),
        # The text ends while something is held back.
        (['x E', 'N'], ['END'], ['x ', '', 'EN'], None),
        # Inside one push, with more after it.
        (['aSTOPb', 'c'], ['STOP'], ['a', '', ''], 5),
        # At the very start.
        (['STOP'], ['STOP'], ['', ''], 4),
        # A candidate that fails inside another that does not.
        (['a', 'a', 'a', 'b'], ['aab'], ['', '', 'a', '', ''], 4),
        (['ab', 'ab', 'ac'], ['abac'], ['', 'ab', '', ''], 6),
        # The shorter one ends first, though the longer one began first.
        (['xab', 'cd'], ['abcd', 'bc'], ['x', 'a', ''], 4),
        # Both end at one token: the text ends before the earlier.
        (['xabc'], ['bc', 'abc'], ['x', ''], 4),
        # The second occurrence is beyond the end.
        (['a.b.c'], ['.'], ['a', ''], 2),
        # Between the bytes of a character nothing is known yet.
        (['zé'], ['é'], ['z', ''], 3),
    ],
    ids=str,
)
def test_the_text_ends_before_the_first_stop_string(
    pushes, stops, pieces, num_tokens
):
  got, stream = _run(_BYTES, _bytes(*pushes), stops)
  assert got == pieces
  assert stream.text == ''.join(pieces)
  assert stream.has_ended == (num_tokens is not None)
  expected = num_tokens or len(''.join(pushes).encode())
  assert stream.num_tokens == expected


def test_a_stop_string_of_multi_byte_characters_is_found_when_it_is_whole():
  stream = text_stream.TextStream(_BYTES, ['é日'])
  pieces = [stream.push([byte]) for byte in 'xé日y'.encode()]
  assert ''.join(pieces) == stream.text == 'x'
  assert stream.has_ended
  assert stream.num_tokens == 6
  assert stream.flush() == ''


def test_half_a_character_is_no_match_for_another_of_the_same_first_byte():
  stream = text_stream.TextStream(_BYTES, ['é'])
  # è and é begin with the same byte.
  assert ''.join(stream.push([byte]) for byte in 'èx'.encode()) == 'èx'
  assert not stream.has_ended


def test_a_stop_string_may_be_what_replaces_half_a_character():
  pieces, stream = _run(_BYTES, [[97, 0xC3]], ['\ufffd'])
  assert pieces == ['a', '']
  assert stream.has_ended
  assert stream.num_tokens == 2


def test_nothing_comes_after_the_end():
  stream = text_stream.TextStream(_BYTES, ['.'])
  assert stream.push(b'a.b') == 'a'
  assert stream.push(b'cd') == ''
  assert stream.flush() == ''
  assert (stream.text, stream.num_tokens) == ('a', 2)


def test_ids_of_a_padded_head_count_but_have_no_text():
  stream = text_stream.TextStream(_BYTES, ['ab'])
  assert stream.push([97, 400, 98]) == ''
  assert stream.has_ended
  assert stream.num_tokens == 3


def test_no_more_than_a_stop_string_can_need_is_held_back():
  stream = text_stream.TextStream(_BYTES, ['aaab'])
  sent = 0
  for count in range(1, 50):
    sent += len(stream.push(b'a'))
    assert count - sent <= 3


def _cut(ids, marks) -> list[list[int]]:
  """Cuts ids into parts at the places marked."""
  parts, rest = [], list(ids)
  for mark in marks:
    parts.append(rest[:mark])
    rest = rest[mark:]
  return [*parts, rest]


_SETTINGS = hypothesis.settings(
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
    max_examples=200,
    deadline=None,
    derandomize=True,
)


@_SETTINGS
@hypothesis.given(
    # Few letters and a character of two bytes, so that strings are met often.
    text=st.lists(st.sampled_from(['a', 'b', 'é']), max_size=20).map(''.join),
    stops=st.lists(
        st.text(st.sampled_from('abé'), min_size=1, max_size=4), max_size=3
    ),
    lost=st.integers(0, 1),
    marks=st.lists(st.integers(0, 5), max_size=8),
)
def test_any_split_of_bytes_gives_one_text_one_count_and_one_end(
    text, stops, lost, marks
):
  ids = list(text.encode())
  ids = ids[: len(ids) - lost]
  pieces, stream = _run(_BYTES, _cut(ids, marks), stops)
  expected = _expected(_BYTES, ids, stops)
  assert (stream.text, stream.num_tokens, stream.has_ended) == expected
  assert ''.join(pieces) == stream.text
  for stop in stops:
    assert stop not in stream.text


@pytest.fixture(params=['bpe', 'spm'])
def tok(request, make_bpe_fields, make_spm_fields):
  make = {'bpe': lambda: make_bpe_fields('smollm'), 'spm': make_spm_fields}
  return tokenizer.from_gguf(make[request.param]())


@_SETTINGS
@hypothesis.given(data=st.data())
def test_any_split_of_any_tokens_does_too(tok, data):
  # Beyond the vocabulary stand the rows of a padded head.
  token_id = st.integers(0, tok.vocab_size + 9) | st.integers(3, 258)
  ids = data.draw(st.lists(token_id, max_size=12))
  text = tok.decode([i for i in ids if i < tok.vocab_size])
  stops = data.draw(st.lists(st.text(min_size=1, max_size=2), max_size=1))
  if text:
    # Pieces of the text itself.
    start = data.draw(st.integers(0, len(text) - 1))
    length = data.draw(st.integers(1, 6))
    stops.append(text[start : start + length])
  marks = data.draw(st.lists(st.integers(0, 4), max_size=5))
  pieces, stream = _run(tok, _cut(ids, marks), stops)
  expected = _expected(tok, ids, stops)
  assert (stream.text, stream.num_tokens, stream.has_ended) == expected
  assert ''.join(pieces) == stream.text
