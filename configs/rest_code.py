"""What does a corpus of code bring, where drafts are looked up in it?

  python -m speculative.run --config=configs/rest_code.py:build --workdir=DIR \\
    --config.datastore.held_out="('HumanEval.jsonl.gz',)"

DIR/datastore.store gets Python's standard library, DIR/datastore.md says what
was left out because it is evaluated. Minutes.
Variants:

  :build      the datastore of Python's standard library; so does `full`
  :benchmark  plain decoding against look-up, and trees and a chain from the
              datastore that drafter.store names, from the text so far and from
              both, on the first 40 of data.prompts
  :tiny       a datastore of this file, for a random model of a few thousand
              weights
"""

from ml_collections import config_dict

from configs import common

_VARIANTS = ('full', 'build', 'benchmark', 'tiny')


def get_config(variant: str = 'full') -> config_dict.ConfigDict:
  """Returns the config of a variant."""
  if variant not in _VARIANTS:
    raise ValueError(f'variant {variant!r} is not one of {_VARIANTS}.')
  config = of_corpus(variant)
  if variant == 'benchmark':
    use_benchmark(config)
    config.drafter.kind = 'retrieval'
    config.drafter.shape = 'tree'
    config.drafter.store = 'datastore.store'
    config.decode.num_draft_tokens = 24
    # Passes over up to 8 rows cost this CPU little more than one over 2.
    config.bench.settings = (
        'name=look-up 4,kind=lookup,num_draft_tokens=4',
        'name=datastore 7,retrieval.sources=store,num_draft_tokens=7',
        'name=text 7,retrieval.sources=context,num_draft_tokens=7',
        'name=both 7,num_draft_tokens=7',
        'name=both 24,num_draft_tokens=24',
        'name=chain of both 7,shape=chain,num_draft_tokens=7',
    )
  return config


def of_corpus(variant: str) -> config_dict.ConfigDict:
  """Returns what builds of Python's standard library, or of this file.

  Args:
    variant: 'tiny' for the latter.
  """
  config = common.get_config()
  config.task = 'build_datastore'
  config.target.model = common.SMOLLM2
  config.datastore.texts = ('python:stdlib',)
  if variant == 'tiny':
    config.target.model = 'random://tiny'
    config.datastore.texts = (__file__,)
    config.datastore.held_out = ('none',)
    config.datastore.num_processes = 1
    config.datastore.shard_tokens = 1000
  return config


def use_benchmark(config: config_dict.ConfigDict) -> None:
  """Measures 40 prompts, predicted from 40 others.

  Args:
    config: changed in place.
  """
  config.task = 'benchmark'
  config.data.num_prompts = 40
  config.bench.calibration_prompts = 40
