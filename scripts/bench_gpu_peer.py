"""Times transformers' plain `generate` with random weights of a given shape.

Started by bench_gpu.py under the peer's own interpreter, before jax takes the
device's memory. Writes one JSON object a batch to stdout, as soon as it has it:

  {"batch": B, "tokens_per_s": ..., "versions": {...}}
  {"batch": B, "error": WHY}

The pass over the prompt brings a text's first token, which is left out: the
time of n tokens less that of one, over n - 1. In ours that pass brings none, so
that all n are counted, over the time after it.
"""

import argparse
import json
import os
import statistics
import sys
import time

import torch
import transformers

_REPEATS = 3


def make_model(
    shape: dict[str, object], *, dtype: str, device: str
) -> transformers.PreTrainedModel:
  """Returns a Llama with weights that were drawn on the device.

  Args:
    shape: fields of transformers' LlamaConfig.
    dtype: of its weights.
    device: 'cuda' or 'cpu'.
  """
  # A Llama's own would end a text whose weights happen to draw it.
  config = transformers.LlamaConfig(
      **shape, bos_token_id=None, eos_token_id=None
  )
  before = torch.get_default_dtype()
  torch.set_default_dtype(getattr(torch, dtype))
  try:
    with torch.device(device):
      model = transformers.LlamaForCausalLM(config).eval()
  finally:
    torch.set_default_dtype(before)
  return model


@torch.inference_mode()
def seconds(
    model: transformers.PreTrainedModel,
    ids_BT: torch.Tensor,
    settings: transformers.GenerationConfig,
) -> float:
  """Returns the seconds of one call of generate.

  Args:
    model: takes the settings for its own.
    ids_BT: int, the prompts.
    settings: with max_new_tokens and without an end-of-text token.

  Raises:
    RuntimeError: If the texts are not as long as they should be.
  """
  # generate fills what is None in its settings from the model's own.
  model.generation_config = settings
  if ids_BT.is_cuda:
    torch.cuda.synchronize()
  started = time.perf_counter()
  out_BT = model.generate(
      ids_BT,
      attention_mask=torch.ones_like(ids_BT),
      generation_config=settings,
  )
  if ids_BT.is_cuda:
    torch.cuda.synchronize()
  took_s = time.perf_counter() - started
  num_new = out_BT.shape[1] - ids_BT.shape[1]
  if num_new != settings.max_new_tokens:
    raise RuntimeError(
        f'generate brought {num_new} tokens instead of '
        f'{settings.max_new_tokens}'
    )
  return took_s


def tokens_per_s(
    model: transformers.PreTrainedModel,
    ids_BT: torch.Tensor,
    *,
    num_tokens: int,
    temperature: float,
) -> float:
  """Returns the tokens of all rows a second after the first, a median."""
  how = {'do_sample': False}
  if temperature:
    # top_k is 50 where nothing is said.
    how = {'do_sample': True, 'temperature': temperature, 'top_k': 0}
  one, all_of_them = (
      transformers.GenerationConfig(
          max_new_tokens=num,
          min_new_tokens=None,
          eos_token_id=None,
          pad_token_id=0,
          **how,
      )
      for num in (1, num_tokens)
  )
  seconds(model, ids_BT, one)
  seconds(model, ids_BT, all_of_them)
  found = [
      seconds(model, ids_BT, all_of_them) - seconds(model, ids_BT, one)
      for _ in range(_REPEATS)
  ]
  return len(ids_BT) * (num_tokens - 1) / statistics.median(found)


def main() -> None:
  """Measures batch after batch."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--shape', type=json.loads, required=True)
  parser.add_argument('--dtype', required=True)
  parser.add_argument('--device', choices=('cuda', 'cpu'), required=True)
  parser.add_argument('--prompt-len', type=int, required=True)
  parser.add_argument('--batches', type=json.loads, required=True)
  parser.add_argument('--num-tokens', type=int, required=True)
  parser.add_argument('--temperature', type=float, required=True)
  args = parser.parse_args()
  # What a library prints must not end up between the answers.
  answers = os.fdopen(os.dup(sys.stdout.fileno()), 'w')
  os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
  transformers.logging.set_verbosity_error()
  if args.device == 'cuda' and not torch.cuda.is_available():
    raise SystemExit('torch sees no GPU')
  model = make_model(args.shape, dtype=args.dtype, device=args.device)
  torch.manual_seed(0)
  size = (max(args.batches), args.prompt_len)
  ids_BT = torch.randint(model.config.vocab_size, size, device=args.device)
  versions = {
      'torch': torch.__version__,
      'transformers': transformers.__version__,
  }
  for batch in args.batches:
    try:
      rate = tokens_per_s(
          model,
          ids_BT[:batch],
          num_tokens=args.num_tokens,
          temperature=args.temperature,
      )
    except RuntimeError as error:
      # Most often out of memory; the next batch may need less.
      lines = str(error).strip().splitlines() or [type(error).__name__]
      found = {'batch': batch, 'error': lines[0]}
    else:
      found = {'batch': batch, 'tokens_per_s': rate, 'versions': versions}
    print(json.dumps(found), file=answers, flush=True)


if __name__ == '__main__':
  main()
