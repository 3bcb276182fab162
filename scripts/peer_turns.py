"""Takes turns, one contestant computing at a time, and writes each one down."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import json
import os
import pathlib
import time
from typing import Any

import peer_contestants
from peer_contestants import Contestant

from speculative.errors import UserError


@dataclasses.dataclass(frozen=True)
class Turn:
  """One contestant's run over one prompt.

  Attributes:
    contestant: as text.
    prompt: index of the prompt.
    repeat: from 1.
    token_ids: new tokens, at least as many as were asked for.
    num_counted: how many came within decode_s.
    prefill_s: to read the prompt.
    decode_s: from there to the last token.
    num_passes: of the model within decode_s; None where it is not known.
    idle_share: CPU time of the waiting processes over this run's time; NaN
      where the system does not tell.
    foreign_share: the same of everything else on the machine.
  """

  contestant: str
  prompt: int
  repeat: int
  token_ids: list[int]
  num_counted: int
  prefill_s: float
  decode_s: float
  num_passes: int | None = None
  idle_share: float = float('nan')
  foreign_share: float = float('nan')

  @property
  def key(self) -> tuple[str, int, int]:
    """What is measured once."""
    return self.contestant, self.prompt, self.repeat


def cpu_s(pids: set[int]) -> float:
  """Returns the CPU time processes have used; NaN where /proc is absent.

  Args:
    pids: of the processes.
  """
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


def order(num: int, first: int) -> list[int]:
  """Returns 0 to num - 1 from one of them on: of 3 from 4 on, 1 2 0.

  Args:
    num: how many take turns.
    first: who begins, modulo num.
  """
  return [(first + step) % num for step in range(num)]


class Log:
  """Turns that were taken, also those of a run that was stopped."""

  def __init__(self, path: pathlib.Path | None, of: Mapping[str, Any]) -> None:
    """Begins or goes on.

    Args:
      path: of a file of JSON lines; absent, nothing is written.
      of: what decides which turns there are.

    Raises:
      UserError: If the file holds turns of something else.
    """
    self.turns: list[Turn] = []
    self._path = path
    if path is None:
      return
    # As JSON gives it back.
    said = json.loads(json.dumps({'of': of}))
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    # The last one may have been cut.
    lines = [line for line in lines if line.endswith('\n')]
    if lines and json.loads(lines[0]) != said:
      raise UserError(
          f'{path} holds turns of another comparison; choose another --out, or '
          'remove that file.'
      )
    self.turns = [Turn(**json.loads(line)) for line in lines[1:]]
    path.write_text(''.join(lines or [json.dumps(said) + '\n']))

  def has(self, contestant: Contestant, prompt: int, repeat: int) -> bool:
    """Tells whether a turn has been taken.

    Args:
      contestant: whose.
      prompt: index of the prompt.
      repeat: from 1.
    """
    key = (str(contestant), prompt, repeat)
    return any(turn.key == key for turn in self.turns)

  def add(self, turn: Turn) -> None:
    """Writes a turn down.

    Args:
      turn: a new one.
    """
    self.turns.append(turn)
    if self._path is not None:
      with self._path.open('a') as file:
        file.write(json.dumps(dataclasses.asdict(turn)) + '\n')

  def of(self, contestant: Contestant) -> list[Turn]:
    """Returns a contestant's turns, by repeat and prompt.

    Args:
      contestant: whose.
    """
    found = [t for t in self.turns if t.contestant == str(contestant)]
    return sorted(found, key=lambda turn: (turn.repeat, turn.prompt))

  def remove(self) -> None:
    """Removes the file; what it held is elsewhere."""
    if self._path is not None:
      self._path.unlink()


Processes = Mapping[tuple[str, str], peer_contestants.Process]


def take_turn(
    processes: Processes,
    contestant: Contestant,
    *,
    prompt: int,
    repeat: int,
    ids: Sequence[int],
    num_tokens: int,
) -> Turn:
  """Lets one contestant compute and watches everyone else.

  Args:
    processes: by group.
    contestant: whose turn it is.
    prompt: index of the prompt.
    repeat: from 1.
    ids: of the prompt.
    num_tokens: how many to add.

  Returns:
    The Turn.

  Raises:
    UserError: If fewer tokens came.
  """
  active = processes[contestant.group]
  # This process waits too.
  everyone = {p.pid for p in processes.values()} | {os.getpid()}
  waiting = everyone - {active.pid}

  def clocks() -> tuple[float, ...]:
    return machine_cpu_s(), cpu_s(everyone), cpu_s(waiting), time.perf_counter()

  before = clocks()
  found = active.run(contestant.setting, ids, num_tokens)
  machine, ours, idle, elapsed = (
      b - a for a, b in zip(before, clocks(), strict=True)
  )
  if len(found['token_ids']) < num_tokens:
    raise UserError(
        f'{contestant} gave {len(found["token_ids"])} tokens to prompt '
        f'{prompt}, of {num_tokens}; rates of different texts say nothing.'
    )
  return Turn(
      str(contestant),
      prompt,
      repeat,
      **found,
      idle_share=idle / elapsed,
      foreign_share=max(machine - ours, 0.0) / elapsed,
  )


def take_turns(
    processes: Processes,
    contestants: Sequence[Contestant],
    prompts: Sequence[Sequence[int]],
    log: Log,
    *,
    repeats: int,
    num_tokens: int,
    on_prompt: Callable[[int, int], None] = lambda done, total: None,
) -> None:
  """Takes all turns that the log lacks.

  Whoever begins at a prompt is another one at the next. Everyone is warm for a
  prompt before its first turn.

  Args:
    processes: by group.
    contestants: in order.
    prompts: token ids.
    log: takes the turns.
    repeats: how often each prompt is decoded by everyone.
    num_tokens: how many to add to each.
    on_prompt: called with how many passes over a prompt are done, of how many.
  """
  warm: set[int] = set()
  for repeat in range(1, repeats + 1):
    for prompt, ids in enumerate(prompts):
      left = [
          contestants[index]
          for index in order(len(contestants), repeat + prompt)
          if not log.has(contestants[index], prompt, repeat)
      ]
      if left and prompt not in warm:
        warm.add(prompt)
        for each in contestants:
          processes[each.group].warm_up(each.setting, ids, num_tokens)
      for each in left:
        log.add(
            take_turn(
                processes,
                each,
                prompt=prompt,
                repeat=repeat,
                ids=ids,
                num_tokens=num_tokens,
            )
        )
      done = (repeat - 1) * len(prompts) + prompt + 1
      on_prompt(done, repeats * len(prompts))
