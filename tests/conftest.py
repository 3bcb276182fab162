"""Strictness and devices for the whole suite.

Everything here has to be set before jax starts a backend, which no module of
the package does at import.
"""

from collections.abc import Iterator
import gc
import os

# A test machine may carry an accelerator; `tpu` tests ask for it by setting
# this. Child processes of tests inherit it.
os.environ.setdefault('JAX_PLATFORMS', 'cpu')

from absl import flags  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402

from speculative import topology  # noqa: E402
from speculative.tasks import memory_maps  # noqa: E402

NUM_CPU_DEVICES = 8

# Of compiled programs, see `memory_maps`.
_MANY_MAPS = 12_000


def pytest_configure(config: pytest.Config) -> None:
  """Makes jax strict, and one CPU look like eight devices."""
  del config
  jax.config.update('jax_num_cpu_devices', NUM_CPU_DEVICES)
  # Shapes that only fit by broadcasting over a missing axis are mistakes.
  jax.config.update('jax_numpy_rank_promotion', 'raise')
  # Compilations are counted, so none may come from an earlier run.
  jax.config.update('jax_enable_compilation_cache', False)
  if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()


def pytest_runtest_setup(item: pytest.Item) -> None:
  """Skips what needs the TPU compiler where there is none."""
  reason = topology.unavailable()
  if reason and item.get_closest_marker('tpu_compiler'):
    pytest.skip(reason)


@pytest.fixture
def key() -> jax.Array:
  """A PRNG key, the same in every test."""
  return jax.random.key(0)


@pytest.fixture(autouse=True, scope='module')
def _forget_programs() -> Iterator[None]:
  """Drops compiled programs after a file of tests, when there are many."""
  yield
  if memory_maps.num_maps() > _MANY_MAPS:
    jax.clear_caches()
    gc.collect()
