"""What does SmolLM2 write, for a draft to learn from?

  python -m speculative.run --config=configs/collect_smollm2.py --workdir=DIR \\
    --config.collect.prompts="('mine.jsonl',)" \\
    --config.collect.texts="('code=/usr/lib/python3*/*.py',)" \\
    --config.collect.held_out="('HumanEval.jsonl.gz',)"

Goes on where it was stopped. DIR/store gets the text and the hidden states of
the target, DIR/collect.md says what was left out because it is evaluated.
Variants:

  :tiny  a random model of a few thousand weights, on this file's own text
"""

from ml_collections import config_dict

from configs import common

_VARIANTS = ('full', 'tiny')


def get_config(variant: str = 'full') -> config_dict.ConfigDict:
  """Returns the config of a variant."""
  if variant not in _VARIANTS:
    raise ValueError(f'variant {variant!r} is not one of {_VARIANTS}.')
  config = common.get_config()
  config.task = 'collect'
  config.target.model = common.SMOLLM2
  if variant == 'tiny':
    config.target.model = 'random://tiny'
    config.collect.texts = (__file__,)
    config.collect.held_out = ('none',)
    config.collect.num_tokens = 16
    config.collect.batch_size = 4
    config.collect.shard_documents = 8
  return config
