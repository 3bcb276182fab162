"""Collectives of one kind, size and group counted together."""

from collections.abc import Iterable
from collections.abc import Mapping
from typing import NamedTuple

from speculative.hlo.collective import Collective

# kind, results as `bf16[8,512]` joined by ' ', size of a group.
Key = tuple[str, str, int]


class Count(NamedTuple):
  """How many collectives are alike.

  Attributes:
    instructions: in the text.
    runs: of all of them together, every branch taken; None if one stands in a
      loop that the text does not count.
  """

  instructions: int
  runs: int | None


def summary(
    found: Iterable[Collective], *, depth: int = 0
) -> Mapping[Key, Count]:
  """Counts collectives that are alike, the largest first.

  Args:
    found: collectives.
    depth: 0 to count runs in one execution of the program, 1 in one iteration
      of the outermost loop, and so on. Collectives outside such a loop are
      left out.

  Returns:
    The counts by kind, results and group size.
  """
  inside = [c for c in found if len(c.loops) >= depth]
  inside.sort(key=lambda c: -c.num_bytes)
  counts = {}
  for collective in inside:
    results = ' '.join(map(str, collective.results))
    key = (collective.kind, results, collective.group_size)
    before = counts.get(key, Count(0, 0))
    times = collective.times_below(depth)
    unknown = times is None or before.runs is None
    counts[key] = Count(
        before.instructions + 1, None if unknown else before.runs + times
    )
  return counts


def table(found: Iterable[Collective], *, depth: int = 0) -> str:
  """Returns the summary as a Markdown table with bytes, for people.

  Args:
    found: collectives.
    depth: as for `summary`.
  """
  found = tuple(found)
  num_bytes = {}
  for collective in found:
    results = ' '.join(map(str, collective.results))
    num_bytes[collective.kind, results] = collective.num_bytes
  lines = ['| kind | result | devices | bytes | in text | runs |']
  lines.append('|---|---|---|---|---|---|')
  for (kind, results, size), count in summary(found, depth=depth).items():
    runs = '?' if count.runs is None else count.runs
    lines.append(
        f'| {kind} | {results} | {size} | {num_bytes[kind, results]}'
        f' | {count.instructions} | {runs} |'
    )
  return '\n'.join(lines)
