"""What both kinds of tokenizer read in a GGUF file's metadata.

Fields are a dict from a metadata name to a Python value, as the `contents()`
of a `gguf.GGUFReader` field gives it.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import enum
from typing import Any

from speculative.errors import UserError
from speculative.tokenizer import base

_PREFIX = 'tokenizer.ggml.'
# In the order in which they name the token that ends a reply.
_EOS_FIELDS = ('eos_token_id', 'eot_token_id', 'eom_token_id')


class TokenType(enum.IntEnum):
  """Kinds of tokens; SentencePiece numbers them in the same way."""

  NORMAL = 1
  UNKNOWN = 2
  CONTROL = 3
  USER_DEFINED = 4
  UNUSED = 5
  BYTE = 6


SPECIAL_TYPES = frozenset({TokenType.UNKNOWN, TokenType.CONTROL})
ADDED_TYPES = SPECIAL_TYPES | {TokenType.USER_DEFINED}


def required(fields: Mapping[str, Any], name: str) -> Any:
  """Returns the field tokenizer.ggml.NAME.

  Args:
    fields: metadata of the file.
    name: without its prefix.

  Returns:
    The value.

  Raises:
    UserError: If the file does not have it.
  """
  try:
    return fields[_PREFIX + name]
  except KeyError as error:
    raise UserError(
        f'The GGUF file has no {_PREFIX}{name}, so its tokenizer cannot be'
        ' built; convert the model again with a current converter.'
    ) from error


def column(fields: Mapping[str, Any], name: str, *, length: int) -> list[Any]:
  """Returns the first `length` values of a field with one value a token.

  Args:
    fields: metadata of the file.
    name: without its prefix.
    length: how many tokens the vocabulary keeps.

  Returns:
    The values.

  Raises:
    UserError: If the file does not have it, or has fewer values than tokens.
  """
  values = required(fields, name)
  num_tokens = len(required(fields, 'tokens'))
  if len(values) != num_tokens:
    raise UserError(
        f'The GGUF file has {num_tokens} tokens but {len(values)} values in'
        f' {_PREFIX}{name}; it is damaged, fetch or convert it again.'
    )
  return values[:length]


def vocabulary(
    fields: Mapping[str, Any],
) -> tuple[list[str], list[TokenType]]:
  """Returns the pieces and their types, without the padding at the end.

  Converters fill the vocabulary up to the rows of the model's head with
  unused tokens spelt '[PAD<id>]', which older ones called user-defined.

  Args:
    fields: metadata of the file.

  Returns:
    Two lists of the same length.

  Raises:
    UserError: If the fields are absent, empty or do not fit each other.
  """
  pieces = required(fields, 'tokens')
  numbers = column(fields, 'token_type', length=len(pieces))
  known = set(TokenType)
  unknown = sorted(set(numbers) - known)
  if unknown:
    raise UserError(
        f'The GGUF file has token types {unknown}; known ones are'
        f' {sorted(int(t) for t in known)}.'
    )
  size = len(pieces)
  while size and (
      numbers[size - 1] == TokenType.UNUSED
      or pieces[size - 1] == f'[PAD{size - 1}]'
  ):
    size -= 1
  if not size:
    raise UserError(
        'The GGUF file has an empty vocabulary; convert the model again.'
    )
  return pieces[:size], [TokenType(n) for n in numbers[:size]]


def ids_of(
    types: Sequence[TokenType], wanted: frozenset[TokenType]
) -> frozenset[int]:
  """Returns the ids whose type is one of those wanted.

  Args:
    types: one a token.
    wanted: types to select.

  Returns:
    Token ids.
  """
  return frozenset(i for i, kind in enumerate(types) if kind in wanted)


def settings(
    fields: Mapping[str, Any], *, default_add_bos: str
) -> base.Settings:
  """Returns what the file says beside the vocabulary.

  Args:
    fields: metadata of the file.
    default_add_bos: 'yes' or 'no', where the file does not say.

  Returns:
    The settings.
  """
  eos_ids = (fields.get(_PREFIX + name) for name in _EOS_FIELDS)
  add_bos = fields.get(_PREFIX + 'add_bos_token')
  return base.Settings(
      bos_id=fields.get(_PREFIX + 'bos_token_id'),
      eos_ids=tuple(i for i in eos_ids if i is not None),
      add_bos={None: default_add_bos, True: 'yes', False: 'no'}[add_bos],
      chat_template=fields.get('tokenizer.chat_template'),
  )
