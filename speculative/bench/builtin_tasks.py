"""A few rows of every task set, our own, in the sets' own fields.

They show that a set is read, decoded and scored, and nothing about a model.
"""


def _function(number: int, signature: str, doc: str, body: str, *tests: str):
  name = signature.split('(')[0]
  asserts = ''.join(f'    assert {test}\n' for test in tests)
  return {
      'task_id': f'builtin/{number}',
      'prompt': f'def {signature}:\n    """{doc}"""\n',
      'entry_point': name,
      'canonical_solution': f'    {body}\n',
      'test': f'def check(candidate):\n{asserts}',
  }


def _problem(number: int, text: str, code: str, *tests: str):
  return {
      'task_id': number,
      'text': text,
      'code': code,
      'test_list': [f'assert {test}' for test in tests],
      'test_setup_code': '',
  }


def _talk(number: int, category: str, turns: list, reference: list):
  row = {'question_id': number, 'category': category, 'turns': turns}
  return row | ({'reference': reference} if reference else {})


_LIBRARY = (
    'A library lends books to people who could not buy them all. It keeps old '
    'books that shops no longer sell.'
)
_BOAT = (
    'The small boat left the harbour before the storm came in. It was back '
    'when the sky was clear.'
)

ROWS = {
    'humaneval': (
        _function(
            0,
            'add(a, b)',
            'Returns a plus b.',
            'return a + b',
            'candidate(1, 2) == 3',
        ),
        _function(
            1,
            'last(items)',
            'Returns the last of items.',
            'return items[-1]',
            'candidate([1, 2]) == 2',
        ),
        _function(
            2,
            'is_even(n)',
            'Tells whether n is even.',
            'return n % 2 == 0',
            'candidate(4)',
            'not candidate(3)',
        ),
        _function(
            3,
            'shout(text)',
            'Returns text in capitals.',
            'return text.upper()',
            "candidate('ab') == 'AB'",
        ),
    ),
    'mbpp': (
        _problem(
            2,
            'Write a function to double a number.',
            'def double(n):\n  return 2 * n',
            'double(1) == 2',
            'double(0) == 0',
            'double(-2) == -4',
        ),
        _problem(
            3,
            'Write a function to join two texts.',
            'def join(a, b):\n  return a + b',
            "join('a', 'b') == 'ab'",
            "join('', 'b') == 'b'",
            "join('', '') == ''",
        ),
        _problem(
            4,
            'Write a function to find the smaller number.',
            'def smaller(a, b):\n  return min(a, b)',
            'smaller(1, 2) == 1',
            'smaller(2, 1) == 1',
            'smaller(3, 3) == 3',
        ),
        _problem(
            11,
            'Write a function to square a number.',
            'def square(n):\n  return n * n',
            'square(1) == 1',
            'square(3) == 9',
            'square(-2) == 4',
        ),
        _problem(
            12,
            'Write a function to reverse a text.',
            'def reverse(text):\n  return text[::-1]',
            "reverse('ab') == 'ba'",
            "reverse('a') == 'a'",
            "reverse('') == ''",
        ),
        _problem(
            13,
            'Write a function to count the items of a list.',
            'def count(items):\n  return len(items)',
            'count([]) == 0',
            'count([1]) == 1',
            'count([1, 1]) == 2',
        ),
    ),
    'mt_bench': (
        _talk(1, 'writing', ['Describe the sea.', 'Now in one word.'], []),
        _talk(2, 'math', ['What is 3 + 4?', 'Double it.'], ['7', '14']),
        _talk(3, 'coding', ['Write a loop.', 'Make it shorter.'], []),
        _talk(4, 'roleplay', ['You are a cat. Hello.', 'And now?'], []),
    ),
    'gsm8k': (
        {
            'question': 'Ann has 3 pens and buys 4. How many?',
            'answer': '#### 7',
        },
        {
            'question': 'A box holds 12 eggs. How many are in 3 boxes?',
            'answer': 'It is 3 * 12 = <<3*12=36>>36.\n#### 36',
        },
        {
            'question': 'Half of 1,000 sheep left. How many?',
            'answer': '#### 500',
        },
        {'question': 'Tom ran 5 km and 2 more. How far?', 'answer': '#### 7'},
    ),
    'spec_bench': (
        _talk(1, 'writing', ['Describe the sea.', 'Now in one word.'], []),
        _talk(
            2,
            'translation',
            ['Translate German to English: Das Boot ist klein.'],
            ['The boat is small.'],
        ),
        _talk(
            3,
            'summarization',
            [f'Summarize: {_LIBRARY}'],
            ['A library lends and keeps books.'],
        ),
        _talk(4, 'qa', ['Which planet is nearest the sun?'], []),
        _talk(5, 'math_reasoning', ['What is 6 times 7?'], ['#### 42']),
        _talk(6, 'rag', [f'{_BOAT}\nWhen was the boat back?'], []),
    ),
    'summarise': (
        {'article': _LIBRARY, 'summary': 'A library lends and keeps books.'},
        {'article': _BOAT, 'summary': 'A boat went out and came back.'},
        {
            'article': 'The bridge was closed on Monday. It opens in May.',
            'summary': 'The bridge is closed until May.',
        },
        {
            'article': 'Ann won the race. Tom was second, a minute behind her.',
            'summary': 'Ann won the race before Tom.',
        },
    ),
    'translate': (
        {'source': 'The boat is small.', 'target': 'Das Boot ist klein.'},
        {'source': 'It is raining today.', 'target': 'Heute regnet es.'},
        {
            'source': 'She reads an old book.',
            'target': 'Sie liest ein altes Buch.',
        },
        {'source': 'We are at home.', 'target': 'Wir sind zu Hause.'},
    ),
}
