"""Tests of speculative.tokenizer.chat."""

import datetime

import pytest

from speculative import tokenizer
from speculative.errors import UserError
from speculative.tokenizer import chat

_CHATML = """{% for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' }}
    {{- message['content'] + '<|im_end|>\\n' -}}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{%- endif %}"""
_HELLO = ({'role': 'user', 'content': 'Hello <b>&amp;'},)


def test_render_writes_every_turn_and_opens_the_reply():
  messages = (
      {'role': 'system', 'content': 'Be brief.'},
      {'role': 'user', 'content': 'Hi'},
  )
  assert chat.render(_CHATML, messages) == (
      '<|im_start|>system\nBe brief.<|im_end|>\n'
      '<|im_start|>user\nHi<|im_end|>\n'
      '<|im_start|>assistant\n'
  )


def test_render_leaves_the_reply_out_when_asked():
  text = chat.render(_CHATML, _HELLO, add_generation_prompt='no')
  assert text == '<|im_start|>user\nHello <b>&amp;<|im_end|>\n'


@pytest.mark.parametrize(
    ('template', 'expected'),
    [
        ('{{ bos_token }}|{{ eos_token }}', '<s>|</s>'),
        ('{{ messages | tojson }}', '[{"role": "user", "content": "é<"}]'),
        ('{{ {"a": 1} | tojson(indent=2) }}', '{\n  "a": 1\n}'),
        ('{% if tools %}x{% endif %}{{ tools is none }}', 'True'),
        ('{% for i in [1, 2] %}{{ i }}{% break %}{% endfor %}', '1'),
        ('a{% generation %}{{ "b" }}{% endgeneration %}c', 'abc'),
        ('{% set ns = namespace(n=1) %}{% set ns.n = 2 %}{{ ns.n }}', '2'),
        ('  {% if true %}\nx\n  {% endif %}\ny', 'x\ny'),
    ],
    ids=[
        'tokens',
        'json_is_not_escaped_for_the_web',
        'json_indent',
        'tools_are_none',
        'loop_controls',
        'generation_tag',
        'namespace',
        'blocks_are_trimmed',
    ],
)
def test_render_offers_what_published_templates_use(template, expected):
  messages = [{'role': 'user', 'content': 'é<'}]
  text = chat.render(template, messages, bos_token='<s>', eos_token='</s>')
  assert text == expected


def test_render_tells_the_date():
  text = chat.render("{{ strftime_now('%Y') }}", _HELLO)
  assert abs(int(text) - datetime.datetime.now().year) <= 1


@pytest.mark.parametrize(
    ('template', 'reason'),
    [
        ('{% for x in %}', 'TemplateSyntaxError'),
        ("{{ raise_exception('Only\\none user') }}", 'Only one user'),
        ("{{ ''.__class__.__mro__ }}", 'SecurityError'),
        ("{{ ''.__class__.__base__.__subclasses__() }}", 'SecurityError'),
        ('{{ messages.append(1) }}', 'SecurityError'),
        ("{{ 'a' + none }}", 'TypeError'),
        ('{{ 1 / 0 }}', 'ZeroDivisionError'),
        ('{{ range(10 ** 9) }}', 'OverflowError'),
        ("{% include '/etc/passwd' %}", 'no loader'),
    ],
)
def test_broken_or_unsafe_template_is_one_line_for_the_user(template, reason):
  with pytest.raises(UserError, match=reason) as info:
    chat.render(template, _HELLO)
  assert '\n' not in str(info.value)


@pytest.mark.parametrize(
    ('messages', 'match'),
    [
        ([], 'at least one message'),
        (['hi'], 'message 0 needs a role'),
        ([*_HELLO, {'role': 'user'}], 'message 1 needs a role and a content'),
    ],
)
def test_messages_without_role_or_content_are_refused(messages, match):
  with pytest.raises(UserError, match=match):
    chat.render(_CHATML, messages)


def test_a_turn_of_tool_calls_needs_no_content():
  messages = [*_HELLO, {'role': 'assistant', 'tool_calls': []}]
  assert chat.render('{{ messages | length }}', messages) == '2'


def test_templates_cannot_change_the_callers_messages():
  message = {'role': 'user', 'content': 'x'}
  with pytest.raises(UserError):
    chat.render("{{ messages[0].update({'content': 'y'}) }}", [message])
  assert message == {'role': 'user', 'content': 'x'}


def test_render_for_encodes_to_the_tokenizers_own_special_tokens(
    make_bpe_fields,
):
  fields = make_bpe_fields('smollm')
  fields['tokenizer.chat_template'] = (
      '{{ bos_token }}' + _CHATML + '{{ eos_token }}'
  )
  tok = tokenizer.from_gguf(fields)
  text = chat.render_for(tok, _HELLO)
  ids = tok.encode(text)
  assert ids[0] == tok.bos_id
  assert ids[-1] == tok.eos_ids[0]
  assert tok.piece(ids[-1]) == '<|im_end|>'


def test_render_for_without_a_template_says_so(make_bpe_fields):
  tok = tokenizer.from_gguf(make_bpe_fields('smollm'))
  with pytest.raises(UserError, match='has no chat template'):
    chat.render_for(tok, _HELLO)


def test_render_takes_no_other_word_for_yes():
  with pytest.raises(ValueError, match='add_generation_prompt'):
    chat.render(_CHATML, _HELLO, add_generation_prompt='true')
