"""Does drafting make translation faster, and leave it as good?

  python -m speculative.run --config=configs/bench_translate.py --workdir=DIR \\
    --config.data.prompts=FILE

JSONL of source and target, such as WMT's English to German, greedy; scored by
BLEU. Plain decoding of SmolLM2 against look-up with its trained draft, 40
prompts. Variants:

  :tiny  a random model of a few thousand weights, prompts of our own
"""

from ml_collections import config_dict

from configs import benchmarks

_VARIANTS = benchmarks.VARIANTS


def get_config(variant: str = 'full') -> config_dict.ConfigDict:
  """Returns the config of a variant."""
  return benchmarks.get_benchmark('translate', variant)
