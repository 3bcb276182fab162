"""Retrieval, slow and obvious: what every faster version has to equal.

Linear scans over plain lists, one query at a time. Nothing here is used to
decode.
"""

from collections.abc import Sequence
import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Shard:
  """A part of a datastore.

  Attributes:
    tokens: documents, each ended by the separator.
    suffixes: positions of tokens that are no separators, in order.
  """

  tokens: Sequence[int]
  suffixes: Sequence[int]


@dataclasses.dataclass(frozen=True)
class Found:
  """The longest end of a text that a store knows.

  Attributes:
    length: in tokens; 0 where none is known.
    starts: (shard, position) of every occurrence, in the order of the shards
      and of their suffixes.
  """

  length: int
  starts: list[tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class Node:
  """A drafted token.

  Attributes:
    token: its id.
    parent: index of the node above; -1 is the last token of the text.
    depth: 1 for the first token after the text.
    weight: of the rows that begin with this path.
  """

  token: int
  parent: int
  depth: int
  weight: int


def sort_suffixes(
    tokens: Sequence[int], *, separator: int, depth: int = 16
) -> np.ndarray:
  """Returns the positions of a shard's tokens in the order of their windows.

  Args:
    tokens: documents, each ended by the separator.
    separator: id that is no token.
    depth: tokens of a window; equal windows are ordered by position.
  """
  tokens = [int(t) for t in tokens]
  positions = [i for i, t in enumerate(tokens) if t != separator]
  positions.sort(key=lambda i: (tokens[i : i + depth], i))
  return np.array(positions, np.uint32)


def find(
    shards: Sequence[Shard],
    text: Sequence[int],
    *,
    max_ngram: int,
    min_ngram: int = 1,
    backoff: bool = False,
) -> list[Found]:
  """Finds the ends of a text that occur in any shard, the longest first.

  Args:
    shards: of the store.
    text: token ids.
    max_ngram: longest end looked for.
    min_ngram: shortest one that counts.
    backoff: whether more than the longest are wanted.
  """
  known = []
  for length in range(min(max_ngram, len(text)), min_ngram - 1, -1):
    end = list(text[len(text) - length :])
    starts = [
        (p, int(start))
        for p, shard in enumerate(shards)
        for start in shard.suffixes
        if list(shard.tokens[start : start + length]) == end
    ]
    if starts:
      known.append(Found(length, starts))
  return known if backoff else known[:1]


def continuations(
    shards: Sequence[Shard],
    known: Sequence[Found],
    *,
    num_rows: int,
    length: int,
    separator: int,
) -> list[tuple[list[int], int]]:
  """Returns what followed the occurrences, up to the ends of documents.

  Args:
    shards: of the store.
    known: ends found in them.
    num_rows: R; one after another has a row for every occurrence, but where
      more are left than rows, those number floor(i * count / rows left).
    length: most tokens of a row.
    separator: ends documents.

  Returns:
    Tokens, and the length of the end that they followed.
  """
  rows = []
  for found in known:
    count, left = len(found.starts), num_rows - len(rows)
    chosen = range(count)
    if count > left:
      chosen = [i * count // left for i in range(left)]
    for p, start in (found.starts[i] for i in chosen):
      first = start + found.length
      row = [int(t) for t in shards[p].tokens[first : first + length]]
      row = row[: row.index(separator)] if separator in row else row
      rows.append((row, found.length))
  return rows


def context(
    text: Sequence[int],
    *,
    max_ngram: int,
    min_ngram: int = 1,
    num_rows: int,
    length: int,
    backoff: bool = False,
) -> list[tuple[list[int], int]]:
  """Returns what followed earlier matches of a text's own end.

  Args:
    text: token ids.
    max_ngram: longest end looked for.
    min_ngram: shortest one that counts.
    num_rows: most rows; later occurrences come first.
    length: tokens of a row, which goes round where it meets the text's end.
    backoff: whether shorter matches come after the longest, each occurrence
      once, as the longest that it is.

  Returns:
    Tokens, and the length of the match that they followed.
  """
  rows, seen = [], set()
  for n in range(min(max_ngram, len(text) - 1), min_ngram - 1, -1):
    end = list(text[len(text) - n :])
    after = [i for i in range(n, len(text)) if list(text[i - n : i]) == end]
    for i in reversed(after):
      if i not in seen:
        seen.add(i)
        row = [text[i + k % (len(text) - i)] for k in range(length)]
        rows.append((row, n))
    if rows and not backoff:
      break
  return rows[:num_rows]


def _shuffled(num_rows: int, seed: int) -> list[int]:
  """Returns the rows in the order of a hash of seed and number."""

  def mix(x: int) -> int:
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) % 2**32
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) % 2**32
    return x ^ (x >> 16)

  return sorted(range(num_rows), key=lambda r: (mix(mix(seed) ^ r), r))


def select(
    rows: Sequence[Sequence[int]],
    weights: Sequence[int],
    *,
    num_nodes: int,
    how: str = 'weight',
    seed: int = 0,
) -> list[Node]:
  """Chooses nodes of the rows' trie.

  Args:
    rows: continuations.
    weights: of the rows; the weight of a path is the sum over rows that begin
      with it.
    num_nodes: most nodes.
    how: 'weight', 'chain' or 'random', as `trie.select` has them.
    seed: of 'random', which puts the rows into another order first.

  Returns:
    Nodes breadth first, in one depth by weight and then by first row.
  """
  if how == 'random':
    order = _shuffled(len(rows), seed)
    rows = [rows[r] for r in order]
    weights = [weights[r] for r in order]
  weight: dict[tuple[int, ...], int] = {}
  first: dict[tuple[int, ...], int] = {}
  for r, (row, w) in enumerate(zip(rows, weights, strict=True)):
    for depth in range(1, len(row) + 1):
      path = tuple(row[:depth])
      weight[path] = weight.get(path, 0) + w
      first.setdefault(path, r)

  def rank(path: tuple[int, ...]) -> tuple[int, int, int]:
    return -weight[path], len(path), first[path]

  if how == 'weight':
    chosen = sorted(weight, key=rank)[:num_nodes]
  elif how == 'chain':
    chosen, path = [], ()
    while len(chosen) < num_nodes:
      below = [p for p in weight if p[:-1] == path and len(p) == len(path) + 1]
      if not below:
        break
      path = min(below, key=rank)
      chosen.append(path)
  else:
    # As they come up, row by row.
    chosen = list(weight)[:num_nodes]
  chosen = sorted(chosen, key=lambda p: (len(p), *rank(p)))
  index = {path: i for i, path in enumerate(chosen)}
  return [
      Node(path[-1], index.get(path[:-1], -1), len(path), weight[path])
      for path in chosen
  ]
