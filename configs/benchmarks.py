"""A benchmark of every task set, with the settings of its paper.

configs/bench_*.py are these; this file is none to run.
"""

from ml_collections import config_dict

from configs import common

# How papers decode each task set, and what they show before a prompt. Lengths
# of mbpp and translate are ours.
DECODING = {
    # Chen et al. 2023, arXiv:2302.01318; the ends are of Chen et al. 2021.
    'humaneval': {
        'decode.temperature': 0.8,
        'decode.top_p': 0.95,
        'decode.max_new_tokens': 512,
        'decode.stop_strings': ('\nclass', '\ndef', '\n#', '\nif', '\nprint'),
    },
    # Austin et al. 2021, arXiv:2108.07732: tasks 11 to 510 after three others.
    'mbpp': {
        'decode.temperature': 0.5,
        'decode.max_new_tokens': 256,
        'decode.stop_strings': ('[DONE]',),
        'data.group': 'test',
        'data.num_shots': 3,
    },
    # Xia et al. 2024 (Spec-Bench), arXiv:2401.07851, for three of them.
    'mt_bench': {'decode.max_new_tokens': 1024},
    'gsm8k': {'decode.max_new_tokens': 1024},
    'spec_bench': {'decode.max_new_tokens': 1024},
    # Chen et al. 2023, XSum: a nucleus of 0.8, after one solved article.
    'summarise': {
        'decode.temperature': 1.0,
        'decode.top_p': 0.8,
        'decode.max_new_tokens': 128,
        'decode.stop_strings': ('\nArticle:',),
        'data.num_shots': 1,
    },
    # Leviathan et al. 2022, arXiv:2211.17192, En-De: also at temperature 1.
    'translate': {'decode.max_new_tokens': 128},
}
VARIANTS = ('full', 'tiny')


def get_benchmark(task_set: str, variant: str) -> config_dict.ConfigDict:
  """Returns a benchmark of SmolLM2 and its draft on the prompts of a task set.

  Args:
    task_set: a key of DECODING.
    variant: 'full' with the paper's settings, or 'tiny' with a random model and
      a few prompts of our own.

  Returns:
    The config.

  Raises:
    ValueError: If the variant is neither.
  """
  if variant not in VARIANTS:
    raise ValueError(f'variant {variant!r} is not one of {VARIANTS}.')
  config = common.get_config()
  config.task = 'benchmark'
  config.target.model = common.SMOLLM2
  config.data.task_set = task_set
  config.update_from_flattened_dict(DECODING[task_set])
  config.data.num_prompts = 40
  config.bench.repeats = 1
  # Groups of Spec-Bench come in turn as it is.
  config.data.stride = 1 if task_set == 'spec_bench' else 2
  if variant == 'full':
    common.use_smollm2_draft(config)
    return config
  config.target.model = 'random://tiny'
  config.drafter.kind = 'lookup'
  config.decode.max_new_tokens = 16
  config.data.num_shots = 0
  config.data.num_prompts = 2
  config.bench.calibration_prompts = 0
  return config
