"""Our drafters that the settings of bench_vs_transformers.py stand for."""

from collections.abc import Mapping

import peer_contestants

from speculative.drafting import changes
from speculative.drafting.config import DrafterConfig
from speculative.errors import UserError

PLAIN = DrafterConfig()


def of_draft(draft: str, dtype: str) -> DrafterConfig:
  """Returns the drafter that settings with a draft model change.

  Args:
    draft: reference of the draft model.
    dtype: of its weights.
  """
  return DrafterConfig(kind='lm', model=draft, dtype=dtype)


def parse(
    settings: Mapping[str, str], *, draft: str, draft_dtype: str
) -> dict[str, DrafterConfig]:
  """Returns the drafters, by setting.

  Args:
    settings: fields by name; those without any are plain decoding.
    draft: reference of the draft model; needed where a setting drafts with one.
    draft_dtype: of its weights.

  Raises:
    UserError: Naming the first setting that is none.
  """
  found = {}
  for name, text in settings.items():
    base = PLAIN
    if peer_contestants.needs_draft(text):
      base = of_draft(draft, draft_dtype)
    try:
      found[name] = changes.parse(text, base)[1] if text else PLAIN
    except UserError as error:
      raise UserError(f'{peer_contestants.OURS}:{name}: {error}') from error
    if text and found[name].kind == PLAIN.kind:
      raise UserError(
          f'{peer_contestants.OURS}:{name} is {text!r}, which drafts nothing; '
          'name a kind, such as kind=lookup.'
      )
  return found
