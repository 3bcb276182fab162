import jax
import numpy as np
import pytest

from speculative.errors import UserError
from speculative.tasks import hosts


@pytest.mark.parametrize(
    ('options', 'match'),
    [
        ({'coordinator': 'a:80'}, 'missing: --num_hosts, --host;'),
        ({'num_hosts': 2, 'host': 0}, 'missing: --coordinator;'),
        (
            {'coordinator': 'a:80', 'num_hosts': 2, 'host': 0},
            '--coordinator was given without --distributed',
        ),
        ({'platform': 'abacus'}, "'abacus'; .*tpu, gpu, cpu"),
        ({'watchdog_s': -1.0}, r'--watchdog_s .*\[0, .*got -1'),
        ({'connect_timeout_s': 0.0}, r'--connect_timeout_s .*\[1, .*got 0'),
        ({'connect_timeout_s': float('nan')}, 'got nan'),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, match):
  with pytest.raises(UserError, match=match):
    hosts.Options(**options)


def test_hosts_that_jax_cannot_find_have_to_be_named():
  with pytest.raises(UserError, match='elsewhere add --coordinator=HOST:PORT'):
    with hosts.started(hosts.Options(distributed='yes'), None):
      pass


@pytest.mark.parametrize(
    ('platforms', 'names', 'is_refused'),
    [
        ('', 'a,b,c', True),
        ('tpu', 'a,b,c', True),
        ('tpu,cpu', 'a,b,c', True),
        ('cpu', 'a,b,c', False),
        ('', 'localhost', False),
        ('', None, False),
    ],
)
def test_one_host_of_a_slice_of_several_is_refused(
    monkeypatch, platforms, names, is_refused
):
  monkeypatch.setattr(hosts, '_platforms', lambda: platforms)
  environment = {} if names is None else {'TPU_WORKER_HOSTNAMES': names}
  if not is_refused:
    hosts._check_alone(environment)
    return
  with pytest.raises(UserError, match='3 hosts .*one host only.*--distributed'):
    hosts._check_alone(environment)


@pytest.mark.parametrize(
    'error',
    [RuntimeError("Unable to initialize backend 'tpu'"), AssertionError],
)
def test_a_platform_that_is_absent_is_one_line_with_the_fix(monkeypatch, error):
  def fail():
    raise error

  monkeypatch.setattr(jax, 'devices', fail)
  with pytest.raises(UserError, match='no device .*set JAX_PLATFORMS to'):
    hosts.report_devices()
  with pytest.raises(UserError, match='for --platform=tpu .*set --platform'):
    hosts.report_devices('tpu')


def test_another_platform_than_was_asked_for_is_refused():
  with pytest.raises(UserError, match='--platform is tpu, but jax runs on cpu'):
    hosts.report_devices('tpu')
  hosts.report_devices('cpu')


@pytest.mark.parametrize('other', [0, 1])
def test_hosts_with_other_prompts_are_refused(monkeypatch, other):
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  monkeypatch.setattr(
      hosts.multihost_utils,
      'process_allgather',
      lambda mine: np.stack([mine, mine + np.uint32(other)]),
  )
  if not other:
    hosts.agree([[1, 2]], name='prompts')
    return
  with pytest.raises(UserError, match='prompts of host 1 are not those'):
    hosts.agree([[1, 2]], name='prompts')


def test_one_host_shares_its_text_with_itself():
  assert hosts.share('é\u2028') == 'é\u2028'


@pytest.mark.parametrize('host', [0, 1])
def test_all_hosts_have_the_text_of_the_first(monkeypatch, host):
  first = 'é' * 1000
  data = np.frombuffer(first.encode(), np.uint8)
  values = iter([np.int32(len(data)), data])

  def broadcast(mine):
    value = next(values)
    if host == 0:
      np.testing.assert_array_equal(mine, value)
    return value

  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  monkeypatch.setattr(jax, 'process_index', lambda: host)
  monkeypatch.setattr(hosts.multihost_utils, 'broadcast_one_to_all', broadcast)
  assert hosts.share('' if host else first) == first
