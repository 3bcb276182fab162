"""The files around the package agree with one another."""

import pathlib
import re

import pytest

_ROOT = pathlib.Path(__file__).parent.parent


@pytest.mark.parametrize('tool', ['pyink', 'ruff'])
def test_the_commit_hook_uses_the_release_that_setup_pins(tool):
  pin = re.compile(rf'\b{tool}==([\d.]+)')
  (in_setup,) = pin.findall((_ROOT / 'setup.py').read_text())
  (in_hook,) = pin.findall((_ROOT / '.pre-commit-config.yaml').read_text())
  assert in_hook == in_setup
