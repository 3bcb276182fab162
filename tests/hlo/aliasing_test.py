"""Donations in the first line of a program."""

from speculative import hlo

_TEXT = """HloModule m, is_scheduled=true, input_output_alias={ ALIASES }, \
entry_computation_layout={(f32[2,3]{1,0}, bf16[4]{0})->f32[2,3]{1,0}}
ENTRY e {
  b = (f32[5]{0:T(128)}, bf16[4]{0}) parameter(1), metadata={op_name="rest"}
  a = f32[2,3]{1,0} parameter(0), metadata={op_name="state.cache[\\'k\\']"}
  ROOT t = f32[2,3]{1,0} copy(a)
}
"""


def test_outputs_are_paired_with_parameters():
  text = _TEXT.replace(
      'ALIASES', '{1}: (1, {1}, must-alias), {0}: (0, {}, may-alias)'
  )
  assert hlo.aliased(text) == (
      hlo.Alias((0,), 0, (), "state.cache['k']", 24),
      hlo.Alias((1,), 1, (1,), 'rest', 8),
  )


def test_the_only_output_has_no_path():
  (found,) = hlo.aliased(_TEXT.replace('ALIASES', '{}: (0, {}, may-alias)'))
  assert (found.output, found.parameter) == ((), 0)


def test_nothing_donated_is_nothing_aliased():
  assert hlo.aliased(_TEXT.replace('input_output_alias', 'other')) == ()
