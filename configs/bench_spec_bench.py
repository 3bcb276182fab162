"""Which kinds of text does drafting make faster?

  python -m speculative.run --config=configs/bench_spec_bench.py \\
    --workdir=DIR --config.data.prompts=question.jsonl

Spec-Bench's question.jsonl, greedy. One of its six groups with
--config.data.group=mt_bench, translation, summarization, qa, math_reasoning or
rag. Plain decoding of SmolLM2 against look-up with its trained draft, 40
prompts. Variants:

  :tiny  a random model of a few thousand weights, prompts of our own
"""

from ml_collections import config_dict

from configs import benchmarks

_VARIANTS = benchmarks.VARIANTS


def get_config(variant: str = 'full') -> config_dict.ConfigDict:
  """Returns the config of a variant."""
  return benchmarks.get_benchmark('spec_bench', variant)
