"""Several stores read as one: what a target wrote, and what others have.

Their documents are numbered one store after another; domains of one name are
the same domain.
"""

from collections.abc import Sequence
import os
import pathlib

import numpy as np

from speculative.errors import UserError
from speculative.train import store as store_lib
from speculative.train.store import Document
from speculative.train.store import Store


class Joined:
  """Finished stores, in their order.

  Attributes:
    stores: at least one.
    domains: names, each once.
  """

  def __init__(self, stores: Sequence[Store]) -> None:
    """Keeps the stores; `open_stores` is the way to call this."""
    self.stores = tuple(stores)
    names = [name for store in stores for name in store.index.domains]
    self.domains = tuple(dict.fromkeys(names))
    self._ends = np.cumsum([store.num_documents for store in stores])

  @property
  def num_documents(self) -> int:
    """Documents of all stores."""
    return int(self._ends[-1])

  @property
  def num_tokens(self) -> int:
    """Tokens of all stores."""
    return sum(store.num_tokens for store in self.stores)

  @property
  def is_scored(self) -> bool:
    """Whether every store has hidden states."""
    return all(store.is_scored for store in self.stores)

  def lens(self) -> np.ndarray:
    """Returns int64 [documents], tokens of every document."""
    return np.concatenate([store.lens() for store in self.stores])

  def document(self, index: int) -> Document:
    """Returns a document, its arrays views into the files.

    Args:
      index: in [0, num_documents).

    Raises:
      IndexError: If there is no such document.
      UserError: If its shard is damaged.
    """
    if not 0 <= index < self.num_documents:
      raise IndexError(f'{index} is not in [0, {self.num_documents}).')
    which = int(np.searchsorted(self._ends, index, side='right'))
    store = self.stores[which]
    return store.document(index - int(self._ends[which]) + store.num_documents)


def open_stores(
    paths: Sequence[str | os.PathLike[str]], *, tokenizer: str, mark: str
) -> Joined:
  """Opens stores to train on together.

  Args:
    paths: of their directories.
    tokenizer: fingerprint that all have to have.
    mark: of the target that the scored ones have to be of; what a target said
      of a text is another's affair.

  Returns:
    The Joined.

  Raises:
    UserError: If two are one directory, one is no store or of another
      tokenizer or target, or some are scored and others not.
  """
  found = {}
  for path in paths:
    place = pathlib.Path(path).expanduser().resolve()
    if place in found:
      raise UserError(
          f'config.train.store names {found[place]} and {path}, which are the '
          'same directory; its text would count twice, name it once.'
      )
    found[place] = path
  stores = [store_lib.open_store(path, tokenizer=tokenizer) for path in paths]
  for store in stores:
    if store.is_scored:
      store_lib.open_store(store.path, mark=mark)
  scored = [store for store in stores if store.is_scored]
  if scored and len(scored) < len(stores):
    bare = next(store for store in stores if not store.is_scored)
    raise UserError(
        f'{bare.path} has no hidden states of the target and {scored[0].path} '
        'has; collect both with config.collect.score=yes, or both with no.'
    )
  return Joined(stores)
