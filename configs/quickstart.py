"""Does speculation say the same as plain decoding, on a laptop?

  bash scripts/quickstart.sh --prompt "Write a Python class for a stack."
  python -m speculative.run --config=configs/quickstart.py --workdir=DIR

Streams an answer of SmolLM2-135M-Instruct and ends with a table of plain and
speculative decoding: look-up where the text repeats itself, elsewhere a tree of
the draft that comes with the package. Variants:

  :benchmark  plain against the drafter over prompts (data.prompts)
  :verify     token-for-token equality with plain decoding, in float32
  :lookup     benchmark of look-up alone, chains of four tokens
  :tiny       a random model of a few thousand weights, no download
"""

from ml_collections import config_dict

from configs import common

_VARIANTS = ('full', 'benchmark', 'verify', 'lookup', 'tiny')


def get_config(variant: str = 'full') -> config_dict.ConfigDict:
  """Returns the config of a variant."""
  if variant not in _VARIANTS:
    raise ValueError(f'variant {variant!r} is not one of {_VARIANTS}.')
  config = common.get_config()
  config.target.model = common.SMOLLM2
  if variant in ('lookup', 'tiny'):
    config.drafter.kind = 'lookup'
  else:
    common.use_smollm2_draft(config)
  config.generate.compare = 'yes'
  if variant == 'benchmark':
    config.task = 'benchmark'
  if variant == 'verify':
    config.task = 'verify'
    config.target.dtype = 'float32'
  if variant == 'lookup':
    config.task = 'benchmark'
  if variant == 'tiny':
    config.target.model = 'random://tiny'
    config.decode.max_new_tokens = 16
  return config
