import dataclasses

import pytest

from speculative import calibration
from speculative import latency
from speculative import theory

_ACCOUNT = calibration.account()


def test_counts_are_those_published_less_the_relative_positions():
  def published(config):
    # Hoffmann et al.: 13 D^2 a layer where we count 12.
    relative = config.num_layers * config.model_dim**2
    return latency.read_params(config) + relative

  assert (
      latency.read_params(calibration.TARGET)
      == 80 * 12 * 8192**2 + 32_000 * 8192
  )
  assert published(calibration.TARGET) == pytest.approx(70e9, rel=0.001)
  assert published(calibration.DRAFT) == pytest.approx(4e9, rel=0.04)
  deep = calibration.DEEP_DRAFTS['7B, 40 layers of 3584']
  assert published(deep) == pytest.approx(6796e6, rel=0.0005)


def test_floors_by_hand():
  # 129.373306880 GB and 140 GB over 16 x 1228 GB/s.
  assert _ACCOUNT.weights_ms == pytest.approx(129.37330688 / 19.648, rel=1e-9)
  assert _ACCOUNT.nominal_floor_ms == pytest.approx(140 / 19.648, rel=1e-9)


def test_the_latency_fits_the_plain_step():
  # 160 x (latency + 2 x 15/16 x 16384 bytes at 100 GB/s) is what is left.
  wire_ms = 160 * 30720 / 100e9 * 1e3
  rest_ms = 14.1 - 129.37330688 / 19.648 - wire_ms
  assert _ACCOUNT.latency_us == pytest.approx(rest_ms / 160 * 1e3, rel=1e-9)
  assert 46 < _ACCOUNT.latency_us < 48


def test_the_draft_is_predicted_too_fast():
  weights_ms = 2 * (8 * 12 * 6144**2 + 32_000 * 6144) / 19.648e12 * 1e3
  wire_ms = 16 * 1.875 * 6144 * 2 / 100e9 * 1e3
  want = weights_ms + wire_ms + 16 * _ACCOUNT.latency_us / 1e3
  assert _ACCOUNT.draft_ms == pytest.approx(want, rel=1e-9)
  assert _ACCOUNT.draft_error == pytest.approx(-0.367, abs=0.001)


def test_verification_costs_hardly_more_than_a_plain_step():
  # Of five rows 0.15 ms of arithmetic hides behind the weights, the wire not.
  extra_ms = 4 * 160 * 30720 / 100e9 * 1e3
  assert _ACCOUNT.verify_ms == pytest.approx(14.1 + extra_ms, rel=1e-9)


def test_two_fits_solve_both_equations():
  step_ms = _ACCOUNT.two_fits_step_ms
  latency_ms = _ACCOUNT.two_fits_latency_us / 1e3
  target_ms = (
      _ACCOUNT.weights_ms + 160 * (30720 / 100e9 * 1e3 + latency_ms) + step_ms
  )
  draft_ms = _ACCOUNT.draft_ms + step_ms
  draft_ms += 16 * (latency_ms - _ACCOUNT.latency_us / 1e3)
  assert target_ms == pytest.approx(14.1, rel=1e-9)
  assert draft_ms == pytest.approx(1.8, rel=1e-9)
  assert 0.7 < step_ms < 0.8
  assert 41 < _ACCOUNT.two_fits_latency_us < 43


def test_acceptance_is_read_off_table_1():
  nucleus, greedy, code = _ACCOUNT.implied
  for implied, rounded in zip(
      _ACCOUNT.implied, [0.711, 0.749, 0.851], strict=True
  ):
    assert implied.alpha == pytest.approx(rounded, abs=0.0005)
    # The round is 4 x 1.8 + 14.1 ms.
    tokens = theory.expected_tokens(implied.alpha, 4)
    assert 21.3 / tokens == pytest.approx(implied.token_ms, rel=1e-9)
  assert nucleus.alpha < greedy.alpha < code.alpha < 1


def test_the_best_k_lies_beside_the_papers():
  nucleus, greedy, code = _ACCOUNT.implied
  assert (nucleus.best_k, greedy.best_k, code.best_k) == (4, 4, 6)
  assert nucleus.ms_at_3 / nucleus.best_ms == pytest.approx(1.0064, abs=0.0002)


def test_the_floor_is_beaten_where_the_paper_says_so():
  nucleus, greedy, code = _ACCOUNT.implied
  assert nucleus.floors_beaten == ()
  assert greedy.floors_beaten == ('published',)
  assert code.floors_beaten == ('published', 'ours')


def test_a_deep_draft_is_the_wrong_shape():
  deep = _ACCOUNT.deep_drafts[0]
  # 80 all-reduces of 7168 bytes; weights of 6,280,314,880 parameters.
  rest_ms = 80 * _ACCOUNT.latency_us / 1e3
  on_4_ms = 12.56062976 / (4 * 1.228) + 80 * 1.5 * 7168 / 1e8 + rest_ms
  on_16_ms = 12.56062976 / 19.648 + 80 * 1.875 * 7168 / 1e8 + rest_ms
  assert deep.on_4_ms == pytest.approx(on_4_ms, rel=1e-9)
  assert deep.on_16_ms == pytest.approx(on_16_ms, rel=1e-9)
  for deep in _ACCOUNT.deep_drafts:
    # Not twice the wide draft's weights, but 4 or 5 times its all-reduces.
    assert deep.on_16_ms > 3 * _ACCOUNT.draft_ms
    # Against 5 ms in the paper.
    assert 5 < deep.on_4_ms < 6.7
    assert 20 < deep.latency_on_4_us < 26


def test_sixteen_chips_gain_a_deep_draft_nothing_worth_having():
  deep = _ACCOUNT.deep_drafts[0]
  # The published shape with the latency among four fitted to 5 ms.
  assert 0.94 < deep.two_fits_on_16_ms / 5 < 1


def test_numbers_of_another_measurement_give_another_rate():
  implied = dataclasses.asdict(_ACCOUNT.implied[0])
  slower = calibration.acceptance_from_ms_per_token(
      implied['token_ms'], draft_ms=2.1, verify_ms=14.1, num_draft_tokens=4
  )
  # The same time from a longer round needs more tokens out of it.
  assert slower > implied['alpha']
