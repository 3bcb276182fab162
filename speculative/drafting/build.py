"""From a DrafterConfig to the drafter."""

import dataclasses

from speculative.decoding import drafter as drafter_lib
from speculative.decoding.drafter import Drafter
from speculative.decoding.loop import Model
from speculative.drafting.beam import Beam
from speculative.drafting.bigram import Bigram
from speculative.drafting.cascade import Cascade
from speculative.drafting.config import DrafterConfig
from speculative.drafting.hidden_lm import HiddenLm
from speculative.drafting.hybrid import Hybrid
from speculative.drafting.hybrid import HybridTree
from speculative.drafting.lm import Lm
from speculative.drafting.lookup import Lookup
from speculative.drafting.retrieval import Retrieval
from speculative.drafting.text import TextDrafter
from speculative.drafting.tree_lm import TreeLm
from speculative.errors import UserError
from speculative.models.draft import DraftModel
from speculative.sharding import Placement


def build(
    config: DrafterConfig,
    *,
    model: Model | None,
    vocab_size: int,
    placement: Placement | None = None,
) -> Drafter:
  """Returns the drafter a config names.

  Args:
    config: of any kind but 'none'.
    model: the draft model, where the kind uses one.
    vocab_size: V of the target.
    placement: of the target; absent, nothing is said about devices.

  Raises:
    UserError: If the draft model cannot draft what the config asks for.
  """
  J = config.num_draft_tokens
  if config.uses_table:
    return Bigram(
        J, config.shape, levels=config.levels, fallback=config.table_fallback
    )
  if not config.uses_model:
    return _text(config, J, placement)
  if config.shape == 'drawn_tree':
    return _drawn_tree(config, model, vocab_size)
  text, depth = None, J
  if config.kind == 'hybrid':
    text = _text(config, config.hybrid_tokens or J, placement)
  if config.drafts_tree:
    # Of a tree no more than its levels are kept, or than text is deep.
    depth = max(config.levels, drafter_lib.max_depth(text) if text else 0)
  if isinstance(model, DraftModel) and model.config.inputs == 'hidden':
    _check_cascade(config)
    chain = HiddenLm(model, depth, vocab_size)
  else:
    # After rounds whose draft was found, and after those over a tree, of which
    # slots are not kept, the draft may be behind by all of one.
    keeps = config.kind != 'hybrid' and not config.drafts_tree
    chain = Lm(model, depth, vocab_size, 2 if keeps else depth + 1)
  if config.kind == 'cascade':
    return Cascade(_text(config, config.num_guessed, placement), chain)
  if config.drafts_tree:
    _check_width(config, chain.head.size)
    chain = Beam(chain, J, levels=config.levels, width=config.width)
  if config.kind == 'lm':
    return chain
  return (HybridTree if config.drafts_tree else Hybrid)(text, chain)


def _text(
    config: DrafterConfig, num_draft_tokens: int, placement: Placement | None
) -> TextDrafter:
  """Returns what drafts from text, alone or beside a model."""
  is_hybrid = config.kind == 'hybrid'
  if not config.uses_retrieval:
    return Lookup(
        num_draft_tokens,
        max_ngram=config.max_ngram,
        min_ngram=config.hybrid_ngram if is_hybrid else config.min_ngram,
    )
  settings = config.retrieval
  if is_hybrid:
    settings = dataclasses.replace(settings, min_ngram=config.hybrid_ngram)
  return Retrieval(
      num_draft_tokens, settings, config.shape, placement or Placement()
  )


def _check_cascade(config: DrafterConfig) -> None:
  if config.kind == 'cascade':
    raise UserError(
        f'config.drafter.model is {config.model!r}, which reads its own output '
        'token by token and cannot check what text hands it; set '
        "config.drafter.kind to 'hybrid'."
    )


def _check_width(config: DrafterConfig, head_size: int) -> None:
  if config.width > head_size:
    raise UserError(
        f'config.drafter.width is {config.width}, but config.drafter.model '
        f'{config.model!r} can draft only {head_size} tokens; lower it.'
    )


def _drawn_tree(config: DrafterConfig, model: Model, vocab_size: int) -> TreeLm:
  if isinstance(model, DraftModel):
    raise UserError(
        f'config.drafter.model is {config.model!r}, which leans on its target '
        "and draws no trees; set config.drafter.shape to 'tree' or 'chain'."
    )
  return TreeLm(model, config.widths, vocab_size)
