"""What both kinds of tokenizer read in a Hugging Face directory."""

from collections.abc import Mapping
import dataclasses
import json
import pathlib
from typing import Any

from speculative.errors import UserError
from speculative.tokenizer import base

_CONFIG = 'tokenizer_config.json'


@dataclasses.dataclass(frozen=True)
class AddedToken:
  """A token that tokenizer_config.json puts on top of a vocabulary.

  Attributes:
    piece: as it is written.
    special: 'yes' if it is never shown, else 'no'.
  """

  piece: str
  special: str


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """Returns the object in a JSON file, an empty one if there is no file.

  Args:
    path: of the file.

  Returns:
    The object.

  Raises:
    UserError: If the file does not hold a JSON object.
  """
  if not path.is_file():
    return {}
  try:
    value = json.loads(path.read_text(encoding='utf-8'))
  except ValueError as error:
    raise UserError(
        f'{path} is not valid JSON ({error}); fetch it again.'
    ) from error
  if not isinstance(value, dict):
    raise UserError(
        f'{path} holds a JSON {type(value).__name__}, not an object; fetch it'
        ' again.'
    )
  return value


def added_tokens(directory: pathlib.Path) -> dict[int, AddedToken]:
  """Returns the tokens that tokenizer_config.json declares, by id.

  Args:
    directory: of the checkpoint.

  Returns:
    A dict in the order of ids, empty if the file declares none.
  """
  declared = read_json(directory / _CONFIG).get('added_tokens_decoder') or {}
  return {
      int(token_id): AddedToken(
          piece=token['content'],
          special='yes' if token.get('special') else 'no',
      )
      for token_id, token in sorted(
          declared.items(), key=lambda item: int(item[0])
      )
  }


def settings(
    directory: pathlib.Path,
    *,
    piece_ids: Mapping[str, int],
    default: base.Settings,
) -> base.Settings:
  """Returns what the files of a directory say beside the vocabulary.

  Args:
    directory: of the checkpoint.
    piece_ids: the id of every piece.
    default: what holds where no file says anything.

  Returns:
    The settings: names in tokenizer_config.json come before those in
    special_tokens_map.json, and ids of generation_config.json and config.json
    after both.

  Raises:
    UserError: If one of the files is damaged.
  """
  config = read_json(directory / _CONFIG)
  names = [config, read_json(directory / 'special_tokens_map.json')]
  numbers = [
      read_json(directory / 'generation_config.json'),
      read_json(directory / 'config.json'),
  ]
  bos_ids = _ids('bos', names=names, numbers=numbers, piece_ids=piece_ids)
  eos_ids = _ids('eos', names=names, numbers=numbers, piece_ids=piece_ids)
  add_bos = config.get('add_bos_token')
  return base.Settings(
      bos_id=bos_ids[0] if bos_ids else default.bos_id,
      eos_ids=eos_ids or default.eos_ids,
      add_bos={None: default.add_bos, True: 'yes', False: 'no'}[add_bos],
      chat_template=_chat_template(directory, config) or default.chat_template,
  )


def _ids(
    role: str,
    *,
    names: list[dict[str, Any]],
    numbers: list[dict[str, Any]],
    piece_ids: Mapping[str, int],
) -> tuple[int, ...]:
  """Returns every id that a file gives for a role, the first named first."""
  ids = []
  for file in names:
    token = file.get(f'{role}_token')
    # Either the piece, or an object that also says how it is matched.
    piece = token.get('content') if isinstance(token, dict) else token
    if piece in piece_ids:
      ids.append(piece_ids[piece])
  for file in numbers:
    value = file.get(f'{role}_token_id')
    values = value if isinstance(value, list) else [value]
    ids.extend(i for i in values if isinstance(i, int))
  return tuple(dict.fromkeys(ids))


def _chat_template(
    directory: pathlib.Path, config: dict[str, Any]
) -> str | None:
  path = directory / 'chat_template.jinja'
  if path.is_file():
    return path.read_text(encoding='utf-8')
  template = config.get('chat_template')
  if isinstance(template, list):
    # Several named ones, for tools or retrieval beside plain chat.
    named = {entry['name']: entry['template'] for entry in template}
    return named.get('default')
  return template
