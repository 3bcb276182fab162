"""How drafts are retrieved from text, before any store is opened."""

import dataclasses

from speculative.decoding import config as decode_config
from speculative.errors import UserError
from speculative.retrieval import device_store
from speculative.retrieval import search
from speculative.retrieval import trie

SOURCES = ('both', 'store', 'context')
SELECTIONS = ('weight', 'random')
MATCHES = ('backoff', 'longest')
PLACEMENTS = ('whole', 'split', 'host')
# Of its fields, as the user types them.
NAME = 'config.drafter.retrieval'
# Rows are sorted in every round.
_MOST = {
    'max_ngram': device_store.MOST_NGRAM,
    'length': 64,
    'num_rows': 4096,
    'context_rows': 1024,
    'context_weight': 1000,
}


def check_ints(config: object, of: str) -> None:
  """Refuses what is no whole number where one is needed.

  Args:
    config: a dataclass.
    of: what it is of, in words.

  Raises:
    UserError: Naming the field.
  """
  for field in dataclasses.fields(config):
    value = getattr(config, field.name)
    if field.type is int and not decode_config.is_int(value):
      raise UserError(
          f'{field.name} of the {of} is {value!r}; it needs to be a whole '
          'number.'
      )


@dataclasses.dataclass(frozen=True)
class RetrievalConfig:
  """How drafts are retrieved from text.

  Attributes:
    sources: 'store', 'context' (the text so far) or 'both'.
    selection: of a tree's nodes, by 'weight', or 'random' (the baseline of the
      ablation in arXiv:2311.08252).
    matches: 'longest' reads what followed the longest known end of the text, as
      the paper does; 'backoff' goes on with shorter ones while rows are left,
      and a row counts twice what one after a token less does.
    max_ngram: longest end of the text that is looked for.
    min_ngram: shortest that drafts anything.
    length: tokens that are read after a match; no path is longer.
    num_rows: matches in the store that are read; of more an evenly spaced
      sample.
    context_rows: matches in the text that are read, the latest.
    context_weight: what one of these counts, where one of the store, after an
      end as long, counts 1.
    placement: of the store, 'whole' on every device, its shards 'split' over
      the mesh's axis model, or on the 'host', which reads of the file what it
      needs.
    buckets: numbers of nodes that passes over smaller trees are compiled for;
      those below num_draft_tokens count.
  """

  sources: str = 'both'
  selection: str = 'weight'
  matches: str = 'backoff'
  max_ngram: int = 16
  min_ngram: int = 1
  length: int = 10
  num_rows: int = 128
  context_rows: int = 16
  context_weight: int = 32
  placement: str = 'whole'
  buckets: tuple[int, ...] = (8, 24)

  def __post_init__(self) -> None:
    check_ints(self, 'retrieval')
    for name, known in (
        ('sources', SOURCES),
        ('selection', SELECTIONS),
        ('matches', MATCHES),
        ('placement', PLACEMENTS),
    ):
      if getattr(self, name) not in known:
        raise UserError(
            f'{NAME}.{name} is {getattr(self, name)!r}; it needs to be '
            f'one of {", ".join(known)}.'
        )
    self._check_buckets()
    for name, most in _MOST.items():
      if not 1 <= getattr(self, name) <= most:
        raise UserError(
            f'{NAME}.{name} is {getattr(self, name)}; it needs to be in '
            f'1 to {most}.'
        )
    if not 1 <= self.min_ngram <= self.max_ngram:
      raise UserError(
          f'{NAME}.min_ngram is {self.min_ngram}; it needs to be in 1 to '
          f'{self.max_ngram}, {NAME}.max_ngram.'
      )
    self._check_weight()

  def _check_buckets(self) -> None:
    buckets = self.buckets
    if isinstance(buckets, list):
      # A setting is looked up by its value.
      buckets = tuple(buckets)
      object.__setattr__(self, 'buckets', buckets)
    if (
        not isinstance(buckets, tuple)
        or not all(decode_config.is_int(n) and n > 0 for n in buckets)
        or list(buckets) != sorted(set(buckets))
    ):
      raise UserError(
          f'{NAME}.buckets is {buckets!r}; it needs to be numbers above '
          '0 in ascending order, such as (8, 24), or ().'
      )

  def _check_weight(self) -> None:
    """Refuses weights that could not all be told apart."""
    of_context = self.context_rows if self.sources != 'store' else 0
    of_store = self.num_rows if self.uses_store else 0
    worth = search.most_worth(self.backs_off)
    weight = worth * (of_context * self.context_weight + of_store)
    most = trie.most_weight(of_context + of_store, self.length)
    if weight > most:
      raise UserError(
          f'{NAME}.context_rows * context_weight + num_rows'
          f'{f", times {worth} for matches=backoff," if worth > 1 else ""} is '
          f'{weight}; with so many rows of length {self.length} it needs to be '
          f'at most {most}, lower one of them.'
      )

  @property
  def backs_off(self) -> bool:
    """Whether shorter ends than the longest are looked up."""
    return self.matches == 'backoff'

  @property
  def uses_store(self) -> bool:
    """Whether a datastore is searched."""
    return self.sources != 'context'
