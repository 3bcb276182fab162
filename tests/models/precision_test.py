import jax
from jax import numpy as jnp
import pytest

from speculative.errors import UserError
from speculative.models import precision as precision_lib
from speculative.models.precision import Precision

_FLOAT32 = Precision('float32', 'float32', min_rows=1)
_CPU_BFLOAT16 = Precision('bfloat16', 'float32', min_rows=2)
_DEVICE_BFLOAT16 = Precision('bfloat16', 'bfloat16', min_rows=1)


@pytest.mark.parametrize(
    'dtype, platform, version, expected',
    [
        ('auto', 'cpu', '0.12.0', _CPU_BFLOAT16),
        ('auto', 'cpu', '0.12.0.1', _CPU_BFLOAT16),
        ('auto', 'cpu', '1.0.0', _CPU_BFLOAT16),
        ('auto', 'cpu', '0.11.9', _FLOAT32),
        ('auto', 'cpu', '0.10.2', _FLOAT32),
        ('auto', 'cpu', '0.7.2.dev20250801', _FLOAT32),
        ('auto', 'tpu', '0.7.2', _DEVICE_BFLOAT16),
        ('auto', 'gpu', '0.12.0', _DEVICE_BFLOAT16),
        ('float32', 'cpu', '0.12.0', _FLOAT32),
        ('float32', 'tpu', '0.12.0', _FLOAT32),
        ('bfloat16', 'cpu', '0.10.2', _CPU_BFLOAT16),
        ('bfloat16', 'tpu', '0.12.0', _DEVICE_BFLOAT16),
    ],
)
def test_choose_follows_the_table(dtype, platform, version, expected):
  chosen = precision_lib.choose(dtype, platform=platform, jax_version=version)
  assert chosen == expected


def test_an_int8_draft_computes_as_auto_but_never_with_one_row_on_a_cpu():
  assert precision_lib.choose_draft('int8', platform='cpu').min_rows == 2
  for dtype in ('int8', 'auto', 'bfloat16'):
    got = precision_lib.choose_draft(dtype, platform='tpu')
    assert got == _DEVICE_BFLOAT16
  with pytest.raises(UserError, match="'int4'; .* bfloat16, int8"):
    precision_lib.choose_draft('int4')
  with pytest.raises(UserError, match="dtype is 'int8'"):
    precision_lib.choose('int8')


def test_choose_takes_platform_and_version_of_this_process():
  assert precision_lib.choose('auto') == precision_lib.choose(
      'auto', platform=jax.default_backend(), jax_version=jax.__version__
  )


def test_choose_names_the_dtypes_it_knows():
  with pytest.raises(UserError, match="'float16'; .* auto, float32, bfloat16"):
    precision_lib.choose('float16')


def test_float32_products_are_not_rounded_by_accelerators():
  assert _FLOAT32.matmul == jax.lax.Precision.HIGHEST
  assert _DEVICE_BFLOAT16.matmul == jax.lax.Precision.DEFAULT


def test_param_dtype_is_the_dtype_by_name():
  assert _FLOAT32.param_dtype == jnp.float32
  assert _CPU_BFLOAT16.param_dtype == jnp.bfloat16
