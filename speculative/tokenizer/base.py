"""One interface over every tokenizer, and what all of them share.

Guarantees: whatever file a tokenizer came from, text becomes ids and ids become
bytes in the way its published tokenizer does; two checkpoints over one
vocabulary have the same fingerprint; and decoding is defined once, on bytes, so
that whole and streamed text cannot differ.

Terms: a *piece* is a token as its vocabulary spells it ('Ġthe', '▁the',
'<0x0A>', '<|im_end|>'); an *added* token is one matched as a whole before the
text is split; a *special* token is an added one that is never shown.
"""

import abc
from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
import hashlib
import json
from typing import Protocol

from absl import logging

from speculative.errors import UserError

SPECIAL_MODES = ('parse', 'literal')

# Pieces by which published chat models end a turn or a document. They count
# only where the vocabulary holds them as special tokens.
END_PIECES = (
    '</s>',
    '<|endoftext|>',
    '<|end_of_text|>',
    '<|im_end|>',
    '<|eot_id|>',
    '<|eom_id|>',
    '<|end|>',
    '<|return|>',
    '<end_of_turn>',
    '<eos>',
)


class Tokenizer(Protocol):
  """What the rest of the package knows of a tokenizer.

  Attributes:
    vocab_size: ids the tokenizer knows, 0 .. vocab_size - 1. A model's head
      may be padded to more rows; those extra ids are never text.
    bos_id: the token that starts a text, None if there is none. Whether it is
      to be written is add_bos.
    eos_ids: every id that ends a reply, the checkpoint's own end token first.
    add_bos: 'yes' if the checkpoint wants bos_id before a prompt, else 'no'.
    chat_template: jinja2 source, None if the checkpoint has none.
    leading_space: 'drop' if decoding removes one space at the very start
      (SentencePiece models put it there), else 'keep'.
    fingerprint: hex SHA-256 of the vocabulary; equal for two tokenizers that
      give every id the same meaning, whatever their padded heads and formats.
  """

  vocab_size: int
  bos_id: int | None
  eos_ids: tuple[int, ...]
  add_bos: str
  chat_template: str | None
  leading_space: str
  fingerprint: str

  def encode(self, text: str, *, special: str = 'parse') -> list[int]:
    """Returns the ids of text, never with a BOS: see encode_prompt."""

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids; special tokens give nothing."""

  def token_bytes(self, token_id: int) -> bytes:
    """Returns the raw bytes of one token; b'' for a special one."""

  def piece(self, token_id: int) -> str:
    """Returns the token as the vocabulary spells it."""


@dataclasses.dataclass(frozen=True)
class Settings:
  """What a checkpoint says about its tokenizer beside the vocabulary.

  Attributes:
    bos_id: see Tokenizer.
    eos_ids: see Tokenizer.
    add_bos: see Tokenizer.
    chat_template: see Tokenizer.
  """

  bos_id: int | None = None
  eos_ids: tuple[int, ...] = ()
  add_bos: str = 'no'
  chat_template: str | None = None


@dataclasses.dataclass(frozen=True)
class Vocabulary:
  """The pieces of a tokenizer in the order of their ids.

  Attributes:
    pieces: one a id; '' for an id that stands for nothing.
    added_ids: tokens matched as a whole, special ones included.
    special_ids: tokens that are never shown.
  """

  pieces: tuple[str, ...]
  added_ids: frozenset[int]
  special_ids: frozenset[int]

  def fingerprint(self) -> str:
    """Returns the hex SHA-256 of the pieces and of which of them are added.

    Which added tokens are special is left out: the conversion to GGUF marks
    tokens as special that the original files do not.
    """
    # JSON, because joined pieces could not be told apart from longer ones.
    text = json.dumps([self.pieces, sorted(self.added_ids)])
    return hashlib.sha256(text.encode('ascii')).hexdigest()


class VocabularyTokenizer(abc.ABC):
  """All of a Tokenizer but how text is split and how a piece becomes bytes."""

  def __init__(
      self,
      vocabulary: Vocabulary,
      *,
      settings: Settings,
      leading_space: str,
  ):
    """Takes the vocabulary over and drops settings that point outside it.

    Args:
      vocabulary: pieces in the order of ids.
      settings: what the checkpoint says; ids that the vocabulary does not have
        are dropped with a warning, since some files carry those of another.
      leading_space: 'keep' or 'drop', see Tokenizer.
    """
    self._vocabulary = vocabulary
    self.vocab_size = len(vocabulary.pieces)
    self.bos_id = self._known_id('bos', settings.bos_id)
    self.eos_ids = self._all_eos_ids(settings.eos_ids)
    self.add_bos = settings.add_bos if self.bos_id is not None else 'no'
    self.chat_template = settings.chat_template
    self.leading_space = leading_space
    self.fingerprint = vocabulary.fingerprint()

  @abc.abstractmethod
  def _encode(self, text: str, special: str) -> list[int]:
    """Returns ids of text that is valid Unicode."""

  @abc.abstractmethod
  def _piece_bytes(self, token_id: int) -> bytes:
    """Returns bytes of an id that is in range and not special."""

  def encode(self, text: str, *, special: str = 'parse') -> list[int]:
    """Returns the ids of text, never with a BOS: see encode_prompt.

    Args:
      text: any text; the empty one has no ids.
      special: 'parse' turns special tokens written in the text ('<|im_end|>')
        into their ids; 'literal' treats them as the characters they are, which
        is what text from outside should get.

    Returns:
      Token ids in [0, vocab_size).

    Raises:
      UserError: If text holds half a surrogate pair, which no byte sequence
        can express.
      ValueError: If special is neither mode.
    """
    if special not in SPECIAL_MODES:
      raise ValueError(
          f'special must be one of {SPECIAL_MODES}, got {special!r}.'
      )
    try:
      text.encode('utf-8')
    except UnicodeEncodeError as error:
      raise UserError(
          f'The text holds {text[error.start]!r} at character {error.start},'
          ' which is not a Unicode character; give it as valid UTF-8.'
      ) from error
    return self._encode(text, special) if text else []

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids; special tokens give nothing.

    Bytes that are not UTF-8 become U+FFFD, one for each longest part of a
    character that could still have become valid.

    Args:
      ids: token ids, each in [0, vocab_size).

    Returns:
      The text, without the space a SentencePiece model puts at the start.

    Raises:
      UserError: If an id is outside the vocabulary.
    """
    data = b''.join(self.token_bytes(token_id) for token_id in ids)
    if self.leading_space == 'drop':
      data = data.removeprefix(b' ')
    return data.decode('utf-8', errors='replace')

  def token_bytes(self, token_id: int) -> bytes:
    """Returns the raw bytes of one token; b'' for a special one.

    Args:
      token_id: in [0, vocab_size).

    Returns:
      Bytes that need not be whole characters.

    Raises:
      UserError: If the id is outside the vocabulary.
    """
    self._check_id(token_id)
    if token_id in self._vocabulary.special_ids:
      return b''
    return self._piece_bytes(token_id)

  def piece(self, token_id: int) -> str:
    """Returns the token as the vocabulary spells it.

    Args:
      token_id: in [0, vocab_size).

    Returns:
      For instance '<|im_end|>'; '' for an id that stands for nothing.

    Raises:
      UserError: If the id is outside the vocabulary.
    """
    self._check_id(token_id)
    return self._vocabulary.pieces[token_id]

  def _check_id(self, token_id: int) -> None:
    # Written out, since a negative index would quietly count from the end.
    if not 0 <= token_id < self.vocab_size:
      raise UserError(
          f'Token id {token_id} is outside the vocabulary of'
          f' {self.vocab_size} tokens; give ids of this tokenizer.'
      )

  def _known_id(self, name: str, token_id: int | None) -> int | None:
    if token_id is None or 0 <= token_id < self.vocab_size:
      return token_id
    logging.warning(
        'Ignoring %s id %d: the vocabulary has %d tokens.',
        name,
        token_id,
        self.vocab_size,
    )
    return None

  def _all_eos_ids(self, declared: Sequence[int]) -> tuple[int, ...]:
    known = [self._known_id('eos', token_id) for token_id in declared]
    pieces = self._vocabulary.pieces
    ends = (i for i in self._vocabulary.special_ids if pieces[i] in END_PIECES)
    # A dict keeps the first of equal ids and the order.
    ids = dict.fromkeys([*known, *sorted(ends)])
    return tuple(i for i in ids if i is not None)


def encode_prompt(
    tokenizer: Tokenizer, text: str, *, special: str = 'parse'
) -> list[int]:
  """Returns the ids of a prompt, with the BOS if the checkpoint wants one.

  Args:
    tokenizer: of the model that will read the prompt.
    text: the prompt; a rendered chat template is one too.
    special: see VocabularyTokenizer.encode.

  Returns:
    tokenizer.encode(text), after bos_id where add_bos is 'yes' and the text
    does not already begin with it (chat templates often write it themselves).
  """
  ids = tokenizer.encode(text, special=special)
  if tokenizer.add_bos == 'yes' and ids[:1] != [tokenizer.bos_id]:
    return [tokenizer.bos_id, *ids]
  return ids
