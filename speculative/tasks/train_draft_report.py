"""What a run of `train_draft` tells: its history, the plot of it, a table."""

import json
import pathlib
from typing import Any

from absl import logging

from speculative.tasks import results
from speculative.train import checkpoint
from speculative.train import plot


def kept(path: pathlib.Path, checkpoints: pathlib.Path) -> str:
  """Returns the lines of metrics.jsonl up to the last checkpoint.

  Args:
    path: of the workdir.
    checkpoints: their directory.
  """
  file = path / 'metrics.jsonl'
  steps = checkpoint.steps(checkpoints)
  if not steps or not file.exists():
    return ''
  lines = []
  for line in file.read_text(encoding='utf-8').splitlines(keepends=True):
    # The last line may have been cut short.
    if not line.endswith('\n'):
      continue
    step = json.loads(line).get('train/step')
    if step is not None and step <= steps[-1]:
      lines.append(line)
  return ''.join(lines)


def draw(wanted: str, path: pathlib.Path) -> None:
  """Draws plot.png from metrics.jsonl, if it is wanted and can be.

  Args:
    wanted: config.train.plot.
    path: of the workdir.
  """
  if wanted == 'no' or not results.is_first_host():
    return
  if not plot.is_available():
    logging.info("No plot.png: matplotlib comes with the extra 'train'.")
    return
  lines = (path / 'metrics.jsonl').read_text(encoding='utf-8').splitlines()
  plot.draw(path / 'plot.png', [json.loads(line) for line in lines])


def summary(
    found: dict[str, Any], domains: tuple[str, ...], draft: pathlib.Path
) -> str:
  """Returns a table of held-out acceptance.

  Args:
    found: the results.
    domains: of the store.
    draft: directory of the draft.
  """
  lines = [
      '',
      f'{"held-out text":16}{"alpha":>8}{"greedy":>8}{"tokens/round":>14}'
      f'{"greedy":>8}',
  ]
  for domain in ('', *domains):
    prefix = f'train/{domain}/' if domain else 'train/'
    if f'{prefix}alpha_heldout' not in found:
      continue
    lines.append(
        f'{domain or "all":16}'
        f'{found[prefix + "alpha_heldout"]:8.3f}'
        f'{found[prefix + "agreement_heldout"]:8.3f}'
        f'{found[prefix + "tokens_per_round_heldout"]:14.2f}'
        f'{found[prefix + "greedy_tokens_per_round_heldout"]:8.2f}'
    )
  return '\n'.join([*lines, '', f'The draft is in {draft}.', ''])
