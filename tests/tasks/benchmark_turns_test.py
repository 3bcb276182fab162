"""A benchmark of second turns, and of the groups that they are of."""

import json

import pytest

from speculative.errors import UserError
from speculative.tasks import benchmark
from speculative.tasks import common
from speculative.tasks import measure
from speculative.tasks import turns

_FIELDS = {
    'data.prompts': 'builtin',
    'data.task_set': 'mt_bench',
    'data.turn': 'second',
    'data.num_prompts': 2,
    'decode.max_new_tokens': 4,
    'bench.calibration_prompts': 0,
    'bench.repeats': 1,
    'bench.plot': 'no',
}


@pytest.mark.slow
def test_first_turns_are_answered_once_and_a_run_goes_on_behind_them(
    run_benchmark, tmp_path, monkeypatch
):
  of_batch, prompts = measure.of_batch, []

  def stop(prepared, settings, index, **kwargs):
    prompts.append(prepared.batches)
    if index == 1 and len(prompts) == 2:
      raise KeyboardInterrupt
    return of_batch(prepared, settings, index, **kwargs)

  monkeypatch.setattr(measure, 'of_batch', stop)
  with pytest.raises(KeyboardInterrupt):
    run_benchmark(_FIELDS)
  monkeypatch.setattr(
      turns, 'answer_first', lambda *a, **k: pytest.fail('answered again')
  )
  plain, lookup = run_benchmark(_FIELDS).results['rows']
  # The model was asked the same by both.
  assert len(prompts) == 3 and prompts[2] == prompts[0]
  facts = json.loads((tmp_path / 'run/benchmark.json').read_text())['facts']
  assert [len(answers) for answers in facts['answers']] == [1, 1]
  assert plain['row/prompts'] == 'mt_bench_second'

  lines = (tmp_path / 'run/prompts.jsonl').read_text().split('\n')[:-1]
  groups = [json.loads(line)['group'] for line in lines]
  assert groups == ['writing', 'writing', 'math', 'math']
  for name in ('writing', 'math'):
    assert lookup[f'group/{name}/prompts'] == 1
    assert lookup[f'group/{name}/speedup'] > 0
    assert lookup[f'group/{name}/tokens_per_round'] >= 1
    assert f'| {name} ' in (tmp_path / 'run/results.md').read_text()
  assert not [key for key in plain if key.startswith('group/')]

  # Another run is refused before its first turns are answered, or weights read.
  monkeypatch.setattr(
      benchmark.common.api.LanguageModel,
      'load_weights',
      lambda self: pytest.fail('loaded'),
  )
  with pytest.raises(UserError, match='config.bench.repeats=1, this one has 2'):
    run_benchmark(_FIELDS | {'bench.repeats': 2})
  with pytest.raises(UserError, match='later turns='):
    run_benchmark(_FIELDS | {'data.turn': 'first'})


def test_hosts_agree_on_prompts_before_one_of_them_answers(
    get_config, monkeypatch
):
  said = []
  monkeypatch.setattr(
      common.hosts, 'agree', lambda value, *, name: said.append(name)
  )
  monkeypatch.setattr(
      common.api.LanguageModel, 'load_weights', lambda self: said.append('read')
  )
  config = get_config(
      {k: v for k, v in _FIELDS.items() if not k.startswith('bench')}
  )
  opened = common.open_run(config, common.config_lib.load_prompts(config))
  assert said == []
  loaded = common.load(opened, answers=[['one'], ['two']])
  assert said == ['prompts', 'read', 'prompts']
  assert [p.said[1] for p in loaded.prompts] == ['one', 'two']
  assert loaded.answers == [['one'], ['two']]
  assert loaded.batches != opened.batches
