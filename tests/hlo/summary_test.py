"""Collectives counted together."""

from speculative import hlo

_TEXT = """HloModule m, num_partitions=4
layer {
  x = (s32[], bf16[2,8]{1,0}) parameter(0)
  a = bf16[2,8]{1,0} all-reduce(y), replica_groups=[2,2]<=[4]
  ROOT b = bf16[2,8]{1,0} all-reduce(a), replica_groups=[2,2]<=[4]
}
test {
  ROOT c = pred[] infeed()
}
round {
  ROOT w = (s32[]) while(i), condition=test, body=layer, backend_config={KNOWN}
}
ENTRY e {
  prompt = bf16[2,8]{1,0} all-reduce(z), replica_groups=[2,2]<=[4]
  logits = f32[64]{0} all-gather(z), replica_groups=[1,4]<=[4]
  r = (s32[]) while(i), condition=test, body=round
}
""".replace('KNOWN', '{"known_trip_count":{"n":"5"}}')

_SUM = ('all-reduce', 'bf16[2,8]', 2)
_GATHER = ('all-gather', 'f32[64]', 4)


def test_like_collectives_are_counted_together():
  found = hlo.collectives(_TEXT)
  assert hlo.summary(found) == {_GATHER: (1, 1), _SUM: (3, None)}
  assert list(hlo.summary(found)) == [_GATHER, _SUM]
  assert hlo.summary(found, depth=1) == {_SUM: (2, 10)}
  assert hlo.summary(found, depth=2) == {_SUM: (2, 2)}
  assert hlo.summary(found, depth=3) == {}
  assert hlo.summary(found[:2]) == {_GATHER: (1, 1), _SUM: (1, 1)}


def test_a_table_shows_bytes_and_what_is_unknown():
  assert hlo.table(hlo.collectives(_TEXT)).splitlines()[2:] == [
      '| all-gather | f32[64] | 4 | 256 | 1 | 1 |',
      '| all-reduce | bf16[2,8] | 2 | 32 | 3 | ? |',
  ]
