"""What one device reads and computes in a pass, counted by hand.

The compiler's own counts take the body of a loop once and include what moves
inside the chip, so weights and cache are counted here, as they are placed: what
a device holds whole (key/value projections whose heads the mesh does not
divide, say) it also reads and multiplies whole.
"""

from collections.abc import Sequence
import dataclasses
import math

import jax

from speculative import latency
from speculative.hlo import Collective
from speculative.latency import Pass
from speculative.models.transformer import Transformer
from speculative.planning import abstract


@dataclasses.dataclass(frozen=True)
class Part:
  """A pass of one model in a program.

  Attributes:
    model: which.
    positions: tokens of each row that it scores.
    context: of each row that it attends to.
    times: how often the program runs it.
  """

  model: Transformer
  positions: int
  context: int
  times: int = 1


def read_weights(model: Transformer) -> dict:
  """Returns the structs of what a pass reads from end to end.

  Of an embedding that is not the head it reads a row a token.

  Args:
    model: its placement says what a device holds.
  """
  params = abstract.params(model)
  if model.config.head == 'untied':
    params = {k: v for k, v in params.items() if k != 'embed'}
  return params


def _held_in_matrices(model: Transformer) -> int:
  """Counts the weights of matrices that a device holds and multiplies by."""
  one_layer = 1 if model.layout == 'scanned' else 0
  return sum(
      math.prod(abstract.device_shape(struct))
      for path, struct in jax.tree.leaves_with_path(read_weights(model))
      if len(struct.shape) - one_layer * (path[0].key == 'layers') == 2
  )


def cache_bytes(model: Transformer, *, batch: int, context: int) -> int:
  """Returns what the keys and values of `context` tokens take on a device.

  Args:
    model: its placement says how often a head is held.
    batch: B, of all devices.
    context: tokens of each row.
  """
  found = jax.eval_shape(lambda: model.init_cache(batch, context))
  placed = abstract.cache(found, model.placement)
  return abstract.num_bytes((placed.k, placed.v))


def count(part: Part, *, batch: int) -> Pass:
  """Returns what one run of a part does, without its collectives.

  Left out are activations in memory, and of attention what a row sees of its
  own pass.

  Args:
    part: its `times` is not applied.
    batch: B, of all devices.
  """
  model, config = part.model, part.model.config
  placement = model.placement
  rows = batch * part.positions / placement.data_size
  split = 1 if 'heads' in placement.whole else placement.model_size
  # Scores, and their sum over values.
  attention = 4 * part.context * config.num_layers * config.num_heads
  attention *= config.head_dim / split
  num_bytes = abstract.num_bytes(read_weights(model)) + cache_bytes(
      model, batch=batch, context=part.context
  )
  return Pass(
      hbm_bytes=num_bytes,
      flops=rows * (2 * _held_in_matrices(model) + attention),
  )


def as_latency(collective: Collective) -> latency.Collective:
  """Returns a compiled collective as the latency model takes it.

  One in a loop that the text does not count counts once.

  Args:
    collective: as compiled.
  """
  num_bytes = collective.num_bytes
  if collective.kind == 'reduce-scatter':
    num_bytes *= collective.group_size
  return latency.Collective(
      collective.kind, num_bytes, collective.group_size, collective.times or 1
  )


def total(
    parts: Sequence[Part], collectives: Sequence[Collective], *, batch: int
) -> Pass:
  """Returns what a program does.

  Args:
    parts: the passes in it.
    collectives: as compiled.
    batch: B, of all devices.
  """
  passes = [(part.times, count(part, batch=batch)) for part in parts]
  return Pass(
      hbm_bytes=sum(times * each.hbm_bytes for times, each in passes),
      flops=sum(times * each.flops for times, each in passes),
      collectives=tuple(map(as_latency, collectives)),
  )
