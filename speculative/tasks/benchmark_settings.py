"""What a benchmark measures, and what its rows call it."""

from collections.abc import Sequence
import dataclasses
import pathlib

from ml_collections import config_dict

from speculative.drafting import changes
from speculative.drafting.config import DrafterConfig
from speculative.errors import UserError
from speculative.tasks import common


def settings_of(
    config: config_dict.ConfigDict, drafter: DrafterConfig
) -> dict[str, DrafterConfig]:
  """Returns the drafters to measure by the names of their rows, plain first.

  Args:
    config: of the run.
    drafter: config.drafter.

  Raises:
    UserError: If config.bench names what cannot be measured.
  """
  drafters = {common.PLAIN: common.plain(drafter)}
  lengths = config.bench.num_draft_tokens
  if config.bench.settings:
    if tuple(lengths) not in ((), (0,)):
      raise UserError(
          f'config.bench.num_draft_tokens is {lengths}, which config.bench.'
          'settings leave no room for; leave it at (0,), and put '
          'num_draft_tokens= into the settings.'
      )
    return drafters | _listed(config.bench.settings, drafter)
  if not all(isinstance(n, int) and n >= 0 for n in lengths):
    raise UserError(
        f'config.bench.num_draft_tokens is {lengths}; it needs to hold whole '
        'numbers >= 0, for instance (2, 4, 8).'
    )
  # Each once and in order; 0 is plain decoding, which is measured anyway.
  lengths = [n for n in dict.fromkeys(lengths) if n]
  if drafter.is_plain and not lengths or drafter.kind == 'none':
    return drafters
  for n in lengths or [drafter.num_draft_tokens]:
    of_length = dataclasses.replace(drafter, num_draft_tokens=n)
    drafters[common.name(of_length)] = of_length
  return drafters


def _listed(
    texts: Sequence[str], drafter: DrafterConfig
) -> dict[str, DrafterConfig]:
  """Returns the drafters of config.bench.settings by their names."""
  if isinstance(texts, str) or not all(isinstance(t, str) for t in texts):
    raise UserError(
        f'config.bench.settings is {texts!r}; it needs to hold texts, for '
        "instance ('kind=lookup', 'retrieval.max_ngram=4')."
    )
  found = {}
  for text in texts:
    name, changed = changes.parse(text, drafter)
    if name in found or name == common.PLAIN:
      raise UserError(
          f'config.bench.settings has {name!r} twice, or calls it as plain '
          'decoding is called; give each a name= of its own.'
      )
    if changed.is_plain:
      raise UserError(
          f'the setting {text!r} drafts nothing; plain decoding is measured '
          'anyway, leave it out.'
      )
    found[name] = changed
  return found


def sampler_name(config: config_dict.ConfigDict) -> str:
  """Returns 'greedy', or for instance 'T0.8_p0.95'."""
  decode = config.decode
  if decode.temperature == 0:
    return 'greedy'
  name = f'T{decode.temperature:g}'
  if decode.top_k:
    name += f'_k{decode.top_k}'
  if decode.top_p < 1:
    name += f'_p{decode.top_p:g}'
  return name


def prompts_name(config: config_dict.ConfigDict) -> str:
  """Returns what the prompts are: a task set, or a file's name.

  For instance 'mbpp_test_3shot', 'mt_bench_second' or 'some_prompts'.
  """
  data = config.data
  if data.task_set == 'none':
    return pathlib.Path(data.prompts).name.split('.')[0]
  parts = [
      data.task_set,
      data.group,
      'second' if data.turn == 'second' else '',
      f'{data.num_shots}shot' if data.num_shots else '',
  ]
  return '_'.join(part for part in parts if part)
