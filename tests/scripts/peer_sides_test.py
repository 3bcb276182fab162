"""What the peers' servers count and refuse, with modules that pose as peers."""

import importlib
import itertools
import sys
import types

import numpy as np
import pytest


class _Ids(np.ndarray):
  """An array that counts as torch's tensors do."""

  def numel(self):
    return self.size


def _tensor(values):
  return np.asarray(values).view(_Ids)


class _Model:
  """Brings new tokens in given portions."""

  config = types.SimpleNamespace(vocab_size=10)

  def __init__(self, *portions):
    self._portions = portions
    self.generation_config = self.asked = None

  def generate(self, ids_1T, *, streamer, **arguments):
    self.asked = arguments
    streamer.put(ids_1T)
    for portion in self._portions:
      streamer.put(_tensor(portion))
    new = list(itertools.chain(*self._portions))
    return np.concatenate([ids_1T, [new]], axis=1)


class _GenerationConfig:

  def __init__(self, **fields):
    self.num_assistant_tokens = 20
    self.prompt_lookup_num_tokens = self.eos_token_id = self.do_sample = None
    vars(self).update(fields)


@pytest.fixture
def transformers_peer(peers, monkeypatch):
  """The server of transformers, which poses as well as torch."""
  torch = types.ModuleType('torch')
  torch.Tensor = _Ids
  torch.tensor, torch.ones_like = _tensor, np.ones_like
  torch.inference_mode = lambda: lambda function: function
  torch.set_num_threads = lambda num: None
  transformers = types.ModuleType('transformers')
  transformers.PreTrainedModel = _Model
  transformers.GenerationConfig = _GenerationConfig
  generation = types.ModuleType('transformers.generation')
  generation.streamers = types.SimpleNamespace(BaseStreamer=object)
  for module in (torch, transformers, generation):
    monkeypatch.setitem(sys.modules, module.__name__, module)
  yield importlib.import_module('bench_transformers_peer')
  del sys.modules['bench_transformers_peer']


def _answer(peer, model, fields, assistant=None):
  request = {'setting': 'x', 'ids': [7, 8], 'max_new_tokens': 4}
  return peer.Peer(model, assistant, {'x': fields}).run(request)


def test_transformers_first_arrival_does_not_count(transformers_peer):
  plain = _answer(transformers_peer, _Model([1], [2], [3], [4]), {})
  assert plain['token_ids'] == [1, 2, 3, 4]
  assert (plain['num_counted'], plain['num_passes']) == (3, 3)
  assert plain['prefill_s'] >= 0 and plain['decode_s'] >= 0
  # Look-up had drafted two tokens, and brings more than asked for at the end.
  model = _Model([1, 2, 3], [4, 5])
  found = _answer(transformers_peer, model, {'prompt_lookup_num_tokens': 4})
  assert found['token_ids'] == [1, 2, 3, 4, 5]
  assert (found['num_counted'], found['num_passes']) == (2, 1)
  assert model.generation_config.eos_token_id == 10
  assert model.asked['max_new_tokens'] == 4


def test_transformers_assistant_gets_its_own_fields(transformers_peer):
  model, assistant = _Model([1], [2]), _Model()
  fields = {'assistant_model': 'draft', 'num_assistant_tokens': 4}
  _answer(transformers_peer, model, fields, assistant)
  assert model.asked['assistant_model'] is assistant
  assert assistant.generation_config.num_assistant_tokens == 4
  assert model.generation_config.num_assistant_tokens == 20


@pytest.mark.parametrize(
    'text, message',
    [
        ('num_asistant_tokens=4', 'GenerationConfig does not know'),
        ('do_sample=true', 'do_sample, which the comparison sets itself'),
        ('num_assistant_tokens=4', 'decoding without an assistant'),
        ('assistant_model=draft', 'needs a draft model; set --draft'),
    ],
)
def test_transformers_fields_are_refused_before_weights_are_read(
    transformers_peer, text, message
):
  # What loads would fail otherwise: the stub has none of it.
  args = types.SimpleNamespace(settings={'a': '', 'x': text}, draft=None)
  with pytest.raises(ValueError, match=message):
    transformers_peer.load(args)


class _Llama:
  """Counts on from the last token of the prompt."""

  opened: list[dict] = []

  def __init__(
      self,
      model_path,
      n_ctx=0,
      n_threads=None,
      n_threads_batch=None,
      flash_attn=False,
      draft_model=None,
      verbose=True,
  ):
    self.opened.append({'flash_attn': flash_attn, 'draft_model': draft_model})
    self.metadata = {'general.file_type': '3'}
    self.num_resets = 0

  def reset(self):
    self.num_resets += 1

  def generate(self, ids, *, temp):
    assert temp == 0
    yield from itertools.count(ids[-1] + 1)


@pytest.fixture
def llama_cpp_peer(peers, monkeypatch):
  """The server of llama.cpp, which poses."""
  llama_cpp = types.ModuleType('llama_cpp')
  llama_cpp.Llama, llama_cpp.__version__ = _Llama, '1'
  llama_cpp.llama_speculative = types.SimpleNamespace(
      LlamaPromptLookupDecoding=lambda **fields: fields
  )
  monkeypatch.setitem(sys.modules, 'llama_cpp', llama_cpp)
  monkeypatch.setattr(_Llama, 'opened', [])
  yield importlib.import_module('bench_llama_cpp_peer')
  del sys.modules['bench_llama_cpp_peer']


def _llama_args(**settings):
  return types.SimpleNamespace(
      gguf='x.gguf', context=8, threads=1, settings=settings
  )


def test_llama_cpps_first_token_does_not_count(llama_cpp_peer):
  served = llama_cpp_peer.load(
      _llama_args(plain='flash_attn=true', lookup='num_pred_tokens=3')
  )
  assert served.ready == {'dtype': 'Q4_1', 'llama-cpp-python': '1'}
  assert _Llama.opened == [
      {'flash_attn': True, 'draft_model': None},
      {'flash_attn': False, 'draft_model': {'num_pred_tokens': 3}},
  ]
  request = {'setting': 'lookup', 'ids': [4, 5], 'max_new_tokens': 4}
  found = served.run(request)
  assert found['token_ids'] == [6, 7, 8, 9]
  assert found['num_counted'] == 3
  assert found['prefill_s'] >= 0 and found['decode_s'] >= 0
  llama = _Llama('x')
  llama_cpp_peer.run({'lookup': llama}, request)
  assert llama.num_resets == 1


@pytest.mark.parametrize(
    'text, message',
    [
        ('flash_atn=true', 'flash_atn, which Llama does not know'),
        ('n_ctx=4', 'n_ctx, which the comparison sets itself'),
    ],
)
def test_llama_cpps_fields_are_refused_before_the_file_is_read(
    llama_cpp_peer, text, message
):
  with pytest.raises(ValueError, match=message):
    llama_cpp_peer.load(_llama_args(plain='', x=text))
  assert not _Llama.opened
