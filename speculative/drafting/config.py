"""Which drafter to use, before any model is opened."""

import dataclasses

from speculative.errors import UserError

# No chain this long has ever been accepted; buffers grow with it.
MOST_DRAFT_TOKENS = 256
KINDS = ('none', 'lookup', 'lm')
# Drafters whose law is one-hot: their sampled output is plain decoding's own.
DETERMINISTIC = ('none', 'lookup')


@dataclasses.dataclass(frozen=True)
class DrafterConfig:
  """A drafter as the user names it.

  Attributes:
    kind: 'none' (plain decoding), 'lookup' or 'lm'.
    model: reference of the draft model; for 'lm' only.
    dtype: of the draft model, as `models.precision.choose` takes it.
    num_draft_tokens: J, tokens drafted a round; 0 is plain decoding.
    max_ngram: for 'lookup', longest match looked for.
    min_ngram: for 'lookup', shortest match that drafts.
  """

  kind: str = 'none'
  model: str = ''
  dtype: str = 'auto'
  num_draft_tokens: int = 4
  max_ngram: int = 4
  min_ngram: int = 1

  def __post_init__(self) -> None:
    if self.kind not in KINDS:
      raise UserError(
          f'config.drafter.kind is {self.kind!r}; it needs to be one of '
          f'{", ".join(KINDS)}.'
      )
    if self.num_draft_tokens < 0 or self.num_draft_tokens > MOST_DRAFT_TOKENS:
      raise UserError(
          f'num_draft_tokens needs to be >= 0 and <= {MOST_DRAFT_TOKENS}, got '
          f'{self.num_draft_tokens}; set config.decode.num_draft_tokens.'
      )
    if self.kind == 'lm' and not self.model:
      raise UserError(
          "config.drafter.kind is 'lm' and needs a draft model; set "
          'config.drafter.model to its reference.'
      )
    if self.kind != 'lm' and self.model:
      raise UserError(
          f'config.drafter.model is {self.model!r}, but kind {self.kind!r} '
          "uses none; set config.drafter.kind to 'lm' or leave the model out."
      )
    if not 1 <= self.min_ngram <= self.max_ngram:
      raise UserError(
          'lookup needs 1 <= min_ngram <= max_ngram, got min_ngram='
          f'{self.min_ngram}, max_ngram={self.max_ngram}; set '
          'config.drafter.min_ngram and config.drafter.max_ngram.'
      )

  @property
  def is_plain(self) -> bool:
    """Whether nothing is drafted."""
    return self.kind == 'none' or self.num_draft_tokens == 0

  @property
  def is_deterministic(self) -> bool:
    """Whether sampled output is plain decoding's token for token."""
    return self.is_plain or self.kind in DETERMINISTIC
