import dataclasses

import numpy as np
import pytest

from speculative.train import data
from speculative.train.data import Packer
from speculative.train.data import Position


def _packer(store, documents=None, **changed):
  if documents is None:
    documents = np.arange(store.num_documents)
  settings = {'batch_size': 2, 'seq_len': 5, 'seed': 1}
  return Packer(store, documents, **settings | changed)


def _epoch(packer):
  return list(packer.once(100))


def test_documents_stand_behind_one_another_and_go_on_in_the_next_row(
    make_store,
):
  store = make_store([4, 4])
  (batch,) = _epoch(_packer(store))
  assert batch.document_BT.tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 0]]
  (batch,) = _epoch(_packer(store, seq_len=6))
  assert batch.document_BT.tolist() == [[1] * 4 + [2] * 2, [1] * 3 + [0] * 3]
  assert batch.positions_BT[1].tolist() == [1, 2, 3, 0, 0, 0]
  # The last token of a row that a document goes on after is repeated.
  assert batch.tokens_BT[0, 5] == batch.tokens_BT[1, 0]
  assert batch.weight_BT.tolist() == [[1, 1, 1, 0, 1, 0], [1, 1, 0, 0, 0, 0]]


def test_an_epoch_predicts_every_token_but_the_first_ones_once(make_store):
  store = make_store([7, 2, 1, 12, 3, 6])
  seen = []
  for batch in _epoch(_packer(store)):
    for b, t in np.argwhere(batch.weight_BT > 0):
      assert batch.document_BT[b, t] == batch.document_BT[b, t + 1] > 0
      seen.append((batch.positions_BT[b, t + 1], batch.tokens_BT[b, t + 1]))
  wanted = [
      (t, token)
      for i in range(6)
      for t, token in enumerate(store.document(i).tokens)
      if t
  ]
  assert sorted(seen) == sorted(wanted)


def test_what_the_target_said_is_of_the_token_before_and_of_this_one(
    make_store,
):
  store = make_store([7, 4, 9])
  texts = [store.document(i) for i in range(3)]
  rows = 0
  for batch in _epoch(_packer(store)):
    for b, t in np.argwhere(batch.document_BT > 0):
      position = batch.positions_BT[b, t]
      (text,) = (
          d
          for d in texts
          if position < len(d.tokens)
          and d.log_norm[position] == batch.log_norm_BT[b, t]
      )
      assert text.tokens[position] == batch.tokens_BT[b, t]
      assert store.domains[batch.domain_BT[b, t]] == text.domain
      wanted = text.hidden[position - 1] if position else np.zeros(16)
      np.testing.assert_array_equal(
          batch.hidden_BTD[b, t].astype(np.float32), wanted.astype(np.float32)
      )
      rows += 1
  assert rows >= 20


def test_tokens_of_a_prompt_count_what_was_said(make_store):
  store = make_store([6], prompt_lens=[3])
  (batch,) = _packer(store, seq_len=6, batch_size=1, prompt_weight=0.25).once(1)
  # Row t is about token t + 1; the last one is about none.
  assert batch.weight_BT.tolist() == [[0.25, 0.25, 1, 1, 1, 0]]


def test_a_run_can_be_taken_up_at_any_position(make_store):
  packer = _packer(make_store([7, 2, 5, 12, 3, 6]))
  position, batches, positions = Position(), [], []
  for _ in range(9):
    positions.append(position)
    batch, position = packer.batch(position)
    batches.append(batch)
  assert position.epoch >= 2
  fresh = _packer(packer._store)
  for i in (8, 3, 5):
    again, _ = fresh.batch(positions[i])
    for name in ('tokens_BT', 'document_BT', 'weight_BT', 'log_norm_BT'):
      np.testing.assert_array_equal(
          getattr(again, name), getattr(batches[i], name)
      )


def test_orders_differ_between_epochs_and_seeds_and_hold_everything(make_store):
  store = make_store([2] * 30)
  orders = []
  for seed, epoch in ((1, 0), (1, 1), (2, 0)):
    packer = _packer(store, seed=seed, batch_size=30, seq_len=2)
    batch, after = packer.batch(Position(epoch))
    assert after == Position(epoch + 1)
    orders.append([tuple(row) for row in batch.log_norm_BT.tolist()])
  assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])
  assert orders[0] != orders[1] and orders[0] != orders[2]


def test_an_order_is_what_it_always_was():
  # A run that goes on under another numpy has to find its order again.
  found = np.argsort(data._hash(3, data._ORDER, 1, 6), kind='stable')
  assert found.tolist() == [0, 3, 1, 5, 2, 4]


def test_once_ends_with_the_epoch_and_repeats_nothing(make_store):
  store = make_store([5, 5, 5])
  batches = list(_packer(store).once(100))
  assert sum((b.document_BT > 0).sum() for b in batches) == 15
  assert not batches[-1].document_BT[1].any()
  assert len(list(_packer(store).once(1))) == 1


def test_held_out_documents_stay_held_out_when_the_store_grows():
  groups = data._hash(5, 0, 0, 1000)
  small, large = (data.split(groups[:n], seed=0, every=10) for n in (400, 1000))
  assert set(small.held_out) == {i for i in large.held_out if i < 400}
  assert sorted([*large.train, *large.held_out]) == list(range(1000))
  assert 60 < len(large.held_out) < 140
  other = data.split(groups, seed=1, every=10)
  assert set(other.held_out) != set(large.held_out)


def test_answers_to_one_prompt_are_on_one_side(make_store):
  store = make_store([6, 6, 6, 4], prompt_lens=[3, 3, 3, 0])
  found = data.groups(store)
  same = [store.document(i).tokens[:3].tolist() for i in range(3)]
  for i in range(3):
    for j in range(3):
      assert (found[i] == found[j]) == (same[i] == same[j])
  groups = np.array([7, 8, 7, 9, 7, 8], np.uint64)
  for seed in range(20):
    sides = data.split(groups, seed=seed, every=2)
    held = set(groups[sides.held_out])
    assert not held & set(groups[sides.train])


@pytest.mark.parametrize('num_documents', [2, 3, 5])
def test_a_few_documents_have_at_least_one_on_either_side(num_documents):
  for seed in range(20):
    for every in (2, 100):
      groups = np.arange(num_documents, dtype=np.uint64)
      found = data.split(groups, seed=seed, every=every)
      assert len(found.train) and len(found.held_out)


def test_a_head_has_the_most_frequent_tokens_and_what_it_always_has(make_store):
  store = make_store([6, 5], prompt_lens=[2, 0], scores='no')
  counts = data.count_tokens(store, np.arange(2), 13)
  wanted = np.zeros(13, int)
  for token in [*store.document(0).tokens[2:], *store.document(1).tokens]:
    wanted[token] += 1
  assert counts.tolist() == wanted.tolist()
  counts = np.array([5, 1, 9, 1, 0, 7])
  assert data.choose_head_ids(counts, 4, [4]).tolist() == [0, 2, 4, 5]
  # Of equals, the lower id.
  assert data.choose_head_ids(counts, 4, []).tolist() == [0, 1, 2, 5]


def test_a_store_that_nobody_scored_gives_tokens_alone(make_store):
  store = make_store([5, 5], scores='no')
  batch, _ = _packer(store, scores='no').batch(Position())
  assert batch.hidden_BTD is None and batch.log_norm_BT is None
  assert batch.document_BT.any()


def test_without_scores_every_row_starts_with_a_document(make_store):
  store = make_store([7, 12, 6], scores='no')
  batch, after = _packer(store, scores='no', batch_size=3).batch(Position())
  assert batch.positions_BT.tolist() == [[0, 1, 2, 3, 4]] * 3
  assert batch.weight_BT.tolist() == [[1, 1, 1, 1, 0]] * 3
  assert after == Position(1)


def test_batches_are_stacked_field_by_field(make_store):
  packer = _packer(make_store([5, 5, 5, 5]))
  first, after = packer.batch(Position())
  second, _ = packer.batch(after)
  both = data.stack([first, second])
  for field in dataclasses.fields(both):
    x = getattr(both, field.name)
    np.testing.assert_array_equal(x[0], getattr(first, field.name))
    np.testing.assert_array_equal(x[1], getattr(second, field.name))
