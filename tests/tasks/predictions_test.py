import json

from speculative.bench.predict import Acceptance
from speculative.bench.predict import Best
from speculative.bench.predict import Times
from speculative.drafting.config import DrafterConfig
from speculative.tasks import predictions


def _times(num_draft_tokens: int) -> Times:
  return Times(
      num_draft_tokens=num_draft_tokens,
      plain_ms=10.0,
      pass_ms=[9.0] * 9,
      propose_ms=0.1,
      round_ms=10.0,
  )


def _acceptance(rate: float, num_draft_tokens: int) -> Acceptance:
  return Acceptance(
      rate=rate,
      by_position=[rate] * num_draft_tokens,
      tokens_per_round=1.0,
      num_prompts=2,
      spread=None,
  )


def test_the_best_length_is_that_of_the_same_drafter():
  settings = [
      DrafterConfig('lookup', num_draft_tokens=2),
      DrafterConfig('lookup', max_ngram=8, num_draft_tokens=8),
      DrafterConfig('lookup', num_draft_tokens=4),
  ]
  rates = [0.5, 0.0, 0.5]
  best = predictions.best_of(
      settings,
      [_times(s.num_draft_tokens) for s in settings],
      [
          _acceptance(rate, s.num_draft_tokens)
          for s, rate in zip(settings, rates, strict=True)
      ],
  )
  # What drafts nothing right is not worth a token, whatever others get.
  assert [b.num_draft_tokens for b in best] == [4, 0, 4]
  assert [b.most for b in best] == [4, 8, 4]


def test_what_was_foreseen_comes_back_from_json():
  foreseen = predictions.Foreseen(
      times=[_times(2)],
      acceptance=[_acceptance(0.1 + 0.2, 2)],
      best=[Best(num_draft_tokens=1, speedup=1.5, most=2)],
      num_timed=3,
  )
  assert (
      predictions.from_json(json.loads(json.dumps(foreseen.as_json())))
      == foreseen
  )
