"""The drafts that come with the package."""

import pytest

from speculative.checkpoints import draft_dir
from speculative.checkpoints import sources

_NAMES = sorted(path.parent.name for path in sources.DRAFTS.glob('*/*.json'))
_MOST_BYTES = 20e6


def test_there_is_one():
  assert 'smollm2_135m_instruct' in _NAMES


@pytest.mark.parametrize('name', _NAMES)
def test_a_draft_is_small_says_how_it_was_made_and_can_be_opened(name):
  path = sources.resolve(f'package://{name}')
  files = [file for file in path.rglob('*') if file.is_file()]
  assert sum(file.stat().st_size for file in files) < _MOST_BYTES
  assert (path / 'README.md').read_text().startswith('# A draft for ')
  found = draft_dir.open_draft(path)
  assert found.target.reference
  assert len(found.head_ids()) == found.config.head_size


@pytest.mark.parametrize('name', _NAMES)
def test_no_file_names_a_directory_of_the_machine_it_was_made_on(name):
  for file in (sources.DRAFTS / name).rglob('*'):
    if file.is_file():
      content = file.read_bytes()
      assert b'/tmp/' not in content and b'/home/' not in content, file
