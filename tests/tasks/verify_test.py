import json
import math

import jax
import pytest

from speculative.decoding import verify as chain
from speculative.errors import UserError
from speculative.tasks import verify

# One bucket; their texts repeat themselves, so that something is drafted.
_TEXTS = ('abc ' * 10, 'xyz ' * 9, 'aab ' * 10)


@pytest.fixture
def run(tmp_path, get_config, write_prompts):
  """Runs the task over a few prompts."""

  def call(fields=None):
    fields = {'data.prompts': write_prompts(_TEXTS)} | (fields or {})
    return verify.run(get_config(fields), tmp_path / 'run')

  return call


@pytest.fixture
def accept_everything(monkeypatch):
  """Breaks the acceptance rule, in programs compiled from here on only."""

  def match_draws(draft_tokens_BJ, valid_BJ, draws_BT):
    del draft_tokens_BJ
    num_valid_B = chain._leading(valid_BJ)
    return chain._verdict(
        num_valid_B, valid_BJ, chain._take(draws_BT, num_valid_B)
    )

  jax.clear_caches()
  monkeypatch.setattr(chain, 'match_draws', match_draws)
  yield
  jax.clear_caches()


@pytest.mark.slow
@pytest.mark.parametrize(
    'sampler',
    [{}, {'decode.temperature': 0.8, 'decode.top_p': 0.95, 'seed': 3}],
    ids=['greedy', 'sampled'],
)
def test_a_lossless_drafter_passes(run, tmp_path, capsys, sampler):
  result = run(sampler)
  found = result.results
  assert result.exit_status == 0
  assert {k for k in found if not k.startswith('env/')} == {
      'verify/passed',
      'verify/cases',
      'lossless/greedy_equal',
      'lossless/first_divergence',
      'lossless/unequal_prompts',
      'decode/tokens',
      'decode/tokens_per_round',
      'decode/acceptance_rate',
      'decode/draft_yield',
  }
  assert found['verify/passed'] is True
  assert found['verify/cases'] == 3
  assert found['lossless/first_divergence'] is None
  assert found['decode/tokens_per_round'] >= 1
  assert json.loads((tmp_path / 'run/results.json').read_text()) == found
  assert capsys.readouterr().out.startswith('passed: 3 prompts')


@pytest.mark.slow
@pytest.mark.usefixtures('accept_everything')
def test_a_drafter_whose_tokens_all_pass_fails(run, tmp_path, capsys):
  result = run()
  found = result.results
  assert result.exit_status == 1
  assert found['verify/passed'] is False
  assert found['lossless/greedy_equal'] is False
  assert 1 <= found['lossless/unequal_prompts'] <= 3
  divergence = found['lossless/first_divergence']
  assert divergence['plain_token'] != divergence['other_token']
  # In float32 plain decoding took the largest logit.
  assert math.isfinite(divergence['logit_gap'])
  assert divergence['logit_gap'] > 0
  assert json.loads((tmp_path / 'run/results.json').read_text()) == found
  assert capsys.readouterr().out.startswith('FAILED: 3 prompts')


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'drafter.kind': 'none'}, "set config.drafter.kind to 'lookup'"),
        ({'decode.num_draft_tokens': 0}, 'config.decode.num_draft_tokens'),
        (
            {
                'drafter.kind': 'lm',
                'drafter.model': 'random://tiny',
                'decode.temperature': 0.5,
            },
            "at temperature 0.5 a 'lm' draft.*set config.decode.temperature=0",
        ),
    ],
    ids=['plain', 'drafts of 0', 'sampled lm'],
)
def test_what_promises_no_tokens_is_refused(run, tmp_path, fields, message):
  with pytest.raises(UserError, match=message):
    run(fields)
  assert not (tmp_path / 'run').exists()
