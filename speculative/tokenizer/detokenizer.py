"""Text of tokens as they come, never with half a character.

What is pushed and flushed, put together, is what decode gives for all ids at
once, wherever the ids were cut.
"""

import codecs
from collections.abc import Iterable

from speculative.tokenizer import base


class StreamingDetokenizer:
  """Turns a stream of token ids into a stream of text.

  With a two-byte 'é' split over tokens 7 and 8: push([7]) returns '' and
  push([8]) returns 'é'. If the stream ends after 7, flush() returns U+FFFD.
  """

  def __init__(self, tokenizer: base.Tokenizer, *, at: str = 'start'):
    """Starts an empty stream.

    Args:
      tokenizer: whose ids will be pushed.
      at: 'start' of a text, where a SentencePiece model's extra space is
        dropped, or 'inside' of one, where a space is a space.

    Raises:
      ValueError: If at is neither.
    """
    if at not in ('start', 'inside'):
      raise ValueError(f"at must be 'start' or 'inside', got {at!r}.")
    self._tokenizer = tokenizer
    self._at = at
    self._start()

  def push(self, ids: Iterable[int]) -> str:
    """Returns the text that ids complete.

    Args:
      ids: the next token ids, any number of them.

    Returns:
      Whole characters only; bytes that may yet become one are held back.

    Raises:
      UserError: If an id is outside the vocabulary.
    """
    data = b''.join(self._tokenizer.token_bytes(i) for i in ids)
    if data and self._leading_space == 'drop':
      data = data.removeprefix(b' ')
      self._leading_space = 'keep'
    return self._utf8.decode(data)

  def flush(self) -> str:
    """Returns U+FFFD for a character left incomplete, and starts anew."""
    text = self._utf8.decode(b'', final=True)
    self._start()
    return text

  def _start(self) -> None:
    inside = self._at == 'inside'
    self._leading_space = 'keep' if inside else self._tokenizer.leading_space
    self._utf8 = codecs.getincrementaldecoder('utf-8')(errors='replace')
