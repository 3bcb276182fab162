"""What a round may send: the numbers that compiled rounds are held against.

Per pass over T positions of b rows (those of one device), for every layer two
all-reduces [b, T, D] and one more for the embedding; then, to draw tokens,
either one all-gather of the logits or, with logits split over the vocabulary,
the set that `sampling` lists: nothing in it grows with the vocabulary but the
one block that a token is drawn from, V / 256 float32 a row where 256 divides V.
"""

import collections
from collections.abc import Iterable
import math

import jax

from speculative import hlo
from speculative.decoding import sampling as sampling_lib
from speculative.hlo import Collective
from speculative.testing.rounds import Round

# Kind, dtype and number of elements of one result.
Sizes = collections.Counter[tuple[str, str, int]]

# Parts of the state that a round makes anew of the texts' lengths: the length
# of a draft's cache, and what the draft knows where it cannot lack so much that
# this matters, see `drafting.catching_up`.
MADE_ANEW = ('carry.drafter_state.cache.len_B', 'carry.drafter_state.known_B')

_BISECTION = 32


def passes(found: Round, scope: str, dtype: str) -> Sizes:
  """Returns one all-reduce of the residual stream for every pass.

  A layer sends two such sets, an embedding one.

  Args:
    found: a round with a draft model.
    scope: 'draft' or 'verify'.
    dtype: of the stream, as the compiler names it.
  """
  J = found.setting.num_draft_tokens
  # The first pass of a draft reads two tokens.
  widths = {2: 1, 1: J - 1} if scope == 'draft' else {J + 1: 1}
  row = found.rows * found.setting.target.model_dim
  return collections.Counter(
      {('all-reduce', dtype, row * T): times for T, times in widths.items()}
  )


def is_stream(found: Round, collective: Collective) -> bool:
  """Tells whether this sums the residual stream [b, T, D].

  Args:
    found: a round in which no other size is D.
    collective: of it.
  """
  D = found.setting.target.model_dim
  return any(result.shape[-1:] == (D,) for result in collective.results)


def copied(found: Round) -> tuple[str, ...]:
  """Returns the parts of the loop's state that a round does not write over.

  Args:
    found: any round.
  """
  aliases = {alias.name: alias.num_bytes for alias in hlo.aliased(found.text)}
  paths, _ = jax.tree.flatten_with_path(found.carry)
  names = {f'carry{jax.tree_util.keystr(path)}': x for path, x in paths}
  return tuple(
      name for name, x in names.items() if aliases.get(name) != share_bytes(x)
  )


def share_bytes(struct: jax.ShapeDtypeStruct) -> int:
  """Returns the bytes of an array that one device holds."""
  shape = struct.shape
  if struct.sharding is not None:
    shape = struct.sharding.shard_shape(shape)
  return math.prod(shape) * struct.dtype.itemsize


def in_layers(collective: Collective) -> bool:
  """Tells whether a layer of a model sends this."""
  return collective.within('attention') or collective.within('mlp')


def sizes(found: Iterable[Collective]) -> Sizes:
  """Counts runs of every kind and size in one round, all branches taken.

  Results that the compiler joined to one collective count one by one.

  Args:
    found: collectives of a round.
  """
  counts = collections.Counter()
  for collective in found:
    for result in collective.results:
      key = (collective.kind, result.dtype, math.prod(result.shape))
      counts[key] += collective.times
  return counts


def largest_elements(vocab_size: int) -> int:
  """Returns the most float32 that split sampling sends for one row.

  That is all block masses or one block: 256 for 32,000 tokens, 501 for 128,256
  and 1,187 for 151,936.

  Args:
    vocab_size: V.
  """
  return max(sampling_lib._grid(vocab_size))


def sampling(found: Round, scope: str, *, compiler: str) -> Sizes:
  """Returns what a round sends to draw from split logits.

  Args:
    found: a round with a draft model and token-level rejection.
    scope: 'draft' or 'verify'.
    compiler: 'cpu' or 'tpu', which brings block masses together by a gather and
      the largest logit with its place.
  """
  b, J = found.rows, found.setting.num_draft_tokens
  num, width = sampling_lib._grid(found.setting.target.vocab_size)

  def sums(dtype: str, elements: int, runs: int = 1) -> Sizes:
    return collections.Counter({('all-reduce', dtype, elements): runs})

  def penalties(T: int) -> Sizes:
    # Counts and logits of the drafted tokens.
    return sums('s32', b * J) + sums('f32', b * T * J)

  def best(T: int) -> Sizes:
    # Value and place of the largest logit of every device.
    place = b * T * found.num_devices(scope)
    return collections.Counter(
        {('all-gather', 'f32', place): 1, ('all-gather', 's32', place): 1}
    )

  def warped(T: int) -> Sizes:
    # The largest logit, once more for min-p, and the law's softmax.
    counts = best(T) + sums('f32', b * T, (compiler == 'cpu') + 1 + 2)
    # Top-k bisects from the largest; top-p also needs a softmax.
    counts += sums('s32', b * T, 2)
    return counts + sums('f32', b * T, _BISECTION + 2 + _BISECTION)

  def drawn(T: int) -> Sizes:
    kind = 'all-reduce' if compiler == 'cpu' else 'all-gather'
    masses = collections.Counter({(kind, 'f32', b * T * num): 1})
    return masses + sums('f32', b * T * width)

  if scope == 'draft':
    counts = penalties(1) + warped(1) + drawn(1) + best(1)
    return collections.Counter({k: v * J for k, v in counts.items()})
  T = J + 1
  counts = penalties(T)
  # Rejection: p and q of the drafted tokens, and the residual's mass. The q of
  # a draft on fewer devices is summed among those alone.
  num_laws = 1 if found.setting.shards else 2
  counts += warped(T) + sums('f32', b * J, num_laws)
  counts += sums('f32', b) + drawn(1)
  # Matching draws, when all rows are greedy; both branches are in the text.
  return counts + warped(T) + drawn(T) + best(T)
