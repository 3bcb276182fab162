"""Does drafting make small Python tasks faster, and their answers as good?

  python -m speculative.run --config=configs/bench_mbpp.py --workdir=DIR \\
    --config.data.prompts=mbpp.jsonl

Tasks 11 to 510 of mbpp.jsonl, three solved ones before each.
--config.bench.run_code=yes runs what the model wrote for pass@1. Plain decoding
of SmolLM2 against look-up with its trained draft, 40 prompts. Variants:

  :tiny  a random model of a few thousand weights, prompts of our own
"""

from ml_collections import config_dict

from configs import benchmarks

_VARIANTS = benchmarks.VARIANTS


def get_config(variant: str = 'full') -> config_dict.ConfigDict:
  """Returns the config of a variant."""
  return benchmarks.get_benchmark('mbpp', variant)
