"""Who takes part in bench_vs_transformers.py, and the processes they run in.

A contestant is SIDE:SETTING:DTYPE, such as ours:lookup:auto. Those of one side
and dtype share one process and its weights, since only one computes at a time.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import json
import re
import subprocess
from typing import Any

import peer_protocol

from speculative.errors import UserError
from speculative.models import precision

OURS, TRANSFORMERS, LLAMA_CPP = 'ours', 'transformers', 'llama.cpp'
SIDES = (OURS, TRANSFORMERS, LLAMA_CPP)
PLAIN = 'plain'
NATIVE = 'native'
DTYPES = {
    OURS: precision.DTYPES,
    TRANSFORMERS: ('float32', 'bfloat16'),
    LLAMA_CPP: (NATIVE,),
}
# What a setting's fields mean is said where its side is served.
SETTINGS = {
    OURS: {
        PLAIN: '',
        'lookup': 'kind=lookup,num_draft_tokens=4',
        'lm': 'kind=lm,num_draft_tokens=4',
        # As the quick start drafts.
        'hybrid': (
            'kind=hybrid,shape=tree,levels=2,width=3,max_ngram=8,'
            'hybrid_tokens=12,num_draft_tokens=4'
        ),
    },
    TRANSFORMERS: {
        PLAIN: '',
        'lookup': 'prompt_lookup_num_tokens=10',
        'lookup-4': 'prompt_lookup_num_tokens=4',
        # As the library has it: up to 20, fewer where the assistant is unsure.
        'assistant': 'assistant_model=draft',
        'assistant-constant': (
            'assistant_model=draft,num_assistant_tokens=4,'
            'num_assistant_tokens_schedule=constant,'
            'assistant_confidence_threshold=0'
        ),
        'assistant-heuristic': (
            'assistant_model=draft,num_assistant_tokens=5,'
            'num_assistant_tokens_schedule=heuristic,'
            'assistant_confidence_threshold=0'
        ),
    },
    LLAMA_CPP: {
        PLAIN: '',
        'lookup': 'num_pred_tokens=10,max_ngram_size=2',
    },
}
_NEEDS_DRAFT = re.compile(r'kind=(lm|hybrid|cascade)\b|assistant_model=')


@dataclasses.dataclass(frozen=True)
class Contestant:
  """One way to decode.

  Attributes:
    side: whose, of SIDES.
    setting: its name.
    dtype: as asked for; NATIVE where the file's own counts.
  """

  side: str
  setting: str
  dtype: str

  @property
  def group(self) -> tuple[str, str]:
    """What those have in common that share a process."""
    return self.side, self.dtype

  def __str__(self) -> str:
    return f'{self.side}:{self.setting}:{self.dtype}'


Settings = Mapping[str, Mapping[str, str]]


def settings_with(texts: Sequence[str]) -> Settings:
  """Returns the known settings and the user's own.

  Args:
    texts: SIDE:NAME:FIELDS each.

  Raises:
    UserError: If one is not of that form, or its name is taken.
  """
  found = {side: dict(known) for side, known in SETTINGS.items()}
  for text in texts:
    side, _, rest = text.partition(':')
    name, _, fields = rest.partition(':')
    if side not in SIDES or not name or ',' in name or not fields:
      raise UserError(
          f'--setting is {text!r}; it needs to be SIDE:NAME:FIELDS, the side '
          f'one of {", ".join(SIDES)}, for instance '
          'ours:lookup-8:kind=lookup,num_draft_tokens=8.'
      )
    if name in found[side]:
      raise UserError(
          f'--setting {text!r}: {side} has a setting {name!r}; choose another '
          'name.'
      )
    found[side][name] = fields
  return found


def default_names(*, draft: str, has_llama_cpp: bool) -> list[str]:
  """Returns whom to set side by side where the user names nobody.

  Args:
    draft: reference of the draft model, '' without one.
    has_llama_cpp: whether it is there.
  """
  # A draft that leans on its target drafts best beside look-up.
  ours = [PLAIN, 'lookup']
  peers = [PLAIN, 'lookup', 'lookup-4']
  if is_gguf(draft):
    ours.append('lm')
    peers += ['assistant', 'assistant-constant']
  elif draft:
    ours.append('hybrid')
  names = [f'{OURS}:{name}' for name in ours]
  names += [f'{TRANSFORMERS}:{name}' for name in peers]
  if has_llama_cpp:
    names += [f'{LLAMA_CPP}:{name}' for name in SETTINGS[LLAMA_CPP]]
  return names


def is_gguf(reference: str) -> bool:
  """Tells whether a reference is of a GGUF file, which all sides can read.

  Args:
    reference: as `--model` takes it.
  """
  return reference.partition('?')[0].endswith('.gguf')


def needs_draft(fields: str) -> bool:
  """Tells whether a setting drafts with a model.

  Args:
    fields: of the setting.
  """
  return bool(_NEEDS_DRAFT.search(fields))


def check_dtype(said: str, side: str, dtype: str) -> None:
  """Refuses what a side does not compute in.

  Args:
    said: what the user wrote.
    side: of SIDES.
    dtype: what was read from it.

  Raises:
    UserError: If it is none of the side's.
  """
  if dtype in DTYPES[side]:
    return
  if side == LLAMA_CPP:
    raise UserError(
        f'{said!r} has the dtype {dtype!r}, but {side} takes none: it computes '
        "with the file's own; leave it out."
    )
  raise UserError(
      f'{said!r} has the dtype {dtype!r}; {side} needs it to be one of '
      f'{", ".join(DTYPES[side])}.'
  )


def parse(
    texts: Sequence[str],
    *,
    dtypes: Mapping[str, Sequence[str]],
    settings: Settings,
) -> list[Contestant]:
  """Returns the contestants, each once.

  Args:
    texts: SIDE:SETTING, in all dtypes of the side, or SIDE:SETTING:DTYPE.
    dtypes: by side; the side takes no part where there are none.
    settings: by side.

  Raises:
    UserError: If there is no such side, setting or dtype.
  """
  found = []
  for text in texts:
    side, _, rest = text.partition(':')
    setting, colon, dtype = rest.partition(':')
    known = settings.get(side, {})
    if setting not in known:
      each = [f'{s}:{name}' for s, names in settings.items() for name in names]
      raise UserError(
          f'--contestants has {text!r}; it needs to be of '
          f'{", ".join(each)}, with :DTYPE or not; --setting adds others.'
      )
    if colon:
      check_dtype(text, side, dtype)
    of_side = [dtype] if colon else dtypes[side]
    found += [Contestant(side, setting, each) for each in of_side]
  return list(dict.fromkeys(found))


def check(
    contestants: Sequence[Contestant],
    *,
    settings: Settings,
    model: str,
    draft: str,
    pythons: Mapping[str, str | None],
) -> None:
  """Refuses those that lack what they need.

  Args:
    contestants: all.
    settings: by side.
    model: reference of the target.
    draft: reference of the draft model, '' without one.
    pythons: interpreters, by side.

  Raises:
    UserError: Naming the first.
  """
  if not contestants:
    raise UserError('--contestants names nobody; name one or leave it out.')
  for each in contestants:
    name, side = f'{each.side}:{each.setting}', each.side
    if not pythons[side]:
      flag = '--llama-cpp' if side == LLAMA_CPP else '--peer-python=PATH'
      raise UserError(f'{name} needs an environment; add {flag}.')
    if side != OURS and not is_gguf(model):
      raise UserError(
          f'--model is {model!r}, but {side} reads GGUF files only here; name '
          'one.'
      )
    fields = settings[side][each.setting]
    if side != OURS:
      _check_fields(name, fields)
    if not needs_draft(fields):
      continue
    if not draft:
      raise UserError(f'{name} needs a draft model; set --draft.')
    if side != OURS and not is_gguf(draft):
      raise UserError(
          f'--draft is {draft!r}, which {side} cannot read; name a GGUF file, '
          f'or leave {name} out of --contestants.'
      )


def _check_fields(name: str, fields: str) -> None:
  """Refuses what a peer could not even read; which it knows, it says."""
  try:
    peer_protocol.fields(fields)
  except ValueError as error:
    raise UserError(f'{name}: {error}') from error


class Process:
  """What serves the contestants of a group.

  Attributes:
    name: of the group.
    pid: of the process.
    ready: its number format and versions.
  """

  def __init__(
      self, name: str, command: Sequence[Any], *, verbose: bool = False
  ) -> None:
    """Starts it and waits until it is ready."""
    self.name = name
    self._process = subprocess.Popen(
        [str(part) for part in command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if verbose else subprocess.DEVNULL,
        text=True,
    )
    self.pid = self._process.pid
    try:
      self.ready = self._read()['ready']
    except UserError:
      self.close()
      raise

  def _read(self) -> dict:
    line = self._process.stdout.readline()
    # One that was killed may have said half a line.
    is_whole = line.endswith('\n')
    said = json.loads(line) if is_whole else {'error': 'ended early'}
    if 'error' in said:
      raise UserError(
          f'{self.name}: {said["error"]} (--verbose shows all it says)'
      )
    return said

  def _ask(self, **request: Any) -> dict:
    try:
      self._process.stdin.write(json.dumps(request) + '\n')
      self._process.stdin.flush()
    except BrokenPipeError:
      # What it said before it ended is still there to be read.
      pass
    return self._read()

  def run(
      self, setting: str, ids: Sequence[int], max_new_tokens: int
  ) -> dict[str, Any]:
    """Decodes; see peer_protocol.py for what comes back.

    Args:
      setting: name of the contestant's.
      ids: of the prompt.
      max_new_tokens: how many to add.
    """
    return self._ask(
        setting=setting,
        ids=list(ids),
        max_new_tokens=max_new_tokens,
        warm_up=False,
    )

  def warm_up(
      self, setting: str, ids: Sequence[int], max_new_tokens: int
  ) -> None:
    """Makes the process ready to be measured at such a request.

    Args:
      setting: see `run`.
      ids: see `run`.
      max_new_tokens: see `run`.
    """
    self._ask(
        setting=setting,
        ids=list(ids),
        max_new_tokens=max_new_tokens,
        warm_up=True,
    )

  def close(self) -> None:
    """Ends it."""
    # What could not be sent to one that ended is tried once more here.
    with contextlib.suppress(BrokenPipeError):
      self._process.stdin.close()
    self._process.stdout.close()
    self._process.wait()
