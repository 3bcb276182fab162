"""Does drafting make sums in words faster, and leave them as right?

  python -m speculative.run --config=configs/bench_gsm8k.py --workdir=DIR \\
    --config.data.prompts=test.jsonl

Problems of GSM8K's test.jsonl, greedy; the last number of an answer counts.
Plain decoding of SmolLM2 against look-up with its trained draft, 40 prompts.
Variants:

  :tiny  a random model of a few thousand weights, prompts of our own
"""

from ml_collections import config_dict

from configs import benchmarks

_VARIANTS = benchmarks.VARIANTS


def get_config(variant: str = 'full') -> config_dict.ConfigDict:
  """Returns the config of a variant."""
  return benchmarks.get_benchmark('gsm8k', variant)
