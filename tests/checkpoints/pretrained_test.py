import shutil

import jax
from jax import numpy as jnp
import numpy as np
import pytest
import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import pre_tokenizers

from speculative.checkpoints import pretrained
from speculative.errors import UserError
from speculative.models import params as params_lib
from speculative.sharding import Placement
from speculative.tokenizer import byte_level


def _write_tokenizer(directory, num_pieces: int) -> None:
  """Writes a byte-level BPE of the first characters of its alphabet."""
  alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[:num_pieces]
  core = tokenizers.Tokenizer(
      models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[])
  )
  core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  core.decoder = decoders.ByteLevel()
  core.save(str(directory / 'tokenizer.json'))


@pytest.mark.parametrize('name', sorted(pretrained.PRESETS))
def test_a_preset_has_the_declared_weights_and_the_byte_tokenizer(name):
  opened = pretrained.open_pretrained(f'random://{name}')
  params = opened.load_params(jnp.dtype('float32'), Placement())
  assert sum(leaf.size for leaf in jax.tree.leaves(params)) == (
      params_lib.num_params(opened.config)
  )
  assert opened.tokenizer.vocab_size <= opened.config.vocab_size
  assert opened.tokenizer.fingerprint == byte_level.ByteTokenizer().fingerprint


def test_matrices_are_loaded_in_the_dtype_that_was_asked_for():
  opened = pretrained.open_pretrained('random://tiny')
  assert (
      opened.load_params(jnp.dtype('bfloat16'), Placement())['embed'].dtype
      == 'bfloat16'
  )


def test_the_seed_decides_the_weights():
  def embed(reference: str) -> np.ndarray:
    opened = pretrained.open_pretrained(reference)
    return np.asarray(
        opened.load_params(jnp.dtype('float32'), Placement())['embed']
    )

  first = embed('random://tiny')
  np.testing.assert_array_equal(first, embed('random://tiny?seed=0'))
  assert np.abs(first - embed('random://tiny?seed=1')).max() > 0.1


@pytest.mark.parametrize(
    'reference',
    [
        'random://',
        'random://huge',
        'random://tiny?seed=',
        'random://tiny?seed=-1',
        'random://tiny?seed=two',
        'random://tiny?seed=²',
        'random://tiny?seed=99999999999',
        'random://tiny?5',
        'random://tiny/x',
    ],
)
def test_a_wrong_preset_or_seed_says_the_syntax_and_the_presets(reference):
  with pytest.raises(UserError, match=r'\?seed=N.*tiny, tiny_draft') as caught:
    pretrained.open_pretrained(reference)
  assert repr(reference) in str(caught.value)


def test_opening_a_directory_reads_no_weights(write_hf, hf_config, hf_tensors):
  path = write_hf(hf_config, hf_tensors)
  _write_tokenizer(path, 40)
  opened = pretrained.open_pretrained(str(path))
  assert opened.config.vocab_size == 40
  assert opened.tokenizer.vocab_size == 40
  embed = opened.load_params(jnp.dtype('float32'), Placement())['embed']
  np.testing.assert_array_equal(embed, hf_tensors['model.embed_tokens.weight'])
  shutil.rmtree(path)
  # Nothing was kept: the weights come from the files each time.
  with pytest.raises(UserError):
    opened.load_params(jnp.dtype('float32'), Placement())


def test_a_tokenizer_beyond_the_head_is_refused(
    write_hf, hf_config, hf_tensors
):
  path = write_hf(hf_config, hf_tensors)
  _write_tokenizer(path, 41)
  with pytest.raises(UserError, match='41 tokens, the model only 40'):
    pretrained.open_pretrained(str(path))


def test_a_head_padded_beyond_the_tokenizer_is_allowed(
    write_hf, hf_config, hf_tensors
):
  path = write_hf(hf_config, hf_tensors)
  _write_tokenizer(path, 30)
  opened = pretrained.open_pretrained(str(path))
  assert opened.tokenizer.vocab_size == 30
  assert opened.config.vocab_size == 40


def test_a_directory_without_tokenizer_is_refused(
    write_hf, hf_config, hf_tensors
):
  path = write_hf(hf_config, hf_tensors)
  with pytest.raises(UserError, match='neither tokenizer.json nor'):
    pretrained.open_pretrained(str(path))


def test_a_config_of_another_family_is_named(write_hf, hf_config, hf_tensors):
  path = write_hf(hf_config | {'model_type': 'mamba'}, hf_tensors)
  with pytest.raises(UserError, match="'mamba' is not supported; known: llama"):
    pretrained.open_pretrained(str(path))
