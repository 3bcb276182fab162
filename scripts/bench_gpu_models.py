"""Models of real shapes with random weights, made on the device.

Used by bench_gpu.py. The weights never lie in the host's memory: every one is
drawn by a compiled program, one a shape.
"""

from collections.abc import Sequence
import dataclasses
import functools
import itertools

import jax
from jax import numpy as jnp
import numpy as np

from speculative.decoding.autoregressive import Autoregressive
from speculative.decoding.engine import Engine
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.drafting.lm import Lm
from speculative.models import llama
from speculative.models import params as params_lib
from speculative.models import precision as precision_lib
from speculative.models.config import TransformerConfig
from speculative.models.params import Params
from speculative.models.params import ParamSpec
from speculative.models.transformer import Transformer
from speculative.testing import set_acceptance

# That of Llama 3.2 1B.
_LLAMA_1B = dataclasses.replace(
    llama.LLAMA3_8B,
    num_layers=16,
    model_dim=2048,
    head_dim=64,
    mlp_dim=8192,
    head='tied',
)
# About as many weights in a fifth of the layers, each as wide as the target's.
_LLAMA_WIDE = dataclasses.replace(llama.LLAMA3_8B, num_layers=3, head='tied')

_TINY = TransformerConfig(
    vocab_size=64,
    num_layers=2,
    model_dim=32,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    mlp_dim=64,
    head='untied',
)


@dataclasses.dataclass(frozen=True)
class Shape:
  """What is measured.

  Attributes:
    target: of the target.
    drafts: of the drafts, by name; the first also drafts for larger batches.
    prompt_len: tokens of every prompt.
    max_new_tokens: of every row.
    batches: sizes, in the order of their importance.
    positions: n of the passes, likewise; 1 comes first.
    num_rounds: of one measurement; no row ends before.
    read_bytes: of one measurement of the read rate.
    read_calls: of it, one after another.
  """

  target: TransformerConfig
  drafts: dict[str, TransformerConfig]
  prompt_len: int
  max_new_tokens: int
  batches: tuple[int, ...]
  positions: tuple[int, ...]
  num_rounds: int
  read_bytes: int
  read_calls: int


SHAPES = {
    '8b': Shape(
        target=llama.LLAMA3_8B,
        drafts={'1B': _LLAMA_1B, '3 wide layers': _LLAMA_WIDE},
        prompt_len=128,
        max_new_tokens=96,
        batches=(1, 8, 64, 2, 16, 4, 32),
        positions=(1, 5, 65, 9, 17, 33, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64),
        num_rounds=16,
        read_bytes=1 << 31,
        read_calls=8,
    ),
    'tiny': Shape(
        target=_TINY,
        drafts={
            'small': dataclasses.replace(_TINY, model_dim=16, mlp_dim=32),
            '1 wide layer': dataclasses.replace(_TINY, num_layers=1),
        },
        prompt_len=8,
        max_new_tokens=40,
        batches=(1, 4),
        positions=(1, 5, 65),
        num_rounds=4,
        read_bytes=1 << 24,
        read_calls=1,
    ),
}


@functools.partial(jax.jit, static_argnames=('spec', 'dtype'))
def _drawn(key: jax.Array, *, spec: ParamSpec, dtype: jnp.dtype) -> jax.Array:
  return params_lib.init_tree(key, {'drawn': spec}, dtype)['drawn']


def random_params(
    key: jax.Array, config: TransformerConfig, dtype: jnp.dtype
) -> Params:
  """Returns random parameters that were made where they lie.

  Args:
    key: PRNG key.
    config: the model.
    dtype: of matrices.
  """
  numbers = itertools.count()

  def get(name: str, spec: ParamSpec, dtype: jnp.dtype) -> jax.Array:
    del name
    leaf_key = jax.random.fold_in(key, next(numbers))
    return _drawn(leaf_key, spec=spec, dtype=dtype)

  return params_lib.build(config, dtype, get)


class Models:
  """Target and drafts of a shape; weights are made when first needed.

  Attributes:
    shape: the Shape.
    target: the target's static half.
  """

  def __init__(self, shape: Shape, *, seed: int) -> None:
    """Makes no weights yet.

    Args:
      shape: of them.
      seed: of weights and prompts.
    """
    self.shape, self._seed = shape, seed
    self._precision = precision_lib.choose('auto')
    self.target = Transformer(shape.target, self._precision)

  def prompts(self, batch: int) -> Sequence[Sequence[int]]:
    """Returns random prompts; those of a smaller batch come first."""
    rng = np.random.default_rng(self._seed)
    size = (batch, self.shape.prompt_len)
    return rng.integers(0, self.shape.target.vocab_size, size).tolist()

  def _params(self, config: TransformerConfig, number: int) -> Params:
    key = jax.random.fold_in(jax.random.key(self._seed), number)
    params = random_params(key, config, self._precision.param_dtype)
    return jax.block_until_ready(params)

  @functools.cached_property
  def target_params(self) -> Params:
    """The target's weights."""
    return self._params(self.shape.target, 0)

  @functools.cached_property
  def _draft_params(self) -> dict[str, Params]:
    return {
        name: self._params(config, number)
        for number, (name, config) in enumerate(self.shape.drafts.items(), 1)
    }

  def plain(self) -> Engine:
    """Returns the engine of plain decoding."""
    return Engine(Autoregressive(self.target), Weights(self.target_params))

  def chain(
      self, draft: str, num_draft_tokens: int, acceptance_rate: float
  ) -> Engine:
    """Returns the engine of chains at a set acceptance.

    Args:
      draft: its name.
      num_draft_tokens: J.
      acceptance_rate: of the coin.
    """
    model = Transformer(self.shape.drafts[draft], self._precision)
    drafter = Lm(model, num_draft_tokens, self.shape.target.vocab_size)
    step = Speculative(self.target, drafter)
    return Engine(
        set_acceptance.put(step, acceptance_rate),
        Weights(self.target_params, self._draft_params[draft]),
    )

  def tree(self, widths: tuple[int, ...], acceptance_rate: float) -> Engine:
    """Returns the engine of trees that cost nothing, at a set acceptance.

    Args:
      widths: children of every node of a level.
      acceptance_rate: of the coin, for a depth.
    """
    drafter = set_acceptance.FixedTree(widths, self.shape.target.vocab_size)
    step = Speculative(self.target, drafter)
    return Engine(
        set_acceptance.put(step, acceptance_rate), Weights(self.target_params)
    )
