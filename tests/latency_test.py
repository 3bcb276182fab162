import dataclasses

import pytest

from speculative import chips
from speculative import latency
from speculative.errors import UserError
from speculative.models import params as params_lib
from speculative.models.config import TransformerConfig

_V5E = latency.Machine(chips.find('v5e'))
# 1 ms of reading on a v5e, 2 ms of arithmetic, and ten all-reduces of 1 MB
# between two devices, which send 1 MB each.
_WORK = latency.Pass(819e6, 394e9, (('all-reduce', 1e6, 2, 10),))
_CONFIG = TransformerConfig(
    num_layers=2,
    model_dim=8,
    num_heads=4,
    num_kv_heads=2,
    head_dim=2,
    mlp_dim=16,
    vocab_size=10,
)


@pytest.mark.parametrize(
    'kind, group_size, want',
    [
        ('all-reduce', 4, 1500),
        ('all-reduce', 16, 1875),
        ('all-gather', 4, 750),
        ('reduce-scatter', 4, 750),
        ('all-to-all', 4, 750),
        ('collective-permute', 4, 1000),
        ('all-reduce', 1, 0),
        ('collective-permute', 1, 0),
    ],
)
def test_bytes_on_the_wire(kind, group_size, want):
  collective = latency.Collective(kind, 1000, group_size, 7)
  assert latency.wire_bytes(collective) == want


def test_an_all_reduce_scatters_and_gathers():
  parts = [
      latency.wire_bytes(latency.Collective(kind, 4096, 8))
      for kind in ('all-reduce', 'reduce-scatter', 'all-gather')
  ]
  assert parts[0] == parts[1] + parts[2]


def test_a_pass_by_hand():
  machine = dataclasses.replace(_V5E, collective_latency_s=5e-6, step_s=2e-4)
  time = latency.estimate(_WORK, machine)
  assert time.hbm_ms == pytest.approx(1, rel=1e-12)
  assert time.flops_ms == pytest.approx(2, rel=1e-12)
  # 10 x 1 MB at 2 x 50 GB/s.
  assert time.wire_ms == pytest.approx(0.1, rel=1e-12)
  assert time.collective_latency_ms == pytest.approx(0.05, rel=1e-12)
  # Reading hides behind arithmetic, nothing behind collectives.
  assert time.total_ms == pytest.approx(2 + 0.1 + 0.05 + 0.2, rel=1e-12)


@pytest.mark.parametrize(
    'change, wire_ms',
    [({'ring': 'open'}, 0.2), ({'ici_axes': 2}, 0.05)],
)
def test_links_used(change, wire_ms):
  machine = dataclasses.replace(_V5E, **change)
  assert latency.estimate(_WORK, machine).wire_ms == pytest.approx(wire_ms)


def test_memory_short_of_its_data_sheet_takes_longer():
  machine = dataclasses.replace(_V5E, hbm_efficiency=0.8)
  assert latency.estimate(_WORK, machine).hbm_ms == pytest.approx(1.25)


def test_two_devices_of_a_chip_share_its_memory_and_arithmetic():
  machine = latency.Machine(chips.find('tpu7x'))
  time = latency.estimate(latency.Pass(3685e6, 1153.5e9), machine)
  assert time.hbm_ms == pytest.approx(1, rel=1e-12)
  assert time.flops_ms == pytest.approx(1, rel=1e-12)


def test_a_group_of_one_costs_nothing():
  work = latency.Pass(0, 0, (latency.Collective('all-reduce', 1e6, 1, 10),))
  machine = dataclasses.replace(_V5E, collective_latency_s=1.0)
  assert latency.estimate(work, machine).total_ms == 0


def test_a_fitted_latency_gives_the_time_back():
  machine = dataclasses.replace(_V5E, collective_latency_s=9.0, step_s=1e-4)
  fitted_s = latency.fit_collective_latency_s(2.5, _WORK, machine)
  # 2.5 less 2 of arithmetic, 0.1 of wire and 0.1 of the step, over ten.
  assert fitted_s == pytest.approx(30e-6, rel=1e-9)
  machine = dataclasses.replace(machine, collective_latency_s=fitted_s)
  assert latency.estimate(_WORK, machine).total_ms == pytest.approx(2.5)


@pytest.mark.parametrize(
    'call, message',
    [
        (
            lambda: latency.fit_collective_latency_s(1.9, _WORK, _V5E),
            'less than the 2.10 ms',
        ),
        (
            lambda: latency.fit_collective_latency_s(
                9, latency.Pass(1, 1), _V5E
            ),
            'no collective',
        ),
        (
            lambda: latency.wire_bytes(latency.Collective('allreduce', 1, 2)),
            "'allreduce' is no known.*all-reduce",
        ),
        (
            lambda: latency.wire_bytes(latency.Collective('all-gather', 1, 0)),
            'group_size=0',
        ),
        (lambda: latency.Machine(chips.find('v5e'), ici_axes=3), 'has 2: give'),
        (lambda: latency.Machine(chips.find('v4'), ring='torus'), "'wrapped'"),
        (
            lambda: latency.Machine(chips.find('v4'), hbm_efficiency=0),
            'hbm_efficiency=0 has to',
        ),
    ],
)
def test_mistakes_are_named(call, message):
  with pytest.raises(UserError, match=message):
    call()


def test_parameters_that_are_read_by_hand():
  # Attention 8 x (4 + 4 + 2 + 2) x 2, MLP 3 x 8 x 16.
  assert latency.read_params(_CONFIG) == 2 * (192 + 384) + 80
  plain = dataclasses.replace(_CONFIG, mlp='plain')
  assert latency.read_params(plain) == 2 * (192 + 256) + 80
  # An embedding that is not the head is not read through.
  untied = dataclasses.replace(_CONFIG, head='untied')
  assert latency.read_params(untied) == latency.read_params(_CONFIG)
  norms = (2 * 2 + 1) * 8
  assert params_lib.num_params(untied) == 1232 + 80 + norms


def test_an_analytic_pass_by_hand():
  work = latency.analytic_pass(
      _CONFIG, batch=3, positions=5, context=7, model_axis=4
  )
  # Two key/value heads on four devices: each holds one of them, 2 layers x
  # (key and value) x 2 numbers, for 3 x 7 positions.
  assert work.hbm_bytes == 2 * (1232 / 4 + 8 * 21)
  # 15 rows; each attends to 7 positions with 2 layers x 4 heads x 2 numbers.
  assert work.flops == (2 * 15 * 1232 + 4 * 15 * 7 * 16) / 4
  assert work.collectives == (('all-reduce', 15 * 8 * 2, 4, 4),)
  assert work.num_collectives == 4


def test_a_model_on_one_device_has_no_collectives():
  work = latency.analytic_pass(_CONFIG)
  assert (work.hbm_bytes, work.flops, work.collectives) == (2464, 2464, ())


def test_more_rows_read_no_more_weights():
  one = latency.analytic_pass(_CONFIG, model_axis=2)
  five = latency.analytic_pass(_CONFIG, positions=5, model_axis=2)
  assert five.hbm_bytes == one.hbm_bytes
  assert five.flops == 5 * one.flops
  assert five.collectives[0].num_bytes == 5 * one.collectives[0].num_bytes
