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


def _as_json(said: Mapping[str, Any]) -> dict[str, Any]:
  """Returns it as it is read back."""
  return json.loads(json.dumps(said))


class Log:
  """Turns that were taken, also those of a run that was stopped."""

  def __init__(self, path: pathlib.Path | None, of: Mapping[str, Any]) -> None:
    """Begins or goes on.

    Args:
      path: of a file of JSON lines; absent, nothing is written.
      of: what decides which turns there are.

    Raises:
      UserError: If the file holds something else, or cannot be written.
    """
    self.turns: list[Turn] = []
    self._path = path
    # What contestants said when the first turn was taken.
    self._ready: dict[str, Any] | None = None
    if path is None:
      return
    said = _as_json(of)
    first = json.dumps({'of': said}) + '\n'
    text = self._text()
    # The last line may have been cut.
    whole = text[: text.rfind('\n') + 1]
    if not whole and first.startswith(text):
      self._rewrite(first)
      return
    self._go_on(whole, said)
    if whole != text:
      self._rewrite(whole)

  def _text(self) -> str:
    try:
      return self._path.read_text()
    except (FileNotFoundError, NotADirectoryError):
      return ''
    except (OSError, ValueError) as error:
      raise self._foreign() from error

  def _foreign(self) -> UserError:
    return UserError(
        f'{self._path} is no file of turns; choose another --out, or remove '
        'that file.'
    )

  def _go_on(self, text: str, of: dict[str, Any]) -> None:
    """Reads what a run that was stopped has written."""
    try:
      begun, *rest = map(json.loads, text.splitlines())
      begun = dict(begun['of'])
    except (KeyError, TypeError, ValueError) as error:
      raise self._foreign() from error
    # Before the rest, which another version may have written in another form.
    self._refuse_other(begun, of)
    try:
      if rest:
        self._ready = dict(rest[0]['ready'])
      self.turns = [Turn(**turn) for turn in rest[1:]]
    except (KeyError, TypeError, ValueError) as error:
      raise self._foreign() from error

  def _refuse_other(self, old: dict[str, Any], new: dict[str, Any]) -> None:
    names = sorted(old.keys() | new.keys())
    differ = [name for name in names if old.get(name) != new.get(name)]
    if differ:
      raise UserError(
          f'{self._path} holds turns of another comparison, which differs in '
          f'{", ".join(differ)}; choose another --out, or remove that file.'
      )

  def _rewrite(self, text: str) -> None:
    """Replaces the file as a whole, so that no turn is lost on the way."""
    beside = self._path.with_name(f'.{self._path.name}')
    try:
      self._path.parent.mkdir(parents=True, exist_ok=True)
      beside.write_text(text)
      os.replace(beside, self._path)
    except OSError as error:
      raise UserError(
          f'{self._path} cannot be written ({error.strerror}); choose another '
          '--out.'
      ) from error

  def _append(self, said: Mapping[str, Any]) -> None:
    if self._path is not None:
      with self._path.open('a') as file:
        file.write(json.dumps(said) + '\n')

  def check_ready(self, ready: Mapping[str, Mapping[str, str]]) -> None:
    """Makes sure that turns of different versions are not mixed.

    Args:
      ready: number formats and versions, by name of the process.

    Raises:
      UserError: If those of the turns taken before are others.
    """
    said = _as_json(ready)
    if self._ready is None:
      self._ready = said
      self._append({'ready': said})
    self._refuse_other(self._ready, said)

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
    self._append(dataclasses.asdict(turn))

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

  Raises:
    UserError: If somebody fails, or the log's turns are of other versions.
  """
  log.check_ready({' '.join(g): p.ready for g, p in processes.items()})
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
