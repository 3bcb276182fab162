"""Which devices take part in a collective together.

The compiler writes groups in three forms, all of them positions in the flat
array of the mesh's devices, never ids of devices:

  {{0,1},{2,3}}                       one by one
  [2,4]<=[8], [4,2]<=[2,4]T(1,0)      a reshaped, transposed 0, 1, 2, …
  mesh['data'=2,'model'=4] {'model'}  by axes of the mesh
"""

from collections.abc import Sequence
import re

import numpy as np

Groups = tuple[tuple[int, ...], ...]

_LISTED = re.compile(r'\{([\d, ]*)\}')
_IOTA = re.compile(r'\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?')
_RESHAPED = re.compile(r'\[([\d,]+)\]T\(([\d,]+)\)')
_MESH = re.compile(
    r'mesh\[([^\]]*)\](?:,\s*device_ids=\((.*)\))?\s*\{(.*)\}\s*$'
)
# An axis, or the part of one that skips `pre` major steps: 'b':(2)4.
_AXIS = re.compile(r"'([^']*)'(?::\((\d+)\)(\d+))?")


def parse(text: str, *, num_devices: int) -> Groups:
  """Reads `replica_groups` or `source_target_pairs`.

  Args:
    text: the attribute's value as printed.
    num_devices: of the program; an empty list of groups means all of them.

  Returns:
    The members of each group.

  Raises:
    ValueError: If the text has none of the known forms.
  """
  text = text.strip()
  if match := _IOTA.match(text):
    return _to_groups(_iota(match[2], match[3]).reshape(_ints(match[1])))
  if match := _MESH.match(text):
    return _from_mesh(match[1], match[2], match[3])
  if text.startswith('{'):
    listed = tuple(_ints(group) for group in _LISTED.findall(text[1:-1]))
    groups = tuple(group for group in listed if group)
    return groups or (tuple(range(num_devices)),)
  raise ValueError(f'unknown form of groups: {text!r}.')


def _ints(text: str) -> tuple[int, ...]:
  """Returns the numbers in '4,2'."""
  return tuple(int(number) for number in re.findall(r'\d+', text))


def _iota(sizes: str, permutation: str | None) -> np.ndarray:
  """Returns 0, 1, 2, … in an array of these sizes, transposed."""
  shape = _ints(sizes)
  array = np.arange(np.prod(shape)).reshape(shape)
  return array.transpose(_ints(permutation)) if permutation else array


def _from_mesh(sizes: str, device_ids: str | None, grouped: str) -> Groups:
  """Reads groups along axes of a mesh, or along parts of axes."""
  mesh = {
      name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", sizes)
  }
  count = int(np.prod(list(mesh.values()), dtype=int))
  if device_ids is None:
    members = np.arange(count)
  elif match := _RESHAPED.match(device_ids):
    members = _iota(match[1], match[2]).ravel()
  else:
    members = np.asarray(_ints(device_ids))
  refs = [
      (name, int(pre or 1), int(size or mesh[name]))
      for name, pre, size in _AXIS.findall(grouped)
  ]
  shape, positions = _cut(mesh, refs)
  array = members.reshape(shape)
  others = [axis for axis in range(len(shape)) if axis not in positions]
  array = array.transpose(others + positions)
  width = int(np.prod([shape[axis] for axis in positions], dtype=int))
  return _to_groups(array.reshape(-1, width))


def _cut(
    mesh: dict[str, int], refs: Sequence[tuple[str, int, int]]
) -> tuple[list[int], list[int]]:
  """Cuts axes where the refs do; returns all sizes and the refs' places."""
  shape, place = [], {}
  for name, size in mesh.items():
    cuts = {1, size}
    for axis, pre, part in refs:
      if axis == name:
        cuts |= {pre, pre * part}
    bounds = sorted(cuts)
    if len(bounds) == 1:
      bounds *= 2
    for low, high in zip(bounds, bounds[1:], strict=False):
      place[name, low] = len(shape)
      shape.append(high // low)
  positions = []
  for name, pre, part in refs:
    reached = pre
    while True:
      axis = place[name, reached]
      positions.append(axis)
      reached *= shape[axis]
      if reached >= pre * part:
        break
  return shape, positions


def _to_groups(array: np.ndarray) -> Groups:
  """Returns the rows of an array as tuples of int."""
  return tuple(tuple(row) for row in array.tolist())
