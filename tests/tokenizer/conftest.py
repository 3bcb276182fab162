"""Small tokenizers, made on the spot: nothing is downloaded.

Each comes as a Hugging Face directory and as the metadata of a GGUF file, so
that tests can hold the two against each other.
"""

import io
import json

import pytest
import sentencepiece
import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import pre_tokenizers
from tokenizers import trainers

CORPUS = (
    'The naïve café owner said: "déjà vu", didn\'t she? 2024 2025 1234567',
    'def add(a, b):\n    return a + b  # 100%\n\tif a <= b:\n        pass',
    '日本語のテキスト 中文 한국어 日本語 中文 한국어 Привет мир',
    '👍🏽 👩‍👩‍👧 👍🏽 👩‍👩‍👧 the cat and the dog and the bird and the fish',
    'Once upon a time there was a little girl. She loved to play outside.',
)

SAMPLES = (
    'Hello, world!',
    ' a leading and a trailing space ',
    'naïve café — «déjà vu» Ångström ﬁ',
    '日本語、中文。한국어 Здравствуй مرحبا नमस्ते',
    '👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪 \U00020000',
    'def f(x):\n\treturn x**2  # sq\r\n\r\n    if a<=b: pass\n\n\n',
    'x' + ' ' * 40 + 'y\n \n  \n',
    "it's 12345 IT'S 3.14159 ١٢٣ Ⅷ ½ don't",
    'a\u00a0b\u2003c\u3000d\u200be\u2028f\x0bg\x7f',
    'Ġ Ċ <0x0A> <|im_end',
)

SPECIAL_PIECES = ('<|endoftext|>', '<|im_start|>', '<|im_end|>')
SHOWN_PIECES = ('<tool_call>',)

_CL100K = (
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}%s|"
    ' ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+'
)


def _byte_level(use_regex):
  return {
      'type': 'ByteLevel',
      'add_prefix_space': False,
      'trim_offsets': True,
      'use_regex': use_regex,
  }


def _split(digits):
  return {
      'type': 'Split',
      'pattern': {'Regex': _CL100K % digits},
      'behavior': 'Isolated',
      'invert': False,
  }


# What the tokenizer.json files that these names stand for say.
PUBLISHED = {
    'gpt-2': {'pre_tokenizer': _byte_level(True)},
    'smollm': {
        'pre_tokenizer': {
            'type': 'Sequence',
            'pretokenizers': [
                {'type': 'Digits', 'individual_digits': True},
                _byte_level(True),
            ],
        }
    },
    'qwen2': {
        'normalizer': {'type': 'NFC'},
        'pre_tokenizer': {
            'type': 'Sequence',
            'pretokenizers': [_split(''), _byte_level(False)],
        },
    },
    'llama-bpe': {
        'pre_tokenizer': {
            'type': 'Sequence',
            'pretokenizers': [_split('{1,3}'), _byte_level(False)],
        }
    },
}


@pytest.fixture(params=SAMPLES)
def sample(request):
  """One text after another."""
  return request.param


@pytest.fixture(scope='session')
def samples():
  """All texts at once."""
  return SAMPLES


@pytest.fixture(params=sorted(PUBLISHED))
def split(request):
  """The name of one split after another."""
  return request.param


@pytest.fixture(scope='session')
def bpe_specs():
  """A tokenizer.json for every split, all with one vocabulary."""
  core = tokenizers.Tokenizer(models.BPE())
  core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  core.decoder = decoders.ByteLevel()
  core.train_from_iterator(
      CORPUS * 3,
      trainers.BpeTrainer(
          vocab_size=420,
          initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
          special_tokens=list(SPECIAL_PIECES),
          show_progress=False,
      ),
  )
  core.add_tokens(
      [tokenizers.AddedToken(p, normalized=False) for p in SHOWN_PIECES]
  )
  spec = json.loads(core.to_str())
  whole_words = {'model': {**spec['model'], 'ignore_merges': True}}
  return {
      name: {**spec, **(whole_words if name == 'llama-bpe' else {}), **parts}
      for name, parts in PUBLISHED.items()
  }


@pytest.fixture
def make_bpe_directory(bpe_specs, tmp_path):
  """Writes a directory with one split's tokenizer.json and more files."""

  def make(name, **files):
    directory = tmp_path / f'bpe_{name}'
    directory.mkdir()
    config = {
        'eos_token': '<|im_end|>',
        'bos_token': {'content': '<|im_start|>'},
    }
    files = {
        'tokenizer': bpe_specs[name],
        'tokenizer_config': config,
        **files,
    }
    for stem, value in files.items():
      path = directory / f'{stem}.json'
      path.write_text(json.dumps(value), encoding='utf-8')
    return directory

  return make


@pytest.fixture
def make_bpe_fields(bpe_specs):
  """Returns the GGUF metadata of one split's tokenizer."""

  def make(name, **changes):
    spec = bpe_specs[name]
    piece_ids = dict(spec['model']['vocab'])
    kinds = {}
    for token in spec['added_tokens']:
      piece_ids[token['content']] = token['id']
      kinds[token['content']] = 3 if token['special'] else 4
    pieces = sorted(piece_ids, key=piece_ids.get)
    fields = {
        'model': 'gpt2',
        'pre': name,
        'tokens': pieces,
        'token_type': [kinds.get(piece, 1) for piece in pieces],
        'merges': [' '.join(pair) for pair in spec['model']['merges']],
        'bos_token_id': piece_ids['<|im_start|>'],
        'eos_token_id': piece_ids['<|im_end|>'],
        'add_bos_token': False,
        **changes,
    }
    return {f'tokenizer.ggml.{key}': v for key, v in fields.items()}

  return make


@pytest.fixture(scope='session')
def spm_model():
  """The bytes of a SentencePiece BPE with byte fallback, as Llama 2's is."""
  writer = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter([line for t in CORPUS for line in t.split('\n')]),
      model_writer=writer,
      model_type='bpe',
      vocab_size=440,
      byte_fallback=True,
      character_coverage=0.98,
      normalization_rule_name='identity',
      remove_extra_whitespaces=False,
      split_digits=True,
      user_defined_symbols=['<sep>', '▁▁▁▁'],
      minloglevel=2,
      num_threads=1,
  )
  return writer.getvalue()


@pytest.fixture
def make_spm_directory(spm_model, tmp_path):
  """Writes a directory with tokenizer.model and more files."""

  def make(**files):
    directory = tmp_path / 'spm'
    directory.mkdir()
    (directory / 'tokenizer.model').write_bytes(spm_model)
    for stem, value in files.items():
      path = directory / f'{stem}.json'
      path.write_text(json.dumps(value), encoding='utf-8')
    return directory

  return make


@pytest.fixture
def make_spm_fields(spm_model):
  """Returns the GGUF metadata of the SentencePiece model."""

  def make(**changes):
    processor = sentencepiece.SentencePieceProcessor(model_proto=spm_model)
    ids = range(processor.GetPieceSize())

    def kind(i):
      if processor.IsUnknown(i):
        return 2
      if processor.IsControl(i):
        return 3
      if processor.IsByte(i):
        return 6
      return 4 if processor.IdToPiece(i) in ('<sep>', '▁▁▁▁') else 1

    kinds = [kind(i) for i in ids]
    pieces = [processor.IdToPiece(i) for i in ids]
    fields = {
        'model': 'llama',
        # The converter spells the spaces of user-defined pieces as spaces.
        'tokens': [
            p.replace('▁', ' ') if k == 4 else p
            for p, k in zip(pieces, kinds, strict=True)
        ],
        'token_type': kinds,
        'scores': [processor.GetScore(i) for i in ids],
        'bos_token_id': 1,
        'eos_token_id': 2,
        **changes,
    }
    return {f'tokenizer.ggml.{key}': v for key, v in fields.items()}

  return make
