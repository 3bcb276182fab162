"""Is SmolLM2's output still its own, whatever the drafter and the sampler?

  python -m speculative.run --config=configs/verify_smollm2.py --workdir=DIR

Verifies greedy decoding, four samplers and a mixed batch of them, each with
`lookup` and with an `lm` draft made of the target's own first 28 layers (of
30), by token and by block verification. Variants:

  :tiny      the same cases on a random model of a few thousand weights
  :batching  instead of the laws: is a row's output the same alone, in batches
             and in batches of another order? Set --config.data.prompts.
  :rest      trees and chains from the datastore of --config.drafter.store and
             from the text so far, trees beside those of the first 28 layers,
             and trees that these draw; batches of four

`--config.verify.fault=NAME` puts a wrong verifier in place, which should fail;
'unrenormalised_top_p' needs --config.verify.samplers="('T1_p0.5',)", a sampler
that cuts much.
"""

from ml_collections import config_dict

from configs import common

_VARIANTS = ('full', 'tiny', 'batching', 'rest')


def get_config(variant: str = 'full') -> config_dict.ConfigDict:
  """Returns the config of a variant."""
  if variant not in _VARIANTS:
    raise ValueError(f'variant {variant!r} is not one of {_VARIANTS}.')
  config = common.get_config()
  config.task = 'verify'
  config.target.model = common.SMOLLM2
  config.target.dtype = 'float32'
  config.drafter.kind = 'lm'
  config.drafter.model = 'target'
  # With fewer of its 30 layers nearly every drafted token would be refused.
  config.drafter.num_layers = 28
  config.decode.num_draft_tokens = 2
  config.decode.max_new_tokens = 32
  config.decode.batch_size = 6
  config.data.num_prompts = 6
  config.verify.samplers = (
      'greedy',
      'T1',
      'T0.7_p0.9',
      'T0.8_k40_m0.05',
      'penalties',
      'mixed',
  )
  config.verify.drafters = ('lookup', 'lm')
  config.verify.rules = ('token', 'block')
  # A mixed batch has five kinds of rows, each with a fifth of these.
  config.verify.num_samples = 960
  config.verify.num_rows = 120
  if variant == 'batching':
    config.decode.batch_size = 8
    config.data.num_prompts = 50
    config.verify.batching = 'yes'
    config.decode.max_new_tokens = 24
    config.verify.samplers = ('greedy', 'T0.8_k40_m0.05')
    config.verify.rules = ('token',)
    config.verify.num_samples = 0
  if variant == 'rest':
    _use_datastore(config)
  if variant == 'tiny':
    config.target.model = 'random://tiny'
    config.drafter.model = 'random://tiny_draft'
    config.drafter.num_layers = 0
    config.decode.max_new_tokens = 16
    config.verify.num_samples = 4080
    config.verify.num_rows = 2040
  return config


def _use_datastore(config: config_dict.ConfigDict) -> None:
  """Sets what is verified of trees and chains from a datastore."""
  config.drafter.kind = 'hybrid'
  config.drafter.shape = 'tree'
  config.drafter.hybrid_source = 'retrieval'
  config.drafter.levels = 2
  config.drafter.store = 'datastore.store'
  config.decode.num_draft_tokens = 6
  config.decode.batch_size = 4
  config.data.num_prompts = 8
  config.verify.samplers = ('greedy', 'T1', 'T0.8_p0.95', 'mixed')
  config.verify.drafters = (
      'kind=retrieval,num_draft_tokens=15',
      'kind=retrieval,shape=chain,num_draft_tokens=6',
      'hybrid_tokens=10',
      'kind=lm,shape=drawn_tree,widths=(2, 2)',
  )
  config.verify.rules = ('token',)
