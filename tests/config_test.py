import dataclasses
import importlib
import os
import pathlib

from absl import flags
from ml_collections import config_dict
import pytest

from speculative import api
from speculative import config as config_lib
from speculative.bench import prompts
from speculative.bench import task_sets
from speculative.checkpoints import pretrained
from speculative.decoding.config import DecodeConfig
from speculative.drafting.config import DrafterConfig
from speculative.errors import UserError
from speculative.sharding import MeshConfig

_ROOT = pathlib.Path(__file__).parent.parent


@pytest.fixture
def get_config(monkeypatch):
  """Returns configs/common.py with fields set by their dotted names."""
  monkeypatch.syspath_prepend(str(_ROOT))

  def get(fields: dict | None = None) -> config_dict.ConfigDict:
    config = importlib.import_module('configs.common').get_config()
    config.update_from_flattened_dict(
        {'target.model': 'random://tiny'} | (fields or {})
    )
    return config

  return get


def test_the_defaults_are_those_of_the_parts(get_config):
  parsed = config_lib.parse(get_config())
  assert parsed.drafter == DrafterConfig()
  ours = dataclasses.replace(parsed.decode, max_seq_len=2048, rounds_per_call=0)
  assert ours == DecodeConfig()
  assert parsed.cache_dir is None
  assert (parsed.stop, parsed.batch_size) == ('eos', 1)


def test_every_field_reaches_its_part(get_config):
  fields = {
      'seed': 5,
      'cache_dir': '/some/cache',
      'target.dtype': 'float32',
      'target.layers': 'scanned',
      'drafter.kind': 'lm',
      'drafter.model': 'random://tiny_draft',
      'drafter.dtype': 'bfloat16',
      'drafter.num_layers': 1,
      'drafter.shards': 2,
      'mesh.data': 2,
      'mesh.model': 4,
      'mesh.indivisible': 'replicate',
      'mesh.logits': 'split',
      'drafter.max_ngram': 6,
      'drafter.min_ngram': 2,
      'decode.num_draft_tokens': 3,
      'decode.max_new_tokens': 9,
      'decode.temperature': 0.5,
      'decode.top_k': 7,
      'decode.top_p': 0.25,
      'decode.min_p': 0.125,
      'decode.repetition_penalty': 1.5,
      'decode.presence_penalty': 0.75,
      'decode.frequency_penalty': -0.5,
      'decode.logit_bias': ((3, 0.5), (8, -100.0)),
      'decode.min_new_tokens': 4,
      'decode.stop_strings': ('END', '.'),
      'decode.verification': 'block',
      'decode.stop': 'none',
      'decode.max_seq_len': 100,
      'decode.batch_size': 2,
      'decode.rounds_per_call': 8,
      'decode.log_probs': 'chosen',
      'decode.num_top_log_probs': 5,
  }
  parsed = config_lib.parse(get_config(fields))
  assert parsed == config_lib.RunConfig(
      target='random://tiny',
      dtype='float32',
      layers='scanned',
      drafter=DrafterConfig(
          kind='lm',
          model='random://tiny_draft',
          dtype='bfloat16',
          num_layers=1,
          shards=2,
          rule='block',
          num_draft_tokens=3,
          max_ngram=6,
          min_ngram=2,
      ),
      decode=DecodeConfig(
          max_new_tokens=9,
          temperature=0.5,
          top_k=7,
          top_p=0.25,
          min_p=0.125,
          repetition_penalty=1.5,
          presence_penalty=0.75,
          frequency_penalty=-0.5,
          logit_bias=((3, 0.5), (8, -100.0)),
          min_new_tokens=4,
          stop_strings=('END', '.'),
          seed=5,
          max_seq_len=100,
          rounds_per_call=8,
          log_probs='chosen',
          num_top_log_probs=5,
      ),
      stop='none',
      batch_size=2,
      mesh=MeshConfig(2, 4, 'replicate', 'split'),
      cache_dir='/some/cache',
  )


# What a user can mistype, and what the message has to name. `K < 0` and its
# like are tried through the whole command line in run_test.py.
@pytest.mark.parametrize(
    'fields, message',
    [
        ({'target.model': ''}, 'config.target.model is empty; name a'),
        ({'target.dtype': 'f32'}, "config.target.dtype is 'f32'.*float32"),
        ({'target.layers': 'x'}, "config.target.layers is 'x'.*scanned"),
        ({'drafter.dtype': 'x'}, "config.drafter.dtype is 'x'.*float32"),
        ({'decode.stop': 'x'}, "config.decode.stop is 'x'.*eos, none"),
        ({'decode.batch_size': 0}, 'config.decode.batch_size.*>= 1, got 0'),
        ({'decode.max_seq_len': -1}, 'config.decode.max_seq_len.*>= 0, got -1'),
        ({'decode.max_new_tokens': 2**40}, 'max_new_tokens needs to be <='),
        ({'decode.top_k': 2**40}, 'config.decode.top_k needs to be <='),
        ({'decode.rounds_per_call': 2**40}, 'rounds_per_call needs to be <='),
        ({'decode.num_draft_tokens': 2**40}, 'num_draft_tokens needs to be <='),
    ],
)
def test_a_wrong_field_is_named_before_a_model_is_opened(
    get_config, monkeypatch, fields, message
):
  monkeypatch.setattr(
      pretrained, 'open_pretrained', lambda *a, **k: pytest.fail('opened')
  )
  with pytest.raises(UserError, match=message) as caught:
    config_lib.parse(get_config(fields))
  assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
    'seed, expected', [(-1, 2**32 - 1), (2**32, 0), (2**70 + 3, 3)]
)
def test_seeds_wrap_around_at_32_bits(get_config, seed, expected):
  assert config_lib.parse(get_config({'seed': seed})).decode.seed == expected


def test_the_text_may_be_as_long_as_the_model_was_made_for(get_config):
  model = api.open_model('random://tiny')
  for asked, expected in ((0, 2048), (100, 100), (2048, 2048)):
    parsed = config_lib.parse(get_config({'decode.max_seq_len': asked}))
    assert parsed.decode_for(model).max_seq_len == expected
  parsed = config_lib.parse(get_config({'decode.max_seq_len': 2049}))
  with pytest.raises(UserError, match='is 2049, but random://tiny.*2048.*low'):
    parsed.decode_for(model)


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'data.num_prompts': -1}, 'config.data.num_prompts.*>= 0, got -1'),
        ({'data.stride': 0}, 'config.data.stride.*>= 1, got 0'),
        ({'data.format': 'xml'}, "config.data.format is 'xml'.*completion"),
        ({'data.prompts': 'no/file'}, "'no/file', which is no file"),
    ],
)
def test_wrong_data_is_named(get_config, fields, message):
  with pytest.raises(UserError, match=message):
    config_lib.load_prompts(get_config(fields))


def test_prompts_are_cut_to_the_number_asked_for(get_config):
  assert len(config_lib.load_prompts(get_config({'data.num_prompts': 3}))) == 3
  assert len(config_lib.load_prompts(get_config())) > 3


def test_a_stride_times_one_half_and_predicts_from_the_other(get_config):
  fields = {'data.stride': 2, 'data.num_prompts': 3}
  texts = [
      p.text
      for p in prompts.load('builtin', num_prompts=0, prompt_format='auto')
  ]
  found = config_lib.load_prompts(get_config(fields))
  assert [p.text for p in found] == texts[:6:2]
  split = config_lib.load_split(
      get_config(fields | {'bench.calibration_prompts': 4})
  )
  assert [p.text for p in split.timed] == texts[:6:2]
  assert [p.text for p in split.calibration] == texts[1::2]


def test_prompts_of_a_task_set_bring_their_rows(get_config):
  fields = {
      'data.task_set': 'spec_bench',
      'data.group': 'mt_bench',
      'data.turn': 'second',
  }
  (found,) = config_lib.load_prompts(get_config(fields))
  assert found.group == 'mt_bench'
  assert found.next_turns
  assert found.row['category'] == 'writing'
  fields = {'data.task_set': 'gsm8k', 'data.num_shots': 2}
  stops = {'decode.stop_strings': task_sets.STOPS['gsm8k']}
  found = config_lib.load_prompts(get_config(fields | stops))
  assert found[0].text.count('Answer:') == 3
  with pytest.raises(UserError, match='nothing ends an answer'):
    config_lib.load_prompts(get_config(fields))


def test_a_chat_is_not_cut_at_the_ends_of_a_function(get_config):
  fields = {'data.task_set': 'humaneval', 'data.format': 'chat'}
  assert config_lib.load_prompts(get_config(fields))
  fields['decode.stop_strings'] = task_sets.STOPS['humaneval']
  with pytest.raises(UserError, match='before its function; set it to'):
    config_lib.load_prompts(get_config(fields))


def test_a_workdir_that_could_be_made_is_not_made(tmp_path, monkeypatch):
  wanted = tmp_path / 'a' / 'b'
  assert config_lib.check_workdir(str(wanted)) == wanted
  assert list(tmp_path.iterdir()) == []
  monkeypatch.chdir(tmp_path)
  assert config_lib.check_workdir('x/y') == pathlib.Path('x/y')
  monkeypatch.setenv('HOME', str(tmp_path))
  assert config_lib.check_workdir('~/z') == tmp_path / 'z'


@pytest.mark.parametrize('workdir', [None, ''])
def test_a_workdir_has_to_be_named(workdir):
  with pytest.raises(UserError, match='--workdir is missing; name a directory'):
    config_lib.check_workdir(workdir)


@pytest.mark.parametrize('below', ['', 'x', 'x/y'])
def test_a_workdir_at_or_below_a_file_is_refused(tmp_path, below):
  file = tmp_path / 'file'
  file.touch()
  with pytest.raises(UserError, match='file is not a directory; name another'):
    config_lib.check_workdir(str(file / below))


@pytest.mark.parametrize('below', ['', 'x/y'])
def test_a_workdir_that_cannot_be_written_is_refused(
    tmp_path, monkeypatch, below
):
  # The superuser may write anywhere, whatever the mode says.
  monkeypatch.setattr(os, 'access', lambda path, mode: path != tmp_path)
  with pytest.raises(UserError, match='cannot be written; name another'):
    config_lib.check_workdir(str(tmp_path / below))


def _raised(call) -> Exception:
  try:
    call()
  except Exception as error:
    return error
  raise AssertionError('nothing was raised')


def _config() -> config_dict.ConfigDict:
  return config_dict.ConfigDict({'decode': {'top_k': 1, 'top_p': 1.0}}).lock()


def _from_oserror() -> None:
  try:
    raise OSError('Failed loading\n  Attempted\n   [Errno 2] No such file')
  except OSError as error:
    raise OSError('Configuration is not available') from error


@pytest.mark.parametrize(
    'call, message',
    [
        (
            lambda: _config().get_type('decod'),
            "the config has no field 'decod'; did you mean 'decode'?",
        ),
        (
            lambda: _config()['decod'],
            "the config has no field 'decod'; did you mean 'decode'?",
        ),
        (
            lambda: setattr(_config().decode, 'top_x', 3),
            "the config has no field 'top_x'; did you mean 'top_",
        ),
        (
            lambda: _config().get_type('zzz'),
            "the config has no field 'zzz'; the config file and",
        ),
        (
            _from_oserror,
            '--config cannot be read ([Errno 2] No such file); name a',
        ),
        (
            lambda: (_ for _ in ()).throw(flags.Error('bad flag')),
            'bad flag',
        ),
        (
            lambda: (_ for _ in ()).throw(
                flags.Error('in file:\n\nTraceback\n  x\nValueError: no y.\n')
            ),
            'in file: no y.',
        ),
        (lambda: 1 // 0, '--config fails at '),
        (lambda: (_ for _ in ()).throw(RuntimeError()), '--config fails at '),
        (lambda: (_ for _ in ()).throw(UserError('as it is')), 'as it is'),
    ],
)
def test_whatever_parsing_flags_raises_becomes_one_line(call, message):
  error = config_lib.flag_error(_raised(call))
  assert isinstance(error, UserError)
  assert str(error).startswith(message)
  assert '\n' not in str(error)


def test_an_error_in_the_config_file_says_where():
  error = config_lib.flag_error(_raised(lambda: 1 // 0))
  assert 'config_test.py:' in str(error)
  assert 'ZeroDivisionError' in str(error)
