"""Byte-level BPE, and whatever else a tokenizer.json describes.

The work is done by the `tokenizers` library. A tokenizer.json is used as it
is. In a GGUF file only the vocabulary and the merges are there, and
`tokenizer.ggml.pre` names how text is split before them; the splits here are
those of the tokenizers that the names stand for, as their authors published
them, Unicode normalisation included.
"""

from collections.abc import Mapping
import dataclasses
import json
import pathlib
import re
import threading
from typing import Any

import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import normalizers
from tokenizers import pre_tokenizers

from speculative.errors import UserError
from speculative.tokenizer import base
from speculative.tokenizer import directory as directory_lib
from speculative.tokenizer import gguf_metadata
from speculative.tokenizer.gguf_metadata import TokenType

# Contractions, words, runs of up to {digits} digits, punctuation, white space.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r'|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+'
    r'|\p{{N}}{digits}'
    r'| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*'
    r'|\s*[\r\n]+'
    r'|\s+(?!\S)'
    r'|\s+'
)
_SPACE = '\u2581'
_BYTE_PIECE = re.compile('<0x([0-9A-F]{2})>')


@dataclasses.dataclass(frozen=True)
class _Pre:
  """How one family of tokenizers treats text before the merges.

  Attributes:
    regex: what the text is split by; None for GPT-2's own expression.
    digits: 'single' to split digits one by one first, else 'joined'.
    normal_form: 'NFC' or 'none'.
    whole_words: 'yes' if a word that is in the vocabulary is taken whole,
      whether the merges lead to it or not.
    add_bos: what holds where the file does not say.
  """

  regex: str | None = None
  digits: str = 'joined'
  normal_form: str = 'none'
  whole_words: str = 'no'
  add_bos: str = 'no'


_GPT2 = _Pre()
_LLAMA3 = _Pre(
    regex=_WORDS.format(digits='{1,3}'), whole_words='yes', add_bos='yes'
)
_PRE = {
    'default': _GPT2,
    'gpt-2': _GPT2,
    'llama-bpe': _LLAMA3,
    'llama-v3': _LLAMA3,
    'llama3': _LLAMA3,
    'qwen2': _Pre(regex=_WORDS.format(digits=''), normal_form='NFC'),
    'smollm': _Pre(digits='single'),
}


class BpeTokenizer(base.VocabularyTokenizer):
  """A Tokenizer over the `tokenizers` library."""

  def __init__(
      self,
      core: tokenizers.Tokenizer,
      *,
      vocabulary: base.Vocabulary,
      settings: base.Settings,
      leading_space: str,
      alphabet: str,
  ):
    """Takes over a tokenizer of the library.

    Args:
      core: it is changed by every call, and must not be shared.
      vocabulary: of core.
      settings: what the checkpoint says.
      leading_space: 'keep' or 'drop', see base.Tokenizer.
      alphabet: how pieces spell bytes: 'bytes' with one printable character a
        byte (GPT-2), 'text' as text with U+2581 for a space and '<0x0A>' for
        a byte (SentencePiece).
    """
    super().__init__(vocabulary, settings=settings, leading_space=leading_space)
    self._core = core
    self._alphabet = alphabet
    self._byte_of = {c: bytes([b]) for b, c in enumerate(_byte_characters())}
    # The library keeps 'parse' or 'literal' as a property of the tokenizer.
    self._lock = threading.Lock()

  def _encode(self, text: str, special: str) -> list[int]:
    with self._lock:
      self._core.encode_special_tokens = special == 'literal'
      return self._core.encode(text, add_special_tokens=False).ids

  def _piece_bytes(self, token_id: int) -> bytes:
    piece = self._vocabulary.pieces[token_id]
    if self._alphabet == 'text':
      return _text_piece_bytes(piece)
    if token_id in self._vocabulary.added_ids:
      return piece.encode('utf-8')
    try:
      return b''.join(self._byte_of[c] for c in piece)
    except KeyError:
      # Written by hand into the vocabulary; the library shows it as it is.
      return piece.encode('utf-8')


def from_gguf(fields: Mapping[str, Any]) -> BpeTokenizer:
  """Returns the byte-level BPE described by a GGUF file's metadata.

  Args:
    fields: metadata with tokenizer.ggml.model 'gpt2'. A file without
      tokenizer.ggml.pre is split as GPT-2 does.

  Returns:
    The tokenizer; 150,000 merges take about a second.

  Raises:
    UserError: If fields are absent or do not fit each other, or if the split
      is one that is not known.
  """
  name = fields.get('tokenizer.ggml.pre', 'default')
  if name not in _PRE:
    raise UserError(
        f'The GGUF file has tokenizer.ggml.pre = {name!r}; known are'
        f' {sorted(_PRE)}. Use the Hugging Face directory of the model instead.'
    )
  pre = _PRE[name]
  pieces, types = gguf_metadata.vocabulary(fields)
  # An unused id in the middle stands for nothing, but keeps its place.
  pieces = [
      '' if kind == TokenType.UNUSED else piece
      for piece, kind in zip(pieces, types, strict=True)
  ]
  core = _build(pieces, _split_merges(fields), pre=pre)
  core.add_tokens(
      [
          tokenizers.AddedToken(
              piece,
              normalized=False,
              special=kind in gguf_metadata.SPECIAL_TYPES,
          )
          for piece, kind in zip(pieces, types, strict=True)
          if kind in gguf_metadata.ADDED_TYPES
      ]
  )
  return BpeTokenizer(
      core,
      vocabulary=base.Vocabulary(
          pieces=tuple(pieces),
          added_ids=gguf_metadata.ids_of(types, gguf_metadata.ADDED_TYPES),
          special_ids=gguf_metadata.ids_of(types, gguf_metadata.SPECIAL_TYPES),
      ),
      settings=gguf_metadata.settings(fields, default_add_bos=pre.add_bos),
      leading_space='keep',
      alphabet='bytes',
  )


def from_directory(directory: pathlib.Path) -> BpeTokenizer:
  """Returns the tokenizer that a directory's tokenizer.json describes.

  Args:
    directory: with tokenizer.json, and where there are such with
      tokenizer_config.json, special_tokens_map.json, generation_config.json,
      config.json and chat_template.jinja.

  Returns:
    The tokenizer.

  Raises:
    UserError: If a file is damaged, or the tokenizer is neither byte-level
      nor a SentencePiece model.
  """
  path = directory / 'tokenizer.json'
  spec = directory_lib.read_json(path)
  alphabet, leading_space = _decoding(spec, path)
  try:
    core = tokenizers.Tokenizer.from_file(str(path))
  # The library has no exception class of its own.
  except Exception as error:
    raise UserError(
        f'{path} is not a tokenizer ({error}); fetch it again.'
    ) from error
  # Limits that training scripts leave in the file must not cut prompts.
  core.no_truncation()
  core.no_padding()

  piece_ids = core.get_vocab(with_added_tokens=True)
  pieces = [''] * (1 + max(piece_ids.values(), default=-1))
  for piece, token_id in piece_ids.items():
    pieces[token_id] = piece
  added = core.get_added_tokens_decoder()
  settings = directory_lib.settings(
      directory, piece_ids=piece_ids, default=base.Settings()
  )
  config = directory_lib.read_json(directory / 'tokenizer_config.json')
  if config.get('add_bos_token') is None:
    # Then the template of the post-processor decides.
    start = core.encode('', add_special_tokens=True).ids[:1]
    add_bos = 'yes' if start and start[0] == settings.bos_id else 'no'
    settings = dataclasses.replace(settings, add_bos=add_bos)
  return BpeTokenizer(
      core,
      vocabulary=base.Vocabulary(
          pieces=tuple(pieces),
          added_ids=frozenset(added),
          special_ids=frozenset(i for i, t in added.items() if t.special),
      ),
      settings=settings,
      leading_space=leading_space,
      alphabet=alphabet,
  )


def _build(
    pieces: list[str], merges: list[tuple[str, str]], *, pre: _Pre
) -> tokenizers.Tokenizer:
  """Returns a tokenizer of the library without its added tokens."""
  piece_ids = {piece: i for i, piece in enumerate(pieces) if piece}
  try:
    model = models.BPE(
        vocab=piece_ids,
        merges=merges,
        ignore_merges=pre.whole_words == 'yes',
    )
  except Exception as error:
    raise UserError(
        f'The merges of the GGUF file do not fit its vocabulary ({error}); it'
        ' is damaged, fetch or convert it again.'
    ) from error
  core = tokenizers.Tokenizer(model)
  if pre.normal_form == 'NFC':
    core.normalizer = normalizers.NFC()
  steps = []
  if pre.digits == 'single':
    steps.append(pre_tokenizers.Digits(individual_digits=True))
  if pre.regex is not None:
    steps.append(
        pre_tokenizers.Split(tokenizers.Regex(pre.regex), behavior='isolated')
    )
  steps.append(
      pre_tokenizers.ByteLevel(
          add_prefix_space=False, use_regex=pre.regex is None
      )
  )
  core.pre_tokenizer = pre_tokenizers.Sequence(steps)
  core.decoder = decoders.ByteLevel()
  return core


def _split_merges(fields: Mapping[str, Any]) -> list[tuple[str, str]]:
  """Returns the merges as pairs; a space cannot occur within a piece."""
  pairs = []
  for merge in gguf_metadata.required(fields, 'merges'):
    left, separator, right = merge.partition(' ')
    if not (left and separator and right) or ' ' in right:
      raise UserError(
          f'The GGUF file has the merge {merge!r}, which is not two pieces; it'
          ' is damaged, fetch or convert it again.'
      )
    pairs.append((left, right))
  return pairs


def _decoding(spec: dict[str, Any], path: pathlib.Path) -> tuple[str, str]:
  """Returns the alphabet and the leading space of a tokenizer.json."""
  decoder = spec.get('decoder') or {}
  steps = decoder.get('decoders', [decoder])
  kinds = {step.get('type') for step in steps}
  if 'ByteLevel' in kinds:
    return 'bytes', 'keep'
  if not kinds & {'ByteFallback', 'Metaspace'}:
    raise UserError(
        f'{path} decodes by {json.dumps(decoder)[:80]}; only byte-level and'
        ' SentencePiece tokenizers are supported.'
    )
  for step in steps:
    if step.get('type') == 'Strip' and step.get('start'):
      return 'text', 'drop'
    if step.get('type') == 'Metaspace':
      prefix = step.get('prepend_scheme', 'always') != 'never'
      return 'text', 'drop' if prefix else 'keep'
  return 'text', 'keep'


def _text_piece_bytes(piece: str) -> bytes:
  byte = _BYTE_PIECE.fullmatch(piece)
  if byte:
    return bytes([int(byte[1], 16)])
  return piece.replace(_SPACE, ' ').encode('utf-8')


def _byte_characters() -> list[str]:
  """Returns the character that stands for each byte in GPT-2's vocabulary.

  Printable bytes of Latin-1 stand for themselves; the others, in order, for
  the characters from U+0100 on, so that a space is 'Ġ' and a line feed 'Ċ'.
  """
  characters = []
  num_moved = 0
  for byte in range(256):
    if 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xFF and byte != 0xAD:
      characters.append(chr(byte))
    else:
      characters.append(chr(0x100 + num_moved))
      num_moved += 1
  return characters
