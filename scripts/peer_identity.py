"""What has to be the same for a comparison that was stopped to go on."""

import argparse
from collections.abc import Sequence
import json
import pathlib
import platform
from typing import Any
import zlib

import peer_contestants
from peer_contestants import Contestant
import peer_report

import speculative
from speculative.checkpoints import sources

_SCRIPTS = pathlib.Path(__file__).parent


def of_files(reference: str) -> list[tuple[str, int, int]]:
  """Returns names, sizes and times of a model's files on this machine.

  Args:
    reference: as `--model` takes it; those that name a version have no files.

  Raises:
    UserError: If it names nothing.
  """
  scheme, separator, _ = reference.partition('://')
  if not reference or separator and scheme != 'package':
    return []
  path = sources.resolve(reference)
  files = sorted(path.iterdir()) if path.is_dir() else [path]
  stats = [(file.name, file.stat()) for file in files if file.is_file()]
  return [(name, s.st_size, s.st_mtime_ns) for name, s in stats]


def _of_code() -> int:
  """Returns a checksum; a commit would leave out what is not committed yet."""
  files = pathlib.Path(speculative.__file__).parent.rglob('*.py')
  scripts = *_SCRIPTS.glob('peer_*.py'), *_SCRIPTS.glob('bench_*peer.py')
  found = 0
  for file in (*sorted(files), *sorted(scripts)):
    found = zlib.crc32(file.read_bytes(), found)
  return found


def identity(
    contestants: Sequence[Contestant],
    settings: peer_contestants.Settings,
    prompts: Sequence[Sequence[int]],
    args: argparse.Namespace,
) -> dict[str, Any]:
  """Returns all that decides what is measured and is known before loading.

  Versions of what contestants import are in what they say when ready.

  Args:
    contestants: in order.
    settings: by side.
    prompts: token ids.
    args: flags.

  Raises:
    UserError: If the model or the draft is not there.
  """
  return {
      'model': args.model,
      'model_files': of_files(args.model),
      'draft': args.draft,
      'draft_files': of_files(args.draft),
      'draft_dtype': args.draft_dtype,
      'contestants': {str(c): settings[c.side][c.setting] for c in contestants},
      'prompts': zlib.crc32(json.dumps(prompts).encode()),
      'max_new_tokens': args.max_new_tokens,
      'repeats': args.repeats,
      'threads': args.threads,
      'peer_attention': args.peer_attention,
      'hardware': peer_report.hardware(),
      'system': platform.platform(),
      'python': platform.python_version(),
      'code': _of_code(),
  }
