"""Trains the pair in tests/data/tiny_pair: a target and its draft, both tiny.

  PYTHONPATH=. python scripts/train_tiny_pair.py [--out=DIR] [--workdir=DIR]

1. The target: three layers, a token a byte, trained on the next byte of the
   modules of the running Python's library (PSF licence; the weights are made
   from that text, no text is kept).
2. Its text: task `collect` has it go on from beginnings in the package asyncio,
   which it was not trained on.
3. The draft: task `train_draft`, one layer that reads the target's hidden state
   and drafts the 64 most frequent bytes.

OUT gets target/, draft/ and a README.md with losses and held-out alpha. About
five minutes of one CPU core; needs the extra `train`. A part that is there is
not made again: remove OUT and WORKDIR to start over, as in a fresh checkout,
which has OUT alone.
"""

import argparse
import json
import pathlib
import platform
import shutil
import subprocess
import sys
import sysconfig

from absl import logging
import jax
from jax import numpy as jnp
import numpy as np
import optax
import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import pre_tokenizers

from speculative import tokenizer as tokenizer_lib
from speculative.checkpoints import orbax_dir
from speculative.models import params as params_lib
from speculative.models import precision
from speculative.models.config import TransformerConfig
from speculative.models.params import Params
from speculative.models.transformer import Transformer
from speculative.train import step as step_lib
from speculative.train.config import TrainConfig

_END = '</s>'
_TARGET = TransformerConfig(
    vocab_size=257,
    num_layers=3,
    model_dim=96,
    num_heads=4,
    num_kv_heads=2,
    head_dim=24,
    mlp_dim=128,
    max_position=512,
)
_TRAIN = TrainConfig(
    store='builtin',
    num_steps=1200,
    batch_size=16,
    seq_len=128,
    learning_rate=4e-3,
)
_LOG_EVERY = 200
_HELD_OUT_ROWS = 64

# What differs from the defaults of the two tasks.
_COLLECT = {
    'num_documents': 768,
    'num_tokens': 160,
    'max_prompt_tokens': 128,
    'batch_size': 64,
    'shard_documents': 256,
    'held_out': 'none',
}
_DRAFT = {
    'init': 'target',
    'from_layers': '(2,)',
    'head_size': 64,
    'num_steps': 600,
    'batch_size': 8,
    'seq_len': 128,
    'learning_rate': 2e-3,
    'hold_out_every': 20,
    'eval_every': 300,
    'log_every': 100,
    'checkpoint_minutes': 1.0,
    'keep': 1,
    'plot': 'no',
}
_SHOWN = (
    ('alpha_heldout', 'α of the first drafted byte'),
    ('alpha_heldout_2', 'α of the second'),
    ('alpha_heldout_3', 'α of the third'),
    ('agreement_heldout', 'same likeliest byte, at least'),
    ('tokens_per_round_heldout', 'tokens per round'),
)
_README = """\
# A target and its draft, both tiny

Made by `scripts/train_tiny_pair.py`, so that tests meet a draft that is right
often and wrong often; of no other use.

- `target/`: {target_size:,} weights in bfloat16, {num_layers} layers, a token
  a byte; trained on pieces of the {num_bytes:,} bytes of the modules of
  Python {python}'s library, which has the PSF licence. No text of it is here.
- `draft/`: one layer that reads the target's hidden state, a head of
  {head_size} bytes; trained on {num_tokens:,} tokens that the target wrote.

jax {jax}, {num_steps} and {num_draft_steps} updates.

| update of the target | loss, nats a byte | on held-out text |
|---|---|---|
{losses}
| draft, on held-out text of the target at T = 0, 0.8 and 1 | |
|---|---|
{alphas}"""


def write_tokenizer(path: pathlib.Path) -> None:
  """Writes a byte-level BPE without merges: a token a byte, and an end.

  Args:
    path: directory, made if need be.
  """
  path.mkdir(parents=True, exist_ok=True)
  alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
  vocab = {piece: i for i, piece in enumerate(alphabet)}
  core = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
  core.pre_tokenizer = pre_tokenizers.ByteLevel(
      add_prefix_space=False, use_regex=False
  )
  core.decoder = decoders.ByteLevel()
  core.add_special_tokens([_END])
  core.save(str(path / 'tokenizer.json'), pretty=False)
  settings = {'add_bos_token': False, 'eos_token': _END}
  (path / 'tokenizer_config.json').write_text(json.dumps(settings) + '\n')


def read_text(path: pathlib.Path, files: list[pathlib.Path]) -> np.ndarray:
  """Returns the tokens of files, each with an end.

  Args:
    path: of the tokenizer.
    files: in UTF-8.
  """
  tokenizer = tokenizer_lib.load(path)
  parts = []
  for file in files:
    text = file.read_text(encoding='utf-8', errors='replace')
    parts += [tokenizer.encode(text, special='literal'), tokenizer.eos_ids]
  return np.concatenate([np.asarray(part, np.int32) for part in parts])


def _cut(
    text: np.ndarray, config: TrainConfig, *, seed: int, num_rows: int
) -> np.ndarray:
  """Returns rows from random places, each with the token that follows it."""
  rng = np.random.default_rng(seed)
  starts_B = rng.integers(0, len(text) - config.seq_len, num_rows)
  return text[starts_B[:, None] + np.arange(config.seq_len + 1)[None, :]]


def _as_saved(params: Params, specs: Params, dtype: jnp.dtype) -> Params:
  """Returns params with matrices of a dtype; vectors stay float32."""
  return jax.tree.map(
      lambda x, spec: x.astype(dtype) if spec.kind == 'matrix' else x,
      params,
      specs,
  )


def train(
    text: np.ndarray,
    held_out: np.ndarray,
    model: TransformerConfig,
    config: TrainConfig,
) -> tuple[Params, list[tuple[int, float, float]]]:
  """Trains a model on the next token.

  Args:
    text: tokens.
    held_out: tokens to measure on.
    model: its shapes.
    config: batches, rates and steps of it are looked at.

  Returns:
    The params in float32, and (step, loss since the last one, held-out loss).
  """
  transformer = Transformer(model, precision.for_training(config.dtype))
  specs = params_lib.declare(model)
  optimizer = step_lib.optimizer(config, specs)

  def loss_of(params, rows_BT):
    params = _as_saved(params, specs, transformer.precision.param_dtype)
    B, T = rows_BT.shape[0], rows_BT.shape[1] - 1
    cache = transformer.init_cache(B, T)
    hidden_BTD = transformer.forward(params, rows_BT[:, :-1], cache).hidden_BTD
    return optax.softmax_cross_entropy_with_integer_labels(
        transformer.logits(params, hidden_BTD), rows_BT[:, 1:]
    ).mean()

  @jax.jit
  def update(params, state, rows_BT):
    loss, gradient = jax.value_and_grad(loss_of)(params, rows_BT)
    change, state = optimizer.update(gradient, state, params)
    return optax.apply_updates(params, change), state, loss

  measure = jax.jit(loss_of)
  params = params_lib.init(jax.random.key(0), model)
  state = optimizer.init(params)
  measured = _cut(held_out, config, seed=0, num_rows=_HELD_OUT_ROWS)
  history, recent = [], []
  for step in range(1, config.num_steps + 1):
    batch = _cut(text, config, seed=step, num_rows=config.batch_size)
    params, state, loss = update(params, state, batch)
    recent.append(float(loss))
    if step % _LOG_EVERY == 0 or step == config.num_steps:
      held = float(measure(params, measured))
      history.append((step, float(np.mean(recent)), held))
      logging.info('step %d: loss %.3f, held out %.3f', *history[-1])
      recent = []
  return params, history


def _make_target(
    path: pathlib.Path, log: pathlib.Path, library: pathlib.Path
) -> None:
  write_tokenizer(path)
  text = read_text(path, sorted(library.glob('*.py')))
  held_out = read_text(path, sorted(library.glob('asyncio/*.py')))
  params, history = train(text, held_out, _TARGET, _TRAIN)
  specs = params_lib.declare(_TARGET)
  saved = _as_saved(params, specs, jnp.dtype('bfloat16'))
  log.parent.mkdir(parents=True, exist_ok=True)
  log.write_text(json.dumps({'bytes': len(text), 'history': history}))
  orbax_dir.save(path, saved, _TARGET)


def _run(config: str, workdir: pathlib.Path, fields: dict) -> dict:
  """Runs a task where it has not been run, and returns its results."""
  results = workdir / 'results.json'
  if not results.exists():
    subprocess.run(
        [sys.executable, '-m', 'speculative.run', f'--config={config}']
        + [f'--workdir={workdir}']
        + [f'--config.{name}={value}' for name, value in fields.items()],
        check=True,
    )
  return json.loads(results.read_text())


def _forget_place(path: pathlib.Path) -> None:
  """Removes a note that nobody reads: it names a directory of this machine."""
  (path / 'params' / 'commit_success.txt').unlink(missing_ok=True)


def _log(target: dict, text: dict, draft: dict) -> str:
  losses = [f'| {n} | {a:.3f} | {b:.3f} |\n' for n, a, b in target['history']]
  alphas = [
      f'| {what} | {draft[f"train/{name}"]:.3f} |\n' for name, what in _SHOWN
  ]
  return _README.format(
      target_size=params_lib.num_params(_TARGET),
      num_layers=_TARGET.num_layers,
      num_bytes=target['bytes'],
      python='.'.join(platform.python_version_tuple()[:2]),
      head_size=_DRAFT['head_size'],
      num_tokens=text['collect/tokens'],
      jax=jax.__version__,
      num_steps=_TRAIN.num_steps,
      num_draft_steps=_DRAFT['num_steps'],
      losses=''.join(losses),
      alphas=''.join(alphas),
  )


def make(out: pathlib.Path, workdir: pathlib.Path) -> None:
  """Makes what is missing.

  Args:
    out: directory of the pair.
    workdir: of text and checkpoints.
  """
  library = pathlib.Path(sysconfig.get_paths()['stdlib'])
  target, log = out / 'target', workdir / 'target.json'
  is_made = (target / orbax_dir.CONFIG_NAME).exists()
  if is_made and not log.exists():
    # A checkout has a target, but no log of its training.
    sys.exit(
        f'{target} is there, but not {log}, which OUT/README.md is written '
        'from; remove --out, or name another one.'
    )
  if not is_made:
    _make_target(target, log, library)
  named = {'target.model': str(target)}
  text = _run(
      'configs/collect_smollm2.py',
      workdir / 'text',
      named
      | {'collect.texts': f'code={library}/asyncio/*.py'}
      | {f'collect.{name}': x for name, x in _COLLECT.items()},
  )
  draft = _run(
      'configs/draft_smollm2.py',
      workdir / 'draft',
      named
      | {'train.store': str(workdir / 'text' / 'store')}
      | {f'train.{name}': x for name, x in _DRAFT.items()},
  )
  shutil.rmtree(out / 'draft', ignore_errors=True)
  shutil.copytree(workdir / 'draft' / 'draft', out / 'draft')
  for made in (target, out / 'draft'):
    _forget_place(made)
  (out / 'README.md').write_text(
      _log(json.loads(log.read_text()), text, draft), encoding='utf-8'
  )


def main() -> None:
  """Reads the arguments."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--out', default='tests/data/tiny_pair')
  parser.add_argument('--workdir', default='workdir/tiny_pair')
  args = parser.parse_args()
  logging.set_verbosity(logging.INFO)
  make(pathlib.Path(args.out), pathlib.Path(args.workdir))


if __name__ == '__main__':
  main()
