import dataclasses
import types

import pytest

from speculative import api
from speculative.bench.prompts import Prompt
from speculative.decoding.config import DecodeConfig
from speculative.drafting.config import DrafterConfig
from speculative.errors import UserError
from speculative.tasks import common

_PROMPTS = [Prompt(text, 'no') for text in ('a', 'bb', 'ccc', 'dddd', 'e')]


@pytest.fixture
def no_weights(monkeypatch):
  """Lets no weight be made, which would take a second."""
  monkeypatch.setattr(api.LanguageModel, 'load_weights', lambda self: None)


@pytest.mark.usefixtures('no_weights')
def test_prompts_are_encoded_in_order_and_in_batches(tmp_path, get_config):
  prepared = common.prepare(
      get_config({'decode.batch_size': 2}), tmp_path, _PROMPTS
  )
  batches = [[bytes(ids) for ids in batch] for batch in prepared.batches]
  assert batches == [[b'a', b'bb'], [b'ccc', b'dddd'], [b'e']]


@pytest.mark.usefixtures('no_weights')
@pytest.mark.parametrize('batch_size', [1, 2, 3])
def test_the_seed_of_a_prompt_does_not_depend_on_the_batch_size(
    tmp_path, get_config, batch_size
):
  config = get_config({'decode.batch_size': batch_size, 'seed': 7})
  prepared = common.prepare(config, tmp_path, _PROMPTS)
  # Row b of a batch has the seed of its DecodeConfig plus b.
  seeds = [
      prepared.decode_of(i).seed + row
      for i, batch in enumerate(prepared.batches)
      for row in range(len(batch))
  ]
  assert seeds == [7, 8, 9, 10, 11]


@pytest.mark.usefixtures('no_weights')
@pytest.mark.parametrize('stop, stop_ids', [('eos', (256,)), ('none', ())])
def test_rows_stop_at_the_tokenizers_end_unless_told_otherwise(
    tmp_path, get_config, stop, stop_ids
):
  config = get_config({'decode.stop': stop})
  prepared = common.prepare(config, tmp_path, _PROMPTS)
  assert prepared.decode.stop_ids == stop_ids
  assert prepared.decode.max_seq_len == 2048


def test_the_workdir_is_made_after_all_that_can_go_wrong(
    tmp_path, get_config, monkeypatch
):
  def refuse(self):
    raise UserError('tensors are missing.')

  monkeypatch.setattr(api.LanguageModel, 'load_weights', refuse)
  with pytest.raises(UserError, match='tensors are missing'):
    common.prepare(get_config(), tmp_path / 'new', _PROMPTS)
  assert not (tmp_path / 'new').exists()


def test_no_weight_is_read_for_a_prompt_that_is_too_long(
    tmp_path, get_config, monkeypatch
):
  monkeypatch.setattr(
      api.LanguageModel, 'load_weights', lambda self: pytest.fail('too early')
  )
  config = get_config({'decode.max_seq_len': 4})
  with pytest.raises(UserError, match='prompt 3 has 4 tokens.*at most 3 fit'):
    common.prepare(config, tmp_path, _PROMPTS)


def test_plain_is_the_same_drafter_without_a_draft():
  drafter = DrafterConfig('lm', model='x', num_draft_tokens=3)
  plain = common.plain(drafter)
  assert plain.is_plain and plain.model == 'x'
  assert common.name(plain) == 'plain'
  assert common.name(drafter) == 'lm 3'
  assert common.name(DrafterConfig()) == 'plain'
  both = dict(model='x', hybrid_source='retrieval', store='y')
  tree = DrafterConfig('hybrid', shape='tree', **both)
  assert common.name(tree) == 'hybrid(retrieval) tree 4'
  longer = dataclasses.replace(tree, hybrid_tokens=9)
  assert common.name(longer) == 'hybrid(retrieval) tree 4 or 9'
  assert common.name(DrafterConfig('cascade', **both)) == 'cascade(retrieval) 4'


def test_every_batch_is_warmed_up_with_every_setting():
  warmed = []

  def engine(drafter):
    return types.SimpleNamespace(
        warm_up=lambda batch, decode: warmed.append((drafter, batch))
    )

  # The third batch has the size and the bucket of the first.
  batches = [[[1]], [[2] * 40], [[4, 5]]]
  prepared = common.Prepared(
      model=types.SimpleNamespace(engine=engine),
      decode=DecodeConfig(),
      prompts=[],
      batches=batches,
      workdir=None,
  )
  common.warm_up(prepared, ['plain', 'lookup'])
  assert sorted(warmed) == sorted(
      (s, b) for s in ('plain', 'lookup') for b in batches[:2]
  )


def test_repeats_below_one_are_refused(get_config):
  assert common.repeats(get_config({'bench.repeats': 2})) == 2
  with pytest.raises(UserError, match='config.bench.repeats.*>= 1, got 0'):
    common.repeats(get_config({'bench.repeats': 0}))
