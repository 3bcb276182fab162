"""Trip counts of loops, told by the compiler or read from the loop."""

import pytest

from speculative.hlo import loops
from speculative.hlo import module as module_lib

# A loop as the TPU compiler prints it: the step lies in the carry, and copies
# stand between the carry and the sum.
_LOOP = """HloModule m
cond {
  limit = s32[] constant({limit})
  c = (s32[], s32[], s32[]) parameter(0)
  i = s32[]{{:T(128)}} get-tuple-element(c), index=0
  ROOT lt = pred[] compare({compared}), direction={direction}
}}
body {{
  b = (s32[], s32[], s32[]) parameter(0)
  j = s32[] get-tuple-element(b), index=0
  k = s32[] copy(j)
  step = s32[] get-tuple-element(b), index=1
  n = s32[] get-tuple-element(b), index=2
  more = s32[] add(k, step)
  ROOT r = (s32[], s32[], s32[]) tuple(more, {kept}, n)
}}
ENTRY e {{
  zero = s32[] constant({start})
  one = s32[] constant({step})
  n = s32[] parameter(0)
  first = s32[] copy(zero)
  init = (s32[], s32[], s32[]) tuple(first, one, n)
  ROOT w = (s32[], s32[], s32[]) while(init), condition=cond, body=body{known}
}}
""".replace('cond {\n', 'cond {{\n', 1)


def _trip_count(**changes):
  settings = {
      'limit': 7,
      'compared': 'i, limit',
      'direction': 'LT',
      'kept': 'step',
      'start': 0,
      'step': 1,
      'known': '',
  }
  module = module_lib.parse(_LOOP.format(**settings | changes))
  frame = loops.Frame(module, module.entry)
  return loops.Carry(frame, module.entry.root).trip_count()


@pytest.mark.parametrize(
    ('changes', 'expected'),
    [
        ({}, 7),
        ({'start': 2}, 5),
        ({'step': 3}, 3),
        ({'start': 9}, 0),
        ({'direction': 'LE'}, 8),
        ({'direction': 'NE'}, 7),
        ({'compared': 'limit, i', 'direction': 'GT'}, 7),
        ({'start': 7, 'step': -2, 'limit': 0, 'direction': 'GT'}, 4),
        ({'start': 7, 'step': -2, 'limit': 1, 'direction': 'GE'}, 4),
    ],
)
def test_a_loop_over_a_range_is_counted(changes, expected):
  assert _trip_count(**changes) == expected


@pytest.mark.parametrize(
    'changes',
    [
        {'kept': 'more'},
        {'direction': 'GT'},
        {'direction': 'EQ'},
        {'step': 0},
        {'step': 0, 'direction': 'NE'},
        {'step': 2, 'direction': 'NE'},
        {'compared': 'i, i'},
        {'limit': '{...}'},
    ],
    ids=str,
)
def test_another_loop_has_no_count(changes):
  assert _trip_count(**changes) is None


def test_the_count_that_the_compiler_tells_is_taken():
  known = ', backend_config={"known_trip_count":{"n":"12"},"x":"}"}'
  assert _trip_count(kept='more', known=known) == 12


def test_a_limit_that_is_an_argument_is_unknown():
  text = _LOOP.replace('limit = s32[] constant({limit})', '').replace(
      'i = s32', 'limit = s32[] get-tuple-element(c), index=2\n  i = s32', 1
  )
  # The definition has to follow that of the carry, which it does.
  module = module_lib.parse(
      text.format(
          compared='i, limit',
          direction='LT',
          kept='step',
          start=0,
          step=1,
          known='',
      )
  )
  frame = loops.Frame(module, module.entry)
  assert loops.Carry(frame, module.entry.root).trip_count() is None


def test_a_comparison_inside_a_fusion_is_found():
  text = """HloModule m
compared {
  p = s32[] parameter(0)
  q = s32[] parameter(1)
  ROOT lt = pred[] compare(p, q), direction=LT
}
cond {
  c = (s32[], f32[2]) parameter(0)
  i = s32[] get-tuple-element(c), index=0
  five = s32[] constant(5)
  ROOT f = pred[] fusion(i, five), kind=kLoop, calls=compared
}
next {
  a = s32[] parameter(0)
  one = s32[] constant(1)
  x = f32[2] parameter(1)
  sum = s32[] add(a, one)
  ROOT both = (s32[], f32[2]) tuple(sum, x)
}
body {
  b = (s32[], f32[2]) parameter(0)
  j = s32[] get-tuple-element(b), index=0
  x = f32[2] get-tuple-element(b), index=1
  ROOT f = (s32[], f32[2]) fusion(j, x), kind=kLoop, calls=next
}
ENTRY e {
  zero = s32[] constant(0)
  x = f32[2] parameter(0)
  init = (s32[], f32[2]) tuple(zero, x)
  ROOT w = (s32[], f32[2]) while(init), condition=cond, body=body
}
"""
  module = module_lib.parse(text)
  frame = loops.Frame(module, module.entry)
  assert loops.Carry(frame, module.entry.root).trip_count() == 5
