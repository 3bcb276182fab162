"""How transformers is measured beside ours; transformers itself is posed."""

import ast
import importlib
import json
import os
import pathlib
import stat
import subprocess
import sys
import types

import pytest

_ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch) -> types.ModuleType:
  """The script as a module."""
  monkeypatch.setattr(sys, 'dont_write_bytecode', True)
  monkeypatch.syspath_prepend(str(_ROOT / 'scripts'))
  return importlib.import_module('bench_gpu')


def _peer(path: pathlib.Path, says: str) -> str:
  """Writes what poses as the peer's Python."""
  path.write_text(f'#!/usr/bin/env bash\n{says}\n')
  path.chmod(path.stat().st_mode | stat.S_IXUSR)
  return str(path)


def _measure(script, folder: pathlib.Path, python: str, timeout_s: float = 30):
  """Has what poses as the peer measure, at batches 1 and 4."""
  folder.mkdir(exist_ok=True)
  flags = ['--shape=tiny', '--peer=transformers', f'--peer-python={python}']
  args = script.parse_args(flags)
  return script.peer_lib.measure(
      args, folder, platform='cpu', timeout_s=timeout_s
  )


@pytest.mark.parametrize(
    'says, why',
    [
        ('echo "torch sees no GPU" >&2; exit 1', 'torch sees no GPU'),
        ('exit 3', 'it says nothing'),
        ('exec sleep 9', 'not within 1 s'),
    ],
)
def test_a_peer_that_cannot_be_had_is_named(script, tmp_path, says, why):
  python = _peer(tmp_path / 'python', says)
  outcome = _measure(script, tmp_path / 'parts', python, timeout_s=1)
  names = ('transformers.batch1', 'transformers.batch4')
  assert outcome.failed == dict.fromkeys(names, why)
  assert not outcome.rows and not list((tmp_path / 'parts').iterdir())


@pytest.mark.parametrize(
    'then, why',
    [
        ("printf '{\"batch'; exec sleep 9", 'not within 2 s'),
        ('echo killed >&2; exit 9', 'killed'),
        ('echo \'{"batch": 4, "error": "too large"}\'', 'too large'),
    ],
    ids=['timeout', 'crash', 'error'],
)
def test_batches_the_peer_lost_are_named_and_measured_next(
    script, tmp_path, then, why
):
  one = '{"batch": %d, "tokens_per_s": %.1f, "versions": {"torch": "2"}}'
  python, folder = tmp_path / 'python', tmp_path / 'parts'
  # A library prints beside the answers.
  says = f"echo Loading; echo 7; echo '{one % (1, 5)}'; {then}"
  outcome = _measure(script, folder, _peer(python, says), timeout_s=2)
  assert outcome.failed == {'transformers.batch4': why}
  rates = [(r['row/batch'], r['decode/tokens_per_s']) for r in outcome.rows]
  assert rates == [(1, 5)]

  asked = tmp_path / 'asked'
  says = f"echo \"$*\" >>'{asked}'; echo '{one % (4, 6)}'"
  for _ in range(2):
    outcome = _measure(script, folder, _peer(python, says))
    assert not outcome.failed
    rates = [(r['row/batch'], r['decode/tokens_per_s']) for r in outcome.rows]
    assert rates == [(1, 5), (4, 6)]
  # Only what was missing, and only once.
  (call,) = asked.read_text().splitlines()
  assert '--batches=[4] ' in call


# What bench_gpu_peer.py uses of torch, and of generate: that it fills settings
# of None from the model's own, and stops at an end-of-text token.
_TORCH = """
import contextlib, types
__version__, float32 = '2', 'float32'
cuda = types.SimpleNamespace()
inference_mode = lambda: lambda function: function
get_default_dtype = manual_seed = set_default_dtype = lambda *_: None
device = lambda name: contextlib.nullcontext()
ones_like = lambda ids: ids

class Ids:
  is_cuda = False
  def __init__(self, *shape): self.shape = shape
  def __len__(self): return self.shape[0]
  def __getitem__(self, rows): return Ids(rows.stop, *self.shape[1:])

Tensor = Ids
randint = lambda high, size, device: Ids(*size)
"""
_TRANSFORMERS = """
import time, types
import torch
__version__ = '4'
logging = types.SimpleNamespace(set_verbosity_error=lambda: None)

PreTrainedModel = object

class GenerationConfig(types.SimpleNamespace):
  pass

class LlamaConfig(types.SimpleNamespace):
  def __init__(self, bos_token_id=1, eos_token_id=2, **fields):
    super().__init__(eos_token_id=eos_token_id, **fields)

class LlamaForCausalLM:
  def __init__(self, config):
    self.config = config
    self.generation_config = GenerationConfig(eos_token_id=config.eos_token_id)

  def eval(self):
    return self

  def generate(self, ids, attention_mask, generation_config):
    print('a library says something', end='')
    num = generation_config.max_new_tokens
    eos = generation_config.eos_token_id
    if eos is None:
      eos = self.generation_config.eos_token_id
    if eos is not None or (len(ids) == 2 and num > 1):
      num = min(num, 3)
    if len(ids) == 3:
      raise RuntimeError()
    time.sleep(0.001 * num)
    return torch.Ids(len(ids), ids.shape[1] + num)
"""


def test_the_peers_process_counts_whole_texts_only(tmp_path):
  (tmp_path / 'torch.py').write_text(_TORCH)
  (tmp_path / 'transformers.py').write_text(_TRANSFORMERS)
  done = subprocess.run(
      [
          sys.executable,
          str(_ROOT / 'scripts' / 'bench_gpu_peer.py'),
          '--shape={"vocab_size": 64}',
          '--dtype=float32',
          '--device=cpu',
          '--prompt-len=8',
          '--batches=[4, 2, 3, 1]',
          '--num-tokens=5',
          '--temperature=1',
      ],
      env=os.environ | {'PYTHONPATH': str(tmp_path)},
      capture_output=True,
      text=True,
      check=False,
  )
  assert done.returncode == 0, done.stderr
  four, *failed, one = [json.loads(line) for line in done.stdout.splitlines()]
  assert failed == [
      {'batch': 2, 'error': 'generate brought 3 tokens instead of 5'},
      {'batch': 3, 'error': 'RuntimeError'},
  ]
  assert (four['batch'], one['batch']) == (4, 1)
  assert one['versions'] == {'torch': '2', 'transformers': '4'}
  assert one['tokens_per_s']
  assert 'a library says something' in done.stderr


def test_the_shape_is_told_as_transformers_names_it(script):
  fields = script.peer_lib.llama_fields(
      script.models_lib.SHAPES['8b'].drafts['1B']
  )
  # Of Llama 3.2 1B's config.json.
  assert fields['hidden_size'] == 2048 and fields['num_hidden_layers'] == 16
  assert fields['intermediate_size'] == 8192 and fields['head_dim'] == 64
  assert fields['tie_word_embeddings'] and fields['rope_theta'] == 500_000.0


def test_the_peer_needs_no_package_of_ours():
  path = _ROOT / 'scripts' / 'bench_gpu_peer.py'
  imported = set()
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      imported |= {alias.name.partition('.')[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom):
      imported.add((node.module or '.').partition('.')[0])
  own = imported - set(sys.stdlib_module_names)
  assert own == {'torch', 'transformers'}
