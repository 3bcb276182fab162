import json

from speculative.tasks import train_draft_report


def test_history_is_kept_up_to_the_last_checkpoint(tmp_path):
  checkpoints = tmp_path / 'checkpoints'
  file = tmp_path / 'metrics.jsonl'
  lines = [
      json.dumps({'train/step': 1, 'train/loss': 2.0}) + '\n',
      # Of no step, whoever wrote it.
      json.dumps({'note': 'begun again'}) + '\n',
      json.dumps({'train/step': 2}) + '\n',
      json.dumps({'train/step': 3}) + '\n',
      '{"train/st',
  ]
  file.write_text(''.join(lines))
  assert train_draft_report.kept(tmp_path, checkpoints) == ''
  for step in (1, 2):
    (checkpoints / f'{step:08d}').mkdir(parents=True)
    (checkpoints / f'{step:08d}' / 'progress.json').write_text('{}')
  # A checkpoint that is not complete.
  (checkpoints / '00000003').mkdir()
  found = train_draft_report.kept(tmp_path, checkpoints)
  assert found == lines[0] + lines[2]


def test_a_table_has_a_row_of_all_and_of_every_domain_that_occurs(tmp_path):
  names = (
      'alpha_heldout',
      'agreement_heldout',
      'tokens_per_round_heldout',
      'greedy_tokens_per_round_heldout',
  )
  found = {f'train/{name}': 0.5 for name in names}
  found |= {f'train/code/{name}': 0.25 for name in names}
  said = train_draft_report.summary(found, ('text', 'code'), tmp_path)
  rows = [line.split() for line in said.splitlines()]
  assert ['all', '0.500', '0.500', '0.50', '0.50'] in rows
  assert ['code', '0.250', '0.250', '0.25', '0.25'] in rows
  assert not any(row[:1] == ['text'] for row in rows)
