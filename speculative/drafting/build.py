"""From a DrafterConfig to the drafter."""

from speculative.decoding.drafter import Drafter
from speculative.decoding.loop import Model
from speculative.drafting.beam import Beam
from speculative.drafting.config import DrafterConfig
from speculative.drafting.hidden_lm import HiddenLm
from speculative.drafting.hybrid import Hybrid
from speculative.drafting.hybrid import HybridTree
from speculative.drafting.lm import Lm
from speculative.drafting.lookup import Lookup
from speculative.drafting.retrieval import Retrieval
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
  # No more than the levels of a tree are kept, but all of a chain of the text.
  A = config.levels if config.drafts_tree and config.kind == 'lm' else J
  if config.kind == 'retrieval':
    return Retrieval(
        J, config.retrieval, config.shape, placement or Placement()
    )
  if not config.uses_model:
    return Lookup(J, max_ngram=config.max_ngram, min_ngram=config.min_ngram)
  if config.shape == 'drawn_tree':
    return _drawn_tree(config, model, vocab_size)
  if isinstance(model, DraftModel) and model.config.inputs == 'hidden':
    chain = HiddenLm(model, A, vocab_size)
  else:
    # After rounds that were looked up, and after those over a tree, of which
    # slots are not kept, the draft may be behind by all of one.
    keeps = config.kind == 'lm' and not config.drafts_tree
    chain = Lm(model, A, vocab_size, 2 if keeps else A + 1)
  if config.drafts_tree:
    _check_width(config, chain.head.size)
    chain = Beam(chain, J, levels=config.levels, width=config.width)
  if config.kind == 'lm':
    return chain
  lookup = Lookup(J, max_ngram=config.max_ngram, min_ngram=config.hybrid_ngram)
  return (HybridTree if config.drafts_tree else Hybrid)(lookup, chain)


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
