import dataclasses
import json
import os
import pathlib

import jax
from jax import numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from speculative import sharding
from speculative.checkpoints import load
from speculative.checkpoints import orbax_dir
from speculative.errors import UserError
from speculative.models import llama
from speculative.models import params as params_lib
from speculative.models import qwen2


def _load(path, dtype='float32', **kwargs) -> dict[str, np.ndarray]:
  params = load.load_params(
      load.open_checkpoint(str(path)), dtype=dtype, **kwargs
  )
  return {n: np.asarray(x) for n, x in params_lib.flatten(params)}


def _interleave(array: np.ndarray, num_heads: int) -> np.ndarray:
  """Reorders rows as the converter of llama GGUFs does, row by row."""
  half = array.shape[0] // num_heads // 2
  stored = np.empty_like(array)
  for row in range(array.shape[0]):
    head, rest = divmod(row, 2 * half)
    side, j = divmod(rest, half)
    stored[head * 2 * half + 2 * j + side] = array[row]
  return stored


@pytest.mark.parametrize('num_shards', [1, 3])
def test_hf_tensors_arrive_unchanged(
    write_hf, hf_config, hf_tensors, num_shards
):
  got = _load(write_hf(hf_config, hf_tensors, num_shards))
  assert len(got) == len(hf_tensors)
  for ours, theirs in (
      ('embed', 'model.embed_tokens.weight'),
      ('head', 'lm_head.weight'),
      ('final_norm', 'model.norm.weight'),
      ('layers.1.attn_norm', 'model.layers.1.input_layernorm.weight'),
      ('layers.0.mlp_norm', 'model.layers.0.post_attention_layernorm.weight'),
      ('layers.1.k_proj', 'model.layers.1.self_attn.k_proj.weight'),
      ('layers.0.down_proj', 'model.layers.0.mlp.down_proj.weight'),
  ):
    np.testing.assert_array_equal(got[ours], hf_tensors[theirs])


def test_one_parameter_is_read_without_the_others(
    write_hf, hf_config, hf_tensors
):
  stored = hf_tensors['model.norm.weight'].astype(ml_dtypes.bfloat16)
  path = write_hf(hf_config, {'model.norm.weight': stored})
  checkpoint = load.open_checkpoint(str(path))
  got = load.read_param(checkpoint, 'final_norm')
  assert got.dtype == np.float32
  np.testing.assert_array_equal(got, stored.astype(np.float32))
  with pytest.raises(UserError, match='no tensor model.embed_tokens.weight'):
    load.read_param(checkpoint, 'embed')


def test_matrices_take_the_dtype_and_vectors_stay_float32(
    write_hf, hf_config, hf_tensors
):
  stored = {n: x.astype(ml_dtypes.bfloat16) for n, x in hf_tensors.items()}
  got = _load(write_hf(hf_config, stored), dtype=jnp.bfloat16)
  assert got['layers.0.q_proj'].dtype == jnp.bfloat16
  assert got['final_norm'].dtype == np.float32
  np.testing.assert_array_equal(
      got['layers.0.q_proj'], stored['model.layers.0.self_attn.q_proj.weight']
  )


def test_a_tied_hf_model_has_no_head_even_if_the_file_has_one(
    write_hf, hf_config, hf_tensors
):
  hf_config['tie_word_embeddings'] = True
  hf_tensors['model.layers.0.self_attn.rotary_emb.inv_freq'] = np.ones(
      4, np.float32
  )
  path = write_hf(hf_config, hf_tensors)
  assert load.open_checkpoint(str(path)).config.head == 'tied'
  assert 'head' not in _load(path)


def test_llama_gguf_rows_and_biases_come_back_in_our_order(
    write_gguf, gguf_tensors
):
  rng = np.random.default_rng(1)
  stored = dict(gguf_tensors)
  for i in range(2):
    for leaf, size in (('q', 32), ('k', 16), ('v', 16)):
      name = f'blk.{i}.attn_{leaf}.bias'
      gguf_tensors[name] = rng.standard_normal(size, np.float32)
      stored[name] = gguf_tensors[name]
  for name, array in gguf_tensors.items():
    if '.attn_q.' in name or '.attn_k.' in name:
      stored[name] = _interleave(array, 4 if '.attn_q.' in name else 2)
  path = write_gguf(stored)
  got = _load(path)
  assert load.open_checkpoint(str(path)).config.qkv_bias == 'yes'
  for leaf in ('q', 'k', 'v'):
    np.testing.assert_array_equal(
        got[f'layers.1.{leaf}_proj'], gguf_tensors[f'blk.1.attn_{leaf}.weight']
    )
    np.testing.assert_array_equal(
        got[f'layers.0.{leaf}_bias'], gguf_tensors[f'blk.0.attn_{leaf}.bias']
    )


def test_qwen2_gguf_rows_are_taken_as_they_are(write_gguf, gguf_tensors):
  for i in range(2):
    for leaf, size in (('q', 32), ('k', 16), ('v', 16)):
      gguf_tensors[f'blk.{i}.attn_{leaf}.bias'] = np.arange(
          size, dtype=np.float32
      )
  got = _load(write_gguf(gguf_tensors, arch='qwen2'))
  np.testing.assert_array_equal(
      got['layers.0.q_proj'], gguf_tensors['blk.0.attn_q.weight']
  )
  np.testing.assert_array_equal(got['layers.0.k_bias'], np.arange(16))


def test_qwen2_gguf_without_its_biases_is_refused(write_gguf, gguf_tensors):
  path = write_gguf(gguf_tensors, arch='qwen2')
  with pytest.raises(UserError, match=r'missing \(6\): blk\.0\.attn_q\.bias'):
    _load(path)


def test_a_gguf_head_is_its_own_only_if_the_file_has_one(
    write_gguf, gguf_tensors
):
  got = _load(write_gguf(gguf_tensors))
  np.testing.assert_array_equal(got['head'], gguf_tensors['output.weight'])
  del gguf_tensors['output.weight']
  assert 'head' not in _load(write_gguf(gguf_tensors))


def test_llama3_scaling_is_recovered_from_a_gguf_tensor(
    write_gguf, gguf_tensors
):
  # H = 8 at theta 10,000: wavelengths 6, 63, 628 and 6283, of which
  # 628 and 63 lie between 40 / 4 and 2000.
  turns = 2000 / (2 * np.pi * 10_000 ** (np.arange(4) / 4))
  kept = np.clip((turns - 1) / (200 - 1), 0, 1)
  gguf_tensors['rope_freqs.weight'] = (1 / ((1 - kept) / 8 + kept)).astype(
      np.float32
  )
  checkpoint = load.open_checkpoint(str(write_gguf(gguf_tensors)))
  rope = checkpoint.config.rope
  assert (rope.scaling, rope.factor) == ('llama3', 8.0)
  assert rope.original_max_position == 2000
  assert rope.high_freq_factor == pytest.approx(200)
  load.load_params(checkpoint, dtype='float32')


def test_other_frequency_factors_are_refused(write_gguf, gguf_tensors):
  gguf_tensors['rope_freqs.weight'] = np.array([3, 1, 2, 1], np.float32)
  with pytest.raises(UserError, match=r'model\.gguf: .*frequency factors'):
    load.open_checkpoint(str(write_gguf(gguf_tensors)))


def test_all_problems_are_reported_at_once_and_nothing_is_read(
    write_hf, hf_config, hf_tensors, monkeypatch
):
  del hf_tensors['model.norm.weight']
  del hf_tensors['lm_head.weight']
  hf_tensors['model.layers.0.self_attn.q_proj.bias'] = np.zeros(32, np.float32)
  hf_tensors['model.layers.1.mlp.up_proj.weight'] = np.zeros(
      (47, 32), np.float32
  )
  checkpoint = load.open_checkpoint(str(write_hf(hf_config, hf_tensors)))
  read = []
  monkeypatch.setattr(checkpoint.reader, 'read', read.append)
  with pytest.raises(UserError) as caught:
    load.load_params(checkpoint, dtype='float32')
  message = str(caught.value)
  assert 'missing (2): model.norm.weight, lm_head.weight' in message
  assert 'unused (1): model.layers.0.self_attn.q_proj.bias' in message
  assert 'model.layers.1.mlp.up_proj.weight: [47, 32] -> [48, 32]' in message
  assert '\n' not in message
  assert not read


def test_a_long_list_of_problems_is_cut(write_hf, hf_config, hf_tensors):
  hf_tensors |= {f'extra.{i}': np.zeros(1, np.float32) for i in range(33)}
  with pytest.raises(UserError, match=r'unused \(33\).*… and 13 more'):
    _load(write_hf(hf_config, hf_tensors))


def test_tensors_are_read_and_placed_one_by_one(
    write_hf, hf_config, hf_tensors, monkeypatch
):
  checkpoint = load.open_checkpoint(str(write_hf(hf_config, hf_tensors)))
  events = []
  read = checkpoint.reader.read
  monkeypatch.setattr(
      checkpoint.reader, 'read', lambda n: (events.append('read'), read(n))[1]
  )

  class Third(sharding.Placement):

    def put(self, array, axes):
      events.append((array.shape, axes))
      return jax.device_put(array, jax.devices()[3])

  params = load.load_params(checkpoint, dtype='float32', placement=Third())
  declared = params_lib.flatten(params_lib.declare(checkpoint.config))
  expected = []
  for _, spec in declared:
    expected += ['read', (spec.shape, spec.axes)]
  assert events == expected
  assert params['embed'].devices() == {jax.devices()[3]}


def test_progress_counts_up_to_the_whole(write_gguf, gguf_tensors):
  seen = []
  _load(write_gguf(gguf_tensors), progress=seen.append)
  total = sum(x.nbytes for x in gguf_tensors.values())
  assert [p.num_done for p in seen] == list(range(1, len(gguf_tensors) + 1))
  assert seen[-1].bytes_done == seen[-1].bytes_total == total
  assert seen[-1].num_tensors == len(gguf_tensors)


def test_unsupported_architectures_are_named(
    write_gguf, gguf_tensors, write_hf, hf_config, hf_tensors
):
  with pytest.raises(UserError, match="'mamba'.*known: llama.*qwen2"):
    load.open_checkpoint(str(write_gguf(gguf_tensors, arch='mamba')))
  hf_config['model_type'] = 'bert'
  with pytest.raises(UserError, match=r"hf: model_type 'bert'.*known: llama"):
    load.open_checkpoint(str(write_hf(hf_config, hf_tensors)))


def test_quantised_safetensors_are_refused(write_hf, hf_config, hf_tensors):
  hf_config['quantization_config'] = {'quant_method': 'gptq'}
  with pytest.raises(UserError, match='gptq.*use the unquantised'):
    load.open_checkpoint(str(write_hf(hf_config, hf_tensors)))


def test_checkpoint_says_where_its_tokenizer_is(
    write_gguf, gguf_tensors, write_hf, hf_config, hf_tensors
):
  fields = {'tokenizer.ggml.tokens': ['a', 'b']}
  checkpoint = load.open_checkpoint(
      str(write_gguf(gguf_tensors, fields=fields))
  )
  assert checkpoint.directory is None
  assert checkpoint.gguf_fields['tokenizer.ggml.tokens'] == ['a', 'b']
  path = write_hf(hf_config, hf_tensors)
  checkpoint = load.open_checkpoint(str(path))
  assert (checkpoint.directory, checkpoint.gguf_fields) == (path, None)


def test_orbax_round_trip_keeps_config_and_values(
    tmp_path, write_hf, hf_config, hf_tensors
):
  source = load.open_checkpoint(str(write_hf(hf_config, hf_tensors)))
  params = load.load_params(source, dtype=jnp.bfloat16)
  path = tmp_path / 'saved'
  orbax_dir.save(path, params, source.config)
  saved = load.open_checkpoint(str(path))
  assert (saved.kind, saved.config) == ('orbax', source.config)
  loaded = load.load_params(saved, dtype=jnp.bfloat16)
  assert jax.tree.structure(loaded) == jax.tree.structure(params)
  for ours, theirs in zip(
      jax.tree.leaves(loaded), jax.tree.leaves(params), strict=True
  ):
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)


def test_orbax_keeps_values_that_were_spread_over_devices(
    tmp_path, write_hf, hf_config, hf_tensors
):
  source = load.open_checkpoint(str(write_hf(hf_config, hf_tensors)))
  placement = sharding.place(
      sharding.make_mesh(2, 4),
      source.config.axis_sizes,
      indivisible='replicate',
  )
  params = load.load_params(source, dtype='float32', placement=placement)
  assert len(params['embed'].sharding.device_set) == 8
  orbax_dir.save(tmp_path / 'saved', params, source.config)
  got = _load(tmp_path / 'saved')
  np.testing.assert_array_equal(got['head'], hf_tensors['lm_head.weight'])


def test_orbax_never_overwrites(tmp_path, write_hf, hf_config, hf_tensors):
  source = load.open_checkpoint(str(write_hf(hf_config, hf_tensors)))
  params = load.load_params(source, dtype='float32')
  orbax_dir.save(tmp_path / 'saved', params, source.config)
  with pytest.raises(UserError, match='already holds config.json'):
    orbax_dir.save(tmp_path / 'saved', params, source.config)


def test_orbax_damage_is_an_error_of_the_user(
    tmp_path, write_hf, hf_config, hf_tensors
):
  source = load.open_checkpoint(str(write_hf(hf_config, hf_tensors)))
  params = load.load_params(source, dtype='float32')
  path = tmp_path / 'saved'
  orbax_dir.save(path, params, source.config)
  d = json.loads((path / 'config.json').read_text())
  d['transformer']['colour'] = 'red'
  (path / 'config.json').write_text(json.dumps(d))
  with pytest.raises(UserError, match='colour'):
    load.open_checkpoint(str(path))
  del d['transformer']['colour']
  (path / 'config.json').write_text(json.dumps(d))
  (path / 'params').rename(tmp_path / 'gone')
  with pytest.raises(UserError, match='not a complete Orbax checkpoint'):
    load.open_checkpoint(str(path))


@pytest.mark.parametrize(
    'pattern, preset',
    [
        ('SmolLM2-135M*.gguf', llama.SMOLLM2_135M),
        ('qwen2.5-coder-0.5b*.gguf', qwen2.QWEN2_5_CODER_0_5B),
        ('qwen2.5-coder-1.5b*.gguf', qwen2.QWEN2_5_CODER_1_5B),
    ],
)
def test_real_ggufs_have_the_config_of_the_preset(pattern, preset):
  directory = os.environ.get('SPECULATIVE_TEST_MODELS')
  if not directory:
    pytest.skip('SPECULATIVE_TEST_MODELS names no directory of GGUF files')
  files = sorted(pathlib.Path(directory).glob(pattern))
  if not files:
    pytest.skip(f'no {pattern} in {directory}')
  config = load.open_checkpoint(str(files[0])).config
  # The file decides whether the head is stored apart.
  assert dataclasses.replace(config, head='tied') == preset
