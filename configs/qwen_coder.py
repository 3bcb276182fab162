"""How many tokens does a 0.5B draft bring a 1.5B target in one pass?

  python -m speculative.run --config=configs/qwen_coder.py --workdir=DIR \\
    --config.target.model=DIR/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf \\
    --config.drafter.model=DIR/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf \\
    --config.data.prompts=DIR/HumanEval.jsonl.gz

The defaults fetch the published safetensors with the `hub` extra.
Variants:

  :verify  greedy equality with plain decoding (the default task)
  :benchmark  plain against the draft model
  :tiny    a random target and draft, no download
"""

from ml_collections import config_dict

from configs import common

_VARIANTS = ('full', 'verify', 'benchmark', 'tiny')


def get_config(variant: str = 'full') -> config_dict.ConfigDict:
  """Returns the config of a variant."""
  if variant not in _VARIANTS:
    raise ValueError(f'variant {variant!r} is not one of {_VARIANTS}.')
  config = common.get_config()
  config.task = 'benchmark' if variant == 'benchmark' else 'verify'
  config.target.model = 'hf://Qwen/Qwen2.5-Coder-1.5B-Instruct'
  config.target.dtype = 'float32'
  config.drafter.kind = 'lm'
  config.drafter.model = 'hf://Qwen/Qwen2.5-Coder-0.5B-Instruct'
  config.drafter.dtype = 'float32'
  config.decode.num_draft_tokens = 4
  config.decode.max_new_tokens = 64
  config.data.num_prompts = 10
  if variant == 'benchmark':
    config.target.dtype = 'auto'
    config.drafter.dtype = 'auto'
  if variant == 'tiny':
    config.target.model = 'random://tiny'
    config.drafter.model = 'random://tiny_draft'
    config.decode.max_new_tokens = 16
    config.data.num_prompts = 2
  return config
