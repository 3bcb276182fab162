"""Text of one row as its tokens come, ended exactly at a stop string.

However many tokens come at once, the text ends right before the stop string
that is complete first (of several complete with one token, the one that begins
first), and that token is the last that counts. What may turn out to begin a
stop string is held back.
"""

from collections.abc import Iterable
from collections.abc import Sequence

from speculative.tokenizer import base
from speculative.tokenizer import detokenizer


class TextStream:
  """A streaming detokenizer that watches for stop strings.

  With stop string 'END': push of 'x E' returns 'x ', push of 'N' nothing, push
  of 'D y' ends the stream there.

  Attributes:
    text: all that was returned so far.
    num_tokens: tokens that count, up to the one that completed a stop string.
    has_ended: whether a stop string has come.
  """

  def __init__(
      self, tokenizer: base.Tokenizer, stop_strings: Sequence[str] = ()
  ) -> None:
    """Starts an empty stream.

    Args:
      tokenizer: whose ids will be pushed.
      stop_strings: texts that end the stream, none of them empty.
    """
    self._vocab_size = tokenizer.vocab_size
    self._stream = detokenizer.StreamingDetokenizer(tokenizer, at='inside')
    self._stops = tuple(stop_strings)
    self._held = ''
    self.text = ''
    self.num_tokens = 0
    self.has_ended = False

  def push(self, ids: Iterable[int]) -> str:
    """Returns the text that ids complete and that no stop string can claim.

    Args:
      ids: the next token ids; those beyond the tokenizer's vocabulary, rows of
        a padded head, count but have no text.

    Returns:
      Whole characters; nothing once the stream has ended.
    """
    for token_id in ids:
      if self.has_ended:
        break
      self.num_tokens += 1
      if token_id < self._vocab_size:
        self._held += self._stream.push([token_id])
        self._find_stop()
    return self._release(self._num_safe())

  def flush(self) -> str:
    """Returns what was held back, since nothing more will come."""
    if not self.has_ended:
      self._held += self._stream.flush()
      self._find_stop()
    return self._release(len(self._held))

  def _find_stop(self) -> None:
    found = [at for at in map(self._held.find, self._stops) if at >= 0]
    if found:
      self._held = self._held[: min(found)]
      self.has_ended = True

  def _num_safe(self) -> int:
    """Counts held characters that cannot belong to a stop string any more."""
    if self.has_ended:
      return len(self._held)
    longest = max(map(len, self._stops), default=1)
    for at in range(max(len(self._held) - longest + 1, 0), len(self._held)):
      if any(stop.startswith(self._held[at:]) for stop in self._stops):
        return at
    return len(self._held)

  def _release(self, count: int) -> str:
    text, self._held = self._held[:count], self._held[count:]
    self.text += text
    return text
