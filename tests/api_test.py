import dataclasses

import jax
import numpy as np
import pytest

import speculative
from speculative import api
from speculative.checkpoints import pretrained
from speculative.decoding.engine import Engine
from speculative.drafting.config import DrafterConfig
from speculative.drafting.retrieval_config import RetrievalConfig
from speculative.errors import UserError
from speculative.sharding import MeshConfig
from speculative.tokenizer import base
from speculative.tokenizer import byte_level

# Texts that repeat themselves, so that look-up drafts; all of one bucket.
_PROMPT = 'abcabcabcabcabcabcabcabcabcabcabcabc'
_OTHER = 'xyzxyzxyzxyzxyzxyzxyzxyzxyzxyzxyzxyzx'
_PLAIN = DrafterConfig()
_NEW = 16


@pytest.fixture(scope='module')
def model() -> api.LanguageModel:
  """A random model with look-up, in the format where equality holds."""
  return speculative.load('random://tiny', dtype='float32', drafter='lookup')


@pytest.fixture
def unread() -> api.LanguageModel:
  """The same model before its weights were read."""
  return api.open_model('random://tiny', dtype='float32', drafter='lookup')


@pytest.fixture
def no_decoding(monkeypatch):
  """Fails a test that gets as far as decoding."""
  monkeypatch.setattr(Engine, 'generate', lambda *a, **k: pytest.fail('ran'))


@pytest.mark.slow
def test_five_lines_give_text_and_numbers():
  model = speculative.load('random://tiny', drafter='lookup')
  result = model.generate(
      'Once upon a time there was a little cat.', max_new_tokens=_NEW
  )
  assert isinstance(result.texts[0], str)
  assert 1 <= len(result.generation.token_ids[0]) <= _NEW
  assert result.generation.tokens_per_round >= 1


def test_the_package_shows_what_a_notebook_needs():
  assert set(speculative.__all__) == {
      'DrafterConfig',
      'MeshConfig',
      'UserError',
      'load',
  }
  assert speculative.UserError is UserError
  assert speculative.DrafterConfig is DrafterConfig


@pytest.mark.slow
def test_the_drafter_changes_nothing_but_the_number_of_rounds(model):
  fast = model.generate(_PROMPT, max_new_tokens=_NEW)
  plain = model.generate(_PROMPT, max_new_tokens=_NEW, drafter=_PLAIN)
  assert fast.texts == plain.texts
  assert fast.generation.token_ids == plain.generation.token_ids
  assert fast.generation.num_rounds < plain.generation.num_rounds
  assert plain.generation.num_rounds == len(plain.generation.token_ids[0])


@pytest.mark.slow
@pytest.mark.parametrize('rounds_per_call', [0, 1, 3])
def test_streamed_pieces_put_together_are_the_text(model, rounds_per_call):
  pieces = {0: [], 1: []}
  result = model.generate(
      [_PROMPT, _OTHER],
      max_new_tokens=_NEW,
      rounds_per_call=rounds_per_call,
      on_text=lambda row, text: pieces[row].append(text),
  )
  assert [''.join(pieces[row]) for row in (0, 1)] == result.texts
  assert len(pieces[0]) > 1, 'it did not stream'
  assert all(text for row in pieces.values() for text in row)


@pytest.mark.slow
def test_a_batch_gives_what_each_prompt_gives_alone(model):
  both = model.generate([_PROMPT, _OTHER], max_new_tokens=_NEW)
  for row, prompt in enumerate((_PROMPT, _OTHER)):
    alone = model.generate(prompt, max_new_tokens=_NEW)
    assert alone.generation.token_ids[0] == both.generation.token_ids[row]


@pytest.mark.slow
def test_token_ids_are_taken_as_they_are(model):
  ids = model.encode(_PROMPT)
  assert model.generate([ids], max_new_tokens=_NEW).texts == (
      model.generate(_PROMPT, max_new_tokens=_NEW).texts
  )
  assert model.generate([np.array(ids)], max_new_tokens=_NEW).texts == (
      model.generate(_PROMPT, max_new_tokens=_NEW).texts
  )


@pytest.mark.slow
def test_the_same_seed_gives_the_same_sample_and_another_does_not(model):
  def sample(seed: int) -> list[list[int]]:
    result = model.generate(
        _PROMPT, max_new_tokens=_NEW, temperature=1.0, seed=seed
    )
    return result.generation.token_ids

  assert sample(1) == sample(1)
  assert sample(1) != sample(2)


@pytest.mark.slow
def test_stop_ids_are_the_tokenizers_own_unless_given(model):
  ids = model.generate(_PROMPT, max_new_tokens=_NEW).generation.token_ids[0]
  stop = ids[2]
  cut = model.generate(_PROMPT, max_new_tokens=_NEW, stop_ids=(stop,))
  assert cut.generation.token_ids[0] == ids[: ids.index(stop) + 1]
  assert cut.generation.reasons == ['stop']
  assert model.decode_config().stop_ids == (byte_level.EOS_ID,)


@pytest.mark.slow
def test_a_target_that_is_its_own_draft_accepts_every_token():
  drafter = DrafterConfig('lm', model='random://tiny', dtype='float32')
  model = speculative.load('random://tiny', dtype='float32', drafter=drafter)
  generation = model.generate(
      _PROMPT, max_new_tokens=_NEW, stop_ids=()
  ).generation
  assert generation.acceptance_rate == 1
  # 5 + 5 + 5 + 1
  assert generation.num_rounds == 4


def test_a_setting_has_one_engine_and_all_share_the_weights(model):
  two = DrafterConfig('lookup', num_draft_tokens=2)
  assert model.engine(two) is model.engine(
      DrafterConfig('lookup', num_draft_tokens=2)
  )
  assert model.engine() is model.engine(model.drafter)
  assert model.engine(two) is not model.engine()
  assert model.engine(two).weights is model.engine().weights


def test_weights_are_read_when_first_needed_and_once(unread, monkeypatch):
  calls = []
  target = unread._target
  counting = dataclasses.replace(
      target,
      load_params=lambda *args: calls.append(args) or {'layers': []},
  )
  monkeypatch.setattr(unread, '_target', counting)
  unread.encode('a')
  assert not calls
  assert unread.load_weights() is unread.load_weights()
  assert len(calls) == 1


@pytest.mark.slow
def test_a_mesh_changes_no_token():
  drafter = DrafterConfig(
      kind='lm', model='random://tiny_draft', num_draft_tokens=2, shards=1
  )
  # The byte vocabulary of 257 is held whole; heads and MLP are split.
  mesh = MeshConfig(data=2, model=2, indivisible='replicate')
  one, many = (
      speculative.load(
          'random://tiny', dtype='float32', drafter=drafter, mesh=m
      )
      for m in (None, mesh)
  )
  heads = many.load_weights().target['layers'][0]['q_proj']
  assert len(heads.sharding.device_set) == 4
  assert heads.addressable_shards[0].data.size * 2 == heads.size
  rows = [{}, {'temperature': 0.9, 'seed': 3}, {'top_p': 0.9}]
  texts = ['abc', 'one two', 'x']
  found = [m.generate(texts, rows=rows, max_new_tokens=8) for m in (one, many)]
  assert found[0].generation.token_ids == found[1].generation.token_ids


@pytest.mark.parametrize(
    ('mesh', 'message'),
    [
        ({'model': 2}, 'vocab=257 of the target cannot be split over 2'),
        ({'data': 64}, 'needs 64 devices, but there are 8'),
    ],
)
def test_a_mesh_that_does_not_suit_is_refused(mesh, message):
  with pytest.raises(UserError, match=message):
    api.open_model('random://tiny', mesh=MeshConfig(**mesh))


@pytest.mark.slow
def test_scanned_layers_are_stacked():
  model = speculative.load('random://tiny', dtype='float32', layers='scanned')
  layers = model.load_weights().target['layers']
  assert {leaf.shape[0] for leaf in jax.tree.leaves(layers)} == {2}


@pytest.mark.parametrize(
    'prompts, message',
    [
        ('', 'prompt is empty'),
        (['a', ''], 'prompt is empty'),
        ([], 'at least one prompt'),
        ([[]], 'prompt 0 is empty'),
        ([[97], [257]], 'token id 257 is outside the vocabulary of 257'),
        ([[-1]], 'token id -1 is outside'),
        ([[97.0]], 'token id 97.0 is outside'),
        ([['a']], "token id 'a' is outside"),
        ([[True]], 'token id True is outside'),
        (5, 'prompts are 5; they need to be a text'),
        ({'a': 1}, 'prompts are .* they need to be a text'),
        ([None], 'a prompt is None'),
        (b'abc', 'prompts are b'),
        ([97, 98], 'a prompt is 97.*list in a list'),
        ('half a surrogate \ud83d', 'not a Unicode character'),
        ('x' * 2048, 'has 2048 tokens.*at most 2047 fit'),
    ],
)
def test_a_wrong_prompt_says_what_is_needed(model, prompts, message):
  with pytest.raises(UserError, match=message) as caught:
    model.generate(prompts, max_new_tokens=_NEW)
  assert '\n' not in str(caught.value)


@pytest.mark.usefixtures('no_decoding')
@pytest.mark.parametrize(
    'fields, message',
    [
        ({'temperature': -0.1}, 'temperature needs to be >= 0.*got -0.1'),
        ({'top_p': 0.0}, r'top_p needs to be in \(0, 1\], got 0.0'),
        ({'top_p': 1.1}, 'got 1.1'),
        ({'top_k': -1}, 'top_k needs to be >= 0'),
        ({'max_new_tokens': 0}, 'max_new_tokens needs to be >= 1'),
        ({'chat_template': 'maybe'}, "'auto', 'yes' or 'no'"),
        ({'drafter': 5}, 'drafter is 5; it needs to be a kind'),
        ({'chat_template': 'yes'}, 'has no chat template'),
    ],
)
def test_a_wrong_setting_says_what_is_needed(model, fields, message):
  with pytest.raises(UserError, match=message):
    model.generate('a', **fields)


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'dtype': 'float16'}, "'float16'.*one of auto, float32, bfloat16"),
        ({'layers': 'stacked'}, "'stacked'.*one of unrolled, scanned"),
        ({'drafter': 'magic'}, "'magic'.*one of none, lookup, retrieval"),
        ({'drafter': 5}, 'drafter is 5; it needs to be a kind'),
        ({'drafter': 'lm'}, 'needs a draft model'),
        (
            {'drafter': DrafterConfig('lm', model='no/such/draft')},
            "'no/such/draft' does not exist",
        ),
        (
            {'drafter': DrafterConfig('lookup', dtype='int3')},
            "'int3'.*one of auto",
        ),
    ],
)
def test_a_wrong_way_to_open_says_what_is_needed(fields, message):
  with pytest.raises(UserError, match=message):
    api.open_model('random://tiny', **fields)


def test_a_draft_with_another_tokenizer_is_refused_unread(monkeypatch):
  vocabulary = base.Vocabulary(('a', 'b', 'c'), frozenset(), frozenset())

  class OtherTokenizer(byte_level.ByteTokenizer):

    def __init__(self):
      super().__init__()
      self.fingerprint = vocabulary.fingerprint()
      self.vocab_size = 3

  open_pretrained = pretrained.open_pretrained

  def open_other(reference, **kwargs):
    opened = open_pretrained(reference, **kwargs)
    if reference.endswith('draft'):
      opened = dataclasses.replace(opened, tokenizer=OtherTokenizer())
    return dataclasses.replace(
        opened, load_params=lambda dtype: pytest.fail('weights were read')
    )

  monkeypatch.setattr(pretrained, 'open_pretrained', open_other)
  drafter = DrafterConfig('lm', model='random://tiny_draft')
  with pytest.raises(UserError, match=r'\(3 tokens\).*\(257 tokens\).*choose'):
    speculative.load('random://tiny', drafter=drafter)


def test_a_draft_model_that_was_not_loaded_is_named(model):
  drafter = DrafterConfig('lm', model='random://tiny_draft')
  with pytest.raises(UserError, match="'random://tiny_draft' is not loaded"):
    model.engine(drafter)


def test_the_template_is_used_where_there_is_one_unless_forbidden(unread):
  unread.tokenizer.chat_template = (
      '{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}'
  )
  assert bytes(unread.encode('hi')) == b'<user>hi'
  assert bytes(unread.encode('hi', chat_template='yes')) == b'<user>hi'
  assert bytes(unread.encode('hi', chat_template='no')) == b'hi'


def test_a_conversation_is_the_user_and_the_model_in_turn(unread):
  said = ('hi', 'hello', 'how?')
  assert bytes(unread.encode(said)) == b'hi\n\nhello\n\nhow?'
  unread.tokenizer.chat_template = (
      '{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}'
  )
  expected = b'<user>hi<assistant>hello<user>how?'
  assert bytes(unread.encode(said)) == expected
  assert bytes(unread.encode(['hi'])) == bytes(unread.encode('hi'))
  for empty in ((), ('hi', 'hello', '')):
    with pytest.raises(UserError, match='the prompt is empty'):
      unread.encode(empty)


def test_ids_of_a_padded_head_are_left_out_of_the_text(unread):
  assert unread.decode([97, 256, 300, 98]) == 'ab'


def test_the_longest_text_is_the_models_own_unless_given(unread):
  assert unread.decode_config().max_seq_len == 2048
  assert unread.decode_config(max_seq_len=100).max_seq_len == 100
  assert unread.decode_config(max_seq_len=0).max_seq_len == 2048


def test_retrieval_from_the_text_so_far_says_what_plain_decoding_says():
  drafter = DrafterConfig(
      'retrieval', retrieval=RetrievalConfig(sources='context')
  )
  model = speculative.load('random://tiny', dtype='float32', drafter=drafter)
  for temperature in (0.0, 0.8):
    settings = dict(max_new_tokens=24, temperature=temperature)
    got = model.generate('abcabcabcabc', **settings)
    assert (
        got.texts
        == model.generate('abcabcabcabc', drafter='none', **settings).texts
    )
  with pytest.raises(UserError, match="datastore 'x' is not loaded"):
    model.engine(DrafterConfig('retrieval', store='x'))
