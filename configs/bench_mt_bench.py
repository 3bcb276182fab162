"""How much faster are the turns of a conversation?

  python -m speculative.run --config=configs/bench_mt_bench.py --workdir=DIR \\
    --config.data.prompts=question.jsonl

First turns of MT-Bench's question.jsonl, greedy; the second ones, after the
model's own answers, with --config.data.turn=second. Plain decoding of SmolLM2
against look-up with its trained draft, 40 prompts. Variants:

  :tiny  a random model of a few thousand weights, prompts of our own
"""

from ml_collections import config_dict

from configs import benchmarks

_VARIANTS = benchmarks.VARIANTS


def get_config(variant: str = 'full') -> config_dict.ConfigDict:
  """Returns the config of a variant."""
  return benchmarks.get_benchmark('mt_bench', variant)
