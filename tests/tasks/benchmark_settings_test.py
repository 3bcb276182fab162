"""Which settings a benchmark measures, before anything is loaded."""

import pytest

from speculative.errors import UserError
from speculative.tasks import benchmark
from speculative.tasks import benchmark_settings


@pytest.fixture
def run(tmp_path, get_config, write_prompts):
  """Runs the task over a few prompts."""

  def call(fields=None):
    prompts = write_prompts(('abcab', 'abc ' * 10, 'cab ' * 9, 'bac'))
    config = get_config(
        {'data.prompts': prompts, 'bench.repeats': 2} | (fields or {})
    )
    return benchmark.run(config, tmp_path / 'run')

  return call


@pytest.fixture
def loads_nothing(monkeypatch):
  """Fails where weights are loaded."""
  monkeypatch.setattr(
      benchmark.common.api.LanguageModel,
      'load_weights',
      lambda self: pytest.fail('loaded'),
  )


@pytest.mark.parametrize(
    'settings, message',
    [
        (('kind=lookup,num_draft_tokens=x',), "num_draft_tokens=x': .*'x'"),
        (('kindd=lookup',), "the setting 'kindd=lookup': .*no field 'kindd'"),
        (('kind=lookup', 'kind=lookup'), "'kind=lookup' twice"),
        (('name=plain,kind=lookup',), "'plain' twice, or calls it as"),
        (('num_draft_tokens=0',), 'drafts nothing'),
        ((3,), 'needs to hold texts'),
        (('kind=retrieval,store=x',), "the setting .*'x' is not loaded"),
        (('kind=lm,model=x',), "the setting .*'x' is not loaded"),
        (('kind=bigram,table=x',), "table 'x' is not loaded"),
    ],
)
def test_wrong_settings_are_refused_before_anything(
    run, tmp_path, loads_nothing, settings, message
):
  with pytest.raises(UserError, match=message):
    run({'bench.settings': settings})
  assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('lengths', [(2,), (0, 4)])
def test_lengths_beside_settings_are_refused_before_anything(
    run, tmp_path, loads_nothing, lengths
):
  fields = {
      'bench.num_draft_tokens': lengths,
      'bench.settings': ('kind=lookup',),
  }
  with pytest.raises(UserError, match='bench.num_draft_tokens is .*leave it'):
    run(fields)
  assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize(
    'fields, names',
    [
        ({}, ['plain', 'lookup 4']),
        ({'decode.num_draft_tokens': 2}, ['plain', 'lookup 2']),
        ({'decode.num_draft_tokens': 0}, ['plain']),
        (
            {'bench.num_draft_tokens': (8, 2, 8, 0)},
            ['plain', 'lookup 8', 'lookup 2'],
        ),
        (
            {'bench.num_draft_tokens': (2,), 'decode.num_draft_tokens': 0},
            ['plain', 'lookup 2'],
        ),
        ({'bench.num_draft_tokens': ()}, ['plain', 'lookup 4']),
        (
            {'bench.num_draft_tokens': (2,), 'drafter.kind': 'none'},
            ['plain'],
        ),
    ],
)
def test_draft_lengths_make_the_settings(
    run, monkeypatch, get_config, fields, names
):
  def stop(prepared, settings):
    del prepared
    raise KeyError([benchmark.common.name(s) for s in settings])

  monkeypatch.setattr(benchmark.common, 'warm_up', stop)
  monkeypatch.setattr(
      benchmark.common.api.LanguageModel, 'load_weights', lambda self: None
  )
  with pytest.raises(KeyError) as caught:
    run(fields)
  assert caught.value.args[0] == names


@pytest.mark.parametrize('lengths', [(-1,), (2, 'a'), (1.5,)])
def test_wrong_draft_lengths_are_refused_before_anything(
    run, tmp_path, lengths
):
  with pytest.raises(UserError, match='bench.num_draft_tokens.*>= 0'):
    run({'bench.num_draft_tokens': lengths})
  assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize(
    'fields, name',
    [
        ({}, 'greedy'),
        ({'decode.top_k': 5, 'decode.top_p': 0.5}, 'greedy'),
        ({'decode.temperature': 0.8, 'decode.top_p': 0.95}, 'T0.8_p0.95'),
        ({'decode.temperature': 1.0, 'decode.top_k': 50}, 'T1_k50'),
    ],
)
def test_the_sampler_has_a_short_name(get_config, fields, name):
  assert benchmark_settings.sampler_name(get_config(fields)) == name


@pytest.mark.parametrize(
    'fields, name',
    [
        ({'data.prompts': 'some/HumanEval.jsonl.gz'}, 'HumanEval'),
        (
            {'data.prompts': 'question.jsonl', 'data.task_set': 'spec_bench'},
            'spec_bench',
        ),
        (
            {
                'data.prompts': 'test.jsonl',
                'data.task_set': 'mbpp',
                'data.group': 'test',
                'data.num_shots': 3,
            },
            'mbpp_test_3shot',
        ),
        (
            {
                'data.prompts': 'question.jsonl',
                'data.task_set': 'mt_bench',
                'data.turn': 'second',
            },
            'mt_bench_second',
        ),
    ],
)
def test_prompts_are_called_by_their_task_set_or_else_their_file(
    get_config, fields, name
):
  assert benchmark_settings.prompts_name(get_config(fields)) == name
