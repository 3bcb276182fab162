"""Block against token verification, on models of a few thousand weights."""

import importlib
import json
import pathlib
import types

import numpy as np
import pytest

_SAID = {
    'model': 'some/model.gguf?sha256=00',
    'draft': 'target',
    'draft_layers': 2,
    'num_draft_tokens': 4,
    'num_prompts': 3,
    'seeds': 1,
    'max_new_tokens': 60,
    'env/dtype': 'float32',
    'env/jax': '0',
    'env/date': '2000-01-01',
}
_SCRIPTS = pathlib.Path(__file__).parents[2] / 'scripts'


@pytest.fixture
def script(monkeypatch) -> types.ModuleType:
  """The script as a module."""
  monkeypatch.syspath_prepend(str(_SCRIPTS))
  return importlib.import_module('bench_verification')


@pytest.fixture
def run(script, tmp_path, capsys):
  """Runs the script; returns its JSON file and what it printed."""

  def call(*flags):
    path = tmp_path / 'found.json'
    script.main(
        ['--model=random://tiny', '--dtype=float32', f'--out={path}', *flags]
    )
    return json.loads(path.read_text()), capsys.readouterr().out

  return call


def test_rows_of_one_prompt_have_seeds_of_their_own(script):
  batches = script.batches_of([[1, 1, 1], [2]], num_seeds=3, size=4)
  assert [len(batch) for batch in batches] == [4, 2]
  rows = [row for batch in batches for row in batch]
  assert [len(row.ids) for row in rows] == [1, 1, 1, 3, 3, 3]
  assert sorted(row.seed for row in rows) == list(range(6))
  assert {(row.prompt, row.seed // 3) for row in rows} == {(0, 0), (1, 1)}


def test_seeds_of_a_prompt_are_added_up(script):
  counts = script.Counts(np.zeros(2), np.zeros(2))
  rows = [script.Row(prompt, [1], seed=0) for prompt in (1, 0, 1)]
  generation = types.SimpleNamespace(
      token_ids=[[1] * 4, [1] * 5, [1] * 6],
      rounds=np.array([2, 3, 4]),
      tested=np.array([[3, 1]]),
      accepted=np.array([[2, 1]]),
  )
  counts.add(rows, generation)
  counts.add(
      rows[:1],
      generation=types.SimpleNamespace(
          token_ids=[[1]],
          rounds=np.array([1]),
          tested=np.array([[1]]),
          accepted=np.array([[0]]),
      ),
  )
  assert counts.tokens_U.tolist() == [5, 11]
  assert counts.rounds_U.tolist() == [3, 7]
  assert (counts.tested, counts.accepted) == (5, 3)


@pytest.mark.slow
def test_a_draft_that_is_the_target_leaves_nothing_to_gain(run):
  found, said = run(
      '--draft-layers=0',
      '--num-draft-tokens=1',
      '--max-new-tokens=8',
      '--num-prompts=2',
      '--seeds=2',
  )
  assert len(found['rows']) == 3
  for row in found['rows']:
    assert row['row/prompts'] == 2
    for rule in ('token', 'block'):
      # Four full rounds of 1 + 1 tokens a row.
      assert row[f'{rule}/tokens_per_round'] == 2
      assert row[f'{rule}/acceptance_rate'] == 1
      assert row[f'{rule}/tokens'] == 4 * 8
      assert row[f'{rule}/rounds_by_prompt'] == [8, 8]
    for end in ('', '_low', '_high'):
      assert row[f'block_vs_token/difference{end}'] == 0
      assert row[f'block_vs_token/quotient{end}'] == 1
  assert '| T0.7_p0.9' in said
  assert '\n\ntiny, draft target, J = 1, 2 prompts × 2 seeds × 8 tokens' in said


def test_a_row_of_the_table_says_what_was_counted(script):
  tokens_U = np.full(3, 60.0)
  counts = {
      'token': script.Counts(tokens_U, np.array([20.0, 30.0, 40.0]), 200, 100),
      'block': script.Counts(tokens_U, np.array([18.0, 28.0, 34.0]), 200, 110),
  }
  row = script.row_of('T1', counts)
  assert row['token/tokens_per_round'] == 2
  assert row['block/tokens_per_round'] == 2.25
  assert row['token/acceptance_rate'] == 0.5
  assert row['block/rounds'] == 80
  low, middle, high = (
      row[f'block_vs_token/difference{end}'] for end in ('_low', '', '_high')
  )
  assert low < middle == 0.25 < high
  line = script.markdown([row], _SAID).splitlines()[2]
  assert '| T1 ' in line
  assert f'+0.250 ({low:+.3f} to {high:+.3f})' in line
  assert '+12.5 % (' in line


@pytest.mark.parametrize(
    'flags, message',
    [
        (['--num-prompts=1'], 'at least 2 prompts, got 1'),
        (['--max-new-tokens=1000000'], 'lower --max-new-tokens'),
        (['--draft-layers=9'], 'num_layers is 9'),
    ],
)
def test_flags_that_cannot_be_followed_are_one_line(script, flags, message):
  with pytest.raises(SystemExit, match=message):
    script.main(['--model=random://tiny', '--draft-layers=1', *flags])
