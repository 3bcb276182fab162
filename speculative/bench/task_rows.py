"""Rows of task sets, checked and brought to the same few fields."""

from collections.abc import Mapping
import dataclasses
import re

from speculative.errors import UserError

Row = dict[str, object]

SPEC_BENCH = (
    'mt_bench',
    'translation',
    'summarization',
    'qa',
    'math_reasoning',
    'rag',
)
MT_BENCH = ('writing', 'roleplay', 'reasoning', 'math', 'coding', 'extraction')
MT_BENCH += ('stem', 'humanities')

# Digits with commas between thousands or without, which a fraction may lack. A
# minus between two words or numbers is none, nor does a full stop begin one.
_NUMBER = re.compile(
    r'(?:(?<![\w)])-)?'
    r'(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])\.\d+)',
    re.ASCII,
)


@dataclasses.dataclass(frozen=True)
class Fields:
  """Fields of a row, with errors that name its place.

  Attributes:
    row: as JSON gave it.
    where: file and line.
  """

  row: Mapping[str, object]
  where: str

  def text(self, *names: str, default: str | None = None) -> str:
    """Returns the first field there is of some names."""
    found = next((n for n in names if self.row.get(n) is not None), None)
    if found is None:
      if default is not None:
        return default
      raise UserError(
          f'{self.where} has no field {" or ".join(names)}; add it, or set '
          'config.data.task_set to what the file is.'
      )
    value = self.row[found]
    if not isinstance(value, str) or not (value or default is not None):
      raise self.wrong(found, 'a text that is not empty')
    return value

  def texts(self, name: str) -> tuple[str, ...]:
    """Returns a field that is a list of texts."""
    value = self.row.get(name)
    if value is None:
      self.text(name)
    is_list = isinstance(value, list) and value
    if not is_list or not all(isinstance(v, str) and v for v in value):
      raise self.wrong(name, 'a list of texts that are not empty')
    return tuple(value)

  def reference(self) -> object:
    """Returns the first entry of the reference, or ''."""
    value = self.row.get('reference')
    return value[0] if isinstance(value, list) and value else value or ''

  def wrong(self, name: str, need: str) -> UserError:
    """Returns an error about a field."""
    value = self.row.get(name)
    return UserError(
        f'{self.where}: {name} is {value!r:.60}; it needs to be {need}.'
    )


def last_number(text: str) -> str:
  """Returns the last number of a text in one form, '' where there is none.

  '1,250.50' is '1250.5', '$-3.0' is '-3', '.5' is '0.5'.

  Args:
    text: with digits.
  """
  found = _NUMBER.findall(text)
  if not found:
    return ''
  whole, _, part = found[-1].replace(',', '').partition('.')
  sign = '-' if whole.startswith('-') else ''
  digits, part = whole.lstrip('-').lstrip('0') or '0', part.rstrip('0')
  if digits == '0' and not part:
    sign = ''
  return f'{sign}{digits}' + (f'.{part}' if part else '')


def _has_number(value: object) -> bool:
  return isinstance(value, str) and bool(last_number(value))


def humaneval(fields: Fields) -> Row:
  """Returns prompt, test and entry_point."""
  row = {name: fields.text(name) for name in ('prompt', 'test', 'entry_point')}
  if not row['entry_point'].isidentifier():
    raise fields.wrong('entry_point', 'the name of a function')
  return row


def mbpp(fields: Fields) -> Row:
  """Returns task_id, text, code, tests and setup, which they need."""
  number = fields.row.get('task_id')
  if not isinstance(number, int):
    raise fields.wrong('task_id', 'a whole number')
  imports = fields.row.get('test_imports') or []
  setup = fields.text('test_setup_code', default='')
  return {
      'task_id': number,
      # The second is what the sanitised file calls it.
      'text': fields.text('text', 'prompt'),
      'code': fields.text('code').replace('\r\n', '\n'),
      'tests': fields.texts('test_list'),
      'setup': '\n'.join([*map(str, imports), setup.replace('\r\n', '\n')]),
  }


def talk(fields: Fields) -> Row:
  """Returns turns, category and reference."""
  return {
      'turns': fields.texts('turns'),
      'category': fields.text('category'),
      'reference': fields.reference(),
  }


def spec_bench(fields: Fields) -> Row:
  """Returns what `talk` does, of a known category."""
  row = talk(fields)
  if spec_bench_group(row) not in SPEC_BENCH:
    raise fields.wrong('category', f'one of {", ".join(SPEC_BENCH)}')
  # What has no reference is not scored.
  is_sum = row['category'] == 'math_reasoning' and row['reference']
  if is_sum and not _has_number(row['reference']):
    raise fields.wrong('reference', 'a text with a number')
  return row


def spec_bench_group(row: Row) -> str:
  """Returns the group of SPEC_BENCH that a row belongs to."""
  category = row['category']
  return 'mt_bench' if category in MT_BENCH else category


def gsm8k(fields: Fields) -> Row:
  """Returns question and answer."""
  if 'turns' in fields.row:
    question, answer = fields.texts('turns')[0], fields.reference()
  else:
    question, answer = fields.text('question'), fields.text('answer')
  if not _has_number(answer):
    name = 'reference' if 'turns' in fields.row else 'answer'
    raise fields.wrong(name, 'a text with a number')
  return {'question': question, 'answer': answer}


def summarise(fields: Fields) -> Row:
  """Returns article and summary."""
  return {
      'article': fields.text('article', 'document'),
      'summary': fields.text('summary', 'highlights'),
  }


def translate(fields: Fields) -> Row:
  """Returns source and target with their languages."""
  names = ('source', 'target')
  languages = {
      'source_language': fields.text('source_language', default='English'),
      'target_language': fields.text('target_language', default='German'),
  }
  return {name: fields.text(name) for name in names} | languages
