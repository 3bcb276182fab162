"""The tokenizer of models made for tests: a token a byte, and an end token."""

from speculative.tokenizer import base

EOS_ID = 256
VOCAB_SIZE = 257


class ByteTokenizer(base.VocabularyTokenizer):
  """Ids 0 to 255 are bytes, 256 ends a text."""

  def __init__(self) -> None:
    """Builds the one vocabulary there is."""
    pieces = tuple(f'<0x{byte:02X}>' for byte in range(256)) + ('</s>',)
    super().__init__(
        base.Vocabulary(pieces, frozenset([EOS_ID]), frozenset([EOS_ID])),
        settings=base.Settings(eos_ids=(EOS_ID,)),
        leading_space='keep',
    )

  def _encode(self, text: str, special: str) -> list[int]:
    parts = text.split('</s>') if special == 'parse' else [text]
    ids = list(parts[0].encode('utf-8'))
    for part in parts[1:]:
      ids += [EOS_ID, *part.encode('utf-8')]
    return ids

  def _piece_bytes(self, token_id: int) -> bytes:
    return bytes([token_id])
