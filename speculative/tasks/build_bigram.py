"""Mode `bigram` of task `build_datastore`: which token follows which.

Counted from the same documents as a datastore, with what is evaluated left out
in the same way; no pair goes across the bounds of a document, or the place of
what was left out. A build that was stopped begins anew.
"""

from collections.abc import Iterable
import pathlib
import time
from typing import Any

from ml_collections import config_dict
import numpy as np

from speculative.retrieval import bigram_table
from speculative.retrieval import store_writer
from speculative.retrieval.bigram_counts import Counted
from speculative.retrieval.bigram_counts import Counter
from speculative.retrieval.build import Document
from speculative.retrieval.parts import Counts
from speculative.retrieval.store_file import Source
from speculative.tasks import build_datastore_report as report_lib
from speculative.tasks import datastore_encode
from speculative.tasks import datastore_feed
from speculative.tasks import results
from speculative.tasks.build_datastore_report import Made
from speculative.tasks.datastore_feed import Feed

NAME = 'bigram.table'


def build(
    config: config_dict.ConfigDict, path: pathlib.Path, table: pathlib.Path
) -> Made:
  """Counts pairs and writes the table.

  Args:
    config: of the run.
    path: of the workdir.
    table: the file.

  Returns:
    The Made.

  Raises:
    UserError: For whatever is wrong with config or files, before anything is
      written where it can be known by then. An older table stays usable.
  """
  fields = config.datastore
  datastore_feed.check_writable(table)
  tokenizer = datastore_feed.tokenizer_of(config)
  inputs = datastore_feed.inputs_of(config, tokenizer, table)
  settings = datastore_feed.settings_of(config, inputs)
  # Read once here, so that a mistake is found before anything is written.
  datastore_encode.Encoder(settings)
  workdir = results.Workdir(path, config)
  feed = Feed(inputs, settings, fields.num_processes, workdir)
  with store_writer.writing(table):
    table.parent.mkdir(parents=True, exist_ok=True)
  counter = Counter(
      tokenizer.vocab_size,
      pairs_at_once=fields.shard_tokens,
      directory=table.parent,
      on_sorted=feed.on_shard,
  )
  started = time.perf_counter()
  sources = _count(counter, feed.documents(0), inputs.sources)
  encode_s = time.perf_counter() - started - counter.sort_s
  counted = counter.counted(fields.successors)
  bigram_table.write(
      table, counted, tokenizer=tokenizer.fingerprint, sources=sources
  )
  values = summary(counted) | report_lib.left_out_of(sources)
  values['datastore/documents'] = sum(s.num_documents for s in sources)
  workdir.metric(values)
  return Made(
      title='Bigram table',
      said=_said(table, counted),
      sources=sources,
      values=values
      | {'datastore/binary_files': feed.num_binary}
      | report_lib.rates(
          num_sorted=counter.num_tokens,
          sort_s=counter.sort_s,
          num_encoded=feed.num_tokens,
          encode_s=encode_s,
      ),
      dtype='ids of 4 bytes',
      workdir=workdir,
      left_out=tuple(feed.left_out),
  )


def _count(
    counter: Counter,
    documents: Iterable[Document],
    sources: tuple[Source, ...],
) -> tuple[Source, ...]:
  """Counts the pairs of documents, and what came of every source."""
  counts = Counts(len(sources))
  for document in documents:
    left_out = document.num_left_out
    for part in document.parts or [np.array([], np.uint32)]:
      counter.add(part)
      counts.add(document.source, len(part), left_out)
      left_out = 0
  return counts.added_to(sources)


def summary(counted: Counted) -> dict[str, Any]:
  """Returns the datastore/* keys that do not depend on the run.

  Args:
    counted: what the table holds.
  """
  pairs = max(counted.num_pairs, 1)
  return {
      'datastore/tokens': counted.num_tokens,
      'datastore/pairs': counted.num_pairs,
      'datastore/distinct_pairs': counted.num_distinct,
      'datastore/followed_tokens': int(np.sum(counted.totals_V > 0)),
      'datastore/first_frac': float(counted.counts_VW[:, 0].sum() / pairs),
      'datastore/successors_frac': float(counted.counts_VW.sum() / pairs),
  }


def _said(table: pathlib.Path, counted: Counted) -> str:
  """Returns in a paragraph what the table is."""
  found = summary(counted)
  V, W = counted.successors_VW.shape
  return (
      f'{table}: {counted.num_tokens:,} tokens, {counted.num_pairs:,} pairs, '
      f'{counted.num_distinct:,} of them different. '
      f'{found["datastore/followed_tokens"]:,} of {V:,} tokens have '
      f'successors, of which {W} are kept: the likeliest is right after '
      f'{100 * found["datastore/first_frac"]:.1f} % of the tokens that were '
      f'counted, one of {W} after '
      f'{100 * found["datastore/successors_frac"]:.1f} %.'
  )
