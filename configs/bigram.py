"""What does a draft bring that costs nothing: what follows the last token most?

  python -m speculative.run --config=configs/bigram.py:build --workdir=DIR \\
    --config.datastore.held_out="('HumanEval.jsonl.gz',)"

DIR/bigram.table gets the pairs of Python's standard library, DIR/datastore.md
says what was left out because it is evaluated. With
`--config.datastore.texts="()" --config.datastore.stores="('STORE',)"` it is
counted from what the model itself wrote (task `collect`).
Variants:

  :build      the table of Python's standard library; so does `full`
  :benchmark  plain decoding against look-up, and chains and trees from the
              table that drafter.table names, on the first 40 of data.prompts
  :tiny       a table of rest_code.py, for a random model of a few thousand
              weights
"""

from ml_collections import config_dict

from configs import rest_code

_VARIANTS = ('full', 'build', 'benchmark', 'tiny')


def get_config(variant: str = 'full') -> config_dict.ConfigDict:
  """Returns the config of a variant."""
  if variant not in _VARIANTS:
    raise ValueError(f'variant {variant!r} is not one of {_VARIANTS}.')
  config = rest_code.of_corpus('tiny' if variant == 'tiny' else 'build')
  config.datastore.mode = 'bigram'
  if variant == 'benchmark':
    rest_code.use_benchmark(config)
    config.drafter.kind = 'bigram'
    config.drafter.table = 'bigram.table'
    config.decode.num_draft_tokens = 2
    config.bench.settings = (
        'name=look-up 4,kind=lookup,num_draft_tokens=4',
        'name=chain 1,num_draft_tokens=1',
        'name=chain 2,num_draft_tokens=2',
        'name=chain 4,num_draft_tokens=4',
        'name=tree 3,shape=tree,levels=2,num_draft_tokens=3',
        'name=tree 7,shape=tree,levels=3,num_draft_tokens=7',
    )
  return config
