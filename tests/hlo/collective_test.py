"""Collectives in the forms that the TPU compiler prints, each counted once.

The excerpts are cut from programs for v4, v5e and tpu7x; numbers are kept.
"""

import pytest

from speculative import hlo


def _program(entry: str, *computations: str) -> str:
  """Returns a program for eight devices from the lines of its computations."""
  head = 'HloModule m, is_scheduled=true, num_partitions=8\n\n'
  body = ''.join(f'%c{i} {{\n{c}\n}}\n\n' for i, c in enumerate(computations))
  return f'{head}{body}ENTRY %main {{\n{entry}\n}}\n'


def _found(*args: str) -> list[tuple[str, str, int]]:
  """Returns kind, results and group size of the collectives of a program."""
  return [
      (c.kind, ' '.join(map(str, c.results)), c.group_size)
      for c in hlo.collectives(_program(*args))
  ]


@pytest.mark.parametrize(
    ('line', 'expected'),
    [
        (
            '%all-reduce.4 = bf16[8,512]{1,0:T(8,128)(2,1)S(3)}'
            ' all-reduce(%f), channel_id=1, replica_groups=[2,4]<=[8],'
            ' to_apply=%add.clone, frontend_attributes={is_spmd="true"}',
            ('all-reduce', 'bf16[8,512]', 4),
        ),
        (
            '%all-reduce = (f32[8,16]{1,0}, s32[4]{0}, /*index=2*/f32[])'
            ' all-reduce(%a, %b, /*index=2*/%c), channel_id=1,'
            " replica_groups=mesh['data'=2,'model'=4] {'data'}, to_apply=%r",
            ('all-reduce', 'f32[8,16] s32[4] f32[]', 2),
        ),
        (
            '%a = bf16[4]{0} all-gather(%p), channel_id=1, replica_groups='
            "mesh['x'=2,'y'=4], device_ids=([4,2]T(1,0)) {'y'}, dimensions={0}",
            ('all-gather', 'bf16[4]', 4),
        ),
        (
            '%all-gather-start = (bf16[1,512]{1,0}, bf16[1,4096]{1,0})'
            ' all-gather-start(%g), channel_id=3, replica_groups={},'
            ' dimensions={1}',
            ('all-gather', 'bf16[1,4096]', 8),
        ),
        (
            '%s = ((f32[2]{0}, f32[3]{0}), (f32[8]{0}, f32[12]{0}))'
            ' all-gather-start(%a, %b), replica_groups=[2,4]<=[8],'
            ' dimensions={0}',
            ('all-gather', 'f32[8] f32[12]', 4),
        ),
        (
            '%s = (f32[2]{0}, f32[3]{0}) all-reduce-start(%a, %b),'
            ' replica_groups=[2,4]<=[8], to_apply=%add',
            ('all-reduce', 'f32[2] f32[3]', 4),
        ),
        (
            '%s = ((f32[8]{0}), f32[2]{0}, u32[]) reduce-scatter-start(%a),'
            ' replica_groups=[2,4]<=[8], dimensions={0}, to_apply=%add',
            ('reduce-scatter', 'f32[2]', 4),
        ),
        (
            '%collective-permute-start = (bf16[8,128]{1,0:T(8,128)(2,1)},'
            ' bf16[8,128]{1,0:T(8,128)(2,1)S(1)}, u32[]{:S(2)}, u32[]{:S(2)})'
            ' collective-permute-start(%p), channel_id=1,'
            ' source_target_pairs={{0,1},{1,2},{2,3},{3,0}}',
            ('collective-permute', 'bf16[8,128]', 2),
        ),
        (
            '%r = f32[8]{0} ragged-all-to-all(%a, %b, %c, %d, %e, %f),'
            ' replica_groups={{0,1,2,3,4,5,6,7}}',
            ('ragged-all-to-all', 'f32[8]', 8),
        ),
        (
            '%c = f32[8]{0} collective-broadcast(%a), replica_groups={{0,1}}',
            ('collective-broadcast', 'f32[8]', 2),
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else '',
)
def test_a_collective_is_read(line, expected):
  assert _found(line) == [expected]


def test_the_end_of_an_asynchronous_collective_is_not_another():
  assert (
      _found("""
  %s = (f32[2]{0}, f32[8]{0}) all-gather-start(%a), replica_groups=[2,4]<=[8]
  %d = f32[8]{0} all-gather-done(%s)
  %t = f32[2]{0} all-reduce-start(%b), replica_groups=[2,4]<=[8]
  ROOT %e = f32[2]{0} all-reduce-done(%t)""")
      == [
          ('all-gather', 'f32[8]', 4),
          ('all-reduce', 'f32[2]', 4),
      ]
  )


def test_a_wrapped_asynchronous_collective_counts_once():
  wrapped = """
  %p = f32[8]{0} parameter(0)
  ROOT %r = f32[2]{0} reduce-scatter(%p), replica_groups=[2,4]<=[8]"""
  for calls in ('', ', calls=%c0'):
    entry = f"""
  %s = ((f32[8]{{0}}), f32[2]{{0}}, u32[]) async-start(%a), calls=%c0
  %u = ((f32[8]{{0}}), f32[2]{{0}}, u32[]) async-update(%s){calls}
  ROOT %d = f32[2]{{0}} async-done(%u){calls}"""
    assert _found(entry, wrapped) == [('reduce-scatter', 'f32[2]', 4)]


def test_a_collective_given_to_the_sparse_core_counts_once():
  called = """
  %p = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %g = bf16[8,512]{1,0:T(8,128)(2,1)} all-gather(%p), channel_id=1,\
 replica_groups=mesh['data'=2,'model'=4] {'model'}, dimensions={1}"""
  entry = """
  %s = ((), (), (s32[8]{0:T(1)S(11)}, /*index=1*/s32[0])) custom-call-start(),\
 async_execution_thread="sparsecore", custom_call_target="X",\
 called_computations={%c0}, metadata={op_name="jit(f)/verify/all_gather"}
  %u = ((bf16[8,128]{1,0}), bf16[8,512]{1,0}, (s32[8]{0}))\
 custom-call-update(%s, %p), output_to_operand_aliasing={{2,0}: (0, {2,0})}
  ROOT %d = bf16[8,512]{1,0} custom-call-done(%u)"""
  assert _found(entry, called) == [('all-gather', 'bf16[8,512]', 4)]
  (found,) = hlo.collectives(_program(entry, called))
  assert found.computation == 'c0'
  # Its own line says nothing, the call does.
  assert found.within('verify')


def test_the_parts_of_a_fused_asynchronous_collective_count_once():
  gather = (
      '  %p = bf16[2,8]{1,0} parameter(0)\n'
      '  %g = bf16[4,8]{1,0} all-gather(%p), channel_id=CHANNEL,'
      ' replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}\n'
  )
  begin = (
      '  ROOT %x = (bf16[2,8]{1,0}, bf16[4,8]{1,0}, s32[2]{0:S(4)})'
      ' custom-call(%g), custom_call_target="AsyncCollectiveStart"'
  )
  middle = '  ROOT %y = bf16[8,8]{1,0} convolution(%q, %r)'
  end = (
      '  ROOT %z = bf16[4,8]{1,0} custom-call(%p, %g),'
      ' custom_call_target="AsyncCollectiveDone"'
  )
  computations = [
      gather.replace('CHANNEL', channel) + root
      for channel in ('34', '35')
      for root in (begin, middle, end)
  ]
  # A fusion around a whole collective is no part of another.
  computations.append(gather.replace('CHANNEL', '36') + middle)
  entry = '\n'.join(
      f'  %f{i} = bf16[4,8]{{1,0}} fusion(%a), kind=kCustom, calls=%c{i}'
      for i in range(len(computations))
  )
  assert _found(entry, *computations) == [('all-gather', 'bf16[4,8]', 2)] * 3


def test_an_all_reduce_that_keeps_a_shard_is_a_reduce_scatter():
  fused = """
  %p = bf16[2048,4096]{1,0} parameter(0)
  %all-reduce.4 = bf16[2048,4096]{1,0} all-reduce(%p), channel_id=7,\
 replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add
  ROOT %d = bf16[256,4096]{1,0} dynamic-slice(%all-reduce.4, %i, %j),\
 dynamic_slice_sizes={256,4096}"""
  entry = '%f = bf16[256,4096]{1,0} fusion(%a), kind=kCustom, calls=%c0'
  assert _found(entry, fused) == [('reduce-scatter', 'bf16[256,4096]', 8)]
  # Outside of a fusion the whole sum goes to memory first.
  assert _found(fused) == [('all-reduce', 'bf16[2048,4096]', 8)]


def test_a_computation_that_is_called_twice_counts_twice():
  called = '  ROOT %r = f32[2]{0} all-reduce(%p), replica_groups={}'
  entry = """
  %a = f32[2]{0} call(%x), to_apply=%c0
  ROOT %b = f32[2]{0} call(%a), to_apply=%c0"""
  assert len(_found(entry, called)) == 2
  assert _found('  ROOT %a = f32[2]{0} copy(%x)', called) == []


def test_a_condition_runs_once_more_than_its_body():
  condition = '  ROOT %c = pred[] all-reduce(%p), replica_groups={}'
  body = '  ROOT %b = f32[2]{0} all-gather(%q), replica_groups={}'
  entry = (
      '  ROOT %w = f32[2]{0} while(%x), condition=%c0, body=%c1,'
      ' backend_config={"known_trip_count":{"n":"4"}}'
  )
  in_condition, in_body = hlo.collectives(_program(entry, condition, body))
  assert (in_condition.kind, in_condition.times) == ('all-reduce', 5)
  assert (in_body.kind, in_body.times) == ('all-gather', 4)
  assert in_body.loops == (hlo.Loop(name='w', computation='c1', times=4),)


def test_a_branch_is_named():
  branches = [
      f'  ROOT %r = f32[{n}]{{0}} all-reduce(%p), replica_groups={{}}'
      for n in (2, 3)
  ]
  for attributes in (
      'branch_computations={%c0, %c1}',
      'true_computation=%c0, false_computation=%c1',
  ):
    entry = f'  ROOT %c = f32[] conditional(%i, %a, %b), {attributes}'
    found = hlo.collectives(_program(entry, *branches))
    assert [c.branches for c in found] == [('c0',), ('c1',)]
    assert [c.times for c in found] == [1, 1]


def test_a_scope_is_found_as_a_whole_name():
  line = '%r = f32[2]{{0}} all-reduce(%p), metadata={{op_name="{}"}}'
  path = 'jit(f)/while/body/draft/vmap(attention)/dot_general'
  (found,) = hlo.collectives(_program(line.format(path)))
  assert found.within('draft') and found.within('attention')
  assert not found.within('att')
  assert not found.within('verify')
