"""What reaches the host, in the forms of the CPU and the TPU compiler."""

import pytest

from speculative import hlo

_HANDLER = 'frontend_attributes={_xla_host_transfer_handler_name="pjrt"}'


@pytest.mark.parametrize(
    ('line', 'kind', 'target'),
    [
        (
            f'send(%p, %t), channel_id=1, is_host_transfer=true, {_HANDLER}',
            'send',
            'pjrt',
        ),
        (
            f'recv(%t), channel_id=2, is_host_transfer=true, {_HANDLER}',
            'recv',
            'pjrt',
        ),
        ('infeed(%t)', 'infeed', ''),
        ('outfeed(%p, %t)', 'outfeed', ''),
        (
            'custom-call(%p), custom_call_target="xla_ffi_python_cpu_callback"',
            'custom-call',
            'xla_ffi_python_cpu_callback',
        ),
        (
            'custom-call(%p), custom_call_target="xla_python_cpu_callback"',
            'custom-call',
            'xla_python_cpu_callback',
        ),
        ('call-start(%p), async_execution_thread="host"', 'call', ''),
    ],
)
def test_what_reaches_the_host_is_found(line, kind, target):
  text = (
      f'HloModule m\nENTRY e {{\n  ROOT %x = (f32[8]{{0}}, token[]) {line},'
      ' metadata={op_name="jit(f)/verify/y"}\n}'
  )
  assert hlo.host_transfers(text) == (
      hlo.HostTransfer(kind, target, 'x', 'e', 'jit(f)/verify/y'),
  )


@pytest.mark.parametrize(
    'type_',
    [
        '(f32[8]{0:T(8)S(5)}, f32[8]{0:T(8)}, u32[]{:S(2)})',
        '(f32[8]{0:T(8)}, f32[8]{0:T(8)S(5)}, u32[]{:S(2)})',
    ],
    ids=['to the host', 'from the host'],
)
def test_a_copy_of_host_memory_is_found(type_):
  text = f'HloModule m\nENTRY e {{\n  ROOT %c = {type_} copy-start(%p)\n}}'
  (found,) = hlo.host_transfers(text)
  assert found.kind == 'copy'


@pytest.mark.parametrize(
    'line',
    [
        'send-done(%s), channel_id=1, is_host_transfer=true',
        'send(%p, %t), channel_id=1',
        'recv-done(%s), channel_id=2, is_host_transfer=true',
        'custom-call(%p), custom_call_target="TopK"',
        'copy-start(%p)',
        'custom-call-start(), async_execution_thread="sparsecore"',
    ],
)
def test_what_stays_on_the_devices_is_not(line):
  text = f'HloModule m\nENTRY e {{\n  ROOT %x = (f32[8]{{0:S(1)}}) {line}\n}}'
  assert hlo.host_transfers(text) == ()
