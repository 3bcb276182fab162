"""Drafters as changes of another one, typed in one line.

  kind=lookup,num_draft_tokens=4
  name=REST,kind=retrieval,retrieval.sources=store,retrieval.buckets=(8, 24)

Whatever the drafter can no longer use goes with the change: a look-up that is a
change of a drafter with a model and a datastore has neither.
"""

import ast
from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
import difflib
import re

from speculative.drafting import config as config_lib
from speculative.drafting.config import DrafterConfig
from speculative.drafting.retrieval_config import RetrievalConfig
from speculative.errors import UserError

# Names the setting; all else are fields.
_NAME = 'name'
_NESTED = 'retrieval'
# The commas of a tuple are its own.
_COMMA = re.compile(r',(?![^()]*\))')
# How drafts are verified is no matter of the drafter's.
_FIELDS = tuple(
    field.name
    for field in dataclasses.fields(DrafterConfig)
    if field.name not in (_NESTED, 'rule')
) + tuple(
    f'{_NESTED}.{field.name}' for field in dataclasses.fields(RetrievalConfig)
)
_OF_MODEL = ('model', 'num_layers', 'dtype', 'shards')
# Kinds that draft no tree.
_CHAINS = ('none', 'lookup', 'cascade')
# Would break a Markdown table.
_NOT_IN_NAMES = '|\n\r'


def changed(
    drafter: DrafterConfig, changes: Mapping[str, object]
) -> DrafterConfig:
  """Returns a drafter with other fields, without those it then has no use for.

  What is dropped is what `DrafterConfig` refuses: a model, a datastore, widths,
  a shape that the kind does not draft, and tokens from text beside a tree; and
  a bigram table. A field among the changes stays, so that one without use is
  refused.

  Args:
    drafter: what is changed.
    changes: values of its fields, by name.

  Returns:
    The DrafterConfig.

  Raises:
    UserError: As DrafterConfig.
  """
  wanted = _Unchecked(
      **{
          field.name: changes.get(field.name, getattr(drafter, field.name))
          for field in dataclasses.fields(drafter)
      }
  )
  unused: list[str] = []
  if not wanted.uses_model:
    unused += _OF_MODEL
  if not wanted.uses_store:
    unused.append('store')
  if not wanted.uses_table:
    unused.append('table')
  if wanted.kind != 'hybrid' or wanted.shape != 'tree':
    unused.append('hybrid_tokens')
  is_drawn = wanted.shape == 'drawn_tree'
  if wanted.kind in _CHAINS or is_drawn and wanted.kind != 'lm':
    unused += ['shape', 'widths']
  elif not is_drawn:
    unused.append('widths')
  defaults = {f.name: f.default for f in dataclasses.fields(DrafterConfig)}
  dropped = {name: defaults[name] for name in unused}
  return dataclasses.replace(drafter, **(dropped | dict(changes)))


class _Unchecked(DrafterConfig):
  """Answers what a drafter uses before what it has no use for is dropped."""

  def __post_init__(self) -> None:
    """Refuses nothing."""


def parse(text: str, drafter: DrafterConfig) -> tuple[str, DrafterConfig]:
  """Reads a setting.

  Args:
    text: fields with their values, commas between them; `name=` is what it is
      called, and texts have no quotes.
    drafter: what it changes.

  Returns:
    Its name, which is the text where it has none, and the drafter.

  Raises:
    UserError: Naming the setting and what is wrong in it.
  """
  try:
    fields = _fields(text)
    name = fields.pop(_NAME, text)
    if set(name) & set(_NOT_IN_NAMES):
      raise UserError(
          f"a row of a table cannot be called {name!r}; leave '|' and line "
          'ends out, or give it another name=.'
      )
    top, nested = {}, {}
    for field, value in fields.items():
      outer, _, inner = field.rpartition('.')
      part, into = (drafter.retrieval, nested) if outer else (drafter, top)
      into[inner] = _value(field, value, getattr(part, inner))
    if nested:
      top[_NESTED] = dataclasses.replace(drafter.retrieval, **nested)
    found = changed(drafter, top)
    _check_used(fields, found)
    return name, found
  except UserError as error:
    raise UserError(f'the setting {text!r}: {error}') from error


def _fields(text: str) -> dict[str, str]:
  """Splits a setting into its fields and their values as typed."""
  found = {}
  for part in _COMMA.split(text):
    field, equals, value = (x.strip() for x in part.partition('='))
    if not equals or not value:
      raise UserError(
          f'{part.strip()!r} is no field with its value; write, for instance, '
          'kind=lookup,num_draft_tokens=4.'
      )
    if field not in (_NAME, *_FIELDS):
      close = difflib.get_close_matches(field, _FIELDS, n=1)
      hint = f'did you mean {close[0]!r}?' if close else 'see config.drafter.'
      raise UserError(f'the drafter has no field {field!r}; {hint}')
    if field in found:
      raise UserError(f'{field} is given twice; leave one out.')
    found[field] = value
  return found


def _uses(drafter: DrafterConfig, field: str) -> bool:
  """Tells whether a value of a field, which it may have, makes a difference."""
  kind, with_both = drafter.kind, drafter.kind in config_lib.WITH_BOTH
  if field.startswith(f'{_NESTED}.'):
    # A hybrid has its own shortest match.
    is_own = not field.endswith('.min_ngram') or kind != 'hybrid'
    return drafter.uses_retrieval and is_own
  looks_up = (kind == 'lookup' or with_both) and not drafter.uses_retrieval
  used = {
      'max_ngram': looks_up,
      'min_ngram': looks_up and kind != 'hybrid',
      'hybrid_source': with_both,
      'hybrid_ngram': kind == 'hybrid',
      'hybrid_tokens': kind == 'hybrid' and drafter.shape == 'tree',
      'cascade_tokens': kind == 'cascade',
      'levels': drafter.drafts_tree
      or (drafter.uses_table and drafter.shape == 'tree'),
      'width': drafter.drafts_tree,
      'table': drafter.uses_table,
      'table_fallback': drafter.uses_table,
  }
  return used.get(field, drafter.uses_model or field not in _OF_MODEL)


def _check_used(fields: Iterable[str], drafter: DrafterConfig) -> None:
  """Refuses typed fields that would be measured as if they were not there."""
  for field in fields:
    if _uses(drafter, field):
      continue
    inner = field.rpartition('.')[2]
    others = ('hybrid_ngram',) if inner == 'min_ngram' else ()
    others += (inner, f'{_NESTED}.{inner}')
    use = [x for x in others if x in _FIELDS and _uses(drafter, x)]
    hint = f'did you mean {use[0]!r}?' if use else 'leave it out.'
    raise UserError(
        f'{field} makes no difference to kind {drafter.label!r} of shape '
        f'{drafter.shape!r}; {hint}'
    )


def _value(field: str, text: str, like: object) -> object:
  """Reads a value of the type that a field has."""
  if isinstance(like, str):
    return text
  try:
    found = ast.literal_eval(text)
  except (SyntaxError, TypeError, ValueError):
    found = None
  if isinstance(like, float) and type(found) is int:
    found = float(found)
  if type(found) is not type(like):
    need = {int: 'a whole number', tuple: 'a tuple such as (8, 24)'}
    raise UserError(
        f'{field} is {text!r}; it needs to be '
        f'{need.get(type(like), f"a {type(like).__name__}")}.'
    )
  return found
