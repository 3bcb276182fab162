"""How bench_vs_transformers.py and its contestants talk: in lines of JSON.

A contestant's process is loaded beforehand and says so in its first line,
{"ready": {...}}: its number format and versions. Then every line in,

  {"setting": NAME, "ids": [...], "max_new_tokens": n, "warm_up": false},

is answered by one line out:

  token_ids    new tokens: n, or more where the last pass of a look-up brought
               more than were left
  num_counted  how many of them came within decode_s
  num_passes   in how many passes of the model, where that is known
  prefill_s    to read the prompt
  decode_s     from there to the last token

The end-of-text token neither stops nor is suppressed. With "warm_up" the answer
is {}. A line {"error": ...} is the last one.

Imported in every contestant's own environment: needs Python's library alone.
"""

from collections.abc import Callable
from collections.abc import Hashable
import dataclasses
import json
import os
import sys

_WARM_UP_TOKENS = 8


@dataclasses.dataclass(frozen=True)
class Served:
  """What a process can be asked for.

  Attributes:
    ready: number format and versions.
    run: answers a request.
    warm_up: does once what the first such request would have to do; absent, a
      short run.
    program: what a request has to be warm for; its setting where absent.
  """

  ready: dict[str, str]
  run: Callable[[dict], dict]
  warm_up: Callable[[dict], None] | None = None
  program: Callable[[dict], Hashable] | None = None


def fields(text: str) -> dict[str, object]:
  """Reads a setting: 'a=1,b=x' is {'a': 1, 'b': 'x'}.

  Args:
    text: fields with their values, commas between them; may be empty.

  Raises:
    ValueError: If a part is no field with its value.
  """
  found = {}
  for part in text.split(',') if text else ():
    name, equals, value = (x.strip() for x in part.partition('='))
    if not equals or not name or not value:
      raise ValueError(f'{part!r} is no field with its value, such as n=4.')
    try:
      found[name] = json.loads(value)
    except json.JSONDecodeError:
      found[name] = value
  return found


def refuse(setting: str, wrong: set[str], reason: str) -> None:
  """Refuses fields that a library would take and ignore.

  Args:
    setting: their setting's name.
    wrong: the fields.
    reason: what is wrong with them, after 'which'.

  Raises:
    ValueError: If there are any.
  """
  if wrong:
    raise ValueError(
        f'the setting {setting!r} has {", ".join(sorted(wrong))}, which '
        f'{reason}; leave them out.'
    )


def serve(load: Callable[[], Served]) -> None:
  """Loads, then answers until the other side closes the pipe.

  Args:
    load: what it takes to be ready.
  """
  # What a library prints must not end up between the answers.
  answers = os.fdopen(os.dup(sys.stdout.fileno()), 'w')
  os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

  def say(message: dict) -> None:
    print(json.dumps(message), file=answers, flush=True)

  try:
    served = load()
    say({'ready': served.ready})
    warm: set[Hashable] = set()
    for line in sys.stdin:
      say(_answer(served, json.loads(line), warm))
  except Exception as error:
    lines = str(error).splitlines() or [type(error).__name__]
    say({'error': lines[0]})
    # The stack is for --verbose.
    raise


def _answer(served: Served, request: dict, warm: set[Hashable]) -> dict:
  if not request['warm_up']:
    return served.run(request)
  program = served.program(request) if served.program else request['setting']
  if program not in warm:
    warm.add(program)
    if served.warm_up:
      served.warm_up(request)
    else:
      few = min(request['max_new_tokens'], _WARM_UP_TOKENS)
      served.run(request | {'max_new_tokens': few})
  return {}
