import json

import pytest

from speculative.errors import UserError
from speculative.tokenizer import byte_level
from speculative.train import overlap

_HELD = [
    {
        'task_id': 'a/0',
        'prompt': 'def area(width, height):\n  """Returns the area."""\n',
        'canonical_solution': '  return width * height\n',
        'test': 'assert area(3, 4) == 12',
    },
    {
        'question_id': 1,
        'turns': [
            'The quick brown fox jumps over the lazy dog. Say who jumped.',
            'Why?',
        ],
    },
]
_ENCODE = byte_level.ByteTokenizer().encode


@pytest.fixture
def held(tmp_path):
  path = tmp_path / 'held.jsonl'
  path.write_text(''.join(json.dumps(row) + '\n' for row in _HELD))
  return overlap.read([str(path)])


def _find(held, text, **sizes):
  runs = overlap.Overlap(held, _ENCODE, **sizes)
  return runs.find(_ENCODE(text), text)


def test_every_text_of_an_example_is_read_the_nested_ones_too(held):
  assert [example.where[-12:] for example in held] == [
      'held.jsonl:1',
      'held.jsonl:2',
  ]
  assert held[0].texts == tuple(_HELD[0].values())
  assert held[1].texts == tuple(_HELD[1]['turns'])


@pytest.mark.parametrize(
    ('text', 'example'),
    [
        ('x = 1\ndef area(width, height):\n  return 0', 1),
        ('so it is\n  return width * height\n# done', 1),
        ('THE QUICK BROWN FOX, "jumps" over the\nlazy   dog!', 2),
        ('the quick brown fox jumps over the lazy cat and dog', 2),
    ],
    ids=['prompt', 'solution', 'other case and marks', 'eight words of it'],
)
def test_a_planted_overlap_is_found_and_its_example_named(held, text, example):
  found = _find(held, text, num_tokens=20)
  assert found is not None
  assert found.where.endswith(f':{example}')
  assert found.size > 0


@pytest.mark.parametrize(
    'text',
    [
        'def size(width, depth):\n  """Gives the size."""\n  return width',
        'A quick brown fox jumps over lazy dogs and the lazy dog sleeps.',
        'Why not?',
        '',
    ],
)
def test_a_near_but_different_text_passes(held, text):
  assert _find(held, text, num_tokens=30) is None


def test_runs_are_exactly_as_long_as_they_are_asked_to_be(held):
  shared = 'The quick brown fox jum'
  for num_tokens in (len(shared), len(shared) + 1):
    found = _find(held, f'<{shared}>', num_tokens=num_tokens)
    assert (found is not None) == (num_tokens == len(shared))
  assert _find(held, 'brown fox jumps', num_tokens=99, num_words=3)
  assert _find(held, 'brown fox jumps', num_tokens=99, num_words=4) is None


def test_a_short_text_is_compared_whole(held):
  assert _find(held, 'why', num_tokens=99).where.endswith(':2')
  # Such a short evaluated text is not looked for inside a longer one.
  assert _find(held, 'why is a tree green', num_tokens=99) is None


def test_a_file_without_texts_is_refused(tmp_path):
  path = tmp_path / 'held.jsonl'
  path.write_text('{"task": 1}\n')
  with pytest.raises(UserError, match='holds no texts'):
    overlap.read([str(path)])
