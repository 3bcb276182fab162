"""Configs of tasks over a random model of a few thousand weights."""

from collections.abc import Callable
from collections.abc import Sequence
import importlib
import json
import pathlib

from ml_collections import config_dict
import numpy as np
import pytest

from speculative.bench import bandwidth
from speculative.retrieval import datastore
from speculative.retrieval.datastore import Facts
from speculative.tasks import benchmark
from speculative.tasks.results import TaskResult
from speculative.tokenizer import byte_level

_ROOT = pathlib.Path(__file__).parents[2]

# Float32, where equality holds; one shape, so that tests share programs.
_SMALL = {
    'target.dtype': 'float32',
    'decode.max_new_tokens': 16,
    'bench.repeats': 1,
}


@pytest.fixture
def get_config(monkeypatch) -> Callable[..., config_dict.ConfigDict]:
  """Returns quickstart:tiny with fields set by their dotted names."""
  monkeypatch.syspath_prepend(str(_ROOT))

  def get(fields: dict | None = None) -> config_dict.ConfigDict:
    module = importlib.import_module('configs.quickstart')
    config = module.get_config('tiny')
    config.update_from_flattened_dict(_SMALL | (fields or {}))
    return config

  return get


@pytest.fixture
def store_on_host(tmp_path) -> dict[str, object]:
  """Returns what drafts trees from a store of some texts, on the host."""
  tokenizer = byte_level.ByteTokenizer()
  separator = tokenizer.vocab_size
  text = b'abc abd xyz xyy aab ' * 3
  shard = datastore.make_shard(
      np.array([*text, separator]), separator=separator, num_threads=1
  )
  path = tmp_path / 'some.store'
  datastore.write(path, Facts(tokenizer.fingerprint, separator), [shard])
  return {
      'drafter.kind': 'retrieval',
      'drafter.shape': 'tree',
      'drafter.store': str(path),
      'drafter.retrieval.placement': 'host',
      'drafter.retrieval.length': 2,
      'decode.num_draft_tokens': 5,
  }


@pytest.fixture
def write_prompts(tmp_path) -> Callable[[Sequence[str]], str]:
  """Writes texts to go on from and returns the file's name."""

  def write(texts: Sequence[str]) -> str:
    path = tmp_path / 'some_prompts.jsonl'
    path.write_text(''.join(json.dumps({'prompt': t}) + '\n' for t in texts))
    return str(path)

  return write


# Prompts of two buckets; the last two are set aside.
_TEXTS = ('abcab', 'abc ' * 10, 'cab ' * 9, 'bac')


@pytest.fixture
def run_benchmark(
    tmp_path, get_config, write_prompts, monkeypatch
) -> Callable[..., TaskResult]:
  """Runs the task into tmp_path / 'run', with a quick look at the memory."""
  monkeypatch.setattr(bandwidth, '_BYTES', 1 << 20)

  def call(fields: dict | None = None, texts: Sequence[str] = _TEXTS):
    config = get_config(
        {'data.prompts': write_prompts(texts), 'bench.repeats': 2}
        | (fields or {})
    )
    return benchmark.run(config, tmp_path / 'run')

  return call


@pytest.fixture
def prediction_keys() -> set[str]:
  """Returns the keys of a setting that was predicted."""
  return {
      'time/draft_frac',
      'time/target_frac',
      'time/other_frac',
      'time/round_ms',
      'time/plain_step_ms',
      'decode/draft_cost',
      'decode/verify_cost',
      'decode/verify_costs',
      'decode/overhead_cost',
      'decode/best_num_draft_tokens',
      'calibration/prompts',
      'calibration/acceptance_rate',
      'calibration/tokens_per_round',
      'speedup/predicted',
      'speedup/predicted_error',
      'speedup/predicted_noise',
      'speedup/predicted_iid',
      'speedup/predicted_iid_error',
      'speedup/best_predicted',
  }


@pytest.fixture
def check_prediction(prediction_keys) -> Callable[[dict], None]:
  """Returns what holds the keys of a prediction to what they say."""

  def check(row: dict) -> None:
    values = [row[key] for key in prediction_keys]
    flat = np.concatenate([np.ravel(value) for value in values])
    assert np.isfinite(flat).all()
    parts = ('draft', 'target', 'other')
    assert sum(row[f'time/{p}_frac'] for p in parts) == pytest.approx(1.0)
    assert row['calibration/prompts'] == 2
    most = row['row/num_draft_tokens']
    assert 0 <= row['decode/best_num_draft_tokens'] <= most

  return check
