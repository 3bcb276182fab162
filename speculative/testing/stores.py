"""Stores of made-up tokens, as a file would hold them."""

from collections.abc import Sequence

import numpy as np

from speculative.retrieval import datastore
from speculative.retrieval import device_store
from speculative.retrieval.device_store import DeviceStore


def of_tokens(
    shards: Sequence[tuple[np.ndarray, np.ndarray]],
    *,
    separator: int,
    depth: int = 16,
) -> DeviceStore:
  """Returns a store of host arrays for whole ids.

  Args:
    shards: tokens and suffixes of each; those without suffixes are left out.
    separator: id that ends documents.
    depth: by which suffixes are sorted.
  """
  return device_store.of_arrays(
      [
          datastore.of_suffixes(
              np.asarray(tokens_N), np.asarray(suffixes), separator=separator
          )
          for tokens_N, suffixes in shards
      ],
      separator=separator,
      depth=depth,
  )
