"""How bench_gpu.py has transformers measured, in an environment of its own.

The process itself is bench_gpu_peer.py.
"""

import argparse
from collections.abc import Iterator
from collections.abc import Sequence
import json
import pathlib
import subprocess
import sys
from typing import Any

import bench_gpu_models as models_lib
import bench_gpu_parts as parts_lib

from speculative.models.config import TransformerConfig

# Of its parts, each a batch.
KIND = 'transformers'
_ROOT = pathlib.Path(__file__).resolve().parents[1]
_PEER = "transformers' generate"
_PROBE = """
import json
from importlib import metadata
names = 'torch', 'transformers'
print(json.dumps({name: metadata.version(name) for name in names}))
"""


def versions(args: argparse.Namespace) -> dict[str, str]:
  """Returns the peer's versions, {} where they are not known.

  Args:
    args: of this script.
  """
  if args.peer == 'none' or not args.peer_python:
    return {}
  command = [args.peer_python, '-c', _PROBE]
  try:
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    return json.loads(done.stdout)
  except (OSError, subprocess.SubprocessError, ValueError):
    # The peer will fail likewise, and is named then.
    return {}


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


def _answers(stdout: bytes) -> Iterator[dict[str, Any]]:
  """Yields the peer's answers.

  A library may have printed beside them, and the last line may have been cut.
  """
  for line in stdout.decode(errors='replace').splitlines():
    try:
      said = json.loads(line)
    except json.JSONDecodeError:
      continue
    if isinstance(said, dict) and 'batch' in said:
      yield said


def ask(
    args: argparse.Namespace,
    batches: Sequence[int],
    *,
    platform: str,
    timeout_s: float,
) -> dict[int, dict[str, Any]]:
  """Has transformers generate in a process of its own.

  Args:
    args: of this script.
    batches: to measure, in this order.
    platform: where jax runs.
    timeout_s: what it has measured by then counts.

  Returns:
    What it answered, by batch (see bench_gpu_peer.py); for a batch without an
    answer, an error that says why the process ended.
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
      f'--batches={json.dumps(list(batches))}',
      f'--num-tokens={shape.max_new_tokens}',
      f'--temperature={args.temperature}',
  ]
  try:
    done = subprocess.run(
        command, capture_output=True, timeout=timeout_s, check=False
    )
  except OSError as error:
    said, why = b'', f'{args.peer_python}: {error}'
  except subprocess.TimeoutExpired as expired:
    said, why = expired.stdout or b'', f'not within {timeout_s:.0f} s'
  else:
    said, lines = done.stdout, done.stderr.decode(errors='replace').split('\n')
    last = next((line for line in reversed(lines) if line.strip()), '')
    why = parts_lib.first_line(last, 'it says nothing')
  found = {one['batch']: one for one in _answers(said)}
  return {batch: found.get(batch, {'error': why}) for batch in batches}


def measure(
    args: argparse.Namespace,
    folder: pathlib.Path,
    *,
    platform: str,
    timeout_s: float,
) -> parts_lib.Outcome:
  """Has the peer measure the batches it has not measured yet.

  Each is a part of its own; they share a process, which is slow to load.

  Args:
    args: of this script.
    folder: of the parts.
    platform: where jax runs.
    timeout_s: for all of them.

  Returns:
    The Outcome; a batch that got no rate is among the failed.
  """
  outcome = parts_lib.Outcome()
  if args.peer == 'none':
    return outcome
  missing: dict[int, str] = {}
  for batch in models_lib.SHAPES[args.shape].batches:
    name = f'{KIND}.batch{batch}'
    before = parts_lib.stored(folder, name)
    if before is None:
      missing[batch] = name
    else:
      outcome.rows += before
  if not args.peer_python:
    why = 'there is no environment for it; see --peer-python'
    outcome.failed = dict.fromkeys(missing.values(), why)
    return outcome
  if not missing:
    return outcome
  print(f'the peer, at most {timeout_s:.0f} s', file=sys.stderr, flush=True)
  answers = ask(args, list(missing), platform=platform, timeout_s=timeout_s)
  for batch, one in answers.items():
    if 'error' in one:
      outcome.failed[missing[batch]] = one['error']
      continue
    row = {
        'row/name': _PEER,
        'row/batch': batch,
        'decode/tokens_per_s': one['tokens_per_s'],
        'env/peer': one['versions'],
    }
    outcome.rows += parts_lib.store(folder, missing[batch], [row])
  return outcome
