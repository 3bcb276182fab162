"""Chat messages to a prompt, by the template that a checkpoint carries.

Templates are programs from strangers: they run in jinja2's immutable sandbox,
with only the names that published templates rely on, and whatever goes wrong
in one is the user's to read in one line.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import datetime
import functools
import json
from typing import Any
from typing import NoReturn

import jinja2
from jinja2 import ext
from jinja2 import nodes
from jinja2 import parser as jinja_parser
from jinja2 import sandbox

from speculative.errors import UserError
from speculative.tokenizer import base

_CHOICES = ('yes', 'no')


class _GenerationTag(ext.Extension):
  """Accepts {% generation %} … {% endgeneration %} and prints what is inside.

  Training code uses the tag to tell replies from prompts.
  """

  tags = {'generation'}

  def parse(self, parser: jinja_parser.Parser) -> nodes.Node:
    """Returns a block that only calls its body.

    Args:
      parser: stands on the tag's name.

    Returns:
      The node that replaces the tag.
    """
    line = next(parser.stream).lineno
    body = parser.parse_statements(('name:endgeneration',), drop_needle=True)
    call = self.call_method('_print_body')
    return nodes.CallBlock(call, [], [], body).set_lineno(line)

  def _print_body(self, caller: Callable[[], str]) -> str:
    return caller()


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    bos_token: str = '',
    eos_token: str = '',
    add_generation_prompt: str = 'yes',
) -> str:
  """Returns the prompt that template makes of messages.

  Args:
    template: jinja2 source, from a checkpoint.
    messages: oldest first, each with 'role' and with 'content' (or the
      'tool_calls' of a turn that says nothing).
    bos_token: the piece that starts a text; '' if there is none.
    eos_token: the piece that ends a reply; '' if there is none.
    add_generation_prompt: 'yes' to end with the words after which the model
      speaks; 'no' for a finished conversation.

  Returns:
    Text whose special tokens are written out, to be encoded with
    special='parse'.

  Raises:
    UserError: If there is no message, one lacks its role or content, or the
      template is broken, refuses the messages, or tries what the sandbox
      forbids.
    ValueError: If add_generation_prompt is neither 'yes' nor 'no'.
  """
  if add_generation_prompt not in _CHOICES:
    raise ValueError(
        f'add_generation_prompt must be one of {_CHOICES}, got'
        f' {add_generation_prompt!r}.'
    )
  _check_messages(messages)
  try:
    return _compile(template).render(
        messages=[dict(message) for message in messages],
        tools=None,
        documents=None,
        bos_token=bos_token,
        eos_token=eos_token,
        add_generation_prompt=add_generation_prompt == 'yes',
    )
  # Any exception at all: the template is data, and it can raise what it likes.
  except Exception as error:
    reason = ' '.join(str(error).split()) or 'no reason given'
    raise UserError(
        f'The chat template failed with {type(error).__name__}: {reason};'
        ' change the messages, or give the prompt without a chat template.'
    ) from error


def render_for(
    tokenizer: base.Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: str = 'yes',
) -> str:
  """Returns the prompt that a tokenizer's own template makes of messages.

  Args:
    tokenizer: brings the template, the BOS and the EOS.
    messages: see render.
    add_generation_prompt: see render.

  Returns:
    See render; encode it with base.encode_prompt, which knows whether the
    template has written a BOS.

  Raises:
    UserError: If the tokenizer has no chat template, and as render does.
  """
  if tokenizer.chat_template is None:
    raise UserError(
        'This checkpoint has no chat template; give the prompt as plain text,'
        ' or use an instruction-tuned checkpoint.'
    )
  bos_id, eos_ids = tokenizer.bos_id, tokenizer.eos_ids
  return render(
      tokenizer.chat_template,
      messages,
      bos_token='' if bos_id is None else tokenizer.piece(bos_id),
      eos_token=tokenizer.piece(eos_ids[0]) if eos_ids else '',
      add_generation_prompt=add_generation_prompt,
  )


@functools.lru_cache(maxsize=8)
def _compile(template: str) -> jinja2.Template:
  environment = sandbox.ImmutableSandboxedEnvironment(
      trim_blocks=True,
      lstrip_blocks=True,
      extensions=[ext.loopcontrols, _GenerationTag],
  )
  environment.filters['tojson'] = _to_json
  environment.globals['raise_exception'] = _raise_exception
  environment.globals['strftime_now'] = _strftime_now
  return environment.from_string(template)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
  # jinja2's own filter escapes <, > and & for web pages, which models would
  # then see.
  options.setdefault('ensure_ascii', False)
  return json.dumps(value, indent=indent, **options)


def _raise_exception(message: str) -> NoReturn:
  raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
  return datetime.datetime.now().strftime(pattern)


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
  if not messages:
    raise UserError(
        "A chat needs at least one message, like {'role': 'user', 'content':"
        " 'Hello'}; got none."
    )
  for i, message in enumerate(messages):
    keys = set(message) if isinstance(message, Mapping) else set()
    # A turn that only calls tools has no content.
    if 'role' not in keys or not keys & {'content', 'tool_calls'}:
      raise UserError(
          f'Chat message {i} needs a role and a content, got'
          f' {ascii(message)[:80]}.'
      )
