"""SentencePiece models, from a .model file or out of a GGUF file.

The work is done by the `sentencepiece` library. A GGUF file holds the pieces,
scores and types of such a model; they are put back into the form the library
reads, so that both ways lead through the same code.
"""

from collections.abc import Mapping
import pathlib
import re
from typing import Any

from google.protobuf import message
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as model_pb2

from speculative.errors import UserError
from speculative.tokenizer import base
from speculative.tokenizer import directory as directory_lib
from speculative.tokenizer import gguf_metadata
from speculative.tokenizer.gguf_metadata import TokenType

_SPACE = '\u2581'


class SentencePieceTokenizer(base.VocabularyTokenizer):
  """A Tokenizer over the `sentencepiece` library.

  The library itself never finds special tokens in a text; 'parse' cuts the
  text at them first. Each part then starts as a text does: where the model
  puts a space before a text, it puts one before each part.
  """

  def __init__(self, proto: model_pb2.ModelProto, *, settings: base.Settings):
    """Loads a model.

    Args:
      proto: the whole model.
      settings: what the checkpoint says.

    Raises:
      UserError: If the library refuses the model.
    """
    types = [TokenType(piece.type) for piece in proto.pieces]
    special_ids = gguf_metadata.ids_of(types, gguf_metadata.SPECIAL_TYPES)
    normalizer = proto.normalizer_spec
    prefixed = (
        normalizer.add_dummy_prefix or normalizer.remove_extra_whitespaces
    )
    super().__init__(
        base.Vocabulary(
            pieces=tuple(piece.piece for piece in proto.pieces),
            added_ids=gguf_metadata.ids_of(types, gguf_metadata.ADDED_TYPES),
            special_ids=special_ids,
        ),
        settings=settings,
        leading_space='drop' if prefixed else 'keep',
    )
    self._types = types
    self._processor = sentencepiece.SentencePieceProcessor()
    try:
      self._processor.LoadFromSerializedProto(proto.SerializeToString())
    except RuntimeError as error:
      raise UserError(
          f'The SentencePiece model is refused by its library ({error}); fetch'
          ' or convert it again.'
      ) from error
    self._special_ids_by_piece = {
        proto.pieces[i].piece: i for i in sorted(special_ids)
    }
    # The longest first, or '<s>' would hide '<s>s'.
    alternatives = sorted(self._special_ids_by_piece, key=len, reverse=True)
    self._special = re.compile(f'({"|".join(map(re.escape, alternatives))})')

  def _encode(self, text: str, special: str) -> list[int]:
    if special == 'literal':
      return self._processor.EncodeAsIds(text)
    ids = []
    # Splitting by one group gives text and special pieces in turn.
    for i, part in enumerate(self._special.split(text)):
      if i % 2:
        ids.append(self._special_ids_by_piece[part])
      elif part:
        ids.extend(self._processor.EncodeAsIds(part))
    return ids

  def _piece_bytes(self, token_id: int) -> bytes:
    piece = self._vocabulary.pieces[token_id]
    kind = self._types[token_id]
    if kind == TokenType.UNUSED:
      return b''
    if kind == TokenType.BYTE:
      return bytes([int(piece[1:-1], 16)])
    return piece.replace(_SPACE, ' ').encode('utf-8')


def from_gguf(fields: Mapping[str, Any]) -> SentencePieceTokenizer:
  """Returns the SentencePiece BPE described by a GGUF file's metadata.

  Args:
    fields: metadata with tokenizer.ggml.model 'llama'.

  Returns:
    The tokenizer. Where the file does not say, a space is put before a text
    and the BOS before a prompt, as Llama 2 does.

  Raises:
    UserError: If fields are absent or do not fit each other.
  """
  pieces, types = gguf_metadata.vocabulary(fields)
  scores = gguf_metadata.column(fields, 'scores', length=len(pieces))
  proto = model_pb2.ModelProto()
  proto.trainer_spec.model_type = model_pb2.TrainerSpec.BPE
  proto.trainer_spec.vocab_size = len(pieces)
  proto.trainer_spec.byte_fallback = TokenType.BYTE in types
  proto.normalizer_spec.name = 'identity'
  proto.normalizer_spec.add_dummy_prefix = fields.get(
      'tokenizer.ggml.add_space_prefix', True
  )
  proto.normalizer_spec.remove_extra_whitespaces = False
  for piece, score, kind in zip(pieces, scores, types, strict=True):
    if kind in (TokenType.NORMAL, TokenType.USER_DEFINED):
      # Some converters write the spaces of a piece as spaces.
      piece = piece.replace(' ', _SPACE)
    proto.pieces.add(piece=piece, score=score, type=int(kind))
  return SentencePieceTokenizer(
      proto, settings=gguf_metadata.settings(fields, default_add_bos='yes')
  )


def from_directory(directory: pathlib.Path) -> SentencePieceTokenizer:
  """Returns the tokenizer in a directory's tokenizer.model.

  Args:
    directory: with tokenizer.model, and where there are such with
      tokenizer_config.json (its added tokens are put after the model's),
      special_tokens_map.json, generation_config.json, config.json and
      chat_template.jinja.

  Returns:
    The tokenizer. Where no file says otherwise, BOS and EOS are the model's
    own and a BOS that exists is put before a prompt.

  Raises:
    UserError: If a file is damaged.
  """
  path = directory / 'tokenizer.model'
  try:
    proto = model_pb2.ModelProto.FromString(path.read_bytes())
  except message.DecodeError as error:
    raise UserError(
        f'{path} is not a SentencePiece model; fetch it again.'
    ) from error
  _append_added(proto, directory_lib.added_tokens(directory))
  piece_ids = {piece.piece: i for i, piece in enumerate(proto.pieces)}
  trainer = proto.trainer_spec
  bos_id = piece_ids.get(trainer.bos_piece)
  eos_id = piece_ids.get(trainer.eos_piece)
  default = base.Settings(
      bos_id=bos_id,
      eos_ids=() if eos_id is None else (eos_id,),
      add_bos='no' if bos_id is None else 'yes',
  )
  return SentencePieceTokenizer(
      proto,
      settings=directory_lib.settings(
          directory, piece_ids=piece_ids, default=default
      ),
  )


def _append_added(
    proto: model_pb2.ModelProto, added: dict[int, directory_lib.AddedToken]
) -> None:
  """Appends the tokens that a directory adds after the model's own."""
  for token_id, token in added.items():
    if token_id < len(proto.pieces):
      continue
    # Ids may be left out; they stand for nothing but keep their place.
    for empty_id in range(len(proto.pieces), token_id):
      proto.pieces.add(
          piece=f'[PAD{empty_id}]', type=int(TokenType.UNUSED), score=0
      )
    kind = (
        TokenType.CONTROL if token.special == 'yes' else TokenType.USER_DEFINED
    )
    piece = token.piece.replace(' ', _SPACE)
    proto.pieces.add(piece=piece, type=int(kind), score=0)
