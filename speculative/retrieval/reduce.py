"""Makes a datastore smaller, and says what is dropped.

Two kinds of text are of little use to retrieval. A *repeat* is a run of tokens
all of whose windows of `repeat_tokens` have occurred before in the shard: what
a query finds in it, it finds in the earlier place, with the same continuation.
*Rare* text is where hardly any window of a few tokens occurs twice: what nobody
has written a second time will hardly be written a third time. Where text is
dropped, a separator stands.

  ... a b c [d e f g ... u v w] x y z ...    a repeat in brackets
  ... a b c  d e | v w x y z ...             its ends stay, for what is found
                                             across them

A repeat keeps its first tokens, so that matches that end before it have their
continuation, and its last `depth` tokens, so that matches that end in it find
what comes behind. What is lost: that a window occurs several times, and long
matches from before a repeat into its middle, of which the shorter ones are
found in the earlier place. Repeats of another shard are not looked for.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses

import numpy as np

from speculative.errors import UserError
from speculative.retrieval import build
from speculative.retrieval import suffix_array
from speculative.retrieval.datastore import Datastore
from speculative.retrieval.datastore import ShardView

# Windows whose being rare counts, and blocks that stay or go as a whole.
_RARE_TOKENS = 4
_BLOCK = 256


@dataclasses.dataclass(frozen=True)
class Rules:
  """What to drop.

  Attributes:
    repeat_tokens: of the windows that tell repeats; 0 keeps them.
    max_tokens: size of the reduced datastore without separators that were put
      in, for which rare blocks of 256 tokens go, the rarest first; 0 is any.
    continuation: first tokens of a repeat that stay.
  """

  repeat_tokens: int = 64
  max_tokens: int = 0
  continuation: int = 10

  def check(self, depth: int) -> None:
    """Refuses rules that drop nothing or cannot be kept.

    Args:
      depth: of the datastore.

    Raises:
      UserError: Naming the field.
    """
    least = depth + self.continuation + 1
    if self.repeat_tokens and self.repeat_tokens < least:
      raise UserError(
          f'config.datastore.repeat_tokens is {self.repeat_tokens}; it needs '
          f'to be 0, or >= {least}: {least - 1} tokens of a repeat stay.'
      )
    if self.max_tokens < 0:
      raise UserError(
          'config.datastore.max_tokens needs to be >= 0, got '
          f'{self.max_tokens}.'
      )
    if not self.repeat_tokens and not self.max_tokens:
      raise UserError(
          'config.datastore.repeat_tokens and .max_tokens are both 0, which '
          'drops nothing; set one of them.'
      )


@dataclasses.dataclass(frozen=True, eq=False)
class Reduction:
  """What stays of a datastore.

  Attributes:
    keep: bool [N] of every shard.
    num_repeated: tokens dropped because they repeat others.
    num_rare: tokens dropped because they are rare.
  """

  keep: Sequence[np.ndarray]
  num_repeated: int
  num_rare: int


def reduction(store: Datastore, rules: Rules) -> Reduction:
  """Decides what to drop.

  Args:
    store: to make smaller.
    rules: what to drop.

  Returns:
    The Reduction.

  Raises:
    UserError: As Rules.check.
  """
  depth = store.header.depth
  rules.check(depth)
  keep = [np.ones(shard.num_tokens, bool) for shard in store.shards]
  if rules.repeat_tokens:
    keep = [
        ~_repeats(shard, store.header.separator, rules, depth)
        for shard in store.shards
    ]
  num_repeated = sum(int(np.count_nonzero(~each)) for each in keep)
  num_rare = 0
  if rules.max_tokens:
    num_rare = _drop_rare(store, keep, rules.max_tokens)
  return Reduction(keep, num_repeated, num_rare)


def _repeats(
    shard: ShardView, separator: int, rules: Rules, depth: int
) -> np.ndarray:
  """Returns bool [N], the inner tokens of repeats."""
  kind_N = suffix_array.occurrences(
      shard.tokens(), separator=separator, depth=rules.repeat_tokens
  )
  before_N = kind_N == 2
  edges = np.flatnonzero(np.diff(before_N, prepend=False, append=False))
  inner_N = np.zeros(shard.num_tokens, bool)
  # A run of windows [first, end) covers the tokens [first, end + length - 1).
  for first, end in edges.reshape(-1, 2).tolist():
    last = min(end + rules.repeat_tokens - 1, shard.num_tokens) - depth
    inner_N[first + rules.continuation : last] = True
  return inner_N


def _drop_rare(
    store: Datastore, keep: Sequence[np.ndarray], max_tokens: int
) -> int:
  """Clears the rarest blocks of `keep` in place; returns how many tokens."""
  excess = sum(int(np.count_nonzero(each)) for each in keep) - max_tokens
  if excess <= 0:
    return 0
  scores, sizes = [], []
  for shard, each in zip(store.shards, keep, strict=True):
    kind_N = suffix_array.occurrences(
        shard.tokens(), separator=store.header.separator, depth=_RARE_TOKENS
    )
    starts = np.arange(0, len(each), _BLOCK)
    size = np.add.reduceat(each, starts, dtype=np.int64)
    common = np.add.reduceat(each & (kind_N > 0), starts, dtype=np.int64)
    scores.append(common / np.maximum(size, 1))
    sizes.append(size)
  order = np.argsort(np.concatenate(scores), kind='stable')
  dropped = np.cumsum(np.concatenate(sizes)[order])
  goes = np.zeros(len(order), bool)
  goes[order[: np.searchsorted(dropped, excess) + 1]] = True
  num_rare = first = 0
  for each, score in zip(keep, scores, strict=True):
    block = goes[first : first + len(score)]
    gone_N = np.repeat(block, _BLOCK)[: len(each)]
    num_rare += int(np.count_nonzero(each & gone_N))
    each[gone_N] = False
    first += len(score)
  return num_rare


def documents(store: Datastore, found: Reduction) -> Iterator[np.ndarray]:
  """Yields what stays, document by document.

  Args:
    store: that was reduced.
    found: what stays of it.
  """
  separator = store.header.separator
  for shard, keep in zip(store.shards, found.keep, strict=True):
    tokens = shard.tokens().copy()
    # The first token of what is dropped becomes the separator.
    is_seam = np.diff(~keep, prepend=False) & ~keep
    tokens[is_seam] = separator
    left = ShardView(tokens[keep | is_seam], None, shard.suffixes[:0], 0)
    for document in build.split(left, separator=separator):
      if len(document):
        yield document
