"""Can one trained layer draft for SmolLM2-135M-Instruct?

  python -m speculative.run --config=configs/draft_smollm2.py --workdir=DIR \\
    --config.train.store=STORE

Trains a draft of one layer that reads the target's last hidden state and shares
its embedding and 8,192 rows of its head; DIR/draft is the draft. The same
command goes on with a run that was stopped. Variants:

  :benchmark  plain decoding against look-up with the draft of the package, on
              the first 40 of data.prompts, predicted from 40 others
  :tiny       ten steps for a random model of a few thousand weights
"""

from ml_collections import config_dict

from configs import common

_VARIANTS = ('full', 'benchmark', 'tiny')


def get_config(variant: str = 'full') -> config_dict.ConfigDict:
  """Returns the config of a variant."""
  if variant not in _VARIANTS:
    raise ValueError(f'variant {variant!r} is not one of {_VARIANTS}.')
  config = common.get_config()
  config.task = 'train_draft'
  config.target.model = common.SMOLLM2
  # The last of the target's 30 layers.
  config.train.init = 'target'
  config.train.from_layers = (29,)
  if variant == 'benchmark':
    config.task = 'benchmark'
    common.use_smollm2_draft(config)
    config.data.num_prompts = 40
    config.bench.calibration_prompts = 40
  if variant == 'tiny':
    config.target.model = 'random://tiny'
    config.train.store = 'builtin'
    config.train.from_layers = (1,)
    config.train.head_size = 64
    config.train.num_steps = 10
    config.train.batch_size = 2
    config.train.seq_len = 32
    config.train.warmup_steps = 2
    config.train.hold_out_every = 4
    config.train.eval_every = 5
    config.train.eval_batches = 2
    config.train.log_every = 1
  return config
