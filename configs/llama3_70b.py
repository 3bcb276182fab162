"""Which draft pays for Llama 3 70B on a slice of 16 TPU v5p?

  python -m speculative.run --config=configs/llama3_70b.py --workdir=DIR

Needs libtpu (`pip install 'speculative[tpu]'`), no TPU. The latency of a
collective is an assumption here (`plan.collective_latency_us`). Variants:

  full   the 8B of the same family as draft: 32 layers
  :wide  a draft of 8 layers, wider than it is deep, to be trained
  :tiny  shapes that compile in a moment, for 8 CPU devices
"""

from ml_collections import config_dict

from configs import common

_VARIANTS = ('full', 'wide', 'tiny')


def _llama3(
    num_layers: int, num_heads: int, mlp_dim: int
) -> config_dict.ConfigDict:
  """Returns shapes with heads of 128 and 8 key/value heads."""
  return config_dict.ConfigDict(
      {
          'vocab_size': 128_256,
          'num_layers': num_layers,
          'model_dim': 128 * num_heads,
          'num_heads': num_heads,
          'num_kv_heads': 8,
          'head_dim': 128,
          'mlp_dim': mlp_dim,
          'head': 'untied',
      }
  )


def get_config(variant: str = 'full') -> config_dict.ConfigDict:
  """Returns the config of a variant."""
  if variant not in _VARIANTS:
    raise ValueError(f'variant {variant!r} is not one of {_VARIANTS}.')
  config = common.get_config()
  config.unlock()
  config.task = 'plan'
  config.target.dtype = 'bfloat16'
  config.drafter.kind = 'lm'
  config.plan.target = _llama3(num_layers=80, num_heads=64, mlp_dim=28_672)
  config.plan.draft = _llama3(num_layers=32, num_heads=32, mlp_dim=14_336)
  if variant == 'wide':
    config.plan.draft = _llama3(num_layers=8, num_heads=48, mlp_dim=21_504)
  config.plan.topology = 'v5p:2x2x4'
  config.mesh.model = 16
  config.plan.context = 8192
  if variant == 'tiny':
    config.target.dtype = 'float32'
    for shapes, num_layers in ((config.plan.target, 2), (config.plan.draft, 1)):
      shapes.num_layers = num_layers
      shapes.model_dim = 32
      shapes.num_heads = 8
      shapes.num_kv_heads = 2
      shapes.head_dim = 4
      shapes.mlp_dim = 64
      shapes.vocab_size = 512
    config.plan.topology = 'cpu:8'
    config.mesh.model = 8
    config.plan.prompt_len = 16
    config.plan.context = 32
  return config.lock()
