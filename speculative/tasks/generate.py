"""Task `generate`: stream the answer to a prompt, or answer many."""

from collections.abc import Callable
import dataclasses
import json
import pathlib

from absl import logging
from ml_collections import config_dict

from speculative import config as config_lib
from speculative.bench import metrics
from speculative.bench.prompts import Prompt
from speculative.decoding.config import DecodeConfig
from speculative.decoding.generation import Generation
from speculative.errors import UserError
from speculative.tasks import common
from speculative.tasks import measure
from speculative.tasks import results
from speculative.tasks.results import TaskResult

FROM_DATA = 'from data'


def _prompts(config: config_dict.ConfigDict) -> list[Prompt]:
  if config.generate.prompt == FROM_DATA:
    return config_lib.load_prompts(config)
  if not config.generate.prompt:
    raise UserError(
        'config.generate.prompt is empty; give some text, or '
        f'{FROM_DATA!r} to take config.data.prompts.'
    )
  chat = {'auto': 'auto', 'chat': 'auto', 'completion': 'no'}
  if config.data.format not in chat:
    raise UserError(
        f'config.data.format is {config.data.format!r}; it needs to be one of '
        f'{", ".join(chat)}.'
    )
  return [Prompt(config.generate.prompt, chat[config.data.format])]


def run(
    config: config_dict.ConfigDict,
    path: pathlib.Path,
    *,
    say: Callable[[str], None] = results.say,
) -> TaskResult:
  """Answers prompts; text goes to `say` as it comes.

  Args:
    config: of the run.
    path: of the workdir; outputs.jsonl gets a line a prompt.
    say: takes text for the user.

  Returns:
    The TaskResult, with the decode/* keys.

  Raises:
    UserError: Before anything is written or loaded.
  """
  if config.generate.compare not in ('yes', 'no'):
    raise UserError(
        f'config.generate.compare is {config.generate.compare!r}; it needs to '
        "be 'yes' or 'no'."
    )
  repeats = common.repeats(config)
  prepared = common.prepare(config, path, _prompts(config))
  model = prepared.model
  common.warm_up(prepared, [model.drafter])
  generations, outputs = _answer(prepared, say)
  results.write_text(
      prepared.workdir.path / 'outputs.jsonl',
      ''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in outputs),
  )
  found = metrics.decode_metrics(generations) | results.environment(model)
  if config.generate.compare == 'yes' and not model.drafter.is_plain:
    found |= _compare(prepared, repeats=repeats, say=say)
  prepared.workdir.metric(found)
  prepared.workdir.finish(found)
  return TaskResult(found)


def _answer(
    prepared: common.Prepared, say: Callable[[str], None]
) -> tuple[list[Generation], list[dict]]:
  """Returns a Generation a batch and a line of outputs.jsonl a prompt."""
  generations, outputs = [], []
  # Texts of several rows would mix if they came piece by piece.
  streams = len(prepared.prompts) == 1
  for index, batch in enumerate(prepared.batches):
    decode = _fields(prepared.decode_of(index))
    if not streams:
      decode['rounds_per_call'] = 0
    result = prepared.model.generate(
        batch,
        on_text=(lambda row, text: say(text)) if streams else None,
        **decode,
    )
    if streams:
      say('\n')
    generation = result.generation
    columns = {
        'text': result.texts,
        'token_ids': generation.token_ids,
        'reason': generation.reasons,
        'log_probs': generation.log_probs,
        'top_log_probs': generation.top_log_probs,
    }
    for row, text in enumerate(result.texts):
      prompt = prepared.prompts[len(outputs)].text
      if not streams:
        say(f'\n> {prompt}\n{text}\n')
      said = {name: c[row] for name, c in columns.items() if c is not None}
      outputs.append({'prompt': prompt} | said)
    generations.append(generation)
  return generations, outputs


def _fields(decode: DecodeConfig) -> dict:
  return {f.name: getattr(decode, f.name) for f in dataclasses.fields(decode)}


def _compare(
    prepared: common.Prepared, *, repeats: int, say: Callable[[str], None]
) -> dict:
  """Times plain decoding and this drafter in turn and prints both."""
  model = prepared.model
  settings = [common.plain(model.drafter), model.drafter]
  common.warm_up(prepared, settings)
  logging.info('Timing plain and %s in turn ...', common.name(model.drafter))
  runs = measure.interleaved(prepared, settings, repeats=repeats)
  rows = [
      measure.row_of(prepared, drafter, runs[0], of_setting)
      for drafter, of_setting in zip(settings, runs, strict=True)
  ]
  row = rows[1]
  say(f'\n{measure.table(rows)}\n{measure.reason(row)}\n')
  if row.get('lossless/greedy_equal') is False:
    say(
        f'Not all tokens are the same: in {model.precision.dtype} near ties '
        'are decided by rounding. --config.target.dtype=float32 shows '
        'equality.\n'
    )
  return {k: v for k, v in row.items() if not k.startswith('row/')}
