"""What a round costs on the accelerator at hand, with models of real shapes.

  python scripts/bench_gpu.py [--shape=8b|tiny] [--minutes=8] [--out=DIR]
    [--acceptance=0.8] [--temperature=1] [--seed=0]
    [--peer=transformers|none] [--peer-python=PYTHON]

A target of Llama 3 8B's shape and two drafts, of Llama 3.2 1B's shape and one
of three layers as wide as the target's, all with random weights. Random weights
never agree, so which drafted tokens are kept is decided by a seeded coin:
rounds take the time they would take and bring the tokens of a pair with that
acceptance, but what they say is not the target's text (`set_acceptance`).

Measured, in this order and as far as the minutes go: transformers' `generate`
in a process of its own; the read rate; plain decoding and its share of that
rate; a round of a chain of 4 tokens and of a tree of 64 nodes; passes over more
and more positions; larger batches. What was left out or failed is named, and
measured by the next call with the same --out. Writes results.json and
results.md there; one table is printed last.
"""

import argparse
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import datetime
import functools
import json
import os
import pathlib
import subprocess
import sys
import time
from typing import Any

import bench_gpu_models as models_lib
import bench_gpu_parts as parts_lib

from speculative.bench import report
from speculative.errors import UserError
from speculative.models.config import TransformerConfig
from speculative.testing import set_acceptance

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_PEER = "transformers' generate"
# Of the time there is, at most this goes to the peer.
_PEER_SHARE = 0.25

# Asked in a process of its own: a process that has looked at its devices holds
# most of their memory, which the peer needs first.
_PROBE = """
import json, jax, jaxlib
device = jax.devices()[0]
print(json.dumps({
    'env/platform': device.platform,
    'env/device_kind': device.device_kind,
    'env/platform_version': ' '.join(device.client.platform_version.split()),
    'env/jax': jax.__version__,
    'env/jaxlib': jaxlib.__version__,
}))
"""


def probe() -> dict[str, str]:
  """Returns what device and versions there are.

  Raises:
    UserError: If jax finds no device.
  """
  done = subprocess.run(
      [sys.executable, '-c', _PROBE],
      env=os.environ | {'XLA_PYTHON_CLIENT_PREALLOCATE': 'false'},
      capture_output=True,
      text=True,
      check=False,
  )
  if done.returncode:
    last = (done.stderr.strip().splitlines() or ['it says nothing'])[-1]
    raise UserError(f'jax finds no device: {last}')
  return json.loads(done.stdout.splitlines()[-1])


def begin(out: pathlib.Path, said: Mapping[str, Any]) -> pathlib.Path:
  """Begins or goes on in a directory; returns the folder of the parts.

  Args:
    out: the directory.
    said: what its parts are of.

  Raises:
    UserError: If it holds parts of something else.
  """
  folder, path = out / 'parts', out / 'of.json'
  text = json.dumps(said, indent=2) + '\n'
  there = path.read_text() if path.exists() else ''
  if there != text and any(folder.glob('*.json')):
    raise UserError(
        f'{out} holds parts of another device, version or setting; choose '
        'another --out.'
    )
  folder.mkdir(parents=True, exist_ok=True)
  path.write_text(text)
  return folder


def llama_fields(config: TransformerConfig) -> dict[str, object]:
  """Returns the fields of transformers' LlamaConfig of the same shape."""
  return {
      'vocab_size': config.vocab_size,
      'num_hidden_layers': config.num_layers,
      'hidden_size': config.model_dim,
      'num_attention_heads': config.num_heads,
      'num_key_value_heads': config.num_kv_heads,
      'head_dim': config.head_dim,
      'intermediate_size': config.mlp_dim,
      'max_position_embeddings': config.max_position,
      'rope_theta': config.rope.theta,
      'tie_word_embeddings': config.head == 'tied',
  }


def peer_rows(
    args: argparse.Namespace, *, platform: str, timeout_s: float
) -> parts_lib.Rows:
  """Has transformers generate in a process of its own.

  Args:
    args: of this script.
    platform: where jax runs.
    timeout_s: what it has measured by then counts.

  Raises:
    Unmeasured: If it has measured nothing.
  """
  shape = models_lib.SHAPES[args.shape]
  is_cpu = platform == 'cpu'
  command = [
      args.peer_python,
      str(_ROOT / 'scripts' / 'bench_gpu_peer.py'),
      f'--shape={json.dumps(llama_fields(shape.target))}',
      f'--dtype={"float32" if is_cpu else "bfloat16"}',
      f'--device={"cpu" if is_cpu else "cuda"}',
      f'--prompt-len={shape.prompt_len}',
      f'--batches={json.dumps(shape.batches)}',
      f'--num-tokens={shape.max_new_tokens}',
      f'--temperature={args.temperature}',
  ]
  try:
    done = subprocess.run(
        command, capture_output=True, timeout=timeout_s, check=False
    )
  except OSError as error:
    raise parts_lib.Unmeasured(f'{args.peer_python}: {error}') from None
  except subprocess.TimeoutExpired as expired:
    said, why = expired.stdout, f'nothing within {timeout_s:.0f} s'
  else:
    said = done.stdout
    why = (done.stderr.decode().strip().splitlines() or ['it says nothing'])[-1]
  # The last line may have been cut.
  lines = (said or b'').decode().split('\n')[:-1]
  found = [json.loads(line) for line in lines]
  if not found:
    raise parts_lib.Unmeasured(why)
  return [
      {
          'row/name': _PEER,
          'row/batch': one['batch'],
          'decode/tokens_per_s': one['tokens_per_s'],
          'env/peer': one['versions'],
      }
      for one in found
  ]


def note(row: Mapping[str, Any]) -> str:
  """Returns what there is to say of a row beside its times."""
  said = []
  if 'device/read_bytes_per_s' in row:
    said.append(f'{row["device/read_bytes_per_s"] / 1e9:.0f} GB/s')
  if 'decode/bandwidth_share' in row:
    said.append(f'{row["decode/bandwidth_share"]:.0%} of the read rate')
  if 'pass/ratio' in row:
    said.append(f'T({row["pass/positions"]})/T(1) = {row["pass/ratio"]:.2f}')
  if 'row/label' in row:
    said.append(
        f'{row["row/label"]}; {row["decode/set_acceptance_rate"]:.2f} set, '
        f'{row["decode/acceptance_rate"]:.2f} measured, '
        f'{row["decode/tokens_per_round"]:.2f} tokens a round'
    )
  if 'env/peer' in row:
    said.append(', '.join(f'{k} {v}' for k, v in row['env/peer'].items()))
  return '; '.join(said)


def _digits(value: float | None, form: str) -> str:
  return '' if value is None else format(value, form)


def markdown(found: Mapping[str, Any]) -> str:
  """Returns what was left out, and the table.

  Args:
    found: as `run` returns it.
  """
  lines = [
      f'{found["settings"]["shape"]} on {found["env/device_kind"]}, jax '
      f'{found["env/jax"]}, jaxlib {found["env/jaxlib"]}, '
      f'{found["env/platform_version"]}, {found["env/date"]}; random weights.',
      f'Rows of drafts: {set_acceptance.LABEL}.',
  ]
  for name, why in found['failed'].items():
    lines.append(f'Not measured: {name}: {why}.')
  if found['left_out']:
    lines.append(f'Left out for want of time: {", ".join(found["left_out"])}.')
  rows = [
      [
          row['row/name'],
          row.get('row/batch', ''),
          _digits(row.get('time/round_ms', row.get('time/pass_ms')), '.3f'),
          _digits(row.get('decode/tokens_per_s'), '.1f'),
          _digits(row.get('decode/against_plain'), '.2f'),
          note(row),
      ]
      for row in found['rows']
  ]
  header = ['what', 'batch', 'ms', 'tokens/s', 'to plain', 'note']
  return '\n'.join(lines) + '\n\n' + report.table(header, rows) + '\n'


def parse_args(arguments: Sequence[str] | None) -> argparse.Namespace:
  """Returns the flags."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--shape', choices=models_lib.SHAPES, default='8b')
  parser.add_argument('--minutes', type=float, default=8.0)
  parser.add_argument('--acceptance', type=float, default=0.8)
  parser.add_argument('--temperature', type=float, default=1.0)
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--peer', choices=('none', 'transformers'))
  parser.add_argument('--peer-python', default='')
  parser.add_argument(
      '--out', type=pathlib.Path, default=_ROOT / 'workdir' / 'bench_gpu'
  )
  args = parser.parse_args(arguments)
  if not args.minutes > 0:
    parser.error(f'--minutes needs to be > 0, got {args.minutes}')
  if not 0 <= args.acceptance <= 1:
    parser.error(f'--acceptance needs to be in 0 to 1, got {args.acceptance}')
  if not 0 <= args.temperature <= 100:
    parser.error(f'--temperature needs to be in 0 to 100, {args.temperature}')
  if args.peer is None:
    args.peer = 'none' if args.shape == 'tiny' else 'transformers'
  return args


def _measure_peer(
    args: argparse.Namespace,
    folder: pathlib.Path,
    platform: str,
    clock: Callable[[], float],
) -> parts_lib.Outcome:
  """Runs the peer, if there shall be one."""
  if args.peer == 'none':
    return parts_lib.Outcome()
  if not args.peer_python:
    why = 'there is no environment for it; see --peer-python'
    return parts_lib.Outcome(failed={'transformers': why})
  limit_s = 60 * args.minutes
  run = functools.partial(
      peer_rows, args, platform=platform, timeout_s=_PEER_SHARE * limit_s
  )
  part = parts_lib.Part('transformers', run)
  return parts_lib.run_parts([part], folder, limit_s=limit_s, clock=clock)


def run(args: argparse.Namespace) -> dict[str, Any]:
  """Measures what fits into the time.

  Args:
    args: as parse_args returns them.

  Returns:
    What goes into results.json.

  Raises:
    UserError: If there is no accelerator for the shape, or --out holds
      something else.
  """
  began = time.monotonic()

  def clock() -> float:
    return time.monotonic() - began

  env = probe()
  if args.shape != 'tiny' and env['env/platform'] == 'cpu':
    raise UserError(
        f'--shape={args.shape} needs an accelerator, but jax finds only a CPU; '
        'install the extra [cuda], or try --shape=tiny.'
    )
  settings = parts_lib.Settings(args.acceptance, args.temperature, args.seed)
  said = {'shape': args.shape} | dataclasses.asdict(settings)
  folder = begin(args.out, {'settings': said} | env)
  peer = _measure_peer(args, folder, env['env/platform'], clock)
  models = models_lib.Models(models_lib.SHAPES[args.shape], seed=args.seed)
  ours = parts_lib.run_parts(
      parts_lib.all_parts(models, settings),
      folder,
      limit_s=60 * args.minutes,
      clock=clock,
  )
  return {
      'label': set_acceptance.LABEL,
      'settings': said,
      **env,
      'env/date': datetime.date.today().isoformat(),
      'left_out': peer.left_out + ours.left_out,
      'failed': peer.failed | ours.failed,
      'rows': parts_lib.derived(ours.rows + peer.rows),
  }


def main(arguments: Sequence[str] | None = None) -> None:
  """Prints the table and writes results.json and results.md."""
  args = parse_args(arguments)
  try:
    found = run(args)
  except UserError as error:
    sys.exit(f'error: {error}')
  text = markdown(found)
  (args.out / 'results.json').write_text(json.dumps(found, indent=2) + '\n')
  (args.out / 'results.md').write_text(text)
  print(text, end='')


if __name__ == '__main__':
  main()
