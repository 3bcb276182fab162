"""What a caller of the engine can rely on, with texts written in a table."""

import dataclasses

from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding import engine as engine_lib
from speculative.decoding.autoregressive import Autoregressive
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.decoding.generation import Generation
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.errors import UserError
from speculative.testing import table_model
from speculative.testing.table_model import Script
from speculative.testing.table_model import TableModel

_V = 97
_J = 3
# Index i of every text is token 3 i + 1, whatever was said before.
_TEXT = [(3 * i + 1) % _V for i in range(64)]
_PROMPTS = [_TEXT[:2], _TEXT[:5], _TEXT[:1]]


def _engine(script_BP: list[list[int]]) -> Engine:
  return Engine(
      Speculative(TableModel(), Script(_J)),
      Weights(
          target=table_model.certain(_TEXT[1:], _V),
          drafter=jnp.asarray(script_BP, jnp.int32),
      ),
  )


@pytest.fixture(scope='module')
def knowing() -> Engine:
  """Drafts the whole text right."""
  return _engine([_TEXT] * 3)


@pytest.fixture(scope='module')
def half_knowing() -> Engine:
  """Every third drafted token is wrong, in other places for every row."""
  return _engine(
      [
          [
              (t + 1) % _V if (i + row) % 3 == 0 else t
              for i, t in enumerate(_TEXT)
          ]
          for row in range(3)
      ]
  )


def _rest(num: int) -> list[list[int]]:
  return [_TEXT[len(p) : len(p) + num] for p in _PROMPTS]


@pytest.mark.parametrize('num', range(1, 13))
def test_max_new_tokens_is_exact_and_the_draft_shrinks_towards_it(
    knowing, half_knowing, num
):
  config = DecodeConfig(max_new_tokens=num)
  got = knowing.generate(_PROMPTS, config)
  assert got.token_ids == _rest(num)
  assert got.reasons == ['length'] * 3
  # With r tokens to go a round drafts min(3, r - 1) and ends with its own.
  num_full, left = divmod(num, _J + 1)
  expected = num_full * _J + max(left - 1, 0)
  np.testing.assert_array_equal(got.drafted, [expected] * 3)
  assert got.acceptance_rate == (expected > 0)
  assert half_knowing.generate(_PROMPTS, config).token_ids == _rest(num)


@pytest.mark.parametrize('at', range(9))
@pytest.mark.parametrize('engine', ['knowing', 'half_knowing'])
def test_a_row_ends_with_its_stop_id_wherever_in_a_round_it_falls(
    request, engine, at
):
  config = DecodeConfig(
      max_new_tokens=12, stop_ids=(96, _rest(12)[1][at]), log_probs='chosen'
  )
  got = request.getfixturevalue(engine).generate(_PROMPTS, config)
  assert got.token_ids[1] == _rest(12)[1][: at + 1]
  assert got.reasons[1] == 'stop'
  # Other rows meet the same token elsewhere or not at all.
  stop_index = 5 + at
  for row, prompt in enumerate(_PROMPTS):
    end = min(stop_index + 1, len(prompt) + 12)
    if stop_index < len(prompt):
      end = len(prompt) + 12
    assert got.token_ids[row] == _TEXT[len(prompt) : end]
    assert got.reasons[row] == ('stop' if end == stop_index + 1 else 'length')
    assert len(got.log_probs[row]) == len(got.token_ids[row])


def test_a_stop_id_in_a_rejected_draft_stops_nothing():
  wrong = [list(_TEXT) for _ in range(3)]
  for row, prompt in enumerate(_PROMPTS):
    wrong[row][len(prompt) + 1] = 95
  got = _engine(wrong).generate(
      _PROMPTS, DecodeConfig(max_new_tokens=12, stop_ids=(95,))
  )
  assert got.token_ids == _rest(12)


def test_a_stop_id_in_the_prompt_stops_nothing(knowing):
  got = knowing.generate(
      _PROMPTS, DecodeConfig(max_new_tokens=12, stop_ids=(_TEXT[0],))
  )
  assert got.token_ids == _rest(12)


def test_token_zero_is_a_token_like_any_other():
  zeros = Engine(
      Speculative(TableModel(), Script(_J)),
      Weights(
          target=table_model.certain([0] * 64, _V),
          drafter=jnp.zeros((2, 64), jnp.int32),
      ),
  )
  got = zeros.generate([[0], [0, 0]], DecodeConfig(max_new_tokens=8))
  assert got.token_ids == [[0] * 8] * 2
  assert got.acceptance_rate == 1
  stopped = zeros.generate(
      [[0], [0, 0]], DecodeConfig(max_new_tokens=8, stop_ids=(0,))
  )
  assert stopped.token_ids == [[0]] * 2


@pytest.mark.parametrize('num_ids', [1, 8, 16, 17, 20])
def test_any_number_of_stop_ids_is_heeded(knowing, num_ids):
  ids = (*range(1000, 1000 + num_ids - 1), _rest(4)[0][3])
  got = knowing.generate(
      [_PROMPTS[0]] * 3, DecodeConfig(max_new_tokens=12, stop_ids=ids)
  )
  assert got.token_ids == [_rest(4)[0]] * 3


def test_max_seq_len_ends_rows_before_their_budget(half_knowing):
  got = half_knowing.generate(
      _PROMPTS, DecodeConfig(max_new_tokens=12, max_seq_len=9)
  )
  assert got.token_ids == [_TEXT[len(p) : 9] for p in _PROMPTS]
  assert got.reasons == ['length'] * 3


@pytest.mark.parametrize(
    'max_new_tokens, max_seq_len, expected',
    [(12, 2048, 48), (60, 2048, 96), (10**9, 60, 64), (10**9, 9, 48)],
)
def test_the_cache_has_room_for_the_longest_text_and_no_budget_beyond_it(
    knowing, max_new_tokens, max_seq_len, expected
):
  config = DecodeConfig(max_new_tokens=max_new_tokens, max_seq_len=max_seq_len)
  carry = knowing.start(_PROMPTS, config)
  assert carry.state.cache.max_seq_len == expected
  assert carry.state.tokens_BS.shape == (3, expected)


@pytest.mark.parametrize('rounds_per_call', [1, 2, 3, 100, 0])
@pytest.mark.parametrize('engine', ['knowing', 'half_knowing'])
def test_streaming_hands_over_every_token_once_in_order(
    request, engine, rounds_per_call
):
  told, calls = [[], [], []], []

  def on_tokens(row: int, ids: list[int]) -> None:
    told[row] += ids
    calls.append((row, len(ids)))

  config = DecodeConfig(
      max_new_tokens=12,
      stop_ids=(_rest(12)[2][6],),
      rounds_per_call=rounds_per_call,
  )
  got = request.getfixturevalue(engine).generate(
      _PROMPTS, config, on_tokens=on_tokens
  )
  assert told == got.token_ids
  assert all(0 < num <= (_J + 1) * (rounds_per_call or 9) for _, num in calls)
  if rounds_per_call == 0:
    assert [row for row, _ in calls] == [0, 1, 2]
  whole = request.getfixturevalue(engine).generate(
      _PROMPTS, dataclasses.replace(config, rounds_per_call=0)
  )
  assert got.token_ids == whole.token_ids
  assert got.reasons == whole.reasons
  np.testing.assert_array_equal(got.accepted, whole.accepted)
  np.testing.assert_array_equal(got.rounds, whole.rounds)


def test_the_callers_function_may_use_jax(knowing):
  sums = []

  def on_tokens(row: int, ids: list[int]) -> None:
    sums.append((row, int(jnp.asarray(ids).sum() + 1)))

  knowing.generate(
      _PROMPTS, DecodeConfig(max_new_tokens=12), on_tokens=on_tokens
  )
  assert sums == [(row, sum(ids) + 1) for row, ids in enumerate(_rest(12))]


def test_log_probs_are_of_the_emitted_tokens_and_absent_unless_asked_for():
  rng = np.random.default_rng(0)
  table_1VV = jnp.asarray(rng.normal(size=(1, 9, 9)), jnp.float32)
  plain = Engine(Autoregressive(TableModel()), Weights(target=table_1VV))
  config = DecodeConfig(max_new_tokens=12, temperature=1.0, top_k=3)
  assert plain.generate([[2], [3], [4]], config).log_probs is None
  got = plain.generate(
      [[2], [3], [4]], dataclasses.replace(config, log_probs='chosen')
  )
  for row, first in enumerate([2, 3, 4]):
    text = [first, *got.token_ids[row]]
    logits = np.asarray(table_1VV)[0, text[:-1]]
    expected = logits[np.arange(12), text[1:]] - np.log(
        np.exp(logits).sum(axis=-1)
    )
    np.testing.assert_allclose(got.log_probs[row], expected, atol=1e-5)


@pytest.mark.parametrize(
    'prompts, message',
    [
        ([], 'at least one prompt is needed'),
        ([[1], []], 'prompt 1 is empty; it needs at least one token'),
        (
            [[1], [1] * 16],
            'prompt 1 has 16 tokens, .*max_seq_len=16 at most 15 fit',
        ),
    ],
)
def test_prompts_that_cannot_be_decoded_are_refused(knowing, prompts, message):
  with pytest.raises(UserError, match=message):
    knowing.generate(prompts, DecodeConfig(max_seq_len=16))


def test_the_longest_prompt_allowed_gets_one_token(knowing):
  got = knowing.generate(
      [_TEXT[:15]] * 3, DecodeConfig(max_new_tokens=12, max_seq_len=16)
  )
  assert got.token_ids == [[_TEXT[15]]] * 3


@pytest.mark.parametrize(
    'settings, message',
    [
        ({'max_new_tokens': 0}, 'max_new_tokens needs to be >= 1, got 0'),
        ({'temperature': -0.5}, 'temperature needs to be >= 0 .*got -0.5'),
        ({'temperature': 1e-5}, '0.0001 or more unless it is 0, got 1e-05'),
        ({'temperature': float('inf')}, 'temperature .*at most 10000'),
        ({'temperature': float('nan')}, 'temperature needs to be >= 0'),
        ({'top_k': -1}, 'top_k needs to be >= 0'),
        ({'top_p': 0.0}, r'top_p needs to be in \(0, 1\], got 0.0'),
        ({'top_p': 1.5}, 'top_p .*got 1.5; set config.decode.top_p'),
        ({'rounds_per_call': -1}, 'rounds_per_call needs to be >= 0'),
        ({'log_probs': 'all'}, "log_probs needs to be 'none' or 'chosen'"),
    ],
    ids=str,
)
def test_decode_config_names_the_field_its_need_and_where_to_set_it(
    settings, message
):
  with pytest.raises(UserError, match=message):
    DecodeConfig(**settings)


@pytest.mark.parametrize(
    'length, expected',
    [(1, 32), (32, 32), (33, 48), (48, 48), (49, 64), (65, 96), (400, 512)],
)
def test_bucket_rounds_up_to_powers_of_two_and_their_middles(length, expected):
  assert engine_lib.bucket(length) == expected


def test_bucket_wastes_at_most_half_and_never_shrinks():
  sizes = [engine_lib.bucket(n) for n in range(1, 5000)]
  assert sizes == sorted(sizes)
  for length, size in enumerate(sizes, start=1):
    assert length <= size <= max(32, 1.5 * length)
    assert engine_lib.bucket(size) == size


def test_generation_counts_accepted_over_tested_and_over_drafted():
  generation = Generation(
      token_ids=[[1] * 6, [2] * 2],
      reasons=['length', 'stop'],
      log_probs=None,
      num_rounds=3,
      round_starts=[np.array([0, 3, 5]), np.array([0])],
      rounds=np.array([3, 1]),
      drafted=np.array([6, 2]),
      tested=np.array([[3, 2], [1, 0]]),
      accepted=np.array([[2, 1], [0, 0]]),
      prefill_s=0.0,
      decode_s=0.0,
  )
  assert generation.num_tokens == 8
  assert generation.tokens_per_round == 8 / 4
  assert generation.acceptance_rate == 3 / 6
  assert generation.draft_yield == 3 / 8


def test_the_watchdog_hears_of_every_call_of_the_device(knowing, monkeypatch):
  beats = []
  monkeypatch.setattr(engine_lib.watchdog, 'beat', lambda: beats.append(None))
  config = DecodeConfig(max_new_tokens=9, rounds_per_call=1)
  got = knowing.generate(_PROMPTS, config)
  assert len(beats) == got.num_rounds > 1
