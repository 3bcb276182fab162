"""What rounds with drafts from a corpus send. Nothing runs here."""

import collections
import dataclasses
import functools

import jax
import numpy as np
import pytest

from speculative import hlo
from speculative import sharding
from speculative.decoding import loop
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.drafting.bigram import Bigram
from speculative.drafting.lookup import Lookup
from speculative.drafting.retrieval import Retrieval
from speculative.drafting.retrieval_config import RetrievalConfig
from speculative.models.transformer import Transformer
from speculative.planning import abstract
from speculative.retrieval import sharded
from speculative.retrieval.bigram_table import DeviceTable
from speculative.testing import stores
from speculative.testing import tiny

pytestmark = pytest.mark.slow

_TARGET = dataclasses.replace(
    tiny.TARGET, vocab_size=64, num_heads=8, num_kv_heads=4, mlp_dim=32
)
_ROWS, _LENGTH = 32, 6


def _store(placement, mesh, how):
  tokens = np.arange(65)
  shards = [(tokens, np.argsort(tokens[:-1]))] * 4
  store = stores.of_tokens(shards, separator=64)
  if how == 'split':
    return sharded.place(store, mesh, sharding.MODEL)
  return placement.put(store)


def _table() -> DeviceTable:
  V, W = _TARGET.vocab_size, 4
  return DeviceTable(
      tokens_VW=np.zeros((V, W), np.int32),
      score_VW=np.zeros((V, W), np.float32),
      frequent_W=np.zeros(W, np.int32),
      frequent_score_W=np.zeros(W, np.float32),
  )


@functools.cache
def _round(how: str) -> str:
  """Returns the text of a compiled round.

  Args:
    how: 'lookup', 'bigram', or where a datastore lies.
  """
  mesh = sharding.make_mesh(2, 4)
  placement = sharding.place(mesh, _TARGET.axis_sizes, logits='gathered')
  target = Transformer(_TARGET, placement=placement)
  drafter, store = Lookup(3), None
  if how == 'bigram':
    drafter, store = Bigram(3), placement.put(_table())
  elif how != 'lookup':
    settings = RetrievalConfig(
        num_rows=_ROWS, length=_LENGTH, context_rows=4, placement=how
    )
    drafter = Retrieval(3, settings, placement=placement)
    store = _store(placement, mesh, how)
  step = Speculative(target, drafter)
  weights = Weights(abstract.params(target), store)
  carry = abstract.carry(
      step, weights, batch=4, prompt_len=8, max_seq_len=96, draft=None
  )
  jitted = jax.jit(loop.one_round, static_argnums=0, donate_argnums=2)
  compiled = jitted.lower(step, weights, carry).compile(
      compiler_options={'xla_backend_optimization_level': 0}
  )
  return compiled.as_text()


def _sent(how: str, *, drafting: bool) -> collections.Counter:
  return collections.Counter(
      (c.kind, str(c.results), c.groups)
      for c in hlo.collectives(_round(how))
      if c.within('draft') == drafting
  )


@pytest.mark.parametrize('how', ['whole', 'split', 'bigram'])
def test_a_corpus_changes_nothing_of_what_verification_sends(how):
  expected = _sent('lookup', drafting=False)
  assert expected
  assert _sent(how, drafting=False) == expected
  assert hlo.host_transfers(_round(how)) == ()


@pytest.mark.parametrize('how', ['whole', 'bigram'])
def test_what_lies_on_every_device_sends_nothing(how):
  assert not _sent(how, drafting=True)


def test_a_split_store_sends_its_counts_and_its_rows():
  sent = {kind: results for kind, results, _ in _sent('split', drafting=True)}
  assert sorted(sent) == ['all-gather', 'all-reduce']
  (rows,) = (
      c
      for c in hlo.collectives(_round('split'))
      if c.within('draft') and c.kind == 'all-reduce'
  )
  # Tokens and length of every row, for a batch of 4.
  assert [r.shape for r in rows.results] == [(4, _ROWS, _LENGTH + 1)]
