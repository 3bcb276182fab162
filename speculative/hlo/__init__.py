"""Reads the text of a compiled program: what it sends, and to whom.

`jax.jit(f).lower(...).compile().as_text()` is the program after the compiler
has placed every collective, so what it counts is what will run. Nothing here
starts a backend; only a compiler's text is read.

  text = jax.jit(f).lower(x).compile().as_text()
  hlo.summary(hlo.collectives(text))
  # {('all-reduce', 'bf16[8,512]', 4): (2, 160)}  2 in the text, 160 runs
  hlo.host_transfers(text)  # ()
  hlo.aliased(text)         # (Alias(output=(0,), parameter=0, ...),)

The CPU compiler sums bfloat16 in float32, so dtypes and bytes of all-reduces
and reduce-scatters hold only as a TPU compiler emits them
(`speculative.topology`).
"""

from speculative.hlo.aliasing import Alias
from speculative.hlo.aliasing import aliased
from speculative.hlo.collective import Collective
from speculative.hlo.collective import collectives
from speculative.hlo.collective import Loop
from speculative.hlo.host import host_transfers
from speculative.hlo.host import HostTransfer
from speculative.hlo.shapes import Array
from speculative.hlo.summary import Count
from speculative.hlo.summary import summary
from speculative.hlo.summary import table

__all__ = [
    'Alias',
    'Array',
    'Collective',
    'Count',
    'HostTransfer',
    'Loop',
    'aliased',
    'collectives',
    'host_transfers',
    'summary',
    'table',
]
