"""Stores of a few made-up documents, and a target that has scored them."""

from collections.abc import Callable
from collections.abc import Sequence
import types

import jax
import ml_dtypes
import numpy as np
import pytest

from speculative.models import transformer
from speculative.testing import tiny
from speculative.train import store as store_lib
from speculative.train.joined import Joined
from speculative.train.store import Document

MakeStore = Callable[..., Joined]


@pytest.fixture
def make_store(tmp_path) -> MakeStore:
  """Writes documents of given lengths, scored or not, and opens them."""

  def call(
      lens: Sequence[int],
      *,
      prompt_lens: Sequence[int] = (),
      scores: str = 'made up',
      vocab_size: int = 13,
      target: types.SimpleNamespace | None = None,
  ) -> Joined:
    rng = np.random.default_rng(sum(lens))
    path = tmp_path / f'store{len(list(tmp_path.iterdir()))}'
    writer = store_lib.Writer(
        path, tokenizer='tok', mark='m', domains=('text', 'code')
    )
    prompt_lens = prompt_lens or [0] * len(lens)
    documents = [
        Document(rng.integers(0, vocab_size, n), p, ('text', 'code')[i % 2])
        for i, (n, p) in enumerate(zip(lens, prompt_lens, strict=True))
    ]
    writer.add(documents)
    writer.close()
    if scores == 'made up':
      hidden = rng.normal(size=(sum(lens), 16))
      log_norm = rng.normal(size=sum(lens)) + 5
    elif scores == 'target':
      each = [target.score(document.tokens) for document in documents]
      hidden, log_norm = map(np.concatenate, zip(*each, strict=True))
    if scores != 'no':
      store_lib.write_scores(
          path / writer.index.shards[0].name,
          hidden=hidden.astype(ml_dtypes.bfloat16),
          log_norm=log_norm,
      )
    return Joined([store_lib.open_store(path)])

  return call


@pytest.fixture(scope='session')
def target() -> types.SimpleNamespace:
  """A tiny target with its params, and what it says of a text."""
  model = transformer.Transformer(tiny.TARGET)
  params = tiny.init(jax.random.key(3), tiny.TARGET)

  @jax.jit
  def forward(tokens_BT):
    cache = model.init_cache(1, tokens_BT.shape[1])
    hidden_BTD = model.forward(params, tokens_BT, cache).hidden_BTD
    logits_BTV = model.logits(params, hidden_BTD)
    return hidden_BTD[0], jax.nn.logsumexp(logits_BTV, axis=-1)[0]

  def score(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    padded = np.zeros(-(-len(tokens) // 32) * 32, np.int32)
    padded[: len(tokens)] = tokens
    hidden, log_norm = forward(padded[None])
    return (
        np.asarray(hidden)[: len(tokens)],
        np.asarray(log_norm)[: len(tokens)],
    )

  return types.SimpleNamespace(model=model, params=params, score=score)
