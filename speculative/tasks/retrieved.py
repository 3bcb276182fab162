"""Result keys of drafters that search text: what they find, what it costs."""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses

from speculative.bench import metrics
from speculative.bench import queries
from speculative.decoding import engine as engine_lib
from speculative.decoding.generation import Generation
from speculative.decoding.loop import Step
from speculative.drafting import text as text_lib
from speculative.drafting.config import DrafterConfig
from speculative.drafting.retrieval import Retrieval
from speculative.retrieval.device_store import DeviceStore
from speculative.retrieval.sharded import ShardedStore
from speculative.tasks import common


def keys(
    prepared: common.Prepared,
    drafter: DrafterConfig,
    runs: Sequence[Generation],
    *,
    once: Callable[[Callable[[], float]], float],
) -> dict[str, object]:
  """Returns the retrieval/* keys of a setting.

  Args:
    prepared: the run.
    drafter: the setting; of a kind that retrieves nothing there are no keys.
    runs: of it, one a batch.
    once: returns what a search took when it was timed before, else what the
      function that it is given finds.
  """
  if drafter.is_plain or not drafter.uses_retrieval:
    return {}
  settings, store = drafter.retrieval, prepared.model.store
  if drafter.kind == 'hybrid':
    # Shorter matches leave the round to the model.
    settings = dataclasses.replace(settings, min_ngram=drafter.hybrid_ngram)
  texts = _rounds(prepared, runs)
  lengths_R = queries.matched_lengths(settings, store, texts)
  found = metrics.matched(lengths_R, settings.max_ngram)
  if settings.uses_store:
    # As its builder counts them, separators included.
    found['datastore/tokens'] = sum(len(s.low_N) for s in store.shards)
  engine = prepared.model.engine(drafter)
  searcher, params = engine.step.drafter, engine.weights.drafter
  if drafter.uses_model:
    searcher, params = searcher.text, text_lib.store_of(params)
  on_device = (DeviceStore, ShardedStore) if settings.uses_store else object
  if isinstance(searcher, Retrieval) and isinstance(params, on_device):
    found['retrieval/query_ms'] = once(
        lambda: queries.query_ms(
            searcher,
            params,
            texts,
            slots=_slots(prepared, engine.step),
            placement=engine.step.model.placement,
        )
    )
    # A query is for one row, and a cascade makes several in a round.
    if len(prepared.batches[0]) == 1 and drafter.kind != 'cascade':
      round_ms = 1e3 * sum(g.decode_s for g in runs)
      round_ms /= max(sum(g.num_rounds for g in runs), 1)
      share = found['retrieval/query_ms'] / round_ms
      found['retrieval/share_of_round'] = share
  return found


def _rounds(
    prepared: common.Prepared, runs: Sequence[Generation]
) -> list[queries.Rounds]:
  """Returns every text with its lengths when rounds began."""
  return [
      ([*prompt, *new], [len(prompt) + int(start) for start in starts])
      for batch, generation in zip(prepared.batches, runs, strict=True)
      for prompt, new, starts in zip(
          batch, generation.token_ids, generation.round_starts, strict=True
      )
  ]


def _slots(prepared: common.Prepared, step: Step) -> list[int]:
  """Returns S of the buffer that every text was decoded in."""
  return [
      engine_lib.cache_slots(
          step,
          prompt_len=max(map(len, batch)),
          max_new_tokens=prepared.decode.max_new_tokens,
          max_seq_len=prepared.decode.max_seq_len,
      )
      for batch in prepared.batches
      for _ in batch
  ]


def sentences(row: dict) -> list[str]:
  """Returns in one line what a setting found, of others none.

  Args:
    row: with `keys`.
  """
  if 'retrieval/matched_len' not in row:
    return []
  said = (
      f'{row["row/name"]}: the longest match of a round has '
      f'{row["retrieval/matched_len"]:.1f} tokens'
  )
  if 'retrieval/query_ms' in row:
    said += f'; a search takes {row["retrieval/query_ms"]:.2f} ms'
  if 'retrieval/share_of_round' in row:
    said += f', {100 * row["retrieval/share_of_round"]:.1f} % of a round'
  return [f'{said}.']
