"""From a DrafterConfig to the drafter."""

from speculative.decoding.drafter import Drafter
from speculative.decoding.loop import Model
from speculative.drafting.config import DrafterConfig
from speculative.drafting.hidden_lm import HiddenLm
from speculative.drafting.hybrid import Hybrid
from speculative.drafting.lm import Lm
from speculative.drafting.lookup import Lookup
from speculative.drafting.retrieval import Retrieval
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
  """
  J = config.num_draft_tokens
  if config.kind == 'retrieval':
    return Retrieval(
        J, config.retrieval, config.shape, placement or Placement()
    )
  if not config.uses_model:
    return Lookup(J, max_ngram=config.max_ngram, min_ngram=config.min_ngram)
  if isinstance(model, DraftModel) and model.config.inputs == 'hidden':
    chain = HiddenLm(model, J, vocab_size)
  else:
    # In rounds that were looked up the draft may fall behind by all of one.
    num_behind = J + 1 if config.kind == 'hybrid' else 2
    chain = Lm(model, J, vocab_size, num_behind)
  if config.kind == 'lm':
    return chain
  lookup = Lookup(J, max_ngram=config.max_ngram, min_ngram=config.hybrid_ngram)
  return Hybrid(lookup, chain)
