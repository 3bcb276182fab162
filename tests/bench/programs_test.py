import pytest

from speculative.bench import programs

_ROW = {
    'prompt': (
        'import math\n\n\ndef help():\n  pass\n\ndef area(r):\n  """Of."""\n'
    ),
    'entry_point': 'area',
    'test': 'def check(candidate):\n  assert candidate(0) == 0',
}
_BODY = '  return math.pi * r**2\n'
_WHOLE = f'def area(r):\n{_BODY}'


@pytest.mark.parametrize(
    'text, stops, expected',
    [
        ('abc', (), 'abc'),
        ('abcabc', ('c', 'b'), 'a'),
        ('abc', ('x',), 'abc'),
        ('abc', ('a',), ''),
    ],
)
def test_a_text_ends_before_the_first_stop(text, stops, expected):
  assert programs.cut(text, stops) == expected


@pytest.mark.parametrize(
    'text, code',
    [
        (_BODY, _ROW['prompt'] + _BODY),
        (f'{_BODY}\ndef other(): 1', _ROW['prompt'] + _BODY),
        (f'{_BODY}\nprint(area(1))', _ROW['prompt'] + _BODY),
        (f'{_BODY}```\nThat is it.', _ROW['prompt'] + _BODY.rstrip('\n')),
        (
            f'Here it is:\n```python\n{_WHOLE}```\nDone.\n```\nx\n```',
            f'import math\n\n\ndef help():\n  pass\n\n{_WHOLE}',
        ),
        (f'```\n{_WHOLE}', f'import math\n\n\ndef help():\n  pass\n\n{_WHOLE}'),
        # A block without the function is talk behind a completion.
        (f'{_BODY}\n# Try:\n```\narea(1)\n```', _ROW['prompt'] + _BODY),
    ],
    ids=['body', 'next', 'print', 'closed', 'chat', 'unclosed', 'talk'],
)
def test_a_completion_goes_on_from_its_prompt_and_a_block_replaces_it(
    text, code
):
  found = programs.of('humaneval', _ROW, text)
  assert found == (code, _ROW['test'], 'check(area)')


@pytest.mark.parametrize(
    'text, code',
    [
        ('def f(): 1\n[DONE]\n\nYou are', 'def f(): 1\n'),
        ('[BEGIN]\ndef f(): 1\n[DONE]', '\ndef f(): 1\n'),
        ('So:\n```python\ndef f(): 1\n```\n', 'def f(): 1\n'),
    ],
)
def test_a_solution_of_mbpp_stands_between_its_marks(text, code):
  row = {'setup': 's', 'tests': ('assert a', 'assert b')}
  found = programs.of('mbpp', row, text)
  assert found == (code, 's', 'assert a\nassert b')
