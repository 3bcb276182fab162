"""Does drafting make summaries faster, and leave them as good?

  python -m speculative.run --config=configs/bench_summarise.py --workdir=DIR \\
    --config.data.prompts=FILE

JSONL of article and summary, such as XSum or CNN/DailyMail, one solved article
before each, the paper's nucleus of 0.8; scored by ROUGE. Plain decoding of
SmolLM2 against look-up with its trained draft, 40 prompts. Variants:

  :tiny  a random model of a few thousand weights, prompts of our own
"""

from ml_collections import config_dict

from configs import benchmarks

_VARIANTS = benchmarks.VARIANTS


def get_config(variant: str = 'full') -> config_dict.ConfigDict:
  """Returns the config of a variant."""
  return benchmarks.get_benchmark('summarise', variant)
