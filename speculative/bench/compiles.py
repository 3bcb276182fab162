"""Counts what the compiler was asked to do."""

from collections.abc import Iterator
import contextlib
import dataclasses

import jax

_EVENT = '/jax/core/compile/backend_compile_duration'


@dataclasses.dataclass
class Compiles:
  """Compilations seen while `counted` was active.

  Attributes:
    count: programs.
    seconds: time they took.
  """

  count: int = 0
  seconds: float = 0.0


_active: list[Compiles] = []


def _listen(event: str, duration: float, **unused: object) -> None:
  del unused
  if event == _EVENT:
    for compiles in _active:
      compiles.count += 1
      compiles.seconds += duration


jax.monitoring.register_event_duration_secs_listener(_listen)


@contextlib.contextmanager
def counted() -> Iterator[Compiles]:
  """Counts the compilations inside the block."""
  compiles = Compiles()
  _active.append(compiles)
  try:
    yield compiles
  finally:
    _active.remove(compiles)
