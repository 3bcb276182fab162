"""What a datastore or a bigram table is, in numbers and in words."""

from collections.abc import Sequence
import dataclasses
from typing import Any

from speculative.retrieval.datastore import Datastore
from speculative.retrieval.store_file import Source
from speculative.tasks import results
from speculative.train.overlap import Found

# Lines of the report, and the longest words in one.
_WORST = 10
_LONGEST_WORDS = 80

# What is said where it is among the results, and how.
_LINES = (
    ('datastore/build_tokens_per_s', 'Sorting: {} tokens/s'),
    (
        'datastore/peak_bytes_per_token',
        'Most memory while one was made: {} bytes a token of its shard',
    ),
    (
        'datastore/encode_tokens_per_s',
        'Reading, encoding and comparing: {} tokens/s',
    ),
    ('datastore/tokens_before', 'Before it was reduced: {} tokens'),
    ('datastore/dropped_repeat_tokens', 'Dropped as repeats: {} tokens'),
    ('datastore/dropped_rare_tokens', 'Dropped as rare: {} tokens'),
    (
        'datastore/binary_files',
        'Files that this run left out because they hold NUL bytes, which text '
        'does not: {}',
    ),
    ('datastore/is_of_target', 'Its ids are those of the target: {}'),
)


@dataclasses.dataclass(frozen=True)
class LeftOut:
  """A document that is not in the datastore, or not all of it.

  Attributes:
    where: file, and line or number in it.
    num_tokens: of it that are not.
    found: what it shares with evaluated text.
  """

  where: str
  num_tokens: int
  found: Found


@dataclasses.dataclass(frozen=True, eq=False)
class Made:
  """What a mode of the task leaves to report.

  Attributes:
    title: what it made, in words.
    said: what that is, in a paragraph.
    sources: it was made of.
    values: datastore/* keys.
    dtype: of its numbers, in words.
    workdir: of the run.
    left_out: documents that overlap with evaluated text.
  """

  title: str
  said: str
  sources: tuple[Source, ...]
  values: dict[str, Any]
  dtype: str
  workdir: results.Workdir
  left_out: tuple[LeftOut, ...] = ()


def summary(store: Datastore) -> dict[str, Any]:
  """Returns the datastore/* keys that do not depend on the run.

  Args:
    store: open.
  """
  return {
      'datastore/tokens': store.num_tokens,
      'datastore/documents': store.num_documents,
      'datastore/shards': len(store.shards),
      'datastore/bytes': store.num_bytes,
      'datastore/id_bytes': store.header.id_bytes,
      'datastore/depth': store.header.depth,
      **left_out_of(store.facts.sources),
  }


def left_out_of(sources: Sequence[Source]) -> dict[str, Any]:
  """Returns the keys of what is evaluated and was left out.

  Args:
    sources: with their counts.
  """
  return {
      'datastore/left_out_documents': sum(s.num_left_out for s in sources),
      'datastore/left_out_tokens': sum(s.left_out_tokens for s in sources),
  }


def rates(
    *, num_sorted: int, sort_s: float, num_encoded: int, encode_s: float
) -> dict[str, Any]:
  """Returns the keys of what a build took, where it had anything to do.

  Args:
    num_sorted: tokens whose places, or pairs, were sorted.
    sort_s: seconds that took.
    num_encoded: tokens that were encoded.
    encode_s: seconds that took.
  """
  values = {'datastore/new_tokens': num_sorted}
  if num_sorted:
    values |= {
        'datastore/sort_s': round(sort_s, 3),
        'datastore/build_tokens_per_s': round(num_sorted / sort_s),
    }
  if num_encoded:
    values |= {
        'datastore/encode_s': round(encode_s, 3),
        'datastore/encode_tokens_per_s': round(num_encoded / encode_s),
    }
  return values


def said(store: Datastore) -> str:
  """Returns in a paragraph what a datastore is.

  Args:
    store: open.
  """
  return (
      f'{store.path}: {store.num_documents:,} documents, '
      f'{store.num_tokens:,} tokens of {store.header.id_bytes} bytes with '
      f"their documents' ends, {len(store.shards)} shard(s), "
      f'{store.num_bytes / 1e6:,.1f} MB. Matches are at most '
      f'{store.header.depth} tokens long.'
  )


def report(found: dict[str, Any], made: Made) -> str:
  """Returns the report as Markdown.

  Args:
    found: results of the run.
    made: by it.
  """
  lines = [
      f'# {made.title}',
      '',
      made.said,
      '',
      '| source | documents | tokens | some or all left out of | tokens |',
      '|---|---|---|---|---|',
  ]
  lines += [
      f'| {s.name} | {s.num_documents:,} | {s.num_tokens:,} | '
      f'{s.num_left_out:,} | {s.left_out_tokens:,} |'
      for s in made.sources
  ]
  lines.append('')
  for key, text in _LINES:
    if key in found:
      value = found[key]
      is_number = isinstance(value, int | float) and not isinstance(value, bool)
      lines += [text.format(f'{value:,}' if is_number else value) + '.', '']
  return '\n'.join(lines + _overlaps(made.left_out)) + '\n'


def _overlaps(left_out: Sequence[LeftOut]) -> list[str]:
  if not left_out:
    return []
  tokens = sum(each.num_tokens for each in left_out)
  lines = [
      f'This run left {tokens:,} tokens out of {len(left_out):,} documents, '
      'which overlap with evaluated text. The worst:',
      '',
      '| document | left out | overlaps with | runs of tokens | of words | '
      'for instance |',
      '|---|---|---|---|---|---|',
  ]
  worst = sorted(left_out, key=lambda each: -each.found.size)
  for each in worst[:_WORST]:
    words = each.found.words[:_LONGEST_WORDS]
    lines.append(
        f'| {each.where} | {each.num_tokens:,} | {each.found.where} | '
        f'{each.found.num_tokens} | {each.found.num_words} | {words} |'
    )
  return [*lines, '']
