import json

import pytest

from speculative import api
from speculative.errors import UserError
from speculative.tasks import generate

_PROMPT = 'abcabcabcabcabcabcabcabcabcabcabcabc'


@pytest.fixture
def run(tmp_path, get_config):
  """Runs the task; returns its result and what it said."""

  def call(**fields):
    fields = {name.replace('__', '.'): value for name, value in fields.items()}
    config = get_config(
        {'generate.compare': 'no', 'generate.prompt': _PROMPT} | fields
    )
    said = []
    result = generate.run(config, tmp_path / 'run', say=said.append)
    assert result.exit_status == 0
    return result.results, said

  return call


def _outputs(tmp_path) -> list[dict]:
  lines = (tmp_path / 'run' / 'outputs.jsonl').read_text().split('\n')
  return [json.loads(line) for line in lines if line]


@pytest.mark.slow
def test_one_prompt_streams_and_the_pieces_are_the_text(run, tmp_path):
  results, said = run()
  (row,) = _outputs(tmp_path)
  assert len(said) > 2, 'it came in one piece'
  assert ''.join(said) == row['text'] + '\n'
  assert row['prompt'] == _PROMPT
  assert results['decode/tokens'] == len(row['token_ids'])
  assert row['reason'] == ('length' if len(row['token_ids']) == 16 else 'stop')
  assert results['decode/tokens_per_round'] >= 1
  assert json.loads((tmp_path / 'run/results.json').read_text()) == results


@pytest.mark.slow
def test_the_keys_are_those_of_the_table_in_the_documentation(run):
  results, _ = run()
  assert {k for k in results if not k.startswith('env/')} == {
      'decode/tokens_per_s',
      'decode/ms_per_token',
      'decode/tokens_per_round',
      'decode/tokens',
      'decode/acceptance_rate',
      'decode/draft_yield',
      'time/prefill_s',
  }


@pytest.mark.slow
def test_prompts_from_data_are_shown_one_after_another(
    run, tmp_path, write_prompts
):
  texts = [_PROMPT, _PROMPT[1:]]
  results, said = run(
      generate__prompt=generate.FROM_DATA, data__prompts=write_prompts(texts)
  )
  rows = _outputs(tmp_path)
  assert [row['prompt'] for row in rows] == texts
  assert said == [f'\n> {row["prompt"]}\n{row["text"]}\n' for row in rows]
  assert results['decode/tokens'] == sum(len(row['token_ids']) for row in rows)


@pytest.mark.slow
def test_log_probs_are_written_where_they_were_asked_for(run, tmp_path):
  run()
  (row,) = _outputs(tmp_path)
  assert set(row) == {'prompt', 'text', 'token_ids', 'reason'}
  run(decode__num_top_log_probs=2)
  (row,) = _outputs(tmp_path)
  assert len(row['log_probs']) == len(row['token_ids'])
  # Greedy: the token itself is the likeliest.
  assert [pairs[0][0] for pairs in row['top_log_probs']] == row['token_ids']
  assert {len(pairs) for pairs in row['top_log_probs']} == {2}


@pytest.mark.slow
def test_a_comparison_ends_with_a_table_of_both(run, tmp_path):
  results, said = run(generate__compare='yes')
  *table, blank, reason = said[-1].strip().splitlines()
  assert not blank
  assert reason.startswith('lookup 4: a round costs ')
  assert [line.split('|')[1].strip() for line in table[2:]] == [
      'plain',
      'lookup 4',
  ]
  assert results['lossless/greedy_equal'] is True
  assert results['speedup/measured'] > 0
  assert not [key for key in results if key.startswith('row/')]
  (line,) = (tmp_path / 'run/metrics.jsonl').read_text().splitlines()
  assert json.loads(line).items() >= results.items()


@pytest.mark.slow
def test_tokens_that_differ_are_explained_in_words(run, monkeypatch):
  monkeypatch.setattr(
      generate.measure.compare, 'unequal', lambda plain, other: [0]
  )
  _, said = run(generate__compare='yes')
  assert 'near ties' in said[-1]
  assert '--config.target.dtype=float32' in said[-1]


@pytest.mark.slow
def test_plain_decoding_is_not_compared_with_itself(run):
  results, said = run(generate__compare='yes', drafter__kind='none')
  assert 'speedup/measured' not in results
  assert '|' not in said[-1]


@pytest.mark.parametrize(
    'prompt_format, template',
    [('auto', 'auto'), ('chat', 'auto'), ('completion', 'no')],
)
def test_the_format_decides_about_the_template(
    tmp_path, get_config, monkeypatch, prompt_format, template
):
  seen = []

  def encode(self, prompt, *, chat_template):
    del self
    seen.append((prompt, chat_template))
    raise UserError('far enough.')

  monkeypatch.setattr(api.LanguageModel, 'encode', encode)
  config = get_config(
      {'generate.prompt': 'hi', 'data.format': prompt_format},
  )
  with pytest.raises(UserError, match='far enough'):
    generate.run(config, tmp_path / 'run')
  assert seen == [('hi', template)]
