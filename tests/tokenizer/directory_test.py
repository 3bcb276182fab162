"""Tests of speculative.tokenizer.directory."""

import pytest

from speculative.errors import UserError
from speculative.tokenizer import base
from speculative.tokenizer import directory

_PIECE_IDS = {'<s>': 1, '</s>': 2, '<end>': 3}


def _settings(path):
  return directory.settings(
      path, piece_ids=_PIECE_IDS, default=base.Settings(add_bos='yes')
  )


@pytest.fixture
def write(tmp_path):
  def write(name, text):
    (tmp_path / name).write_text(text, encoding='utf-8')
    return tmp_path

  return write


def test_settings_without_files_are_the_default(tmp_path):
  assert _settings(tmp_path) == base.Settings(add_bos='yes')


def test_names_come_first_and_all_ends_are_collected(write):
  write('tokenizer_config.json', '{"eos_token": "<end>", "bos_token": null}')
  write('special_tokens_map.json', '{"bos_token": {"content": "<s>"}}')
  write('generation_config.json', '{"eos_token_id": [2, 3]}')
  path = write('config.json', '{"eos_token_id": 5, "bos_token_id": 7}')
  settings = _settings(path)
  assert settings.bos_id == 1
  assert settings.eos_ids == (3, 2, 5)


@pytest.mark.parametrize(
    ('text', 'expected'),
    [('true', 'yes'), ('false', 'no'), ('null', 'yes')],
)
def test_add_bos_is_what_the_config_says(write, text, expected):
  path = write('tokenizer_config.json', f'{{"add_bos_token": {text}}}')
  assert _settings(path).add_bos == expected


def test_chat_template_is_found_in_all_its_places(write):
  path = write('tokenizer_config.json', '{"chat_template": "one"}')
  assert _settings(path).chat_template == 'one'
  named = (
      '[{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]'
  )
  write('tokenizer_config.json', f'{{"chat_template": {named}}}')
  assert _settings(path).chat_template == 'd'
  write('chat_template.jinja', 'file')
  assert _settings(path).chat_template == 'file'


@pytest.mark.parametrize('text', ['{"a": ', '[1]', '\x00'])
def test_damaged_json_is_refused_by_name(write, text):
  path = write('tokenizer_config.json', text)
  with pytest.raises(UserError, match='tokenizer_config.json') as info:
    _settings(path)
  assert '\n' not in str(info.value)


def test_added_tokens_come_in_the_order_of_ids(write):
  path = write(
      'tokenizer_config.json',
      '{"added_tokens_decoder": {"10": {"content": "b"},'
      ' "9": {"content": "a", "special": true}}}',
  )
  assert list(directory.added_tokens(path).items()) == [
      (9, directory.AddedToken(piece='a', special='yes')),
      (10, directory.AddedToken(piece='b', special='no')),
  ]
