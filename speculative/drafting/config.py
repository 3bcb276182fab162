"""Which drafter to use, before any model is opened."""

import dataclasses
import itertools
import operator

from speculative.decoding import config as decode_config
from speculative.decoding import verify
from speculative.drafting import bigram_config
from speculative.drafting import retrieval_config
from speculative.drafting.retrieval_config import RetrievalConfig
from speculative.errors import UserError

# No chain this long has ever been accepted; buffers grow with it.
MOST_DRAFT_TOKENS = 256
KINDS = ('none', 'lookup', 'retrieval', 'lm', 'hybrid', 'cascade', 'bigram')
WITH_MODEL = ('lm', 'hybrid', 'cascade')
# Kinds that also draft from text, and what they may draft with there.
WITH_BOTH = ('hybrid', 'cascade')
TEXT_SOURCES = ('lookup', 'retrieval')
SHAPES = ('chain', 'tree', 'drawn_tree')
# Drafters whose law is one-hot: their sampled output is plain decoding's own.
DETERMINISTIC = ('none', 'lookup', 'retrieval', 'bigram')
_RETRIEVAL = retrieval_config.NAME


@dataclasses.dataclass(frozen=True)
class DrafterConfig:
  """A drafter as the user names it.

  Attributes:
    kind: 'none' (plain decoding), 'lookup', 'retrieval' (from a datastore and
      the text so far), 'lm', 'hybrid' (from text where something is found, the
      draft model elsewhere), 'cascade' (text drafts for the draft model, which
      drafts for the target) or 'bigram' (from a table of what follows the last
      token most often).
    model: reference of the draft model, for 'lm', 'hybrid' and 'cascade';
      'target' drafts with the first num_layers layers of the target itself,
      sharing its weights.
    num_layers: layers of the draft model that are used; 0 is all.
    dtype: of the draft model, as `models.precision.choose_draft` takes it; a
      draft that shares the target's weights has the target's.
    shards: devices a layer of the draft model is split over, a divisor of the
      mesh's axis model: 1 holds it whole on every device, 0 is all of them.
    num_draft_tokens: J, tokens drafted a round; 0 is plain decoding.
    max_ngram: for 'lookup', and 'hybrid' and 'cascade' with it, longest match
      looked for.
    min_ngram: for 'lookup', and 'cascade' with it, shortest match that drafts.
    hybrid_source: how 'hybrid' and 'cascade' draft from text, by 'lookup' or
      'retrieval'.
    hybrid_ngram: for 'hybrid', shortest match that is preferred to the model.
    hybrid_tokens: for 'hybrid' of shape 'tree', tokens drafted from text; 0 is
      num_draft_tokens, which the model's tree has.
    cascade_tokens: for 'cascade', most tokens that the draft model is handed to
      read in one pass.
    shape: of what is drafted: a 'chain', or a 'tree' of num_draft_tokens nodes.
      A model draws its chain and offers a tree of its likeliest tokens; for
      'lm' it may also draw a 'drawn_tree'. A retrieved chain goes to the
      heaviest child each time.
    widths: of a drawn tree, children of every node of each level.
    levels: of a tree of likeliest tokens, a model's or a table's.
    width: nodes of a level that the model reads; children it offers of each.
    rule: how sampled drafts are verified, 'token' by token or as a 'block'.
    store: path of the datastore, for 'retrieval' with it.
    retrieval: for 'retrieval', as kind or as hybrid_source; its own max_ngram
      and min_ngram count there, but for the hybrid_ngram of 'hybrid'.
    table: path of the bigram table, for 'bigram'; any kind may have one, so
      that a change of it can be 'bigram'.
    table_fallback: for 'bigram', what follows tokens without successors in the
      table: the most 'frequent' tokens, or 'none'.
  """

  kind: str = 'none'
  model: str = ''
  num_layers: int = 0
  dtype: str = 'auto'
  shards: int = 0
  num_draft_tokens: int = 4
  max_ngram: int = 4
  min_ngram: int = 1
  hybrid_source: str = 'lookup'
  hybrid_ngram: int = 3
  hybrid_tokens: int = 0
  cascade_tokens: int = 4
  shape: str = 'chain'
  widths: tuple[int, ...] = ()
  levels: int = 4
  width: int = 3
  rule: str = 'token'
  store: str = ''
  retrieval: RetrievalConfig = RetrievalConfig()
  table: str = ''
  table_fallback: str = 'frequent'

  def __post_init__(self) -> None:
    retrieval_config.check_ints(self, 'drafter')
    if self.kind not in KINDS:
      raise UserError(
          f'config.drafter.kind is {self.kind!r}; it needs to be one of '
          f'{", ".join(KINDS)}.'
      )
    if self.rule not in verify.RULES:
      raise UserError(
          f'config.decode.verification is {self.rule!r}; it needs to be one of '
          f'{", ".join(verify.RULES)}.'
      )
    if self.num_draft_tokens < 0 or self.num_draft_tokens > MOST_DRAFT_TOKENS:
      raise UserError(
          f'num_draft_tokens needs to be >= 0 and <= {MOST_DRAFT_TOKENS}, got '
          f'{self.num_draft_tokens}; set config.decode.num_draft_tokens.'
      )
    if self.num_layers < 0:
      raise UserError(
          f'config.drafter.num_layers is {self.num_layers}; it needs to be >= '
          '0 (0 is all layers).'
      )
    if self.shards < 0:
      raise UserError(
          f'config.drafter.shards is {self.shards}; it needs to be >= 0 (0 is '
          'as the target).'
      )
    if self.shards and self.shares_target:
      raise UserError(
          f'config.drafter.shards is {self.shards}, but a draft made of the '
          "target's own layers lies where they do; leave it at 0."
      )
    if self.uses_model and not self.model:
      raise UserError(
          f'config.drafter.kind is {self.kind!r} and needs a draft model; set '
          'config.drafter.model to its reference.'
      )
    if not self.uses_model and self.model:
      raise UserError(
          f'config.drafter.model is {self.model!r}, but kind {self.kind!r} '
          f'uses none; set config.drafter.kind to {" or ".join(WITH_MODEL)}, '
          'or leave the model out.'
      )
    if not 1 <= self.min_ngram <= self.max_ngram:
      raise UserError(
          'lookup needs 1 <= min_ngram <= max_ngram, got min_ngram='
          f'{self.min_ngram}, max_ngram={self.max_ngram}; set '
          'config.drafter.min_ngram and config.drafter.max_ngram.'
      )
    self._check_both()
    self._check_shape()
    self._check_store()
    bigram_config.check(
        kind=self.kind, table=self.table, fallback=self.table_fallback
    )

  def _check_both(self) -> None:
    """Refuses text that cannot draft beside a model."""
    if self.hybrid_source not in TEXT_SOURCES:
      raise UserError(
          f'config.drafter.hybrid_source is {self.hybrid_source!r}; it needs '
          f'to be one of {", ".join(TEXT_SOURCES)}.'
      )
    most, name = self.max_ngram, 'config.drafter.max_ngram'
    if self.uses_retrieval:
      most, name = self.retrieval.max_ngram, f'{_RETRIEVAL}.max_ngram'
    if self.kind == 'hybrid' and not 1 <= self.hybrid_ngram <= most:
      raise UserError(
          f'config.drafter.hybrid_ngram is {self.hybrid_ngram}; it needs to be '
          f'in 1 to {most}, {name}.'
      )
    if not 0 <= self.hybrid_tokens <= MOST_DRAFT_TOKENS:
      raise UserError(
          f'config.drafter.hybrid_tokens is {self.hybrid_tokens}; it needs to '
          f'be in 0 to {MOST_DRAFT_TOKENS} (0 is num_draft_tokens).'
      )
    if self.hybrid_tokens and not (
        self.kind == 'hybrid' and self.shape == 'tree'
    ):
      raise UserError(
          f'config.drafter.hybrid_tokens is {self.hybrid_tokens}, which only '
          "kind 'hybrid' of shape 'tree' has; set them, or leave it at 0."
      )
    if not 1 <= self.cascade_tokens <= MOST_DRAFT_TOKENS:
      raise UserError(
          f'config.drafter.cascade_tokens is {self.cascade_tokens}; it needs '
          f'to be in 1 to {MOST_DRAFT_TOKENS}.'
      )

  def _check_store(self) -> None:
    """Refuses a store that is missing or unused, and chains too long for it."""
    if self.uses_store and not self.store:
      raise UserError(
          f'config.drafter.kind is {self.kind!r} and needs a datastore; set '
          f'config.drafter.store to its path, or {_RETRIEVAL}.sources to '
          "'context'."
      )
    if self.store and not self.uses_store:
      field = 'hybrid_source' if self.kind in WITH_BOTH else 'kind'
      raise UserError(
          f'config.drafter.store is {self.store!r}, but the drafter uses none; '
          f"set config.drafter.{field} to 'retrieval' and "
          f"{_RETRIEVAL}.sources to 'both' or 'store', or leave the store out."
      )
    if self.asks_host and self.kind != 'retrieval':
      raise UserError(
          f"{_RETRIEVAL}.placement is 'host', but kind {self.kind!r} drafts on "
          "the device; set it to 'whole' or 'split', or config.drafter.kind to "
          "'retrieval'."
      )
    num = self.num_draft_tokens
    given = f'num_draft_tokens is {num}'
    if self.kind == 'cascade':
      given = f'config.drafter.cascade_tokens is {self.cascade_tokens}'
      num = self.num_guessed
    length = self.retrieval.length
    if self.uses_retrieval and self.shape == 'chain' and num > length:
      raise UserError(
          f'{given}, but only {length} tokens are read after a match; '
          f'set {_RETRIEVAL}.length to at least {num}.'
      )

  def check_depth(self, depth: int) -> None:
    """Refuses to look for longer matches than the store is sorted by.

    Args:
      depth: of the datastore.

    Raises:
      UserError: If they are longer.
    """
    max_ngram = self.retrieval.max_ngram
    if max_ngram > depth:
      raise UserError(
          f'{_RETRIEVAL}.max_ngram is {max_ngram}, but {self.store} is sorted '
          f'by {depth} tokens; lower it.'
      )

  def _check_shape(self) -> None:
    if self.shape not in SHAPES:
      raise UserError(
          f'config.drafter.shape is {self.shape!r}; it needs to be one of '
          f'{", ".join(SHAPES)}.'
      )
    if self.kind == 'lookup' and self.shape == 'tree':
      raise UserError(
          "config.drafter.shape is 'tree', but look-up drafts chains; set "
          "config.drafter.kind to 'retrieval' for a tree, or leave it out."
      )
    if self.kind == 'cascade' and self.shape == 'tree':
      raise UserError(
          "config.drafter.shape is 'tree', but a cascade drafts chains; set "
          "config.drafter.kind to 'hybrid' for a tree, or leave it out."
      )
    self._check_widths()
    for name in ('levels', 'width'):
      if getattr(self, name) < 1:
        raise UserError(
            f'config.drafter.{name} is {getattr(self, name)}; it needs to be '
            '>= 1.'
        )
    if not self.drafts_tree or self.is_plain:
      return
    M, W, most = self.num_draft_tokens, self.width, self.width
    most += (self.levels - 1) * W * W
    if M > most or M < self.levels:
      raise UserError(
          f'a tree of {self.levels} levels and width {W} has {self.levels} to '
          f'{most} nodes, got num_draft_tokens={M}; change config.drafter.'
          'levels, config.drafter.width or config.decode.num_draft_tokens.'
      )
    if W > M:
      raise UserError(
          f'config.drafter.width is {W}, but the tree has {M} nodes, '
          'config.decode.num_draft_tokens; a level needs no more than these.'
      )

  def _check_widths(self) -> None:
    widths = self.widths
    if isinstance(widths, list):
      # A setting is looked up by its value.
      widths = tuple(widths)
      object.__setattr__(self, 'widths', widths)
    if not isinstance(widths, tuple) or not all(
        decode_config.is_int(n) and n > 0 for n in widths
    ):
      raise UserError(
          f'config.drafter.widths is {widths!r}; it needs to be numbers above '
          '0, such as (3, 2), or ().'
      )
    if bool(self.widths) != (self.shape == 'drawn_tree'):
      raise UserError(
          f'config.drafter.widths is {self.widths} where config.drafter.shape '
          f"is {self.shape!r}; a 'drawn_tree' needs them, nothing else does."
      )
    if not self.widths:
      return
    if self.kind != 'lm':
      raise UserError(
          f"config.drafter.shape is 'drawn_tree', which kind {self.kind!r} "
          "does not draft; set config.drafter.kind to 'lm'."
      )
    nodes = sum(itertools.accumulate(self.widths, operator.mul))
    if self.num_draft_tokens not in (0, nodes):
      raise UserError(
          f'config.drafter.widths {self.widths} make {nodes} nodes, got '
          f'num_draft_tokens={self.num_draft_tokens}; set config.decode.'
          'num_draft_tokens to that.'
      )

  @property
  def uses_store(self) -> bool:
    """Whether there is a datastore."""
    return self.uses_retrieval and self.retrieval.uses_store

  @property
  def uses_table(self) -> bool:
    """Whether drafts come from a bigram table."""
    return self.kind == 'bigram'

  @property
  def uses_retrieval(self) -> bool:
    """Whether drafts are retrieved, from a datastore or the text so far."""
    if self.kind in WITH_BOTH:
      return self.hybrid_source == 'retrieval'
    return self.kind == 'retrieval'

  @property
  def num_guessed(self) -> int:
    """Tokens that text hands the draft model of a cascade at once."""
    # A guess of the last token is never needed: a pass draws one more.
    return min(self.cascade_tokens, max(self.num_draft_tokens - 1, 1))

  @property
  def label(self) -> str:
    """The kind, and what it drafts from text with: 'hybrid(retrieval)'."""
    if self.kind in WITH_BOTH and self.uses_retrieval:
      return f'{self.kind}({self.hybrid_source})'
    return self.kind

  @property
  def asks_host(self) -> bool:
    """Whether the host drafts, between rounds."""
    return self.uses_store and self.retrieval.placement == 'host'

  @property
  def drafts_tree(self) -> bool:
    """Whether a model drafts a tree of its likeliest tokens."""
    return self.uses_model and self.shape == 'tree'

  @property
  def uses_model(self) -> bool:
    """Whether there is a draft model."""
    return self.kind in WITH_MODEL

  @property
  def shares_target(self) -> bool:
    """Whether the draft is made of the target's own layers."""
    return self.uses_model and self.model == 'target'

  @property
  def is_plain(self) -> bool:
    """Whether nothing is drafted."""
    return self.kind == 'none' or self.num_draft_tokens == 0

  @property
  def is_deterministic(self) -> bool:
    """Whether sampled output is plain decoding's token for token."""
    return self.is_plain or self.kind in DETERMINISTIC or self.drafts_tree


def named(drafter: str | DrafterConfig) -> DrafterConfig:
  """Returns a DrafterConfig for what a caller names a drafter by.

  Args:
    drafter: a kind, with default settings, or a DrafterConfig.

  Returns:
    The DrafterConfig.

  Raises:
    UserError: If it is neither.
  """
  if isinstance(drafter, str):
    return DrafterConfig(kind=drafter)
  if not isinstance(drafter, DrafterConfig):
    raise UserError(
        f'drafter is {drafter!r}; it needs to be a kind or a DrafterConfig.'
    )
  return drafter
