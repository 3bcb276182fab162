"""What of a loaded model another drafter of it can use."""

from collections.abc import Mapping
import dataclasses

from speculative.decoding.autoregressive import Autoregressive
from speculative.decoding.engine import Engine
from speculative.decoding.host_engine import HostEngine
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.drafting import bigram_config
from speculative.drafting import given
from speculative.drafting.config import DrafterConfig
from speculative.errors import UserError
from speculative.retrieval.bigram_table import DeviceTable
from speculative.retrieval.device_store import DeviceStore


def weights_of(drafter: DrafterConfig) -> dict[str, object]:
  """Returns what the loaded weights of a draft model depend on, by field.

  Args:
    drafter: that was loaded, or is asked for.
  """
  fields = ('model', 'num_layers', 'dtype', 'shards')
  return {field: getattr(drafter, field) for field in fields}


def parts_of(drafter: DrafterConfig) -> tuple[str, ...]:
  """Returns which params a drafter takes, of 'table', 'store' and 'model'.

  Args:
    drafter: whose.
  """
  if drafter.is_plain:
    return ()
  uses = (
      ('table', drafter.uses_table),
      ('store', drafter.uses_store),
      ('model', drafter.uses_model),
  )
  return tuple(name for name, is_used in uses if is_used)


def store_of(drafter: DrafterConfig) -> dict[str, object]:
  """Returns what the loaded datastore depends on, by field.

  Args:
    drafter: that was loaded, or is asked for.
  """
  return {
      'store': drafter.store,
      'retrieval.placement': drafter.retrieval.placement,
  }


def check_loaded(
    what: str, asked: Mapping[str, object], loaded: Mapping[str, object]
) -> None:
  """Refuses what was not loaded, or otherwise.

  Args:
    what: the first field names, in words.
    asked: values of a drafter's fields.
    loaded: of the same fields.

  Raises:
    UserError: Naming the first field that differs.
  """
  first, *others = asked
  if asked[first] != loaded[first]:
    raise UserError(
        f'the {what} {asked[first]!r} is not loaded; name it when the model is '
        'loaded.'
    )
  for field in others:
    if asked[field] != loaded[field]:
      raise UserError(
          f'config.drafter.{field} is {asked[field]!r}, but the {what} '
          f'{asked[first]!r} is loaded with {loaded[field]!r}; set it to that, '
          'or load the model with the other.'
      )


def check_table(
    drafter: DrafterConfig, loaded: DrafterConfig, table: DeviceTable | None
) -> None:
  """Refuses a drafter whose bigram table is not loaded, or has too few paths.

  Args:
    drafter: that is asked for.
    loaded: that the model was opened for.
    table: that was opened for it.

  Raises:
    UserError: Naming the table, or the field to change.
  """
  if not drafter.uses_table:
    return
  check_loaded(
      'bigram table', {'table': drafter.table}, {'table': loaded.table}
  )
  if table is not None and drafter.shape == 'tree':
    bigram_config.check_nodes(
        num_nodes=drafter.num_draft_tokens,
        levels=drafter.levels,
        num_successors=table.num_successors,
        table=drafter.table,
    )


def make_engine(
    drafter: DrafterConfig,
    step: Autoregressive | Speculative,
    weights: Weights,
    store: DeviceStore | None,
) -> Engine:
  """Returns the engine of a drafter, which may draft on the host.

  Args:
    drafter: as the user named it.
    step: its round.
    weights: those it takes.
    store: of host arrays, for one that drafts on the host.
  """
  if drafter.is_plain or not drafter.asks_host:
    return Engine(step, weights)
  retrieval = step.drafter
  return HostEngine(
      dataclasses.replace(step, drafter=given.in_place_of(retrieval)),
      weights,
      retrieval.on_host(store),
  )
