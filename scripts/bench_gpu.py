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
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from importlib import metadata
import json
import os
import pathlib
import subprocess
import sys
import time
from typing import Any

import bench_gpu_models as models_lib
import bench_gpu_parts as parts_lib
import bench_gpu_transformers as peer_lib

from speculative.bench import report
from speculative.errors import UserError
from speculative.testing import set_acceptance

_ROOT = pathlib.Path(__file__).resolve().parents[1]
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


def package_version() -> str:
  """Returns the version of the package, '' where it is not installed."""
  try:
    return metadata.version('speculative')
  except metadata.PackageNotFoundError:
    return ''


def begin(out: pathlib.Path, said: Mapping[str, Any]) -> pathlib.Path:
  """Begins or goes on in a directory; returns the folder of the parts.

  Args:
    out: the directory.
    said: what its parts are of.

  Raises:
    UserError: If it holds parts of something else.
  """
  folder, path = out / 'parts', out / 'of.json'
  said = dict(said)
  there = json.loads(path.read_text()) if path.exists() else {}
  if not any(folder.glob(f'{peer_lib.KIND}.*.json')):
    there.pop('env/peer', None)
  # Not known where there is no environment for the peer, now or so far.
  if not (there.get('env/peer') and said.get('env/peer')):
    known = there.get('env/peer') or said.get('env/peer') or {}
    there['env/peer'] = said['env/peer'] = known
  keys = there.keys() | said.keys()
  others = sorted(key for key in keys if there.get(key) != said.get(key))
  if others and any(folder.glob('*.json')):
    raise UserError(
        f'{out} holds parts of another device, version or setting '
        f'({", ".join(others)}); choose another --out.'
    )
  folder.mkdir(parents=True, exist_ok=True)
  parts_lib.write_text(path, json.dumps(said, indent=2) + '\n')
  return folder


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
      f'{found["settings"]["shape"]} on {found["env/device_kind"]}, '
      f'speculative {found["env/speculative"] or "(not installed)"}, jax '
      f'{found["env/jax"]}, jaxlib {found["env/jaxlib"]}, '
      f'{found["env/platform_version"]}; random weights.',
      f'Rows of drafts: {set_acceptance.LABEL}.',
  ]
  names: dict[str, list[str]] = {}
  for name, why in found['failed'].items():
    names.setdefault(why, []).append(name)
  for why, those in names.items():
    lines.append(f'Not measured: {", ".join(those)}: {why}.')
  if found['left_out']:
    lines.append(f'Left out for want of time: {", ".join(found["left_out"])}.')
  rows = [
      [
          row['row/name'],
          row.get('row/batch', ''),
          _digits(row.get('time/round_ms', row.get('time/pass_ms')), '.3f'),
          _digits(row.get('decode/tokens_per_s'), '.1f'),
          _digits(row.get('decode/against_plain'), '.2f'),
          row['env/date'],
          note(row),
      ]
      for row in found['rows']
  ]
  header = 'what batch ms tokens/s'.split() + ['to plain', 'measured', 'note']
  return '\n'.join(lines) + '\n\n' + report.table(header, rows) + '\n'


def parse_args(arguments: Sequence[str] | None) -> argparse.Namespace:
  """Returns the flags."""
  # bench_gpu.sh reads some of them too, and knows no shortened ones.
  parser = argparse.ArgumentParser(
      description=__doc__.splitlines()[0], allow_abbrev=False
  )
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

  env = probe() | {'env/speculative': package_version()}
  if args.shape != 'tiny' and env['env/platform'] == 'cpu':
    raise UserError(
        f'--shape={args.shape} needs an accelerator, but jax finds only a CPU; '
        'install the extra [cuda], or try --shape=tiny.'
    )
  settings = parts_lib.Settings(args.acceptance, args.temperature, args.seed)
  said = {'shape': args.shape} | dataclasses.asdict(settings)
  peers = {'env/peer': peer_lib.versions(args)}
  folder = begin(args.out, {'settings': said} | env | peers)
  limit_s = 60 * args.minutes
  peer = peer_lib.measure(
      args,
      folder,
      platform=env['env/platform'],
      timeout_s=_PEER_SHARE * limit_s,
  )
  models = models_lib.Models(models_lib.SHAPES[args.shape], seed=args.seed)
  ours = parts_lib.run_parts(
      parts_lib.all_parts(models, settings),
      folder,
      limit_s=limit_s,
      clock=clock,
  )
  return {
      'label': set_acceptance.LABEL,
      'settings': said,
      **env,
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
  results = json.dumps(found, indent=2) + '\n'
  parts_lib.write_text(args.out / 'results.json', results)
  parts_lib.write_text(args.out / 'results.md', text)
  print(text, end='')


if __name__ == '__main__':
  main()
