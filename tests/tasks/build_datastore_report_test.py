import numpy as np

from speculative.retrieval import datastore
from speculative.retrieval.datastore import Facts
from speculative.retrieval.store_file import Source
from speculative.tasks import build_datastore_report
from speculative.tasks.build_datastore_report import LeftOut
from speculative.tasks.build_datastore_report import Made
from speculative.train.overlap import Found


def test_the_report_says_what_there_is_and_what_is_not(tmp_path):
  sources = (Source('a/*.py', 1, 4, 2, 50), Source('b.jsonl', 0, 0, 1, 7))
  shard = datastore.make_shard(np.array([1, 2, 3, 9]), separator=9)
  datastore.write(tmp_path / 'x', Facts('aaaa', 9, sources=sources), [shard])
  store = datastore.open_store(tmp_path / 'x')
  found = build_datastore_report.summary(store)
  assert found['datastore/left_out_documents'] == 3
  assert found['datastore/left_out_tokens'] == 57
  assert found['datastore/bytes'] == 4 * 2 + 3 * 4
  found |= {
      'datastore/build_tokens_per_s': 1_500_000,
      'datastore/is_of_target': True,
  }
  left_out = [
      LeftOut('small', 10, Found('held:1', 1, 0, '')),
      LeftOut('large', 20, Found('held:2', 3, 4, 'w' * 200)),
  ]
  made = Made(
      title='Datastore',
      said=build_datastore_report.said(store),
      sources=sources,
      values=found,
      dtype='',
      workdir=None,
      left_out=left_out,
  )
  text = build_datastore_report.report(found, made)
  assert '1 documents, 4 tokens' in text
  assert '| a/*.py | 1 | 4 | 2 | 50 |' in text
  assert '1,500,000 tokens/s.' in text
  assert 'those of the target: True.' in text
  assert 'left 30 tokens out of 2 documents' in text
  assert text.index('large') < text.index('small')
  assert all(len(line) < 200 for line in text.splitlines())
