"""Text of compiled programs, read line by line."""

import pytest

from speculative.hlo import module as module_lib
from speculative.hlo import shapes

_TEXT = """\
HloModule jit_f, is_scheduled=true, num_partitions=4, attributes={a="b={, "}

FileNames
1 "f.py"

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum.1 = f32[]{:T(128)} add(%x, %y)
}, execution_thread="sparsecore"

ENTRY main {
  p.0 = bf16[8,512]{1,0:T(8,128)(2,1)S(1)} parameter(0), metadata={
    op_name="c[\\'k\\']/* no comment */"}
  q = (f32[2]{0}, /*index=1*/(s32[], pred[4]{0})) custom-call(f32[8]{0} %p.0,
    /*index=1*/f32[8]{0} %r), custom_call_target="a(b",
    called_computations={%add}
  ROOT t = () tuple()
}
"""


def test_a_program_is_read():
  module = module_lib.parse(_TEXT)
  assert module.num_devices == 4
  assert list(module.computations) == ['add', 'main']
  assert module.computations['add'].root.name == 'sum.1'
  parameter, call, root = module.entry.instructions
  assert module.entry.root is root
  assert (root.type, root.opcode, root.operands) == ('()', 'tuple', ())
  assert parameter.type == 'bf16[8,512]{1,0:T(8,128)(2,1)S(1)}'
  assert parameter.op_name == "c['k']/* no comment */"
  assert call.opcode == 'custom-call'
  assert call.operands == ('p.0', 'r')
  assert call.callees == ('add',)
  assert call.attributes['custom_call_target'] == '"a(b"'


def test_a_reduction_is_not_called_but_a_call_is():
  one = module_lib.parse("""HloModule m
ENTRY e {
  a = f32[2] all-reduce(b), to_apply=%add
  c = f32[2] call(a), to_apply=%g
  ROOT d = f32[2] conditional(p, a, c), branch_computations={%f, %g}
}""").entry
  assert [i.callees for i in one.instructions] == [(), ('g',), ('f', 'g')]


@pytest.mark.parametrize('text', ['', 'module @jit_f {', '%x = f32[] add'])
def test_a_text_of_another_kind_is_refused(text):
  with pytest.raises(ValueError, match='Call .compile'):
    module_lib.parse(text)


def test_a_cut_text_is_refused():
  with pytest.raises(ValueError, match='no ENTRY'):
    module_lib.parse(_TEXT[: _TEXT.index('ROOT t')])


@pytest.mark.parametrize(
    ('text', 'name', 'num_bytes'),
    [
        ('bf16[8,512]{1,0:T(8,128)(2,1)S(1)}', 'bf16[8,512]', 8192),
        ('f32[]', 'f32[]', 4),
        ('pred[3]{0}', 'pred[3]', 3),
        ('s4[5]{0}', 's4[5]', 3),
        ('f8e4m3fn[16]', 'f8e4m3fn[16]', 16),
        ('c64[2]', 'c64[2]', 16),
        ('f32[0,7]', 'f32[0,7]', 0),
        ('token[]', 'token[]', 0),
        ('f32[<=8]', 'f32[8]', 32),
    ],
)
def test_arrays_have_a_size(text, name, num_bytes):
  (array,) = shapes.arrays(text)
  assert (str(array), array.num_bytes) == (name, num_bytes)


def test_a_tuple_has_elements():
  text = '(f32[2,3]{1,0}, (s32[], u8[4]), token[])'
  assert shapes.elements(text) == (
      'f32[2,3]{1,0}',
      '(s32[], u8[4])',
      'token[]',
  )
  assert len(shapes.arrays(text)) == 4
