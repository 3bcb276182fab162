import json

import pytest

from speculative.errors import UserError
from speculative.train import prompt_text


def _encode(text, chat_template):
  ids = list(text.encode())
  return [0, *ids, 0] if chat_template == 'auto' else ids


def _write(path, *rows):
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  return str(path)


def _read(*sources):
  return prompt_text.from_prompts(sources, _encode)


@pytest.mark.parametrize(
    ('row', 'text', 'domain'),
    [
        ({'prompt': 'def f', 'canonical_solution': ':'}, 'def f', 'code'),
        ({'turns': ['one', 'two']}, 'one', 'chat'),
        ({'question': 'how many?', 'answer': '3'}, 'how many?', 'chat'),
        ({'text': 'write it', 'code': 'x'}, 'write it', 'chat'),
        (
            {'instruction': 'Do', 'instances': [{'input': 'x', 'output': 'y'}]},
            'Do\n\nx',
            'chat',
        ),
        ({'instruction': 'Do', 'instances': [{'input': ''}]}, 'Do', 'chat'),
    ],
)
def test_published_kinds_of_prompts_are_read(tmp_path, row, text, domain):
  (start,) = _read(_write(tmp_path / 'a.jsonl', row))
  assert (start.text, start.domain, start.kind) == (text, domain, 'prompt')
  template = 'no' if domain == 'code' else 'auto'
  assert list(start.tokens) == _encode(text, template)
  assert start.where.endswith('a.jsonl:1')


def test_an_answer_goes_on_where_its_prompt_ends(tmp_path):
  path = _write(
      tmp_path / 'a.jsonl',
      {'question': 'Why?', 'answer': 'So.'},
      {'prompt': 'def', 'answer': ' f():'},
      {'question': 'too long for any answer', 'answer': 'So.'},
  )

  def read(num_tokens):
    return prompt_text.from_answered(
        [path], _encode, lambda text: text.encode(), num_tokens=num_tokens
    )

  (chat, code), num_too_long = read(8)
  assert num_too_long == 1
  assert chat.tokens == (*_encode('Why?', 'auto'), *b'So')
  assert (chat.kind, chat.domain, chat.prompt_len) == ('plain', 'chat', 6)
  assert (bytes(code.tokens), code.prompt_len) == (b'def f():', 3)
  assert 'Why?' in chat.text and 'So.' in chat.text
  _write(tmp_path / 'a.jsonl', {'question': 'Why?'})
  with pytest.raises(UserError, match="a.jsonl:1 has no field 'answer'"):
    read(8)
  _write(tmp_path / 'a.jsonl')
  with pytest.raises(UserError, match='a.jsonl holds no prompts'):
    read(8)


def test_a_domain_can_be_named_and_files_be_a_glob(tmp_path):
  _write(tmp_path / 'a.jsonl', {'prompt': 'a'})
  (tmp_path / 'b.txt').write_text('first?\n\nsecond?\n')
  found = _read(f'maths={tmp_path}/*.jsonl', f'{tmp_path}/b.txt')
  assert [(start.text, start.domain) for start in found] == [
      ('a', 'maths'),
      ('first?', 'chat'),
      ('second?', 'chat'),
  ]


def test_mistakes_name_the_file(tmp_path):
  with pytest.raises(UserError, match='names .*absent.jsonl.*no such file'):
    _read(f'{tmp_path}/absent.jsonl')
  with pytest.raises(UserError, match='c.jsonl:1 has none of the fields'):
    _read(_write(tmp_path / 'c.jsonl', {'other': 'x'}))
  with pytest.raises(UserError, match='e.jsonl:1 has none of the fields'):
    _read(_write(tmp_path / 'e.jsonl', {'instances': [{'input': 'x'}]}))
  (tmp_path / 'd.txt').write_text('\n')
  with pytest.raises(UserError, match='d.txt holds no prompts'):
    _read(f'{tmp_path}/d.txt')


def test_pieces_end_at_line_ends_and_lose_nothing():
  text = 'ab\ncdef\n\ngh\nijklmnop\nq'
  found = prompt_text.pieces(text, 6)
  assert ''.join(found) == text
  assert found == ['ab\ncdef\n', '\ngh\nijklmnop\n', 'q']


def _from_text(tmp_path, **changed):
  (tmp_path / 'code.py').write_text('x = 1\n' * 800)
  settings = {'kind': 'prompt', 'num_tokens': 384, 'seed': 1} | changed
  return prompt_text.from_texts([f'{tmp_path}/code.py'], _encode, **settings)


def test_prompts_from_text_have_lengths_that_follow_from_the_seed(tmp_path):
  found = _from_text(tmp_path)
  lens = [len(start.tokens) for start in found]
  assert len(found) > 4
  assert len(set(lens)) > 3
  assert all(32 <= n <= 128 for n in lens)
  assert found == _from_text(tmp_path)
  assert lens != [len(s.tokens) for s in _from_text(tmp_path, seed=2)]
  assert {(start.domain, start.kind) for start in found} == {('code', 'prompt')}


def test_plain_documents_have_as_many_tokens_as_they_may(tmp_path):
  found = _from_text(tmp_path, kind='plain', num_tokens=100)
  assert {len(start.tokens) for start in found[:-1]} == {100}
  assert {start.kind for start in found} == {'plain'}


def test_texts_that_are_too_short_are_refused(tmp_path):
  (tmp_path / 'short.txt').write_text('a few words')
  with pytest.raises(UserError, match='no piece of 32 tokens'):
    prompt_text.from_texts(
        [f'{tmp_path}/short.txt'], _encode, kind='prompt', num_tokens=9, seed=0
    )
