"""Tests of speculative.tokenizer.bpe."""

import json
import unicodedata

import pytest
import tokenizers

from speculative import tokenizer
from speculative.errors import UserError
from speculative.tokenizer import base
from speculative.tokenizer import bpe


def test_decode_gives_back_what_was_encoded(make_bpe_fields, split, sample):
  tok = bpe.from_gguf(make_bpe_fields(split))
  ids = tok.encode(sample)
  form = unicodedata.normalize('NFC', sample)
  expected = form if split == 'qwen2' else sample
  assert tok.decode(ids) == expected
  assert b''.join(map(tok.token_bytes, ids)) == expected.encode('utf-8')


def test_gguf_encodes_as_the_published_tokenizer_json(
    make_bpe_fields, make_bpe_directory, bpe_specs, samples, split
):
  from_gguf = bpe.from_gguf(make_bpe_fields(split))
  from_directory = bpe.from_directory(make_bpe_directory(split))
  library = tokenizers.Tokenizer.from_str(json.dumps(bpe_specs[split]))
  for text in (*samples, 'cafe\u0301', 'a<|im_end|>b<tool_call>c'):
    expected = library.encode(text, add_special_tokens=False).ids
    assert from_gguf.encode(text) == expected, text
    assert from_directory.encode(text) == expected, text
  assert from_gguf.fingerprint == from_directory.fingerprint


def test_decode_equals_the_librarys_for_ids_that_are_no_text(
    make_bpe_directory, bpe_specs
):
  tok = bpe.from_directory(make_bpe_directory('smollm'))
  library = tokenizers.Tokenizer.from_str(json.dumps(bpe_specs['smollm']))
  for start in range(0, tok.vocab_size, 7):
    ids = list(range(start, min(start + 7, tok.vocab_size)))
    expected = library.decode(ids, skip_special_tokens=True)
    assert tok.decode(ids) == expected


@pytest.mark.parametrize(
    ('name', 'longest'), [('smollm', 1), ('qwen2', 1), ('llama-bpe', 3)]
)
def test_digits_are_split_as_the_family_does(make_bpe_fields, name, longest):
  fields = make_bpe_fields(name)
  runs = ['98', '987', '9876', '98765']
  fields['tokenizer.ggml.tokens'] += runs
  fields['tokenizer.ggml.token_type'] += [1] * len(runs)
  fields['tokenizer.ggml.merges'] = ['9 8', '98 7', '987 6', '9876 5']
  tok = bpe.from_gguf(fields)
  parts = [tok.token_bytes(i) for i in tok.encode('98765')]
  assert max(map(len, parts)) == longest
  # The merges would take them all together.
  joined = bpe.from_gguf({**fields, 'tokenizer.ggml.pre': 'gpt-2'})
  assert joined.encode('98765') == [joined.vocab_size - 1]


def test_smollm_separates_the_space_before_a_digit(make_bpe_fields):
  tok = bpe.from_gguf(make_bpe_fields('smollm'))
  assert [tok.token_bytes(i) for i in tok.encode(' 7')] == [b' ', b'7']


def test_only_qwen2_composes_characters(make_bpe_fields):
  text = 'cafe\u0301'
  qwen2 = bpe.from_gguf(make_bpe_fields('qwen2'))
  smollm = bpe.from_gguf(make_bpe_fields('smollm'))
  assert qwen2.decode(qwen2.encode(text)) == 'caf\u00e9'
  assert smollm.decode(smollm.encode(text)) == text


def test_llama3_takes_a_whole_word_that_no_merge_reaches(make_bpe_fields):
  changes = make_bpe_fields('llama-bpe')
  changes['tokenizer.ggml.tokens'] = [
      *changes['tokenizer.ggml.tokens'],
      'zqzqz',
  ]
  changes['tokenizer.ggml.token_type'] += [1]
  whole = bpe.from_gguf(changes)
  merged = bpe.from_gguf({**changes, 'tokenizer.ggml.pre': 'qwen2'})
  assert whole.encode('zqzqz') == [whole.vocab_size - 1]
  assert len(merged.encode('zqzqz')) == 5


def test_special_tokens_are_parsed_or_literal_as_asked(make_bpe_fields):
  tok = bpe.from_gguf(make_bpe_fields('smollm'))
  (end,) = tok.encode('<|im_end|>')
  assert tok.piece(end) == '<|im_end|>'
  assert tok.token_bytes(end) == b''
  literal = tok.encode('a<|im_end|>', special='literal')
  assert end not in literal
  assert tok.decode(literal) == 'a<|im_end|>'
  # The mode is a property of the library's object: it must not stick.
  assert tok.encode('<|im_end|>') == [end]


def test_added_tokens_that_are_not_special_are_shown_and_always_matched(
    make_bpe_fields,
):
  tok = bpe.from_gguf(make_bpe_fields('qwen2'))
  for mode in base.SPECIAL_MODES:
    ids = tok.encode('<tool_call>', special=mode)
    assert len(ids) == 1
    assert tok.decode(ids) == '<tool_call>'


def test_added_tokens_are_text_and_not_spelt_in_bytes(make_bpe_fields):
  fields = make_bpe_fields('smollm')
  # As a piece of a merge 'é' would be the one byte 0xE9.
  fields['tokenizer.ggml.tokens'] += ['<é>']
  fields['tokenizer.ggml.token_type'] += [4]
  tok = bpe.from_gguf(fields)
  assert tok.encode('<é>') == [tok.vocab_size - 1]
  assert tok.decode(tok.encode('a<é>é')) == 'a<é>é'


def test_padding_of_the_head_changes_neither_size_nor_fingerprint(
    make_bpe_fields,
):
  fields = make_bpe_fields('qwen2')
  plain = bpe.from_gguf(fields)
  for kind in (5, 4):
    pieces = list(fields['tokenizer.ggml.tokens'])
    pad = [f'[PAD{i}]' for i in range(len(pieces), len(pieces) + 9)]
    padded = bpe.from_gguf(
        {
            **fields,
            'tokenizer.ggml.tokens': pieces + pad,
            'tokenizer.ggml.token_type': (
                fields['tokenizer.ggml.token_type'] + [kind] * len(pad)
            ),
        }
    )
    assert padded.vocab_size == plain.vocab_size == len(pieces)
    assert padded.fingerprint == plain.fingerprint
    assert padded.encode('[PAD500]') == plain.encode('[PAD500]')


def test_an_unused_id_in_the_middle_keeps_its_place(make_bpe_fields):
  fields = make_bpe_fields('smollm')
  kinds = list(fields['tokenizer.ggml.token_type'])
  # The last piece that came from a merge: nothing else is built on it.
  hole = len(kinds) - 2
  kinds[hole] = 5
  fields['tokenizer.ggml.token_type'] = kinds
  fields['tokenizer.ggml.merges'] = fields['tokenizer.ggml.merges'][:-1]
  tok = bpe.from_gguf(fields)
  assert tok.vocab_size == len(kinds)
  assert tok.token_bytes(hole) == b''
  assert tok.encode('<tool_call>') == [len(kinds) - 1]


def test_another_vocabulary_has_another_fingerprint(make_bpe_fields):
  fields = make_bpe_fields('smollm')
  pieces = list(fields['tokenizer.ggml.tokens'])
  pieces[-2], pieces[-3] = pieces[-3], pieces[-2]
  swapped = bpe.from_gguf({**fields, 'tokenizer.ggml.tokens': pieces})
  assert swapped.fingerprint != bpe.from_gguf(fields).fingerprint


def test_unknown_split_names_itself_and_the_known(make_bpe_fields):
  fields = make_bpe_fields('smollm', pre='tekken')
  with pytest.raises(UserError, match="'tekken'.*llama-bpe.*qwen2.*smollm"):
    bpe.from_gguf(fields)


def test_absent_split_is_gpt2s(make_bpe_fields):
  fields = make_bpe_fields('gpt-2')
  text = "it's 12345"
  expected = bpe.from_gguf(fields).encode(text)
  del fields['tokenizer.ggml.pre']
  assert bpe.from_gguf(fields).encode(text) == expected


@pytest.mark.parametrize(
    'merge', ['Ġt', 'Ġ ', ' t', 'a b c', 'zqzq zqzq'], ids=repr
)
def test_a_merge_that_is_not_two_pieces_is_refused(make_bpe_fields, merge):
  fields = make_bpe_fields('smollm', merges=[merge])
  with pytest.raises(UserError, match='merge'):
    bpe.from_gguf(fields)


def test_half_a_surrogate_pair_is_refused_in_one_line(make_bpe_fields):
  tok = bpe.from_gguf(make_bpe_fields('smollm'))
  with pytest.raises(UserError, match='character 1') as info:
    tok.encode('a\ud800')
  assert '\n' not in str(info.value)


def test_truncation_in_tokenizer_json_does_not_cut_prompts(
    make_bpe_directory, bpe_specs
):
  limit = {
      'max_length': 2,
      'strategy': 'LongestFirst',
      'stride': 0,
      'direction': 'Right',
  }
  spec = {**bpe_specs['smollm'], 'truncation': limit}
  tok = tokenizer.from_directory(make_bpe_directory('smollm', tokenizer=spec))
  assert tok.decode(tok.encode('one two three')) == 'one two three'


def test_template_of_the_post_processor_decides_about_the_bos(
    make_bpe_directory, bpe_specs
):
  start = {'SpecialToken': {'id': '<|im_start|>', 'type_id': 0}}
  text = {'Sequence': {'id': 'A', 'type_id': 0}}
  token = {'id': '<|im_start|>', 'ids': [1], 'tokens': ['<|im_start|>']}
  spec = {
      **bpe_specs['llama-bpe'],
      'post_processor': {
          'type': 'TemplateProcessing',
          'single': [start, text],
          'pair': [start, text],
          'special_tokens': {'<|im_start|>': token},
      },
  }
  tok = bpe.from_directory(make_bpe_directory('llama-bpe', tokenizer=spec))
  assert tok.add_bos == 'yes'
  assert tok.encode('a')[:1] != [tok.bos_id]
  assert base.encode_prompt(tok, 'a')[:1] == [tok.bos_id]


def test_no_template_and_no_setting_mean_no_bos(make_bpe_directory):
  assert bpe.from_directory(make_bpe_directory('smollm')).add_bos == 'no'


@pytest.mark.parametrize('decoder', [None, {'type': 'WordPiece'}])
def test_other_kinds_of_tokenizer_json_are_refused(
    make_bpe_directory, bpe_specs, decoder
):
  spec = {**bpe_specs['smollm'], 'decoder': decoder}
  with pytest.raises(UserError, match='only byte-level and SentencePiece'):
    bpe.from_directory(make_bpe_directory('smollm', tokenizer=spec))


def test_damaged_tokenizer_json_is_refused_in_one_line(make_bpe_directory):
  directory = make_bpe_directory('smollm')
  path = directory / 'tokenizer.json'
  path.write_text(path.read_text()[:1000])
  with pytest.raises(UserError, match='tokenizer.json is not valid') as info:
    bpe.from_directory(directory)
  assert '\n' not in str(info.value)
  path.write_text('{"decoder": {"type": "ByteLevel"}}')
  with pytest.raises(UserError, match='is not a tokenizer'):
    bpe.from_directory(directory)


def _sentencepiece_json(decoders):
  pieces = ['<unk>', '<s>', '</s>']
  pieces += [f'<0x{b:02X}>' for b in range(256)]
  pieces += ['▁', 'a', 'b', 'é', '▁a']
  return {
      'version': '1.0',
      'added_tokens': [
          {
              'id': i,
              'content': pieces[i],
              'single_word': False,
              'lstrip': False,
              'rstrip': False,
              'normalized': False,
              'special': True,
          }
          for i in range(3)
      ],
      'normalizer': {
          'type': 'Sequence',
          'normalizers': [
              {'type': 'Prepend', 'prepend': '▁'},
              {
                  'type': 'Replace',
                  'pattern': {'String': ' '},
                  'content': '▁',
              },
          ],
      },
      'decoder': {'type': 'Sequence', 'decoders': decoders},
      'model': {
          'type': 'BPE',
          'unk_token': '<unk>',
          'fuse_unk': True,
          'byte_fallback': True,
          'vocab': {piece: i for i, piece in enumerate(pieces)},
          'merges': ['▁ a'],
      },
  }


def test_sentencepiece_in_tokenizer_json_falls_back_to_bytes(
    make_bpe_directory,
):
  decoders = [
      {'type': 'Replace', 'pattern': {'String': '▁'}, 'content': ' '},
      {'type': 'ByteFallback'},
      {'type': 'Fuse'},
      {'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0},
  ]
  spec = _sentencepiece_json(decoders)
  directory = make_bpe_directory('smollm', tokenizer=spec)
  tok = bpe.from_directory(directory)
  library = tokenizers.Tokenizer.from_file(str(directory / 'tokenizer.json'))
  for text in ('a b', ' a', '  é👍', 'a\nb</s>'):
    ids = tok.encode(text)
    assert ids == library.encode(text, add_special_tokens=False).ids
    assert tok.decode(ids) == library.decode(ids) == text.replace('</s>', '')
  assert tok.token_bytes(tok.encode('\n')[-1]) == b'\n'
  assert tok.leading_space == 'drop'


def test_sentencepiece_without_strip_keeps_its_first_space(make_bpe_directory):
  decoders = [
      {'type': 'Replace', 'pattern': {'String': '▁'}, 'content': ' '},
      {'type': 'ByteFallback'},
      {'type': 'Fuse'},
  ]
  spec = {**_sentencepiece_json(decoders), 'normalizer': None}
  tok = bpe.from_directory(make_bpe_directory('smollm', tokenizer=spec))
  assert tok.decode([259, 260]) == ' a'
