"""What a store's index tells of how it was made, in numbers and in words."""

from collections.abc import Sequence
from typing import Any

from speculative.train.collect import Batch
from speculative.train.collect import Plan
from speculative.train.overlap import Found
from speculative.train.prompt_text import Start
from speculative.train.store_index import Index

# Documents of a shard that the index names, and lines of the report.
_WORST_OF_SHARD = 5
_WORST = 10
_LONGEST_WORDS = 80


def next_document(index: Index) -> int:
  """Returns the number of the first document that no shard covers."""
  return index.shards[-1].facts['next'] if index.shards else 0


def facts(batch: Batch, span: range, plan: Plan) -> dict[str, Any]:
  """Returns what the index keeps of a shard.

  Args:
    batch: its documents.
    span: their numbers.
    plan: of all.
  """
  worst = sorted(batch.dropped, key=lambda item: -item[2].size)
  return {
      'next': span.stop,
      'new_tokens': batch.num_new,
      'contaminated': len(batch.dropped),
      'worst': [
          _row(start, found, temperature=plan.draw(i)[1].temperature)
          for i, start, found in worst[:_WORST_OF_SHARD]
      ],
  }


def _row(
    start: Start, found: Found, *, temperature: float | None = None
) -> dict[str, Any]:
  return {
      'start': start.where,
      'temperature': temperature,
      'with': found.where,
      'token_runs': found.num_tokens,
      'word_runs': found.num_words,
      'words': found.words[:_LONGEST_WORDS],
  }


def summary(
    index: Index,
    *,
    num_dropped_prompts: int,
    num_too_long: int,
    num_documents: int,
    is_checked: bool,
) -> dict[str, Any]:
  """Returns the collect/* keys that do not depend on the run.

  Args:
    index: of the store.
    num_dropped_prompts: that are evaluated.
    num_too_long: prompts left out for their length.
    num_documents: planned.
    is_checked: whether anything was compared.
  """
  made = next_document(index)
  found = {
      'collect/planned_documents': num_documents,
      'collect/made_documents': made,
      'collect/documents': index.num_documents,
      'collect/tokens': index.num_tokens,
      'collect/too_long_prompts': num_too_long,
  }
  if is_checked:
    dropped = sum(shard.facts['contaminated'] for shard in index.shards)
    found |= {
        'collect/contaminated_prompts': num_dropped_prompts,
        'collect/contaminated_documents': dropped,
        'collect/contaminated_fraction': dropped / max(made, 1),
    }
  return found


def report(
    found: dict[str, Any],
    index: Index,
    dropped: Sequence[tuple[Start, Found]],
    *,
    store: str,
) -> str:
  """Returns the report as Markdown.

  Args:
    found: as `summary`, with what the run took.
    index: of the store.
    dropped: prompts that are evaluated.
    store: its path.
  """
  lines = [
      '# Text for training',
      '',
      f'{store}: {found["collect/documents"]} documents, '
      f'{found["collect/tokens"]} tokens; made '
      f'{found["collect/made_documents"]} of '
      f'{found["collect/planned_documents"]} planned.',
      '',
  ]
  if 'collect/contaminated_documents' not in found:
    return '\n'.join([*lines, 'Nothing was compared with it.', ''])
  lines += [
      f'Left out: {found["collect/contaminated_prompts"]} prompts that are '
      f'evaluated, and {found["collect/contaminated_documents"]} documents '
      f'({found["collect/contaminated_fraction"]:.2%}) that overlap with '
      'evaluated text.',
      '',
  ]
  rows = [_row(start, share) for start, share in dropped]
  rows += [row for shard in index.shards for row in shard.facts['worst']]
  rows.sort(key=lambda row: -(row['token_runs'] + row['word_runs']))
  if rows:
    lines += [
        'The worst:',
        '',
        '| begins with | T | overlaps with | runs of tokens | of words | '
        'for instance |',
        '|---|---|---|---|---|---|',
    ]
  for row in rows[:_WORST]:
    temperature = '' if row['temperature'] is None else row['temperature']
    lines.append(
        f'| {row["start"]} | {temperature} | {row["with"]} | '
        f'{row["token_runs"]} | {row["word_runs"]} | {row["words"]} |'
    )
  return '\n'.join([*lines, ''])
