"""Groups of devices in the forms that compilers print."""

import pytest

from speculative.hlo import groups


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('{{0,1},{2,3}}', ((0, 1), (2, 3))),
        ('{{0, 3}, {1, 2}}', ((0, 3), (1, 2))),
        ('{}', ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ('{{}}', ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ('[2,4]<=[8]', ((0, 1, 2, 3), (4, 5, 6, 7))),
        ('[4,2]<=[2,4]T(1,0)', ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['a'=2,'b'=4] {'b'}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['a'=2,'b'=4] {'a'}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['a'=2,'b'=2,'c'=2] {'a','c'}", ((0, 1, 4, 5), (2, 3, 6, 7))),
        ("mesh['a'=1,'b'=4] {'b'}", ((0, 1, 2, 3),)),
        ("mesh['a'=1,'b'=2] {'a'}", ((0,), (1,))),
    ],
)
def test_groups_are_read(text, expected):
  assert groups.parse(text, num_devices=8) == expected


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        # The major half of the axis, then the minor.
        ("mesh['a'=8] {'a':(1)2}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['a'=8] {'a':(2)4}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['a'=8] {'a':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        (
            "mesh['a'=2,'b'=4] {'a','b':(1)2}",
            ((0, 2, 4, 6), (1, 3, 5, 7)),
        ),
        (
            "mesh['a'=2,'b'=2], device_ids=(0,2,1,3) {'b'}",
            ((0, 2), (1, 3)),
        ),
        (
            "mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}",
            ((0, 2), (1, 3)),
        ),
    ],
)
def test_parts_of_axes_and_reordered_meshes_are_read(text, expected):
  found = groups.parse(text, num_devices=8)
  assert sorted(found) == sorted(expected)


def test_an_unknown_form_is_refused():
  with pytest.raises(ValueError, match='unknown form of groups'):
    groups.parse('dense<0>', num_devices=8)
