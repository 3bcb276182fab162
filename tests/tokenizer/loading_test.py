"""Tests of speculative.tokenizer.loading."""

import pytest

from speculative import tokenizer
from speculative.errors import UserError
from speculative.tokenizer import bpe
from speculative.tokenizer import spm


def test_load_picks_the_kind_that_the_source_holds(
    make_bpe_fields, make_bpe_directory, make_spm_fields, make_spm_directory
):
  kinds = [
      (make_bpe_fields('qwen2'), bpe.BpeTokenizer),
      (make_bpe_directory('qwen2'), bpe.BpeTokenizer),
      (make_spm_fields(), spm.SentencePieceTokenizer),
      (str(make_spm_directory()), spm.SentencePieceTokenizer),
  ]
  for source, kind in kinds:
    assert type(tokenizer.load(source)) is kind


def test_tokenizer_json_is_preferred(make_bpe_directory, spm_model):
  directory = make_bpe_directory('qwen2')
  (directory / 'tokenizer.model').write_bytes(spm_model)
  assert isinstance(tokenizer.load(directory), bpe.BpeTokenizer)


def test_directory_without_a_tokenizer_says_what_is_needed(tmp_path):
  with pytest.raises(
      UserError, match='neither tokenizer.json nor tokenizer.model'
  ):
    tokenizer.load(tmp_path)


def test_unknown_kind_of_gguf_tokenizer_is_named(make_bpe_fields):
  fields = make_bpe_fields('qwen2', model='bert')
  with pytest.raises(UserError, match=r"'bert'; known are \['gpt2', 'llama'\]"):
    tokenizer.load(fields)


def test_gguf_without_a_tokenizer_says_so():
  with pytest.raises(UserError, match='has no tokenizer.ggml.model'):
    tokenizer.load({})
