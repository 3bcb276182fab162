"""What drafts from text beside a model, and whose params are whose."""

from typing import Any
from typing import Protocol

import flax.struct
import jax

from speculative.decoding.drafter import Drafter


class Found(Protocol):
  """What was found to follow texts; a Proposal, or nodes of a trie.

  Attributes:
    tokens_BM: int32; token ids where nothing was found, too.
    valid_BM: bool, what was found.
  """

  tokens_BM: jax.Array
  valid_BM: jax.Array


class TextDrafter(Drafter, Protocol):
  """A drafter without state, such as `Lookup` and `Retrieval`."""

  def with_least_match(self) -> 'TextDrafter':
    """Returns one that drafts as often as it can."""
    ...

  def draft(
      self, params: Any, text_BS: jax.Array, seq_len_B: jax.Array
  ) -> Found:
    """Drafts after texts, whatever room there is.

    Args:
      params: its store, or None.
      text_BS: int32.
      seq_len_B: int32, tokens that count.
    """
    ...


@flax.struct.dataclass
class StoreAndModel:
  """Params of a drafter that has a store and a model.

  Attributes:
    store: of the drafter from text.
    model: the draft model's.
  """

  store: Any
  model: Any


def store_of(params: Any) -> Any:
  """Returns the store of a drafter with a model, None where it has none."""
  return params.store if isinstance(params, StoreAndModel) else None


def model_of(params: Any) -> Any:
  """Returns the params of the model; all there are where there is no store."""
  return params.model if isinstance(params, StoreAndModel) else params
