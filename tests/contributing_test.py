"""CONTRIBUTING.md speaks of tests that exist."""

import pathlib
import re

_ROOT = pathlib.Path(__file__).parent.parent
_ID = re.compile(r'`(tests/[\w/]+_test\.py)::(test_\w+)`')


def test_every_test_that_is_named_exists():
  text = (_ROOT / 'CONTRIBUTING.md').read_text()
  ids = set(_ID.findall(text))
  assert len(ids) > 30
  # None is spelt so that the pattern passes over it.
  assert text.count('::test_') == len(_ID.findall(text))
  missing = [
      f'{path}::{name}'
      for path, name in sorted(ids)
      if f'\ndef {name}(' not in (_ROOT / path).read_text()
  ]
  assert missing == []
