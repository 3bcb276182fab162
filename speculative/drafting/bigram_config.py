"""What a user may ask of drafts from a bigram table."""

from speculative.errors import UserError

FALLBACKS = ('frequent', 'none')
TABLE, FALLBACK = 'config.drafter.table', 'config.drafter.table_fallback'


def check(*, kind: str, table: str, fallback: str) -> None:
  """Refuses a drafter that lacks its table.

  Args:
    kind: of the drafter.
    table: path of the table, '' for none.
    fallback: what follows tokens that it does not know.

  Raises:
    UserError: Naming the field.
  """
  if fallback not in FALLBACKS:
    raise UserError(
        f'{FALLBACK} is {fallback!r}; it needs to be one of '
        f'{", ".join(FALLBACKS)}.'
    )
  if kind == 'bigram' and not table:
    raise UserError(
        f"config.drafter.kind is 'bigram' and needs a table; set {TABLE} to "
        "its path (config.datastore.mode='bigram' of task build_datastore "
        'makes one).'
    )


def check_nodes(
    *, num_nodes: int, levels: int, num_successors: int, table: str
) -> None:
  """Refuses a tree of more nodes than there can be.

  Args:
    num_nodes: M.
    levels: of the tree.
    num_successors: W, of a token of the table.
    table: its path.

  Raises:
    UserError: If there are more.
  """
  # Levels beyond as many as nodes add none that could be drafted.
  deepest = min(levels, num_nodes)
  most = sum(num_successors**level for level in range(1, deepest + 1))
  if num_nodes > most:
    raise UserError(
        f'a tree of {levels} levels has at most {most} nodes where {table} has '
        f'{num_successors} successors a token, got num_draft_tokens='
        f'{num_nodes}; change config.drafter.levels or '
        'config.decode.num_draft_tokens, or build the table with more '
        'config.datastore.successors.'
    )
